"""Restored ledgers: all that was in the backup, and nothing that could be taken for what was not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zstandard

from federator.aggregator.ledger import codec
from federator.aggregator.ledger import restore as restoring
from federator.aggregator.ledger.backup import back_up
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.maintenance import holding
from federator.aggregator.ledger.planning import first_revision
from federator.aggregator.ledger.reader import IDENTITY
from federator.aggregator.ledger.records import ClusterRecord, Entry, ObjectEntry
from federator.aggregator.ledger.restore import restore
from federator.errors import (
    BackupInvalid,
    CursorExpired,
    CursorForeign,
    InvalidInput,
    LedgerCorrupt,
    LedgerError,
    LedgerLocked,
    LedgerNotEmpty,
)
from tests.component.aggregator.ledger.filled import BERLIN, THEN, WEB, filled, names_in, raw_tables
from tests.contract.ledger.member import PODS, Member, objects, put


def moved(entry: Entry, offset: int) -> Entry:
    """An entry as it is in a ledger whose revisions are higher."""
    entry = msgspec.structs.replace(entry, revision=entry.revision + offset)
    if isinstance(entry, ObjectEntry):
        entry = msgspec.structs.replace(
            entry,
            previous_revision=entry.previous_revision and entry.previous_revision + offset,
            follows=entry.follows and entry.follows + offset,
        )
    return entry


async def test_everything_of_the_backup_is_there_under_new_revisions(tmp_path: Path) -> None:
    await filled(tmp_path / "old")
    manifest = back_up(tmp_path / "old", tmp_path / "b")
    restored = restore(tmp_path / "new", tmp_path / "b")
    assert restored.manifest == manifest
    assert restored.revision == manifest.revision + restored.offset
    old, new = LmdbLedger.open(tmp_path / "old"), LmdbLedger.open(tmp_path / "new")
    offset = restored.offset
    assert (new.revision, new.oldest_revision) == (old.revision + offset, old.oldest_revision + offset)
    assert new.read(new.oldest_revision, 1000) == [moved(each, offset) for each in old.read(old.oldest_revision, 1000)]
    assert list(new.present()) == [moved(each, offset) for each in old.present()]
    assert list(new.versions(WEB)) == [moved(each, offset) for each in old.versions(WEB)]
    assert len(list(new.versions(WEB))) == 5
    for revision in range(old.oldest_revision, old.revision + 1):
        then, now = old.at(WEB, revision), new.at(WEB, revision + offset)
        assert now == (None if then is None else moved(then, offset))
    assert list(new.bodies) == list(old.bodies)
    assert new.types(BERLIN) == old.types(BERLIN)
    for resource in (None, PODS.group_resource):
        noted = old.transitions(BERLIN, resource)
        assert noted
        expected = [msgspec.structs.replace(each, revision=each.revision + offset) for each in noted]
        assert new.transitions(BERLIN, resource) == expected
    assert new.oldest_time_ms == old.oldest_time_ms > 0
    assert new.revision_at(int(THEN * 1000)) == old.revision_at(int(THEN * 1000)) + offset
    await old.close()
    await new.close()
    assert names_in(tmp_path / "new") == {"ledger", "ledger.floor"}


async def test_no_revision_of_the_old_ledger_stands_for_another_change_in_the_new_one(tmp_path: Path) -> None:
    await filled(tmp_path)
    back_up(tmp_path, tmp_path / "b", clock=lambda: THEN)
    old = LmdbLedger.open(tmp_path, clock=lambda: THEN)
    member = Member(old, await old.open_session(ClusterRecord(BERLIN, "uid-of-berlin", agent_instance="agent-2")))
    for _ in range(3):
        await member.push(*(put(f"late-{number}") for number in range(1000)))
    given_out, cursor = old.revision, old.cursors.encode(old.revision)
    earlier = old.cursors.encode(old.oldest_revision)
    await old.close()

    restore(tmp_path, tmp_path / "b", force=True, clock=lambda: THEN)
    new = LmdbLedger.open(tmp_path, clock=lambda: THEN)
    for each in (cursor, earlier):
        with pytest.raises(CursorForeign):
            new.cursors.decode(each)
    with pytest.raises(CursorExpired):
        new.read(given_out, 10)
    with pytest.raises(CursorExpired):
        new.at(WEB, given_out)
    assert min(entry.revision for entry in new.present()) > given_out
    assert min(entry.revision for entry in new.read(new.oldest_revision, 1000)) > given_out
    await new.close()


async def test_where_the_old_ledger_is_gone_revisions_go_on_above_its_time(tmp_path: Path) -> None:
    await filled(tmp_path / "old")
    back_up(tmp_path / "old", tmp_path / "b", clock=lambda: THEN)
    restored = restore(tmp_path / "new", tmp_path / "b", clock=lambda: THEN + 100)
    assert restored.revision > first_revision(int(THEN + 100) * 1000)
    again = restore(tmp_path / "new", tmp_path / "b", force=True, clock=lambda: THEN + 100)
    assert again.offset >= restored.offset + again.manifest.entries, "and above those of the same second"


async def test_the_floor_of_a_ledger_that_was_lost_is_kept(tmp_path: Path) -> None:
    await filled(tmp_path)
    back_up(tmp_path, tmp_path / "b", clock=lambda: THEN)
    (tmp_path / "ledger" / "data.mdb").unlink()
    restored = restore(tmp_path, tmp_path / "b", clock=lambda: THEN)
    assert restored.offset > 1 << 20


async def test_every_agent_is_unknown(tmp_path: Path) -> None:
    await filled(tmp_path)
    back_up(tmp_path, tmp_path / "b")
    restore(tmp_path, tmp_path / "b", force=True)
    ledger = LmdbLedger.open(tmp_path)
    before = ledger.clusters()[BERLIN]
    assert (before.agent_instance, before.durable_sequence) == ("", 0)
    assert before.term == 1
    record = await ledger.open_session(ClusterRecord(BERLIN, "uid-of-berlin", agent_instance="agent-1"))
    assert (record.durable_sequence, record.term) == (0, 2)
    assert objects((await Member(ledger, record).push(put("web"), sequence=1)).entries), (
        "a low sequence is no duplicate"
    )
    await ledger.close()


async def test_a_ledger_that_has_something_is_set_aside_only_if_asked(tmp_path: Path) -> None:
    await filled(tmp_path)
    back_up(tmp_path, tmp_path / "b", clock=lambda: THEN)
    with pytest.raises(LedgerNotEmpty, match="--force"):
        restore(tmp_path, tmp_path / "b")
    names = []
    for _ in range(2):
        restored = restore(tmp_path, tmp_path / "b", force=True, clock=lambda: THEN)
        assert restored.set_aside is not None
        names.append(restored.set_aside.name)
    assert names == ["ledger.replaced-20260921T141320Z", "ledger.replaced-20260921T141320Z-2"]
    (tmp_path / "again").mkdir()
    (tmp_path / names[0]).rename(tmp_path / "again" / "ledger")
    former = LmdbLedger.open(tmp_path / "again")
    assert former.cursors.ledger_id.hex() == restored.manifest.ledger_id
    await former.close()


async def test_a_ledger_without_anything_is_no_hindrance(tmp_path: Path) -> None:
    await filled(tmp_path / "old")
    back_up(tmp_path / "old", tmp_path / "b")
    await LmdbLedger.open(tmp_path / "new").close()
    restored = restore(tmp_path / "new", tmp_path / "b")
    assert restored.set_aside is None
    await LmdbLedger.open(tmp_path / "new").close()


async def test_a_damaged_ledger_counts_as_one_that_has_something(tmp_path: Path) -> None:
    await filled(tmp_path)
    back_up(tmp_path, tmp_path / "b")
    (tmp_path / "ledger" / "data.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(LedgerNotEmpty):
        restore(tmp_path, tmp_path / "b")
    restore(tmp_path, tmp_path / "b", force=True)
    await LmdbLedger.open(tmp_path).close()


async def untouched(path: Path, act: Callable[[], object], error: type[LedgerError], match: str) -> None:
    """Fails, and leaves all that lasts as it was."""

    def everything() -> dict[Path, bytes]:
        files = (each for each in path.rglob("*") if each.is_file())
        return {
            each: each.read_bytes() for each in files if each.name not in {"ledger.floor", "lock.mdb", "appender.lock"}
        }

    before = everything()
    with pytest.raises(error, match=match):
        act()
    assert everything() == before


async def test_a_backup_with_other_data_replaces_nothing(tmp_path: Path) -> None:
    await filled(tmp_path)
    back_up(tmp_path, tmp_path / "b")
    content = bytearray((tmp_path / "b").read_bytes())
    content[30_000] ^= 1
    (tmp_path / "b").write_bytes(content)
    await untouched(
        tmp_path, lambda: restore(tmp_path, tmp_path / "b", force=True), BackupInvalid, "the checksum differs"
    )


async def test_a_manifest_of_other_data_replaces_nothing(tmp_path: Path) -> None:
    await filled(tmp_path)
    back_up(tmp_path, tmp_path / "b")
    content = (tmp_path / "b").read_bytes()
    (tmp_path / "b").write_bytes(content.replace(b'"objects":22,', b'"objects":23,'))
    await untouched(
        tmp_path, lambda: restore(tmp_path, tmp_path / "b", force=True), BackupInvalid, "its manifest is of other data"
    )


async def test_a_clock_that_is_behind_replaces_nothing(tmp_path: Path) -> None:
    await filled(tmp_path)
    back_up(tmp_path, tmp_path / "b", clock=lambda: THEN)
    await untouched(
        tmp_path,
        lambda: restore(tmp_path, tmp_path / "b", force=True, clock=lambda: THEN - 1),
        LedgerError,
        "which by the clock is yet to come",
    )


async def test_a_newer_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(codec, "SCHEMA_VERSION", codec.SCHEMA_VERSION + 1)
        with raw_tables(tmp_path) as environment, environment.begin(write=True) as transaction:
            meta = environment.open_db(b"meta", transaction)
            later = codec.Identity(codec.SCHEMA_VERSION, b"8 bytes!", b"secret")
            transaction.put(IDENTITY, codec.IDENTITY.seal(IDENTITY, later), db=meta)
        back_up(tmp_path, tmp_path / "b")
    with pytest.raises(LedgerError, match=f"schema {codec.SCHEMA_VERSION + 1}, this program reads 1 to"):
        restore(tmp_path / "new", tmp_path / "b")
    with pytest.raises(LedgerError, match=f"schema {codec.SCHEMA_VERSION + 1}, this program reads 1 to"):
        back_up(tmp_path, tmp_path / "b2")
    assert not (tmp_path / "new").exists()


async def test_a_backup_that_is_not_there_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        restore(tmp_path / "new", tmp_path / "none")
    assert not (tmp_path / "new").exists()


async def test_the_aggregator_has_to_be_stopped(tmp_path: Path) -> None:
    await filled(tmp_path / "old")
    back_up(tmp_path / "old", tmp_path / "b")
    ledger = LmdbLedger.open(tmp_path / "new")
    with pytest.raises(LedgerLocked, match=r"appends to .* it has to end first"):
        restore(tmp_path / "new", tmp_path / "b", force=True)
    await ledger.close()
    restore(tmp_path / "new", tmp_path / "b")


async def test_nobody_opens_a_ledger_that_is_being_restored(tmp_path: Path) -> None:
    await filled(tmp_path)
    with holding(tmp_path):
        for act in (
            lambda: LmdbLedger.open(tmp_path),
            lambda: back_up(tmp_path, tmp_path / "b"),
            lambda: restore(tmp_path, tmp_path / "b"),
        ):
            with pytest.raises((LedgerLocked, InvalidInput)):
                act()


async def test_what_fails_in_the_last_moment_leaves_the_old_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path)
    manifest = back_up(tmp_path, tmp_path / "b")

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "replace_data", fail)
        with pytest.raises(LedgerError, match=r"cannot write the ledger in .*Input/output error"):
            restore(tmp_path, tmp_path / "b", force=True)
    assert not (tmp_path / "ledger.restoring").exists()
    ledger = LmdbLedger.open(tmp_path)
    assert ledger.cursors.ledger_id.hex() == manifest.ledger_id
    await ledger.close()


async def test_an_entry_that_was_damaged_stays_damaged(tmp_path: Path) -> None:
    await filled(tmp_path)
    ledger = LmdbLedger.open(tmp_path)
    newest = next(iter(ledger.versions(WEB)))
    await ledger.close()
    key = codec.encode_revision(newest.previous_revision)
    with raw_tables(tmp_path) as environment, environment.begin(write=True) as transaction:
        log = environment.open_db(b"log", transaction)
        sealed = transaction.get(key, db=log)
        assert sealed is not None
        transaction.put(key, sealed[:-1] + bytes((sealed[-1] ^ 1,)), db=log)
    back_up(tmp_path, tmp_path / "b")
    restored = restore(tmp_path / "new", tmp_path / "b")
    new = LmdbLedger.open(tmp_path / "new")
    with pytest.raises(LedgerCorrupt, match=codec.encode_revision(newest.previous_revision + restored.offset).hex()):
        new.entry(newest.previous_revision + restored.offset)
    assert new.entry(newest.revision + restored.offset) == moved(newest, restored.offset)
    await new.close()


@pytest.mark.parametrize("table", ["current", "deletions", "clusters", "types", "numbers", "names", "dictionaries"])
async def test_another_record_that_was_damaged_is_not_carried_over(tmp_path: Path, table: str) -> None:
    await filled(tmp_path)
    with raw_tables(tmp_path) as environment, environment.begin(write=True) as transaction:
        database = environment.open_db(table.encode(), transaction)
        for key, sealed in list(transaction.cursor(database))[:1]:
            transaction.put(key, sealed[:-1] + bytes((sealed[-1] ^ 1,)), db=database)
    back_up(tmp_path, tmp_path / "b")
    await untouched(tmp_path, lambda: restore(tmp_path, tmp_path / "b", force=True), LedgerCorrupt, table)


async def test_a_backup_of_an_older_schema_is_brought_to_the_present_one(tmp_path: Path) -> None:
    written = Path(__file__).parent / "data" / "schema-1.mdb.zst"
    (tmp_path / "old" / "ledger").mkdir(parents=True)
    data = zstandard.ZstdDecompressor().decompress(written.read_bytes())
    (tmp_path / "old" / "ledger" / "data.mdb").write_bytes(data)
    manifest = back_up(tmp_path / "old", tmp_path / "b")
    assert manifest.schema_version == 1
    restored = restore(tmp_path / "new", tmp_path / "b")
    old, new = LmdbLedger.open(tmp_path / "old"), LmdbLedger.open(tmp_path / "new")
    before, after = (each.read(each.oldest_revision, 1000) for each in (old, new))
    assert after == [moved(entry, restored.offset) for entry in before]
    assert len(after) == 10
    assert list(new.present()) == [moved(entry, restored.offset) for entry in old.present()]
    await old.close()
    await new.close()
    assert names_in(tmp_path / "new") == {"ledger", "ledger.floor"}
