"""Postings: for each value of one index, which rows have it."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

SMALL = 16
"""From this many rows on, a value has a bitmap.

Below it packed numbers are smaller: most values of a Kubernetes index (a pod's template hash, an image) have one to ten
rows, and an empty bitmap alone takes some 200 bytes."""

_Few = int | bytes
_Rows = _Few | BitMap

_VALUE_BYTES = 48
"""Of one row's number, or of a few packed; the text and its place in the table are counted besides."""

_BITMAP_BYTES, _BITMAP_ROW_BYTES = 250, 2
"""Of an empty bitmap, and of each row in it at most."""


class Postings:
    """Maps values to sets of row numbers; a value without rows is not kept.

    One row is kept as the number itself, a few as packed numbers, many as a bitmap that shrinks back at half of
    `SMALL`, so that a value at the limit does not swing between the two.
    """

    __slots__ = ("_bitmap_rows", "_bitmaps", "_rows", "_text_bytes")

    def __init__(self) -> None:
        self._rows: dict[str, _Rows] = {}
        self._text_bytes = 0
        self._bitmaps = 0
        self._bitmap_rows = 0

    @classmethod
    def of(cls, rows_by_value: Mapping[str, Sequence[int]]) -> Postings:
        """Takes in values with the rows that have them, each row once and at least one."""
        postings = cls()
        for value, rows in rows_by_value.items():
            postings.add_all(value, rows)
        return postings

    def add(self, value: str, row: int) -> None:
        """Says that a row, which did not have the value, has it."""
        rows = self._rows.get(value)
        if isinstance(rows, BitMap):
            rows.add(row)
            self._bitmap_rows += 1
        else:
            self.add_all(value, (row,))

    def add_all(self, value: str, more: Sequence[int]) -> None:
        """Says that rows, none of which had the value, have it; each once, and at least one."""
        rows = self._rows.get(value)
        if isinstance(rows, BitMap):
            rows.update(more)
            self._bitmap_rows += len(more)
            return
        if rows is None:
            self._text_bytes += sys.getsizeof(value)
        self._keep(value, more if rows is None else [*_numbers(rows), *more])

    def discard(self, value: str, row: int) -> None:
        """Says that a row does not have the value, whether or not it had."""
        rows = self._rows.get(value)
        if rows is None:
            return
        if isinstance(rows, BitMap):
            if row not in rows:
                return
            rows.discard(row)
            self._bitmap_rows -= 1
            if len(rows) <= SMALL // 2:
                self._bitmaps -= 1
                self._bitmap_rows -= len(rows)
                self._keep(value, list(rows))
            return
        left = [other for other in _numbers(rows) if other != row]
        if left:
            self._keep(value, left)
        else:
            del self._rows[value]
            self._text_bytes -= sys.getsizeof(value)

    def discard_everywhere(self, row: int) -> None:
        """Says that a row has no value at all; looks at every value."""
        for value in list(self._rows):
            self.discard(value, row)

    def rows(self, value: str) -> BitMap:
        """The rows that have a value; not to be changed."""
        return _bitmap(self._rows.get(value, b""))

    def rows_of_any(self, values: Iterable[str]) -> BitMap:
        """The rows that have one of the values; not to be changed."""
        found = [rows for value in values if (rows := self._rows.get(value)) is not None]
        if len(found) == 1:
            return _bitmap(found[0])
        many = [rows for rows in found if isinstance(rows, BitMap)]
        few = BitMap([row for rows in found if not isinstance(rows, BitMap) for row in _numbers(rows)])
        return BitMap.union(few, *many)

    def all_rows(self) -> BitMap:
        """The rows that have any value."""
        return self.rows_of_any(self._rows)

    def codes(self, rows: int) -> tuple[NDArray[np.uint32], list[str]]:
        """Returns, by row number below `rows`, the place of the row's value in a list; 0 where it has none.

        Of several values of a row one is told. The list's first entry stands for none.
        """
        numbers = array("I")
        counts = array("I")
        for posting in self._rows.values():
            if isinstance(posting, int):
                numbers.append(posting)
                counts.append(1)
            else:
                before = len(numbers)
                if isinstance(posting, BitMap):
                    numbers += posting.to_array()
                else:
                    numbers.frombytes(posting)
                counts.append(len(numbers) - before)
        codes = np.zeros(rows, np.uint32)
        codes[np.frombuffer(numbers, np.uint32)] = np.repeat(
            np.arange(1, len(counts) + 1, dtype=np.uint32), np.frombuffer(counts, np.uint32)
        )
        return codes, ["", *self._rows]

    @property
    def memory(self) -> int:
        """Bytes it takes, estimated: nobody walks over a million values to know it better."""
        few = _VALUE_BYTES * (len(self._rows) - self._bitmaps)
        many = _BITMAP_BYTES * self._bitmaps + _BITMAP_ROW_BYTES * self._bitmap_rows
        return sys.getsizeof(self._rows) + self._text_bytes + few + many

    def _keep(self, value: str, rows: Sequence[int]) -> None:
        if len(rows) >= SMALL:
            self._rows[value] = BitMap(rows)
            self._bitmaps += 1
            self._bitmap_rows += len(rows)
        else:
            self._rows[value] = rows[0] if len(rows) == 1 else struct.pack(f"{len(rows)}I", *rows)

    def __contains__(self, value: str) -> bool:
        return value in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _numbers(rows: _Few) -> Sequence[int]:
    return (rows,) if isinstance(rows, int) else struct.unpack(f"{len(rows) // 4}I", rows)


def _bitmap(rows: _Rows) -> BitMap:
    return rows if isinstance(rows, BitMap) else BitMap(_numbers(rows))
