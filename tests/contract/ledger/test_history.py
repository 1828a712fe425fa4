"""Reading after a revision, and what compaction leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import Entry, EntryType, ObjectEntry
from federator.api.cluster import ClusterState
from federator.api.key import ObjectKey
from federator.errors import CursorExpired, InvalidInput
from tests.contract.ledger.member import Member, delete, objects, put

Present = dict[ObjectKey, int]


def replay(present: Present, entries: Iterable[Entry]) -> Present:
    """The present objects and their revisions after more entries."""
    after = dict(present)
    for entry in objects(list(entries)):
        if entry.type is EntryType.DELETED:
            del after[entry.key]
        else:
            after[entry.key] = entry.revision
    return after


def stored(ledger: Ledger) -> Present:
    return {entry.key: entry.revision for entry in ledger.present()}


async def test_reading_gives_exactly_the_entries_after_a_revision(ledger: Ledger) -> None:
    base = ledger.revision
    berlin = await Member.join(ledger)
    for number in range(5):
        await berlin.push(put(f"web-{number}"), put(f"db-{number}"))
    everything = list(ledger.read(base, 1000))
    assert [entry.revision for entry in everything] == list(range(base + 1, ledger.revision + 1))
    assert list(ledger.read(base + 3, 4)) == everything[3:7]
    assert list(ledger.read(base, 0)) == []
    assert list(ledger.read(ledger.revision, 10)) == []
    assert list(ledger.read(ledger.revision + 5, 10)) == []


async def test_an_entry_is_found_by_its_revision(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    (added,) = objects((await berlin.push(put("web", body=b"\0\xff" * 40_000))).entries)
    assert ledger.entry(added.revision) == added
    assert ledger.entry(ledger.revision + 1) is None


async def test_present_and_keys_are_of_one_revision(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    (first, *_) = objects((await berlin.push(put("a"), put("b"), put("c"))).entries)
    present = ledger.present()
    keys = ledger.keys(berlin.record.cluster_id, first.key.group_resource)
    seen = [next(present).key.name]
    await berlin.push(delete("a"), delete("b"), delete("c"), put("d"))
    await ledger.compact(ledger.revision)
    seen += [entry.key.name for entry in present]
    assert sorted(seen) == sorted(key.name for key in keys) == ["a", "b", "c"]


async def test_reading_before_the_oldest_revision_is_refused_not_shortened(ledger: Ledger) -> None:
    base = ledger.revision
    berlin = await Member.join(ledger)
    revision = (await berlin.push(put("web"), put("db"))).revision
    await berlin.push(delete("web"))
    await ledger.compact(revision)
    assert ledger.oldest_revision == revision
    for after in (base, revision - 1):
        with pytest.raises(CursorExpired) as caught:
            ledger.read(after, 10)
        assert caught.value.oldest == revision
    assert [entry.revision for entry in ledger.read(revision, 10)] == [revision + 1]


async def test_compaction_keeps_each_objects_newest_state(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    (first, other) = objects((await berlin.push(put("web"), put("db"))).entries)
    (second,) = objects((await berlin.push(put("web"))).entries)
    (third,) = objects((await berlin.push(put("web"))).entries)
    await ledger.compact(second.revision)
    assert ledger.entry(first.revision) is None
    assert ledger.entry(second.revision) == second, "the state before `third` can still be asked for"
    assert ledger.entry(other.revision) == other
    await ledger.compact(third.revision)
    assert ledger.entry(second.revision) is None
    assert stored(ledger) == {other.key: other.revision, third.key: third.revision}


async def test_compaction_forgets_deleted_objects_and_states(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web"), put("db"))
    await berlin.push(delete("web"))
    await berlin.push(put("db", uid="uid-2"))
    await ledger.set_cluster_state(berlin.record.cluster_id, ClusterState.LIVE)
    total = ledger.statistics()["entries"]
    assert await ledger.compact(ledger.revision) == total - 1
    assert ledger.statistics()["entries"] == 1
    assert ledger.clusters()[berlin.record.cluster_id].state is ClusterState.LIVE
    assert await ledger.compact(ledger.revision) == 0


async def test_compaction_neither_goes_back_nor_ahead(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web"))
    middle = ledger.revision
    await berlin.push(put("db"))
    await ledger.compact(middle)
    assert await ledger.compact(middle - 1) == 0
    assert ledger.oldest_revision == middle
    with pytest.raises(InvalidInput):
        await ledger.compact(ledger.revision + 1)


async def test_a_large_history_is_compacted_while_commits_go_on(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    for round_ in range(6):
        await berlin.push(*(put(f"web-{number}", resource_version=str(round_ + 1)) for number in range(1000)))
    end = ledger.revision
    compacting = asyncio.create_task(ledger.compact(end))
    await berlin.push(put("during"))
    assert await compacting == 5 * 1000 + 2
    assert ledger.oldest_revision == end
    assert len(stored(ledger)) == 1001


async def test_a_reader_inside_history_never_misses_a_deletion(ledger: Ledger) -> None:
    """It follows in small steps while objects come and go and history is forgotten behind and before it."""
    berlin = await Member.join(ledger)
    at, known = ledger.revision, Present()
    expired = 0
    for step in range(60):
        name = f"web-{step % 5}"
        await berlin.push(*([delete(name)] if step % 3 == 2 else [put(name, uid=str(step))]))
        if step % 4 == 3:
            await ledger.compact(ledger.revision - step % 7)
        try:
            entries = ledger.read(at, 1)
        except CursorExpired:
            expired += 1
            at, known = ledger.revision, stored(ledger)
        else:
            at, known = at + len(entries), replay(known, entries)
    assert replay(known, ledger.read(at, 1000)) == stored(ledger)
    assert expired, "the test has to lose its place at times"


async def test_every_previous_state_of_readable_history_is_readable(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    for step in range(60):
        name, uid = f"web-{step % 7}", str(step % 11 // 4)
        await berlin.push(*([delete(name)] if step % 5 == 4 else [put(name, uid=uid)]))
        if step % 10 == 9:
            await ledger.compact(ledger.revision - 6)
        for entry in objects(ledger.read(ledger.oldest_revision, 1000)):
            assert_previous_is_readable(ledger, entry)


def assert_previous_is_readable(ledger: Ledger, entry: ObjectEntry) -> None:
    if entry.type is EntryType.ADDED:
        assert entry.previous_revision == 0
        return
    previous = ledger.entry(entry.previous_revision)
    assert previous is not None
    assert (previous.key, previous.uid) == (entry.key, entry.uid)
    assert previous.type is not EntryType.DELETED
