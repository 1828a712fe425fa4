"""Postings: for each value of one index, which rows have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pyroaring import BitMap

SMALL = 16
"""From this many rows on, a value has a bitmap.

Below it a tuple is smaller: most values of a Kubernetes index (an owner's UID, a pod's template hash) have one to ten
rows, and an empty bitmap alone takes some 200 bytes."""

_Rows = int | tuple[int, ...] | BitMap


class Postings:
    """Maps values to sets of row IDs; a value without rows is not kept.

    One row is kept as the number itself, a few as a tuple, many as a bitmap that shrinks back at half of `SMALL`, so
    that a value at the limit does not swing between the two.
    """

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[str, _Rows] = {}

    @classmethod
    def of(cls, rows_by_value: Mapping[str, list[int]]) -> Postings:
        """Takes in values with the rows that have them, each row once and at least one."""
        postings = cls()
        postings._rows = {value: _compact(rows) for value, rows in rows_by_value.items()}
        return postings

    def add(self, value: str, row: int) -> None:
        """Says that a row, which did not have the value, has it."""
        rows = self._rows.get(value)
        if rows is None:
            self._rows[value] = row
        elif isinstance(rows, BitMap):
            rows.add(row)
        else:
            several = (rows, row) if isinstance(rows, int) else (*rows, row)
            self._rows[value] = several if len(several) < SMALL else BitMap(several)

    def add_all(self, value: str, more: list[int]) -> None:
        """Says that rows, none of which had the value, have it; each once, and at least one."""
        rows = self._rows.get(value)
        if rows is None:
            self._rows[value] = _compact(more)
        elif isinstance(rows, BitMap):
            rows.update(more)
        else:
            self._rows[value] = _compact([rows, *more] if isinstance(rows, int) else [*rows, *more])

    def discard(self, value: str, row: int) -> None:
        """Says that a row does not have the value, whether or not it had."""
        rows = self._rows.get(value)
        if isinstance(rows, int):
            if rows == row:
                del self._rows[value]
        elif isinstance(rows, BitMap):
            rows.discard(row)
            if len(rows) <= SMALL // 2:
                self._rows[value] = tuple(rows)
        elif rows is not None:
            left = tuple(other for other in rows if other != row)
            self._rows[value] = left if len(left) > 1 else left[0]

    def discard_everywhere(self, row: int) -> None:
        """Says that a row has no value at all; looks at every value."""
        for value in list(self._rows):
            self.discard(value, row)

    def rows(self, value: str) -> BitMap:
        """The rows that have a value; not to be changed."""
        return _bitmap(self._rows.get(value, ()))

    def rows_of_any(self, values: Iterable[str]) -> BitMap:
        """The rows that have one of the values; not to be changed."""
        found = [_bitmap(rows) for value in values if (rows := self._rows.get(value)) is not None]
        return BitMap.union(*found) if found else BitMap()

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _compact(rows: list[int]) -> _Rows:
    if len(rows) >= SMALL:
        return BitMap(rows)
    return rows[0] if len(rows) == 1 else tuple(rows)


def _bitmap(rows: _Rows) -> BitMap:
    if isinstance(rows, BitMap):
        return rows
    return BitMap((rows,)) if isinstance(rows, int) else BitMap(rows)
