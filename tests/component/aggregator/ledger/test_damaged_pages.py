"""Bits flipped in what LMDB keeps for itself: where its trees begin, how many pages they have, which pages are free.

No record's checksum covers that. Each flip has to be taken for damage, so that the ledger is set aside, and not for a
full disk or an error that the next start might not meet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from federator.aggregator.ledger.lmdb import FOLDER, LmdbLedger
from federator.aggregator.ledger.maintenance import transaction_of
from federator.aggregator.ledger.store import CONDEMNED_FILE
from federator.aggregator.ledger.tables import DATA_FILE, TABLES, Tables
from federator.errors import LedgerCorrupt, LedgerFull
from tests.contract.ledger.member import Member, put

PAGE = 4096

# Of a record of a tree, as LMDB has it on disk: bytes before each field.
BRANCH_PAGES, LEAF_PAGES, OVERFLOW_PAGES, ROOT = 8, 16, 24, 40

# Of the two pages at the file's beginning; the newer one counts.
FREE_TREE, TREE_OF_TABLES, LAST_PAGE, TRANSACTION = 40, 88, 136, 144


@pytest.fixture
async def written(tmp_path: Path) -> Path:
    """State directory of a closed ledger that has given pages free."""
    ledger = LmdbLedger.open(tmp_path)
    member = await Member.join(ledger)
    for turn in range(4):
        await member.push(*(put(f"web-{number}") for number in range(20)), sequence=turn + 1)
    await ledger.close()
    return tmp_path


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

    def flip(self, word_at: int, bit: int) -> None:
        struct.pack_into("<Q", self._data, word_at, self._word(word_at) ^ 1 << bit)
        self._path.write_bytes(self._data)

    def _word(self, at: int) -> int:
        word: int = struct.unpack_from("<Q", self._data, at)[0]
        return word


@pytest.mark.parametrize("bit", [24, 40, 63])
@pytest.mark.parametrize("field", [BRANCH_PAGES, LEAF_PAGES, OVERFLOW_PAGES])
@pytest.mark.parametrize("table", ["log", "deletions", "meta"])
async def test_a_table_that_counts_more_pages_than_there_are_is_damaged_and_not_full(
    written: Path, table: str, field: int, bit: int
) -> None:
    file = DataFile(written)
    file.flip(file.record_of(table) + field, bit)
    with pytest.raises(LedgerCorrupt, match="count more pages than the file has"):
        LmdbLedger.open(written)


@pytest.mark.parametrize("bit", [20, 43, 59])
@pytest.mark.parametrize("table", [table for table in TABLES if table != "dictionaries"])
async def test_a_table_that_begins_beyond_the_file_is_damaged(written: Path, table: str, bit: int) -> None:
    file = DataFile(written)
    file.flip(file.record_of(table) + ROOT, bit)
    with pytest.raises(LedgerCorrupt):
        LmdbLedger.open(written)


@pytest.mark.parametrize("bit", [20, 28, 43, 52, 63])
async def test_a_free_page_that_cannot_be_is_damage_to_the_commit_that_meets_it(written: Path, bit: int) -> None:
    file = DataFile(written)
    for word_at in file.free_pages():
        file.flip(word_at, bit)
    ledger = LmdbLedger.open(written)
    with pytest.raises(LedgerCorrupt):
        await (await Member.join(ledger, "other")).push(put("web"))
    assert (written / CONDEMNED_FILE).exists(), "the next start sets it aside"
    await ledger.close()


def test_a_map_that_is_full_is_no_damage(tmp_path: Path) -> None:
    tables = Tables(tmp_path, map_bytes=1 << 20)
    with pytest.raises(LedgerFull), transaction_of(tables, write=True) as transaction:
        for number in range(1 << 12):
            transaction.put(b"%d" % number, bytes(1 << 10), db=tables.handle("log"))
    tables.close()


def test_what_follows_a_write_that_failed_is_no_damage(tmp_path: Path) -> None:
    """The disk's fault sets no ledger aside."""
    tables = Tables(tmp_path)
    assert not isinstance(tables.typed(lmdb.PanicError("MDB_PANIC")), LedgerCorrupt)
    tables.close()


@pytest.mark.parametrize("bit", [20, 36, 62])
async def test_an_older_state_that_passes_for_the_newest_is_noticed(written: Path, bit: int) -> None:
    file = DataFile(written)
    file.flip(file.transaction_of_older, bit)
    with pytest.raises(LedgerCorrupt, match="was acknowledged"):
        LmdbLedger.open(written)
