"""What the LMDB driver promises beyond the contract: it outlives its process, and says when it cannot."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import lmdb
import pytest
from blockbuster import blockbuster_ctx

from federator.aggregator.ledger import codec, commit_thread
from federator.aggregator.ledger.lmdb import FOLDER, LmdbLedger
from federator.aggregator.ledger.reader import POSITION
from federator.aggregator.ledger.records import Commit
from federator.aggregator.ledger.room import DISK_MARGIN
from federator.aggregator.ledger.writer import Writer
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.errors import CursorExpired, LedgerCorrupt, LedgerError, LedgerFull, LedgerLocked
from tests.component.aggregator.ledger.company import Hurry
from tests.component.aggregator.ledger.file_size import writes_fail_beyond
from tests.contract.ledger.member import DEPLOYMENTS, PODS, Member, changes, delete, put

BERLIN = ClusterID("berlin")


@contextmanager
def raw(path: Path) -> Iterator[lmdb.Environment]:
    """The closed ledger's files, for tampering."""
    with lmdb.Environment(str(path / FOLDER), map_size=1 << 40, max_dbs=10) as environment:
        yield environment


async def test_everything_outlives_the_process(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    paris = await Member.join(ledger, "paris")
    await berlin.push(put("web", body=b"one"), put("db"), sequence=4, low_water="120")
    await paris.push(put("web"), of=DEPLOYMENTS)
    await berlin.push(put("web", body=b"two"), delete("db"), sequence=5)
    await ledger.set_cluster_state(BERLIN, ClusterState.LIVE, "synced")
    await ledger.set_type_state(BERLIN, PODS, TypeState.LIVE)
    await ledger.compact(ledger.revision - 6)
    cursor = ledger.cursors.encode(ledger.revision)

    def everything(of: LmdbLedger) -> list[object]:
        return [
            of.revision,
            of.oldest_revision,
            of.clusters(),
            [sorted(of.types(cluster), key=str) for cluster in of.clusters()],
            sorted(of.present(), key=str),
            list(of.keys(BERLIN, PODS.group_resource)),
            of.read(of.oldest_revision, 1000),
            of.cursors.decode(cursor),
        ]

    before = everything(ledger)
    await ledger.close()
    again = LmdbLedger.open(tmp_path)
    assert everything(again) == before
    berlin = Member(again, berlin.record)
    assert (await berlin.push(put("late"), sequence=5)).entries == ()
    (added,) = (await berlin.push(put("next"), sequence=6)).entries
    assert added.revision == again.revision
    await again.close()


async def test_a_lost_ledger_starts_above_the_old_one(tmp_path: Path) -> None:
    old = LmdbLedger.open(tmp_path / "old", clock=lambda: 1_800_000_000.0)
    await (await Member.join(old)).push(*(put(f"web-{number}") for number in range(1000)))
    new = LmdbLedger.open(tmp_path / "new", clock=lambda: 1_800_000_001.0)
    assert new.revision > old.revision
    assert new.cursors != old.cursors
    await old.close()
    await new.close()


async def test_only_the_owner_may_look(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    folder = tmp_path / FOLDER
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    await ledger.close()


async def test_a_second_appender_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    with pytest.raises(LedgerLocked):
        LmdbLedger.open(tmp_path)
    await ledger.close()
    await LmdbLedger.open(tmp_path).close()


async def one_entry(path: Path) -> int:
    """A closed ledger with one object; its revision."""
    ledger = LmdbLedger.open(path)
    commit = await (await Member.join(ledger)).push(put("web", body=b"the only body"))
    await ledger.close()
    return commit.revision


async def test_a_damaged_entry_is_never_given_out(tmp_path: Path) -> None:
    revision = await one_entry(tmp_path)
    data_file = tmp_path / FOLDER / "data.mdb"
    content = data_file.read_bytes()
    assert content.count(b"the only body") == 1
    data_file.write_bytes(content.replace(b"the only body", b"the evil body"))

    ledger = LmdbLedger.open(tmp_path)
    with pytest.raises(LedgerCorrupt, match=f"log {codec.encode_revision(revision).hex()}"):
        ledger.entry(revision)
    assert list(ledger.present()) == []
    with pytest.raises(CursorExpired) as expired:
        ledger.read(revision - 1, 10)
    assert expired.value.oldest == ledger.oldest_revision == revision
    berlin = Member(ledger, ledger.clusters()[BERLIN])
    assert changes(await berlin.push(put("db"))), "damage of one record stops nothing else"
    await ledger.close()


@pytest.mark.parametrize("table", ["clusters", "types", "numbers", "names", "meta"])
async def test_a_damaged_record_of_a_table_that_cannot_be_made_again_is_refused(tmp_path: Path, table: str) -> None:
    await one_entry(tmp_path)
    with raw(tmp_path) as environment, environment.begin(write=True) as transaction:
        database = environment.open_db(table.encode(), transaction)
        for key, sealed in list(transaction.cursor(database)):
            transaction.put(key, sealed[:-1] + bytes((sealed[-1] ^ 1,)), db=database)
    with pytest.raises(LedgerCorrupt, match=table):
        LmdbLedger.open(tmp_path)


async def test_a_record_at_another_key_is_noticed(tmp_path: Path) -> None:
    revision = await one_entry(tmp_path)
    with raw(tmp_path) as environment, environment.begin(write=True) as transaction:
        database = environment.open_db(b"log", transaction)
        sealed = transaction.get(codec.encode_revision(revision), db=database)
        assert sealed is not None
        transaction.put(codec.encode_revision(revision - 1), sealed, db=database)
    ledger = LmdbLedger.open(tmp_path)
    with pytest.raises(LedgerCorrupt):
        ledger.entry(revision - 1)
    await ledger.close()


async def test_a_file_that_was_cut_short_is_damage_not_a_crash(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    await (await Member.join(ledger)).push(*(put(f"web-{number}", body=bytes(2000)) for number in range(1000)))
    await ledger.close()
    os.truncate(tmp_path / FOLDER / "data.mdb", 1 << 20)
    with pytest.raises(LedgerError):
        ledger = LmdbLedger.open(tmp_path)
        try:
            list(ledger.present())
        finally:
            await ledger.close()


async def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "data.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(LedgerCorrupt):
        LmdbLedger.open(tmp_path)


async def test_a_state_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a directory")
    with pytest.raises(LedgerError, match=f"cannot open the ledger in {tmp_path}/state"):
        LmdbLedger.open(tmp_path / "state")


async def test_another_schema_is_refused_and_the_lock_given_back(tmp_path: Path) -> None:
    await one_entry(tmp_path)
    with raw(tmp_path) as environment, environment.begin(write=True) as transaction:
        database = environment.open_db(b"meta", transaction)
        later = codec.Identity(codec.SCHEMA_VERSION + 1, b"8 bytes!", b"secret")
        transaction.put(b"identity", codec.IDENTITY.seal(b"identity", later), db=database)
    for _ in range(2):
        with pytest.raises(LedgerError, match=f"schema {codec.SCHEMA_VERSION + 1}"):
            LmdbLedger.open(tmp_path)


def test_too_little_address_space_is_said_clearly(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 38, hard))
    try:
        with pytest.raises(LedgerError, match="cannot reserve 1024 GiB of addresses"):
            LmdbLedger.open(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


async def test_after_a_failed_write_nothing_is_taken_until_reopened(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    told: list[Commit] = []
    berlin = await Member.join(ledger)
    await berlin.push(put("web"), sequence=1)
    ledger.on_commit(told.append)
    revision = ledger.revision
    with writes_fail_beyond((tmp_path / FOLDER / "data.mdb").stat().st_size):
        results = await asyncio.gather(
            berlin.push(put("db", body=bytes(100_000)), sequence=2), berlin.push(put("cache")), return_exceptions=True
        )
    assert {type(result) for result in results} == {LedgerError}
    for _ in range(2):
        with pytest.raises(LedgerError, match="until reopened"):
            await berlin.push(put("db"), sequence=2)
    with pytest.raises(LedgerError, match="until reopened"):
        await ledger.set_cluster_state(BERLIN, ClusterState.STALE)
    assert not told
    assert ledger.revision == revision
    assert [entry.key.name for entry in ledger.present()] == ["web"], "reading goes on"
    await ledger.close()

    again = LmdbLedger.open(tmp_path)
    assert again.revision == revision
    assert changes(await Member(again, berlin.record).push(put("db"), sequence=2))
    await again.close()


async def test_a_disk_without_room_is_noticed_before_a_write_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    await berlin.push(put("web"), sequence=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=DISK_MARGIN // 4096, f_frsize=4096))
        with pytest.raises(LedgerFull):
            await berlin.push(put("db", body=bytes(100_000)), sequence=2)
    assert [entry.key.name for entry in ledger.present()] == ["web"]
    assert changes(await berlin.push(put("db", body=bytes(100_000)), sequence=2))
    await ledger.close()


async def test_a_full_disk_that_is_noticed_late_changes_nothing_and_can_be_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    revision = ledger.revision
    full = lmdb.DiskError("no space left")
    full.code = errno.ENOSPC  # type: ignore[misc]  # as the binding does
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "_put", Mock(side_effect=full))
        with pytest.raises(LedgerFull):
            await berlin.push(put("web"))
    assert ledger.revision == revision
    assert changes(await berlin.push(put("web")))
    await ledger.close()


async def test_an_entry_that_the_position_does_not_know_is_damage(tmp_path: Path) -> None:
    """Committing over it would change history that a reader may have seen."""
    revision = await one_entry(tmp_path)
    with raw(tmp_path) as environment, environment.begin(write=True) as transaction:
        meta = environment.open_db(b"meta", transaction)
        earlier = codec.Position(revision - 1, 0)
        transaction.put(POSITION, codec.POSITION.seal(POSITION, earlier), db=meta)
    (tmp_path / "ledger.floor").unlink()  # which knows better
    with pytest.raises(LedgerCorrupt, match="log, which ends at"):
        LmdbLedger.open(tmp_path)


async def test_batches_that_wait_together_share_a_commit(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    before = ledger.statistics()["commits"]
    await asyncio.gather(*(berlin.push(put(f"web-{number}")) for number in range(50)))
    assert ledger.statistics()["commits"] - before < 10
    assert ledger.commit_durations.count == ledger.statistics()["commits"]
    await ledger.close()


async def test_lone_changes_wait_for_company_and_steps_that_somebody_waits_for_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_thread, "APART", 3600.0)
    ledger = LmdbLedger.open(tmp_path)
    async with asyncio.timeout(10):
        berlin = await Member.join(ledger)
        hurry = Hurry.of(ledger._thread)
        before = ledger.statistics()["commits"]
        change = asyncio.create_task(berlin.push(put("web"), sequence=1))
        bookmark = asyncio.create_task(berlin.push(sequence=2, low_water="120"))
        await hurry.awaited()
        await berlin.push(put("db"))  # the first types of a frame with several
        await asyncio.gather(change, bookmark)
        assert ledger.statistics()["commits"] - before == 1, "both have waited for it"
        await berlin.push(put("api"), sequence=3, skips_older=True)
        await berlin.push(put("cache"), sequence=4, listed_version="110")
        await berlin.push(sequence=5, low_water="130", generation=1)
        await berlin.push(sequence=6)
        await ledger.set_type_state(BERLIN, PODS, TypeState.LIVE)
        await ledger.close()


async def test_nothing_is_read_before_it_is_told(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    before = ledger.revision
    pushing = asyncio.create_task(berlin.push(put("web")))
    await asyncio.sleep(0)
    while not list(ledger.present()):  # the loop is kept from telling what the thread has made durable
        time.sleep(0.001)  # noqa: ASYNC251
    assert ledger.revision == before
    assert list(ledger.read(before, 10)) == []
    assert list(ledger.types(BERLIN)) == []
    assert ledger.revision_at(1 << 50) == before
    commit = await pushing
    assert ledger.read(before, 10) == list(commit.entries)
    await ledger.close()


async def test_history_is_compacted_in_slices_that_commits_go_between(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    for _ in range(4):
        await berlin.push(*(put(f"web-{number}") for number in range(1000)))
    commits, end = ledger.statistics()["commits"], ledger.revision
    compacting = asyncio.create_task(ledger.compact(end))
    await asyncio.sleep(0)
    await berlin.push(put("between"))
    assert not compacting.done()
    assert ledger.oldest_revision < end
    await compacting
    assert ledger.statistics()["commits"] - commits >= 4
    await ledger.close()


async def test_compaction_passes_over_what_is_missing_or_damaged(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    revisions = [(await berlin.push(put("web"))).revision for _ in range(6)]
    await ledger.close()
    with raw(tmp_path) as environment, environment.begin(write=True) as transaction:
        log = environment.open_db(b"log", transaction)
        transaction.delete(codec.encode_revision(revisions[1]), db=log)
        transaction.put(codec.encode_revision(revisions[3]), b"nonsense", db=log)
    ledger = LmdbLedger.open(tmp_path)
    await ledger.compact(revisions[5])
    assert ledger.oldest_revision == revisions[5]
    assert [entry.revision for entry in ledger.present()] == [revisions[5]]
    await ledger.mend()
    assert ledger.statistics()["damaged_history"] == 2
    assert ledger.statistics()["lost_states"] == 0
    await ledger.close()


async def test_the_names_of_new_files_are_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    await LmdbLedger.open(tmp_path).close()
    assert synced[:2] == [tmp_path / FOLDER, tmp_path]


async def test_the_loop_never_blocks_on_the_medium(tmp_path: Path) -> None:
    ledger = await asyncio.to_thread(LmdbLedger.open, tmp_path)
    with blockbuster_ctx("federator"):
        berlin = await Member.join(ledger)
        await berlin.push(put("web"))
        assert ledger.read(ledger.oldest_revision, 10)
        assert ledger.statistics()
        await ledger.compact(ledger.revision)
        await ledger.close()


async def test_the_file_is_used_again_after_compaction(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    sizes = []
    for _ in range(12):
        await berlin.push(*(put(f"web-{number}", body=bytes(800)) for number in range(100)))
        await ledger.compact(ledger.revision)
        sizes.append(ledger.statistics()["bytes"])
    assert sizes[-1] < 2 * sizes[2]
    assert ledger.statistics()["used_bytes"] < 300_000
    await ledger.close()
