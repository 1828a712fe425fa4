"""Hash index: rows by the 64-bit hash of what they are looked up by."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from federator.aggregator.merge.growing import GrowingColumn

_EMPTY = 0xFFFFFFFF
_FIRST_SLOTS = 1024


class HashIndex:
    """Rows by hash, in open addressing with linear probing: some 15 bytes a row.

    Each row has one hash. Two rows with equal hashes are both found: whoever asks compares what was hashed. It is meant
    for what is unique: many rows of one hash would make every look slow (see `PairIndex`).
    """

    __slots__ = ("_hashes", "_mask", "_rows", "_slots")

    def __init__(self) -> None:
        self._slots = _empty(_FIRST_SLOTS)
        self._mask = _FIRST_SLOTS - 1
        self._rows = 0
        self._hashes: GrowingColumn[np.uint64] = GrowingColumn("Q", np.uint64)

    def __len__(self) -> int:
        return self._rows

    def find(self, hash_: int) -> Iterator[int]:
        """Yields the rows with a hash; nothing may be added or discarded meanwhile."""
        slots, hashes, mask = self._slots, self._hashes.items, self._mask
        slot = hash_ & mask
        while (row := slots[slot]) != _EMPTY:
            if hashes[row] == hash_:
                yield row
            slot = slot + 1 & mask

    def add(self, hash_: int, row: int) -> None:
        """Takes in a row that is not in it."""
        self._hashes.reserve(row + 1)
        self._hashes.items[row] = hash_
        if (self._rows + 1) * 3 > len(self._slots) * 2:
            self._place(self._present(), len(self._slots) * 2)
        slot, slots, mask = hash_ & self._mask, self._slots, self._mask
        while slots[slot] != _EMPTY:
            slot = slot + 1 & mask
        slots[slot] = row
        self._rows += 1

    def fill(self, hashes: NDArray[np.uint64]) -> None:
        """Takes in rows 0, 1, 2..., into an empty index."""
        self._hashes.fill(hashes)
        slots = len(self._slots)
        while len(hashes) * 3 > slots * 2:
            slots *= 2
        self._place(np.arange(len(hashes), dtype=np.uint32), slots)
        self._rows = len(hashes)

    def discard(self, row: int) -> None:
        """Lets go of a row that is in it."""
        slots, hashes, mask = self._slots, self._hashes.items, self._mask
        slot = hashes[row] & mask
        while slots[slot] != row:
            slot = slot + 1 & mask
        self._rows -= 1
        # What was placed behind it because its own place was taken moves up, so that no look ends too early.
        hole = slot
        while True:
            slot = slot + 1 & mask
            other = slots[slot]
            if other == _EMPTY:
                break
            home = hashes[other] & mask
            if (slot - home & mask) >= (slot - hole & mask):
                slots[hole] = other
                hole = slot
        slots[hole] = _EMPTY

    @property
    def memory(self) -> int:
        """Bytes it takes."""
        return len(self._slots) * self._slots.itemsize + self._hashes.memory

    def _present(self) -> NDArray[np.uint32]:
        slots: NDArray[np.uint32] = np.frombuffer(self._slots, np.uint32)
        return slots.compress(slots != _EMPTY)

    def _place(self, rows: NDArray[np.uint32], number: int) -> None:
        """Places rows in new slots, all at once: each round all that found no free slot move on by one."""
        self._slots, self._mask = _empty(number), number - 1
        slots = np.frombuffer(self._slots, np.uint32)
        wanted = (self._hashes.view()[rows] & np.uint64(self._mask)).astype(np.uint32)
        while len(rows):
            free = slots[wanted] == _EMPTY
            slots[wanted[free]] = rows[free]
            left = slots[wanted] != rows
            rows, wanted = rows[left], wanted[left] + np.uint32(1) & np.uint32(self._mask)


def hash_text(text: str, seed: int) -> int:
    """Returns the hash of a text; never 0, which stands for none."""
    return xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), seed) or 1


def _empty(number: int) -> array[int]:
    return array("I", b"\xff" * (4 * number))
