"""Tables as kubectl writes them: columns padded with spaces, nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_PADDING = 3
_MIN_WIDTH = 6
_LINE_BREAK = re.compile(r"[\n\r\f\v]")


class Table:
    """Writes rows under one header. Widths only grow, so rows that come later stay aligned where they can."""

    def __init__(self, header: Sequence[str], *, show_header: bool = True) -> None:
        self._header = tuple(header)
        self._pending_header = show_header
        self._widths = [0] * len(header)

    def repeat_header(self) -> None:
        """Makes the next rows start with the header again."""
        self._pending_header = True

    def text(self, rows: Iterable[Sequence[str]]) -> str:
        """The lines of the rows; of the header too, if it was not written yet and there are rows."""
        lines = [tuple(map(printable_cell, row)) for row in rows]
        if lines and self._pending_header:
            lines.insert(0, self._header)
            self._pending_header = False
        for line in lines:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, line, strict=True)]
        return "".join(map(self._line, lines))

    def _line(self, line: Sequence[str]) -> str:
        padded = (
            cell.ljust(max(width + _PADDING, _MIN_WIDTH)) for cell, width in zip(line[:-1], self._widths, strict=False)
        )
        return "".join(padded) + line[-1] + "\n"


def printable_cell(cell: str) -> str:
    """A cell as it may stand in a row.

    Never empty, so that every row has the same number of fields; of several lines only the first; nothing that a
    terminal would obey.
    """
    first, *rest = _LINE_BREAK.split(cell, maxsplit=1)
    shown = first.replace("\x1b", "^[").replace("\t", " ")
    return f"{shown}..." if rest else shown or "<none>"
