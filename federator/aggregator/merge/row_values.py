"""Row values: which values each row has, and which rows each value."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import numpy as np
from pyroaring import BitMap

from federator.aggregator.merge.axis import Column
from federator.aggregator.merge.growing import GrowingColumn
from federator.aggregator.merge.postings import Postings
from federator.aggregator.merge.texts import Texts

_MORE_BYTES = 150
"""Of a row with several values."""


class RowValues:
    """Values by row in a column, and rows by value in postings.

    The column knows what it has of each row, so a row can be taken out whatever it would be given by now.

    Attributes:
        entries: pairs of a value and a row.
    """

    __slots__ = ("_codes", "_more", "_postings", "_texts", "entries")

    def __init__(self) -> None:
        self._codes: GrowingColumn[np.uint32] = GrowingColumn("I", np.uint32)
        self._more: dict[int, tuple[int, ...]] = {}  # of rows with several values, all but the first
        self._texts = Texts()
        self._postings = Postings()
        self.entries = 0

    def put(self, row: int, values: Iterable[str]) -> None:
        """Gives a row values, in place of those it had; each counts once."""
        once = [*dict.fromkeys(values)]
        if once == self.of(row):  # most changes of an object change nothing of this
            return
        self.discard(row)
        if once:
            self._codes.reserve(row + 1)
            first, *more = [self._texts.use(value) for value in once]
            self._codes.items[row] = first
            if more:
                self._more[row] = tuple(more)
            for value in once:
                self._postings.add(value, row)
            self.entries += len(once)

    def discard(self, row: int) -> None:
        """Takes all values from a row, whether or not it has any."""
        codes = self._codes_of(row)
        if codes:
            self._more.pop(row, None)
            self._codes.items[row] = 0
            for code in codes:
                self._postings.discard(self._texts[code], row)
                self._texts.leave(code)
            self.entries -= len(codes)

    def of(self, row: int) -> list[str]:
        """The values of a row."""
        return [self._texts[code] for code in self._codes_of(row)]

    def rows(self, value: str) -> BitMap:
        """The rows that have a value; not to be changed."""
        return self._postings.rows(value)

    def rows_of_any(self, values: Iterable[str]) -> BitMap:
        """The rows that have one of some values; not to be changed."""
        return self._postings.rows_of_any(values)

    def column(self, rows: int) -> Column:
        """Returns the values of all rows below a number."""
        self._codes.reserve(rows)
        more_rows = array("I", [row for row, codes in self._more.items() for _ in codes])
        more_codes = array("I", [code for codes in self._more.values() for code in codes])
        more = (np.frombuffer(more_rows, np.uint32), np.frombuffer(more_codes, np.uint32)) if more_rows else None
        return Column(self._codes.view()[:rows], self._texts.values(), more)

    def __iter__(self) -> Iterator[str]:
        """The different values."""
        return iter(self._postings)

    def __len__(self) -> int:
        """How many different values there are."""
        return len(self._postings)

    @property
    def memory(self) -> int:
        """Bytes it takes, estimated."""
        return self._codes.memory + self._postings.memory + self._texts.memory + _MORE_BYTES * len(self._more)

    def _codes_of(self, row: int) -> tuple[int, ...]:
        first = self._codes.items[row] if row < len(self._codes.items) else 0
        return (first, *self._more.get(row, ())) if first else ()
