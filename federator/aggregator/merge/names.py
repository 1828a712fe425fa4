"""Names: the names of all objects, each text once, in one order."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import merge

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from federator.aggregator.merge.growing import GrowingColumn
from federator.aggregator.merge.hash_index import HashIndex, hash_text

_BLOCK = 1 << 16
_RUN = 2048
"""Names sorted in one go: some 2 ms."""

_STEP = 256
"""Names put into the order before others have their turn: 20 µs each where they are few among a million."""

_NOWHERE = 0xFFFFFFFF << 32
"""Place of a name that is not there."""

_MANY = 4096
"""Names without objects that may wait for the next time the order is asked for."""

_CHUNK = 1 << 16
"""Numbers looked at in one go: what that makes for a moment fits into the processor's cache."""


class LoadedNames:
    """Names that are collected to be taken in together, one for each row."""

    def __init__(self, seed: int) -> None:
        """Makes an empty collection for a table with this seed."""
        self.texts = bytearray()
        self.lengths = array("I")
        self.hashes = array("Q")
        self.checks = array("Q")
        self._seed = seed

    def add(self, name: str) -> None:
        """Takes in the next row's."""
        encoded = name.encode("utf-8", "surrogatepass")
        self.texts += encoded
        self.lengths.append(len(encoded))
        self.hashes.append(xxh3_64_intdigest(encoded, self._seed) or 1)
        self.checks.append(xxh3_64_intdigest(encoded, ~self._seed & 0xFFFFFFFFFFFFFFFF))

    def __iter__(self) -> Iterator[str]:
        start = 0
        for length in self.lengths:
            yield self.texts[start : start + length].decode("utf-8", "surrogatepass")
            start += length


class NameTable:
    """Names by number, kept as bytes in blocks: some 70 bytes for one of 40 letters, whatever has it.

    A number is given to another name once nobody uses it. Names sort as their UTF-8 does, which is as their characters
    do. The order is made up for when somebody asks: `settling`, bit by bit, and then `ranks`.
    """

    def __init__(self, seed: int) -> None:
        """Makes an empty one.

        Args:
            seed: of the hashes by which names are found, which nobody outside may know.
        """
        self._seed = seed
        self._by_hash = HashIndex()
        self._blocks: list[bytearray] = [bytearray()]
        self._dead: list[int] = [0]  # bytes of each block that are no name's any more
        self._free_blocks: list[int] = []
        self._block = 0
        self._number = 0
        self._loaded = 0  # numbers that were given in order
        # By number.
        self._places: GrowingColumn[np.uint64] = GrowingColumn("Q", np.uint64)
        self._lengths: GrowingColumn[np.uint32] = GrowingColumn("I", np.uint32)
        self._users: GrowingColumn[np.uint32] = GrowingColumn("I", np.uint32)
        self._free: list[int] = []
        # The order: settled numbers, those to be put in, and those to be taken out before they are free.
        self._order: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._unsettled: set[int] = set()
        self._left: set[int] = set()
        self._ranks: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        """How many are in use."""
        return self._number - len(self._free) - len(self._left)

    def __getitem__(self, number: int) -> str:
        return self._encoded(number).decode("utf-8", "surrogatepass")

    def find(self, name: str) -> int | None:
        """The number of a name that is in use."""
        return self._find(name.encode("utf-8", "surrogatepass"), hash_text(name, self._seed))

    def use(self, name: str) -> int:
        """Returns the number of a name, for one more user."""
        encoded, hash_ = name.encode("utf-8", "surrogatepass"), hash_text(name, self._seed)
        number = self._find(encoded, hash_)
        if number is None:
            number = self._add(encoded)
            self._by_hash.add(hash_, number)
            self._unsettled.add(number)
        self._users.items[number] += 1
        return number

    def fill(self, names: LoadedNames) -> NDArray[np.uint32]:
        """Takes in names, into an empty table, and returns the number of each; settled when it returns."""
        hashes, checks = np.frombuffer(names.hashes, np.uint64), np.frombuffer(names.checks, np.uint64)
        unique, first, number_of = np.unique(hashes, return_index=True, return_inverse=True)
        if not np.array_equal(checks[first][number_of], checks):  # two names of one hash: once in 40 million loads
            return np.array([self.use(name) for name in names], np.uint32)
        lengths = np.frombuffer(names.lengths, np.uint32)
        ends = np.cumsum(lengths, dtype=np.int64)[first]
        texts = bytes(names.texts)
        spans = zip((ends - lengths[first]).tolist(), ends.tolist(), strict=True)
        encoded = [texts[start:end] for start, end in spans]
        order = np.array(sorted(range(len(encoded)), key=encoded.__getitem__), np.uint32)
        numbers = np.empty(len(order), np.uint32)
        numbers[order] = np.arange(len(order), dtype=np.uint32)
        self._number = len(order)
        self._write_all([encoded[at] for at in order.tolist()], lengths[first][order])
        self._users.fill(np.bincount(numbers[number_of]))
        self._by_hash.fill(unique[order])
        self._order = np.arange(len(order), dtype=np.uint32)
        self._loaded = len(order)
        return numbers[number_of]

    def leave(self, number: int) -> None:
        """Says that one user less has a name."""
        users = self._users.items
        users[number] -= 1
        if users[number]:
            return
        self._by_hash.discard(number)
        self._unsettled.discard(number)
        self._left.add(number)
        self._ranks = None
        if len(self._left) > max(_MANY, len(self._order) // 16):
            self._take_out()

    def settling(self) -> Iterator[None]:
        """Brings the order up to date, in steps of some milliseconds; yields between them.

        Others may change the table between two steps, and what they add is put into the order, too, while it is little.
        """
        while self._unsettled:
            taken = list(self._unsettled)
            runs = []
            for start in range(0, len(taken), _RUN):
                run = [(self._encoded(number), number) for number in taken[start : start + _RUN]]
                run.sort()
                runs.append(run)
                yield
            order, places, numbers = self._order, [], []
            position = 0
            for step, (encoded, number) in enumerate(merge(*runs), 1):
                position = self._place(order, encoded, position)
                places.append(position)
                numbers.append(number)
                if step % _STEP == 0:
                    yield
            self._put_in(order, places, numbers)

    def settle(self) -> None:
        """Does the same at once."""
        for _ in self.settling():
            pass

    def ranks(self) -> NDArray[np.uint32]:
        """By number, the place of each name in the order; not to be changed. Settles first what is not settled."""
        self.settle()
        if self._ranks is None:
            if self._left:
                self._take_out()
            ranks = np.zeros(max(1, self._number), np.uint32)
            ranks[self._order] = np.arange(len(self._order), dtype=np.uint32)
            self._ranks = ranks
        return self._ranks

    def lowest(self, wanted: int, *, descending: bool = False) -> NDArray[np.uint32]:
        """The numbers of the first, or last, so many names in the order. Settles first.

        Names that nobody uses any more may be among them.
        """
        self.settle()
        return self._order[-wanted:] if descending else self._order[:wanted]

    def among(self, numbers: NDArray[np.uint32], wanted: NDArray[np.uint32]) -> NDArray[np.intp]:
        """Which of some numbers, by their places, are wanted ones that stand side by side in the order.

        Names that were loaded have their numbers in their order, so a look at a range leaves little of a million: to
        look each up in a table takes 4 ms, since that is in leaps.
        """
        if not len(wanted):
            return np.empty(0, np.intp)
        is_wanted = np.zeros(self._number, np.bool_)
        is_wanted[wanted] = True
        loaded = wanted[wanted < self._loaded]
        low, high = (int(loaded.min()), int(loaded.max())) if len(loaded) else (0, 0)
        found = [np.empty(0, np.intp)]
        for start in range(0, len(numbers), _CHUNK):
            chunk = numbers[start : start + _CHUNK]
            places = np.flatnonzero((chunk >= low) & (chunk <= high) | (chunk >= self._loaded))
            found.append(places[is_wanted[chunk[places]]] + start)
        return np.concatenate(found)

    @property
    def unsettled(self) -> int:
        """Names that the order does not have yet."""
        return len(self._unsettled)

    @property
    def memory(self) -> int:
        """Bytes it takes."""
        columns = self._places.memory + self._lengths.memory + self._users.memory + self._by_hash.memory
        ranks = self._ranks.nbytes if self._ranks is not None else 0
        return sum(map(len, self._blocks)) + columns + int(self._order.nbytes) + ranks

    def _find(self, encoded: bytes, hash_: int) -> int | None:
        for number in self._by_hash.find(hash_):
            if self._encoded(number) == encoded:
                return number
        return None

    def _encoded(self, number: int) -> bytes:
        place = self._places.items[number]
        start = place & 0xFFFFFFFF
        return bytes(self._blocks[place >> 32][start : start + self._lengths.items[number]])

    def _add(self, encoded: bytes) -> int:
        if self._free:
            number = self._free.pop()
        else:
            number = self._number
            self._number += 1
            for column in (self._places, self._lengths, self._users):
                column.reserve(self._number)
        self._write(number, encoded)
        self._lengths.items[number] = len(encoded)
        self._ranks = None
        return number

    def _write(self, number: int, encoded: bytes) -> None:
        block = self._blocks[self._block]
        if block and len(block) + len(encoded) > _BLOCK:
            block = self._open_block()
        self._places.items[number] = self._block << 32 | len(block)
        block += encoded

    def _write_all(self, encoded: list[bytes], lengths: NDArray[np.uint32]) -> None:
        """Writes names 0, 1, 2... to blocks of their own, into an empty table."""
        self._lengths.fill(lengths)
        starts = np.zeros(len(lengths), np.uint64)
        self._blocks, self._dead = [], []
        for first in range(0, len(encoded), _RUN):
            within = np.cumsum(lengths[first : first + _RUN], dtype=np.uint64)
            block = starts[first : first + _RUN]
            block[1:] = within[:-1]
            block |= np.uint64(len(self._blocks) << 32)
            self._blocks.append(bytearray(b"".join(encoded[first : first + _RUN])))
            self._dead.append(0)
        self._places.fill(starts)
        self._open_block()

    def _open_block(self) -> bytearray:
        if self._free_blocks:
            self._block = self._free_blocks.pop()
        else:
            self._block = len(self._blocks)
            self._blocks.append(bytearray())
            self._dead.append(0)
        return self._blocks[self._block]

    def _place(self, order: NDArray[np.uint32], encoded: bytes, start: int) -> int:
        """Where a name belongs in the order, at or behind a place: looked for near it first, then ever farther."""
        low, step = start, 1
        while low + step < len(order) and self._encoded(int(order[low + step])) < encoded:
            low += step
            step *= 2
        return bisect_left(
            range(len(order)), encoded, low, min(low + step, len(order)), key=lambda at: self._encoded(int(order[at]))
        )

    def _put_in(self, order: NDArray[np.uint32], places: Sequence[int], numbers: Sequence[int]) -> None:
        """Inserts what was sorted, unless the order was changed meanwhile: then what has users is sorted again."""
        if order is not self._order:
            return
        users = self._users.items
        still = [at for at, number in enumerate(numbers) if number in self._unsettled and users[number]]
        kept = np.array([numbers[at] for at in still], np.uint32)
        self._order = np.insert(order, np.array([places[at] for at in still], np.int64), kept)
        self._unsettled.difference_update(kept.tolist())
        self._ranks = None

    def _take_out(self) -> None:
        """Takes names without users out of the order; only then their numbers may be given to others."""
        is_left = np.zeros(self._number, np.bool_)
        is_left[list(self._left)] = True
        self._order = self._order[~is_left[self._order]]
        places, lengths = self._places.items, self._lengths.items
        blocks = set()
        for number in self._left:
            block = places[number] >> 32
            self._dead[block] += lengths[number]
            blocks.add(block)
            places[number] = _NOWHERE
        self._free += self._left
        self._left.clear()
        self._ranks = None
        for block in blocks:
            if block != self._block and self._dead[block] * 2 > len(self._blocks[block]):
                self._empty(block)

    def _empty(self, block: int) -> None:
        """Writes the names that a block still has to other places, and takes the block for new ones."""
        in_block = np.nonzero(self._places.view()[: self._number] >> np.uint64(32) == block)[0].tolist()
        encoded = [self._encoded(number) for number in in_block]
        self._blocks[block], self._dead[block] = bytearray(), 0
        for number, text in zip(in_block, encoded, strict=True):
            self._write(number, text)
        self._free_blocks.append(block)
