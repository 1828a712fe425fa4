"""What becomes of a damaged record: repaired from the log, asked of the agent, or given up, and never guessed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from hypothesis import settings

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.damage import LOST, STATE_LOST
from federator.aggregator.ledger.lmdb import FOLDER, LmdbLedger
from federator.aggregator.ledger.records import Commit, EntryType, ObjectEntry, TypeEntry
from federator.aggregator.ledger.store import CONDEMNED_FILE
from federator.aggregator.ledger.writer import Writer
from federator.api.cluster import ClusterID, TypeState
from federator.errors import CursorExpired, LedgerCorrupt, LedgerError
from tests.contract.ledger.member import DEPLOYMENTS, PODS, Member, changes, delete, objects, put

BERLIN, PARIS = ClusterID("berlin"), ClusterID("paris")


class Written:
    """A closed ledger of two clusters, and what was written last for each of their pods."""

    def __init__(self, path: Path, newest: dict[str, ObjectEntry]) -> None:
        self.path = path
        self.newest = newest

    @classmethod
    async def of(cls, path: Path) -> Written:
        ledger = LmdbLedger.open(path)
        newest: dict[str, ObjectEntry] = {}
        for cluster in ("berlin", "paris"):
            member = await Member.join(ledger, cluster)
            for turn in range(3):
                wanted = (put(f"{cluster}-{number}", body=f"{cluster} {number} {turn}".encode()) for number in range(9))
                commit = await member.push(*wanted, sequence=turn + 1, low_water=str(turn))
                newest |= {entry.key.name: entry for entry in objects(commit.entries)}
            await member.push(put("web"), of=DEPLOYMENTS, sequence=9)
            await ledger.set_type_state(ClusterID(cluster), PODS, TypeState.LIVE)
        await ledger.close()
        return cls(path, newest)

    def tamper(self, table: str, change: Callable[[lmdb.Transaction[bytes], lmdb._Database], object]) -> None:
        with (
            lmdb.Environment(str(self.path / FOLDER), map_size=1 << 40, max_dbs=10) as environment,
            environment.begin(write=True) as transaction,
        ):
            change(transaction, environment.open_db(table.encode(), transaction))

    def damage_entry(self, revision: int) -> None:
        self.tamper("log", lambda transaction, log: flip(transaction, log, codec.encode_revision(revision)))

    def damage_heads(self, wanted: Callable[[codec.HeadRow], bool], *, byte: int = -1) -> None:
        def change(transaction: lmdb.Transaction[bytes], current: lmdb._Database) -> None:
            for key, sealed in list(transaction.cursor(current)):
                if wanted(codec.HEAD.unseal(key, sealed)):
                    flip(transaction, current, key, byte=byte)

        self.tamper("current", change)


def flip(transaction: lmdb.Transaction[bytes], table: lmdb._Database, key: bytes, *, byte: int = -1) -> None:
    """Flips a bit of the record at a key, as the disk might."""
    sealed = bytearray(transaction.get(key, b"", table))
    sealed[byte] ^= 1
    transaction.put(key, bytes(sealed), db=table)


@pytest.fixture
async def written(tmp_path: Path) -> Written:
    return await Written.of(tmp_path)


def present(ledger: LmdbLedger) -> dict[str, ObjectEntry]:
    return {entry.key.name: entry for entry in ledger.present() if entry.key.resource == "pods"}


def pods(ledger: LmdbLedger, cluster: ClusterID) -> tuple[TypeState, str, str]:
    record = next(record for record in ledger.types(cluster) if record.type == PODS)
    return record.state, record.reason, record.low_water


@pytest.mark.parametrize("byte", [0, 8, -1], ids=["checksum", "first", "last"])
async def test_heads_are_made_again_from_the_log(written: Written, byte: int) -> None:
    written.damage_heads(
        lambda head: head.revision in {written.newest[f"berlin-{n}"].revision for n in (2, 5)}, byte=byte
    )
    ledger = LmdbLedger.open(written.path)
    assert present(ledger) == written.newest
    assert ledger.statistics()["repaired_heads"] == 2
    assert pods(ledger, BERLIN) == (TypeState.LIVE, "", "2")
    berlin = Member(ledger, ledger.clusters()[BERLIN])
    entry = written.newest["berlin-2"]
    assert (await berlin.push(put("berlin-2", content_hash=entry.content_hash))).entries == ()
    await ledger.close()
    await LmdbLedger.open(written.path).close()  # and it adds up


async def test_a_head_whose_newest_entry_may_be_a_damaged_one_is_not_guessed(written: Written) -> None:
    written.damage_heads(lambda head: head.revision == written.newest["berlin-2"].revision)
    written.damage_entry(written.newest["berlin-2"].revision)
    with pytest.raises(LedgerCorrupt):
        LmdbLedger.open(written.path)


async def test_a_head_that_is_missing_is_noticed(written: Written) -> None:
    def change(transaction: lmdb.Transaction[bytes], current: lmdb._Database) -> None:
        transaction.delete(next(iter(transaction.cursor(current)))[0], db=current)

    written.tamper("current", change)
    with pytest.raises(LedgerCorrupt, match="current, where records are missing or out of date"):
        LmdbLedger.open(written.path)


async def test_a_head_of_before_is_noticed(written: Written) -> None:
    """As where a page leads to what it was some commits ago: its checksums fit."""

    def change(transaction: lmdb.Transaction[bytes], current: lmdb._Database) -> None:
        key, sealed = next(iter(transaction.cursor(current)))
        head = codec.HEAD.unseal(key, sealed)
        former = codec.HeadRow(head.revision - 9, 7, 7)
        transaction.put(key, codec.HEAD.seal(key, former), db=current)

    written.tamper("current", change)
    with pytest.raises(LedgerCorrupt, match="current, where records are missing or out of date"):
        LmdbLedger.open(written.path)


async def test_a_lost_state_is_asked_for_and_nothing_else_is_touched(written: Written) -> None:
    lost = written.newest["berlin-4"]
    written.damage_entry(lost.revision)
    ledger = LmdbLedger.open(written.path)
    told: list[Commit] = []
    ledger.on_commit(told.append)
    assert present(ledger) == {name: entry for name, entry in written.newest.items() if name != "berlin-4"}
    await ledger.mend()
    (commit,) = told
    (entry,) = commit.entries
    assert isinstance(entry, TypeEntry)
    assert (entry.cluster_id, entry.resource_type, entry.state, entry.reason) == (
        BERLIN,
        PODS,
        TypeState.SYNCING,
        STATE_LOST,
    )
    assert commit.low_water == ((BERLIN, PODS.group_resource, ""),)
    assert pods(ledger, BERLIN) == (TypeState.SYNCING, STATE_LOST, "")
    assert pods(ledger, PARIS) == (TypeState.LIVE, "", "2")
    assert ledger.damage.lost_types() == [(BERLIN, PODS.group_resource)]

    berlin = Member(ledger, ledger.clusters()[BERLIN])
    listed = [
        put(entry.key.name, content_hash=entry.content_hash, body=entry.body)
        for entry in written.newest.values()
        if entry.key.cluster_id == BERLIN
    ]
    committed = await berlin.push(*listed, skips_older=True)
    assert changes(committed) == [(EntryType.MODIFIED, "berlin-4")]
    (back,) = objects(committed.entries)
    assert (back.previous_revision, back.body) == (lost.revision, lost.body)
    assert not ledger.damage.lost_types()
    assert present(ledger).keys() == written.newest.keys()
    await ledger.close()


async def test_what_is_lost_is_known_after_another_start(written: Written) -> None:
    written.damage_entry(written.newest["berlin-4"].revision)
    ledger = LmdbLedger.open(written.path)
    list(ledger.present())
    await ledger.mend()
    await ledger.close()
    again = LmdbLedger.open(written.path)
    told: list[Commit] = []
    again.on_commit(told.append)
    assert "berlin-4" not in present(again)
    assert again.damage.lost_types() == [(BERLIN, PODS.group_resource)]
    await again.mend()
    assert not told, "it is said once"
    berlin = Member(again, again.clusters()[BERLIN])
    assert changes(await berlin.push(delete("berlin-4"))) == [(EntryType.DELETED, "berlin-4")]
    assert not again.damage.lost_types()
    await again.close()


async def test_damage_in_history_gives_up_history_and_no_state(written: Written) -> None:
    old = written.newest["berlin-4"].previous_revision
    written.damage_entry(old)
    ledger = LmdbLedger.open(written.path)
    assert present(ledger) == written.newest
    oldest = ledger.oldest_revision
    position = oldest
    while position < old - 1:
        position = ledger.read(position, 5)[-1].revision
    assert position == old - 1
    for after in (old - 1, oldest, old - 1):
        with pytest.raises(CursorExpired) as expired:
            ledger.read(after, 5)
        assert expired.value.oldest == old == ledger.oldest_revision
    assert [entry.revision for entry in ledger.read(old, 2)] == [old + 1, old + 2]
    told: list[Commit] = []
    ledger.on_commit(told.append)
    await ledger.mend()
    assert not told
    assert pods(ledger, BERLIN)[0] is TypeState.LIVE
    assert ledger.statistics()["damaged_history"] == 1
    assert ledger.revision_at(1 << 50) == ledger.revision
    await ledger.compact(ledger.revision)
    assert present(ledger) == written.newest
    await ledger.close()


async def test_a_head_that_is_damaged_while_it_serves_is_made_again(written: Written) -> None:
    ledger = LmdbLedger.open(written.path)
    entry = written.newest["paris-3"]
    damage_while_serving(ledger, "current", entry.revision)
    paris = Member(ledger, ledger.clusters()[PARIS])
    with pytest.raises(LedgerCorrupt, match="current"):
        await paris.push(put("paris-3", content_hash=entry.content_hash))
    assert ledger.attention.is_set()
    assert ledger.failure is None
    await paris.push(put("meanwhile"))
    await ledger.mend()
    assert (await paris.push(put("paris-3", content_hash=entry.content_hash))).entries == ()
    assert changes(await paris.push(put("paris-3"))) == [(EntryType.MODIFIED, "paris-3")]
    await ledger.close()
    await LmdbLedger.open(written.path).close()


def damage_while_serving(ledger: LmdbLedger, table: str, revision: int) -> None:
    """Damages a record behind the ledger's back, through its own environment: LMDB takes one a process."""
    with ledger._tables.begin(write=True) as transaction:
        handle = ledger._tables.handle(table)
        for key, sealed in list(transaction.cursor(handle)):
            found = codec.decode_revision(key) if table == "log" else codec.HEAD.unseal(key, sealed).revision
            if found == revision:
                flip(transaction, handle, key)


async def test_a_state_that_is_lost_while_it_serves_is_asked_for(written: Written) -> None:
    ledger = LmdbLedger.open(written.path)
    entry = written.newest["paris-3"]
    damage_while_serving(ledger, "log", entry.revision)
    with pytest.raises(LedgerCorrupt):
        ledger.entry(entry.revision)
    assert ledger.attention.is_set()
    await ledger.mend()
    assert pods(ledger, PARIS)[:2] == (TypeState.SYNCING, STATE_LOST)
    assert pods(ledger, BERLIN)[0] is TypeState.LIVE
    with pytest.raises(LedgerCorrupt):
        ledger.entry(entry.revision)
    await ledger.mend()
    assert ledger.statistics()["lost_states"] == 1, "found again, it is no news"
    await ledger.close()


async def test_what_cannot_be_mended_while_it_serves_ends_it_and_condemns_the_store(written: Written) -> None:
    ledger = LmdbLedger.open(written.path)
    entry = written.newest["paris-3"]
    damage_while_serving(ledger, "current", entry.revision)
    damage_while_serving(ledger, "log", entry.revision)
    paris = Member(ledger, ledger.clusters()[PARIS])
    with pytest.raises(LedgerCorrupt):
        await paris.push(put("paris-3"))
    with pytest.raises(LedgerCorrupt):
        await ledger.mend()
    assert isinstance(ledger.failure, LedgerCorrupt)
    assert (written.path / CONDEMNED_FILE).exists()
    await ledger.close()


async def test_a_page_that_leads_past_a_head_is_noticed(tmp_path: Path) -> None:
    """A pass over the table finds every head, and a search does not: the object would be added once more."""
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    await berlin.push(*(put(f"web-{number:03}") for number in range(500)))
    await ledger.close()
    data_file = tmp_path / FOLDER / "data.mdb"
    pages = bytearray(data_file.read_bytes())
    for at in range(0, len(pages), 4096):
        page = pages[at : at + 4096]
        if page[10:12] == b"\x01\x00" and b"web-" in page:  # a branch: nothing but keys that tell the way
            name = at + page.rindex(b"web-")
            pages[name : name + 4] = b"xeb-"
    data_file.write_bytes(pages)
    with pytest.raises(LedgerCorrupt, match="current, whose pages do not lead to"):
        LmdbLedger.open(tmp_path)


async def test_a_refusal_that_comes_too_late_undoes_everything_in_its_transaction(written: Written) -> None:
    """Damage met while a commit is being written must not leave the half of it that was written before."""
    ledger = LmdbLedger.open(written.path)
    berlin = Member(ledger, ledger.clusters()[BERLIN])

    def half(writer: Writer) -> None:
        writer.set_deletion(written.newest["berlin-2"].key, 7)
        raise LedgerCorrupt.at("here", "numbers", b"berlin")

    (refused,) = await asyncio.gather(
        ledger._thread.submit(half, lambda _: None, cost=1),
        return_exceptions=True,
    )
    assert isinstance(refused, LedgerCorrupt)
    assert isinstance(ledger.failure, LedgerCorrupt)
    with pytest.raises(LedgerError, match="until reopened"):
        await berlin.push(put("db"))
    await ledger.close()
    again = LmdbLedger.open(written.path)
    (key,) = {entry.key for entry in written.newest.values() if entry.key.name == "berlin-2"}
    with again._reading() as reader:
        assert reader.deletion(key) == 0
    await again.close()


async def test_the_mark_of_a_lost_state_equals_no_content() -> None:
    assert LOST not in range(1 << 64)


@pytest.mark.hypothesis
def test_damage_anywhere_is_never_taken_for_data(tmp_path: Path) -> None:
    """At a few places each time, at hundreds in the thorough profile."""
    tries = str(settings().max_examples // 3)
    program = [sys.executable, "-m", "tests.component.aggregator.ledger.flips", str(tmp_path), "0", tries]
    child = subprocess.run(program, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout + child.stderr
    assert "WRONG" not in child.stdout
    assert "'equal'" in child.stdout
