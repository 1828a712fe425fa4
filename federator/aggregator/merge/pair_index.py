"""Pair index: rows by 64-bit hashes, any number of each for the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Rows = NDArray[np.uint32]

_SMALLEST = 4096
_PART = 16
"""Changes are merged into the sorted pairs once they are a sixteenth of them: 25 ms where there are a million."""


class PairIndex:
    """Pairs of a hash and a row, sorted, with what was added since beside them: 12 bytes a pair.

    A pair that was discarded may still be found, and a pair twice: the columns that the hashes were made of decide, and
    whoever asks looks there.
    """

    __slots__ = ("_added", "_changes", "_hashes", "_holds", "_pairs", "_rows")

    def __init__(self, holds: Callable[[Hashes, Rows], NDArray[np.bool_]]) -> None:
        """Makes an empty one.

        Args:
            holds: tells of each pair whether it still is one.
        """
        self._holds = holds
        self._hashes: Hashes = np.empty(0, np.uint64)
        self._rows: Rows = np.empty(0, np.uint32)
        self._added: dict[int, list[int]] = {}
        self._changes = 0
        self._pairs = 0

    def __len__(self) -> int:
        return self._pairs

    def find(self, hash_: int) -> list[int]:
        """The rows that may have a hash."""
        first = int(np.searchsorted(self._hashes, np.uint64(hash_)))
        last = int(np.searchsorted(self._hashes, np.uint64(hash_), "right"))
        return [*self._rows[first:last].tolist(), *self._added.get(hash_, ())]

    def add(self, hash_: int, row: int) -> None:
        """Takes in a pair."""
        self._added.setdefault(hash_, []).append(row)
        self._pairs += 1
        self._change()

    def fill(self, hashes: Hashes, rows: Rows) -> None:
        """Takes in pairs, into an empty index."""
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._rows = hashes[order], rows[order]
        self._pairs = len(hashes)

    def discarded(self) -> None:
        """Counts a pair that is no more; the columns have said so already."""
        self._pairs -= 1
        self._change()

    @property
    def memory(self) -> int:
        """Bytes it takes, without what is not merged yet."""
        return int(self._hashes.nbytes + self._rows.nbytes)

    def _change(self) -> None:
        self._changes += 1
        if self._changes > max(_SMALLEST, len(self._hashes) // _PART):
            self._merge()

    def _merge(self) -> None:
        added = [(hash_, row) for hash_, rows in self._added.items() for row in rows]
        hashes = np.concatenate([self._hashes, np.array([hash_ for hash_, _ in added], np.uint64)])
        rows = np.concatenate([self._rows, np.array([row for _, row in added], np.uint32)])
        holds = self._holds(hashes, rows)
        hashes, rows = hashes[holds], rows[holds]
        order = np.argsort(hashes, kind="stable")
        hashes, rows = hashes[order], rows[order]
        self._hashes, self._rows = hashes, rows
        self._added = {}
        self._changes = 0
