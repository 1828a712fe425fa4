"""Revisions, times, and how commits are told."""

from __future__ import annotations

import asyncio

import pytest

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import Batch, Commit
from federator.api.cluster import ClusterState
from federator.errors import LedgerError, SessionFenced
from tests.contract.ledger.conftest import Clock, OpenLedger
from tests.contract.ledger.member import PODS, Member, objects, put

BATCHES = 40


async def test_a_new_ledger_starts_above_every_earlier_one(ledger: Ledger, clock: Clock) -> None:
    assert ledger.revision == ledger.oldest_revision == int(clock.now) << 20
    assert ledger.revision < 1 << 53
    assert list(ledger.read(ledger.revision, 10)) == []


async def test_a_ledger_is_not_created_by_a_clock_that_is_far_off(open_ledger: OpenLedger, clock: Clock) -> None:
    clock.now = float(1 << 33)
    with pytest.raises(LedgerError, match="clock"):
        open_ledger(1 << 30)


async def test_revisions_grow_by_one_per_entry_and_every_commit_is_told_once_in_order(
    ledger: Ledger, told: list[Commit]
) -> None:
    base = ledger.revision
    members = [await Member.join(ledger, name) for name in ("berlin", "paris")]
    returned = await asyncio.gather(
        *(members[number % 2].push(put(f"web-{number}"), put(f"db-{number}")) for number in range(BATCHES))
    )
    revisions = [entry.revision for commit in told for entry in commit.entries]
    assert revisions == list(range(base + 1, ledger.revision + 1))
    assert [commit.revision for commit in told] == sorted(commit.revision for commit in told)
    assert all(commit in told for commit in returned)
    assert list(ledger.read(base, 1000)) == [entry for commit in told for entry in commit.entries]


async def test_batches_are_committed_in_the_order_of_the_calls(ledger: Ledger, told: list[Commit]) -> None:
    berlin = await Member.join(ledger)
    await asyncio.gather(*(berlin.push(put("web", resource_version=str(number))) for number in range(1, BATCHES)))
    versions = [entry.resource_version for commit in told for entry in objects(commit.entries)]
    assert versions == [str(number) for number in range(1, BATCHES)]


async def test_a_commit_is_told_on_the_loop_before_the_caller_goes_on(ledger: Ledger) -> None:
    loop = asyncio.get_running_loop()
    seen: list[tuple[Commit, int, asyncio.AbstractEventLoop]] = []
    ledger.on_commit(lambda commit: seen.append((commit, ledger.revision, asyncio.get_running_loop())))
    berlin = await Member.join(ledger)
    commit = await berlin.push(put("web"))
    assert seen[-1] == (commit, commit.revision, loop)


async def test_what_has_nothing_to_tell_is_not_told(ledger: Ledger, told: list[Commit]) -> None:
    berlin = await Member.join(ledger)
    await berlin.push(put("web", content_hash=7), sequence=1)
    count = len(told)
    await berlin.push(put("web", content_hash=7), sequence=2)
    await berlin.push(put("web", content_hash=8), sequence=2)
    await ledger.set_cluster_state(berlin.record.cluster_id, ClusterState.JOINING)
    assert len(told) == count
    await berlin.push(low_water="11")
    assert len(told) == count + 1


async def test_a_refusal_concerns_its_own_batch_alone(ledger: Ledger, told: list[Commit]) -> None:
    old = await Member.join(ledger)
    new = await Member.join(ledger)
    results = await asyncio.gather(
        new.push(put("web")), old.push(put("db")), new.push(put("cache")), return_exceptions=True
    )
    assert isinstance(results[1], SessionFenced)
    names = [entry.key.name for commit in told for entry in objects(commit.entries)]
    assert names == ["web", "cache"]


async def test_cancelling_the_caller_does_not_undo_a_batch(ledger: Ledger, told: list[Commit]) -> None:
    berlin = await Member.join(ledger)
    pushing = asyncio.create_task(berlin.push(put("web")))
    await asyncio.sleep(0)
    pushing.cancel()
    await asyncio.gather(pushing, return_exceptions=True)
    await berlin.push(put("db"))
    assert {entry.key.name for entry in ledger.present()} == {"web", "db"}
    assert len([entry for commit in told for entry in objects(commit.entries)]) == 2


async def test_times_never_go_back(ledger: Ledger, clock: Clock) -> None:
    berlin = await Member.join(ledger)
    (first,) = objects((await berlin.push(put("web"))).entries)
    clock.now -= 3600
    (second,) = objects((await berlin.push(put("web"))).entries)
    clock.now += 7200
    (third,) = objects((await berlin.push(put("web"))).entries)
    assert second.time_ms == first.time_ms == third.time_ms - 3_600_000


async def test_the_revision_at_a_time_is_the_newest_committed_by_then(ledger: Ledger, clock: Clock) -> None:
    start, base = clock.now, ledger.revision
    berlin = await Member.join(ledger)
    revisions = []
    for _ in range(9):
        clock.now += 10
        revisions.append((await berlin.push(put("web"), put("db"))).revision)

    def at(seconds: float) -> int:
        return ledger.revision_at(int((start + seconds) * 1000))

    assert [at(10 * number) for number in range(1, 10)] == revisions
    assert at(39.999) == revisions[2]
    assert at(-1) == base
    assert at(1e6) == revisions[-1] == ledger.revision
    await ledger.compact(revisions[4])
    assert at(10) == at(50) == revisions[4] == ledger.oldest_revision
    assert at(60) == revisions[5]


async def test_cursors_are_this_ledgers(ledger: Ledger) -> None:
    cursor = ledger.cursors.encode(ledger.revision)
    assert ledger.cursors.decode(cursor) == ledger.revision


async def test_a_closed_ledger_takes_nothing(ledger: Ledger) -> None:
    berlin = await Member.join(ledger)
    last = asyncio.create_task(ledger.append(Batch(berlin.record.cluster_id, 1, 0, PODS, (put("web"),))))
    await asyncio.sleep(0)
    await ledger.close()
    assert (await last).entries, "what was appended before is committed"
    with pytest.raises(LedgerError, match="closed"):
        await berlin.push(put("db"))
    await ledger.close()


async def test_statistics_say_what_the_ledger_holds(ledger: Ledger) -> None:
    base = ledger.revision
    berlin = await Member.join(ledger)
    await berlin.push(put("web"), put("db"))
    await berlin.push(put("web"))
    statistics = ledger.statistics()
    assert statistics["revision"] == ledger.revision
    assert statistics["oldest_revision"] == base
    assert statistics["entries"] == 5
    assert statistics["objects"] == 2
    assert statistics["batches"] == 2
    assert statistics["commits"] == 3
    assert statistics["bytes"] > 0
    assert statistics["commit_seconds"] >= statistics["last_commit_seconds"] > 0
