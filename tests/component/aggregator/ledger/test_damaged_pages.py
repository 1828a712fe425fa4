"""Bits flipped in what LMDB keeps for itself: where its trees begin, how many pages they have, which pages are free.

No record's checksum covers that. Each flip has to be taken for damage, so that the ledger is set aside, and not for a
full disk or an error that the next start might not meet.
"""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.maintenance import transaction_of
from federator.aggregator.ledger.store import CONDEMNED_FILE
from federator.aggregator.ledger.tables import TABLES, Tables
from federator.errors import LedgerCorrupt, LedgerFull
from tests.component.aggregator.ledger.data_file import BRANCH_PAGES, LEAF_PAGES, OVERFLOW_PAGES, ROOT, DataFile
from tests.contract.ledger.member import Member, put


@pytest.fixture
async def written(tmp_path: Path) -> Path:
    """State directory of a closed ledger that has given pages free."""
    ledger = LmdbLedger.open(tmp_path)
    member = await Member.join(ledger)
    for turn in range(4):
        await member.push(*(put(f"web-{number}") for number in range(20)), sequence=turn + 1)
    await ledger.close()
    return tmp_path


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
