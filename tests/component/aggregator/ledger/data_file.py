"""Where LMDB has what in the file of a closed ledger, to damage it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from federator.aggregator.ledger.tables import DATA_FILE, FOLDER

PAGE = 4096

# Of a record of a tree, as LMDB has it on disk: bytes before each field.
BRANCH_PAGES, LEAF_PAGES, OVERFLOW_PAGES, ROOT = 8, 16, 24, 40

# Of the two pages at the file's beginning; the newer one counts.
FREE_TREE, TREE_OF_TABLES, LAST_PAGE, TRANSACTION = 40, 88, 136, 144


class DataFile:
    """A ledger's file, closed."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FOLDER / DATA_FILE
        self._data = bytearray(self._path.read_bytes())
        self._older, self._newest = sorted((0, PAGE), key=lambda page: self._word(page + TRANSACTION))

    def record_of(self, table: str) -> int:
        """Where the record of a table's tree is."""
        root = self._word(self._newest + TREE_OF_TABLES + ROOT) * PAGE
        return self._data.index(table.encode(), root, root + PAGE) + len(table)

    @property
    def last_page(self) -> int:
        """Where the number of the file's last page is."""
        return self._newest + LAST_PAGE

    @property
    def transaction_of_older(self) -> int:
        """Where the state before the newest has the number of its commit."""
        return self._older + TRANSACTION

    def free_pages(self) -> Iterator[int]:
        """Where the numbers of free pages are."""
        root = self._word(self._newest + FREE_TREE + ROOT) * PAGE
        _, _, flags, lower, _ = struct.unpack_from("<QHHHH", self._data, root)
        assert flags == 2, "a leaf"
        for node in struct.unpack_from(f"<{(lower - 16) // 2}H", self._data, root + 16):
            list_at = root + node + 16  # behind its head and its key
            yield from range(list_at + 8, list_at + 8 + 8 * self._word(list_at), 8)

    @property
    def root(self) -> int:
        """Number of the page that every commit replaces: where the tree of all tables begins."""
        return self._word(self._newest + TREE_OF_TABLES + ROOT)

    def flip(self, word_at: int, bit: int) -> None:
        self.put(word_at, self._word(word_at) ^ 1 << bit)

    def put(self, word_at: int, word: int) -> None:
        struct.pack_into("<Q", self._data, word_at, word)
        self._path.write_bytes(self._data)

    def _word(self, at: int) -> int:
        word: int = struct.unpack_from("<Q", self._data, at)[0]
        return word
