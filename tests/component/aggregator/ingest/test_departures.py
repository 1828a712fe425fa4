"""Removed clusters on their way out: what goes in which order, how fast, and what a kill in between leaves to do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.typing import EventDict

from federator.aggregator.ingest import lifecycle
from federator.aggregator.ingest.departures import RETRY_SECONDS, Departures
from federator.aggregator.ingest.lifecycle import LEAVING_WAIT, Candidate, ClusterLifecycle, Opened
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import MAX_CHANGES, ClusterEntry, ClusterRecord, EntryType, ObjectEntry
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import GroupResource
from federator.errors import (
    ClusterConnected,
    ClusterLeaving,
    ClusterRemoved,
    ClusterUIDChanged,
    FederatorError,
    InvalidInput,
    LedgerFull,
    UnknownCluster,
)
from tests.contract.ledger.member import DEPLOYMENTS, PODS, Member, put
from tests.fixtures import logs, no_task_is_left

__all__ = ["logs", "no_task_is_left"]

BERLIN, PARIS = ClusterID("berlin"), ClusterID("paris")


class Nobody:
    """A freshness sink."""

    def seen(self, cluster_id: ClusterID) -> None: ...

    def proved(self, cluster_id: ClusterID, resource: GroupResource, age_seconds: float) -> None: ...

    def unread_groups(self, cluster_id: ClusterID, groups: Collection[str]) -> None: ...


class KilledError(Exception):
    """The process is gone."""


class Mortal:
    """A ledger whose process is killed behind so many commits; what it took is durable."""

    def __init__(self, ledger: Ledger, commits: int) -> None:
        self._ledger = ledger
        self._left = commits

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        if name not in {"append", "set_cluster_state", "set_type_state", "open_session"}:
            return found

        async def committing(*arguments: Any, **named: Any) -> Any:
            if not self._left:
                raise KilledError
            self._left -= 1
            return await found(*arguments, **named)

        return committing


class Process:
    """One life of an aggregator, as far as its lifecycle goes. Time is the loop's."""

    def __init__(self, ledger: Any, *, rate: int = 10_000) -> None:
        loop = asyncio.get_running_loop()
        settings = IngestSettings(removal_objects_per_second=rate)
        self.ledger = ledger
        self.lifecycle = ClusterLifecycle(ledger, Nobody(), settings, clock=loop.time)
        self.departed: list[ClusterID] = []
        self.lifecycle.on_departed(self.departed.append)
        self.ended: dict[str, FederatorError | None] = {}
        self.state_at_close: ClusterState | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Process]:
        await self.lifecycle.start()
        task = asyncio.create_task(self.lifecycle.run(), name="lifecycle")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def open(
        self, instance: str, *, uid: str = "uid-of-berlin", replace: bool = False, cluster_id: ClusterID = BERLIN
    ) -> Opened:
        """A session, which ends as the servicer's do: some steps after it was told to."""
        record = ClusterRecord(cluster_id, uid, agent_instance=instance)

        def end(error: FederatorError | None) -> None:
            self.ended[instance] = error
            asyncio.get_running_loop().call_later(0.01, close)

        def close() -> None:
            self.state_at_close = self.ledger.clusters()[cluster_id].state
            self.lifecycle.closed(cluster_id, opened.record.term, has_left=False)

        opened = await self.lifecycle.open(Candidate(record, (PODS, DEPLOYMENTS), replace, end))
        return opened


async def filled(ledger: Ledger, pods: int = 5, deployments: int = 3) -> None:
    """Two clusters with the same objects."""
    for name in (BERLIN, PARIS):
        member = await Member.join(ledger, name, instance=f"agent-{name}")
        for of, number in ((PODS, pods), (DEPLOYMENTS, deployments)):
            for begin in range(0, number, MAX_CHANGES):
                names = range(begin, min(number, begin + MAX_CHANGES))
                await member.push(*(put(f"o-{each}", body=b"{}") for each in names), of=of)
            await ledger.set_type_state(name, of, TypeState.LIVE)
        await ledger.set_cluster_state(name, ClusterState.LIVE)


def held(ledger: Ledger, cluster_id: ClusterID) -> int:
    return sum(len(list(ledger.keys(cluster_id, of.group_resource))) for of in (PODS, DEPLOYMENTS))


def history(ledger: Ledger, cluster_id: ClusterID) -> list[Any]:
    """Entries of a cluster and its objects, in order."""
    entries = ledger.read(ledger.oldest_revision, 1_000_000)
    return [
        entry
        for entry in entries
        if (entry.key.cluster_id if isinstance(entry, ObjectEntry) else entry.cluster_id) == cluster_id
    ]


def deletions(ledger: Ledger, cluster_id: ClusterID) -> Counter[str]:
    return Counter(
        str(entry.key)
        for entry in history(ledger, cluster_id)
        if isinstance(entry, ObjectEntry) and entry.type is EntryType.DELETED
    )


def assert_nothing_is_left(ledger: Ledger, objects: int = 8) -> None:
    assert held(ledger, BERLIN) == 0
    assert ledger.clusters()[BERLIN].state is ClusterState.REMOVED
    assert {known.state for known in ledger.types(BERLIN)} == {TypeState.ABSENT}
    assert set(deletions(ledger, BERLIN).values()) == {1}
    assert len(deletions(ledger, BERLIN)) == objects
    assert held(ledger, PARIS) == objects, "the other cluster has nothing to do with it"
    assert not deletions(ledger, PARIS)


@pytest.mark.looptime
async def test_removed_is_durable_before_the_first_object_leaves_and_absent_after_the_last() -> None:
    await filled(ledger := MemoryLedger())
    async with Process(ledger).running() as process:
        before = ledger.revision
        assert await process.lifecycle.remove(BERLIN) == 8
        assert process.departed == [BERLIN]
        assert_nothing_is_left(ledger)
        first, *objects = ledger.read(before, 100)
    assert isinstance(first, ClusterEntry)
    assert (first.state, first.previous_state, first.reason) == (
        ClusterState.REMOVED,
        ClusterState.STALE,
        "removed by an operator",
    )
    assert [type(entry) for entry in objects[:8]] == [ObjectEntry] * 8
    assert {getattr(entry, "state", None) for entry in objects[8:]} == {TypeState.ABSENT}


@pytest.mark.looptime
async def test_objects_leave_in_batches_no_faster_than_they_may() -> None:
    await filled(ledger := MemoryLedger(), pods=5000, deployments=0)
    sizes: list[int] = []
    async with Process(ledger, rate=512).running() as process:
        ledger.on_commit(lambda commit: sizes.append(sum(isinstance(each, ObjectEntry) for each in commit.entries)))
        began = asyncio.get_running_loop().time()
        assert await process.lifecycle.remove(BERLIN) == 5000
        seconds = asyncio.get_running_loop().time() - began
    assert max(sizes) == 512
    assert seconds == pytest.approx((5000 - 512) / 512, abs=1.5), "behind the first second's, each waits its turn"


async def test_a_batch_is_what_a_commit_takes() -> None:
    await filled(ledger := MemoryLedger(), pods=3000, deployments=0)
    sizes: list[int] = []
    async with Process(ledger).running() as process:
        ledger.on_commit(lambda commit: sizes.append(len(commit.entries)))
        await process.lifecycle.remove(BERLIN)
    assert max(sizes) == MAX_CHANGES


class TestRefusals:
    async def test_unknown_clusters(self) -> None:
        await filled(ledger := MemoryLedger())
        async with Process(ledger).running() as process:
            with pytest.raises(UnknownCluster) as refused:
                await process.lifecycle.remove(ClusterID("rome"))
            assert refused.value.known == ("berlin", "paris")
            await process.lifecycle.remove(BERLIN)
            with pytest.raises(UnknownCluster) as refused:
                await process.lifecycle.remove(BERLIN)
            assert refused.value.known == ("paris",)

    async def test_another_uid_changes_nothing(self) -> None:
        await filled(ledger := MemoryLedger())
        async with Process(ledger).running() as process:
            before = ledger.revision
            with pytest.raises(InvalidInput, match="uid-of-berlin"):
                await process.lifecycle.remove(BERLIN, cluster_uid="uid-of-paris")
            assert ledger.revision == before
            assert await process.lifecycle.remove(BERLIN, cluster_uid="uid-of-berlin") == 8

    async def test_a_connected_agent_is_named_and_forced_out_with_an_error_of_its_own(self) -> None:
        await filled(ledger := MemoryLedger())
        async with Process(ledger).running() as process:
            opened = await process.open("agent-berlin")
            with pytest.raises(ClusterConnected) as refused:
                await process.lifecycle.remove(BERLIN)
            assert refused.value.agent_instance == "agent-berlin"
            assert held(ledger, BERLIN) == 8
            await process.lifecycle.remove(BERLIN, force=True)
            assert isinstance(process.ended["agent-berlin"], ClusterRemoved)
            assert process.state_at_close is ClusterState.RECOVERING, "nothing of the session comes behind that"
            assert_nothing_is_left(ledger)
            with pytest.raises(ClusterRemoved):
                await process.lifecycle.heard(BERLIN, opened.record.term)
            with pytest.raises(ClusterRemoved):
                await process.lifecycle.type_told(BERLIN, opened.record.term, PODS, TypeState.LIVE)
            assert_nothing_is_left(ledger)

    async def test_a_session_that_never_opened_does_not_count_as_one(self) -> None:
        await filled(ledger := MemoryLedger())
        async with Process(Mortal(ledger, 3)).running() as process:
            with pytest.raises(KilledError):
                await process.open("agent-2")
            assert not process.lifecycle.is_connected(BERLIN)

    async def test_what_is_leaving_is_waited_for_by_whoever_removes_it_again(self) -> None:
        await filled(ledger := MemoryLedger(), pods=200)
        async with Process(ledger, rate=150).running() as process:
            first = asyncio.create_task(process.lifecycle.remove(BERLIN))
            await until(lambda: 0 < held(ledger, BERLIN) < 203)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            assert await process.lifecycle.remove(BERLIN, cluster_uid="uid-of-berlin") == 203
            assert_nothing_is_left(ledger, 203)


class TestComingBack:
    async def test_the_agent_that_was_removed_is_refused_and_another_joins_anew(self) -> None:
        await filled(ledger := MemoryLedger())
        async with Process(ledger).running() as process:
            await process.open("agent-berlin")
            await process.lifecycle.remove(BERLIN, force=True)
            with pytest.raises(ClusterRemoved):
                await process.open("agent-berlin")
            opened = await process.open("agent-2")
            assert opened.snapshot_all
            assert opened.held_types == ()
            assert ledger.clusters()[BERLIN].state is ClusterState.SYNCING
            with pytest.raises(ClusterRemoved):
                await process.open("agent-berlin")
        async with Process(ledger).running() as process:
            await process.lifecycle.remove(BERLIN)
        async with Process(ledger).running() as process:
            with pytest.raises(ClusterRemoved):
                await process.open("agent-2")
            await process.open("agent-3")

    @pytest.mark.looptime
    async def test_one_that_comes_while_the_session_ends_joins_when_all_is_gone(self) -> None:
        await filled(ledger := MemoryLedger())
        async with Process(ledger, rate=4).running() as process:
            await process.open("agent-berlin")
            removing = asyncio.create_task(process.lifecycle.remove(BERLIN, force=True))
            await until(lambda: "agent-berlin" in process.ended)
            opening = asyncio.create_task(process.open("agent-2"))
            assert await removing == 8
            assert (await opening).snapshot_all
            assert ledger.clusters()[BERLIN].state is ClusterState.SYNCING
            assert held(ledger, BERLIN) == 0

    async def test_a_cluster_built_anew_behind_the_same_agent_is_another_one(self) -> None:
        await filled(ledger := MemoryLedger())
        async with Process(ledger).running() as process:
            await process.open("agent-berlin")
            await process.lifecycle.remove(BERLIN, force=True)
            with pytest.raises(ClusterRemoved):
                await process.open("agent-berlin", uid="server-of-berlin")
            await process.open("agent-berlin", uid="uid-of-new-berlin")

    async def test_replacing_goes_the_same_way(self) -> None:
        await filled(ledger := MemoryLedger())
        async with Process(ledger).running() as process:
            with pytest.raises(ClusterUIDChanged):
                await process.open("agent-2", uid="uid-of-new-berlin")
            before = ledger.revision
            await process.open("agent-2", uid="uid-of-new-berlin", replace=True)
            assert process.departed == [BERLIN]
            assert ledger.clusters()[BERLIN].cluster_uid == "uid-of-new-berlin"
            states = [entry.state for entry in ledger.read(before, 100) if isinstance(entry, ClusterEntry)]
            assert states[:2] == [ClusterState.REMOVED, ClusterState.JOINING]
        assert held(ledger, BERLIN) == 0

    @pytest.mark.looptime
    async def test_a_silent_session_that_is_still_open_ends_with_what_is_replaced(self) -> None:
        await filled(ledger := MemoryLedger())
        async with Process(ledger).running() as process:
            await process.open("agent-berlin")
            await asyncio.sleep(11)
            await process.open("agent-2", uid="uid-of-new-berlin", replace=True)
            assert isinstance(process.ended["agent-berlin"], ClusterRemoved)

    @pytest.mark.looptime
    async def test_one_that_comes_too_early_is_told_to_come_again(self) -> None:
        await filled(ledger := MemoryLedger(), pods=64)
        async with Process(ledger, rate=4).running() as process:
            removing = asyncio.create_task(process.lifecycle.remove(BERLIN))
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(0.5)
            with pytest.raises(ClusterLeaving):
                await process.open("agent-2")
            assert asyncio.get_running_loop().time() - began == pytest.approx(LEAVING_WAIT, abs=1)
            assert 0 < held(ledger, BERLIN) < 64
            with pytest.raises(ClusterLeaving):
                await process.open("agent-2", uid="uid-of-new-berlin", replace=True)
            await removing
            await process.open("agent-2")
            assert held(ledger, BERLIN) == 0, "nothing of the former is mixed with what comes"

    async def test_how_many_are_remembered_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lifecycle, "MAX_REFUSED", 8)
        ledger = MemoryLedger()
        async with Process(ledger).running() as process:
            for number in range(8 + 1):
                cluster_id = ClusterID(f"c-{number}")
                await ledger.open_session(ClusterRecord(cluster_id, f"uid-{number}", agent_instance="gone"))
                await process.lifecycle.remove(cluster_id)
                await process.open("next", uid=f"uid-{number}", cluster_id=cluster_id)
                process.lifecycle.closed(cluster_id, 2, has_left=True)
            with pytest.raises(ClusterRemoved):
                await process.open("gone", uid="uid-1", cluster_id=ClusterID("c-1"))
            await process.open("gone", uid="uid-0", cluster_id=ClusterID("c-0"))


class TestKills:
    """A process that is killed behind any commit of a removal leaves nothing that the next one does not finish."""

    ALL = 1 + 8 + 2
    """REMOVED, a deletion each, and two types ABSENT."""

    @pytest.mark.looptime
    @pytest.mark.parametrize("commits", range(ALL + 1))
    async def test_after_each_commit(self, commits: int) -> None:
        await filled(ledger := MemoryLedger())
        await killed(Process(Mortal(ledger, 2 + commits), rate=1), lambda process: process.lifecycle.remove(BERLIN))
        async with Process(ledger, rate=1).running() as process:
            if commits:
                await process.lifecycle._departures.wait_departed(BERLIN)
                with pytest.raises(UnknownCluster):
                    await process.lifecycle.remove(BERLIN)
            else:
                assert ledger.clusters()[BERLIN].state is ClusterState.STALE, "nothing was promised"
                await process.lifecycle.remove(BERLIN)
            assert_nothing_is_left(ledger)

    @given(st.data())
    async def test_again_and_again(self, data: st.DataObject) -> None:
        pods, deployments = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
        lives = data.draw(st.lists(st.integers(0, 6), max_size=8))
        rate = data.draw(st.integers(1, 4))
        await filled(ledger := MemoryLedger(), pods, deployments)
        for commits in (2, *lives):
            process = Process(Mortal(ledger, 2 + commits), rate=10_000)
            process.lifecycle._departures._batch_size = rate
            await killed(process, lambda process: process.lifecycle.remove(BERLIN))
        async with Process(ledger).running() as process:
            await process.lifecycle._departures.wait_departed(BERLIN)
            assert held(ledger, BERLIN) == 0
            assert set(deletions(ledger, BERLIN).values()) <= {1}
            assert len(deletions(ledger, BERLIN)) == pods + deployments == held(ledger, PARIS)
            assert ledger.clusters()[BERLIN].state is ClusterState.REMOVED
            assert {known.state for known in ledger.types(BERLIN)} <= {TypeState.ABSENT}

    async def test_on_disk(self, tmp_path: Path) -> None:
        await filled(ledger := LmdbLedger.open(tmp_path), pods=300)
        process = Process(Mortal(ledger, 2 + 1 + 2))
        process.lifecycle._departures._batch_size = 100
        await killed(process, lambda process: process.lifecycle.remove(BERLIN))
        await ledger.close()
        ledger = LmdbLedger.open(tmp_path)
        assert held(ledger, BERLIN) == 303 - 2 * 100
        async with Process(ledger).running() as process:
            await process.lifecycle._departures.wait_departed(BERLIN)
            assert_nothing_is_left(ledger, 303)
        await ledger.close()

    @pytest.mark.looptime
    async def test_whoever_removes_may_go_right_behind_the_commit(self) -> None:
        await filled(ledger := MemoryLedger())
        async with Process(ledger).running():
            await ledger.set_cluster_state(BERLIN, ClusterState.REMOVED, "and then it was cancelled")
            await asyncio.sleep(10)
            assert_nothing_is_left(ledger)

    async def test_or_is_called_again_before_anybody_has_noticed(self) -> None:
        await filled(ledger := MemoryLedger())
        async with Process(ledger).running() as process:
            await ledger.set_cluster_state(BERLIN, ClusterState.REMOVED, "and then it was cancelled")
            assert await process.lifecycle.remove(BERLIN) == 8

    async def test_objects_of_types_that_are_told_absent_leave_as_well(self) -> None:
        await filled(ledger := MemoryLedger())
        for of in (PODS, DEPLOYMENTS):
            await ledger.set_type_state(BERLIN, of, TypeState.ABSENT)
        await ledger.set_cluster_state(BERLIN, ClusterState.REMOVED)
        async with Process(ledger).running() as process:
            await process.lifecycle._departures.wait_departed(BERLIN)
            assert_nothing_is_left(ledger)

    async def test_a_removal_that_could_not_be_committed_is_none(self) -> None:
        await filled(ledger := MemoryLedger())
        process = Process(ledger)

        async def full(*_: object) -> None:
            raise LedgerFull("memory")

        async with process.running():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ledger, "set_cluster_state", full)
                with pytest.raises(LedgerFull):
                    await process.lifecycle.remove(BERLIN)
            assert held(ledger, BERLIN) == 8
            await process.open("agent-berlin")

    @pytest.mark.looptime
    async def test_a_ledger_without_room_is_tried_again_and_holds_nobody_else_up(
        self, monkeypatch: pytest.MonkeyPatch, logs: list[EventDict]
    ) -> None:
        await filled(ledger := MemoryLedger())
        departures = Departures(ledger, 1024)
        append, refusals = ledger.append, iter([True, False, False, False, False, True])

        async def sometimes_full(batch: Any) -> Any:
            if batch.cluster_id == BERLIN and next(refusals, False):
                raise LedgerFull("memory")
            return await append(batch)

        monkeypatch.setattr(ledger, "append", sometimes_full)
        for cluster_id in (BERLIN, PARIS):
            await ledger.set_cluster_state(cluster_id, ClusterState.REMOVED)
            departures.begin(cluster_id)
        order: list[ClusterID] = []
        departures.on_departed(order.append)
        task = asyncio.create_task(departures.run())
        began = asyncio.get_running_loop().time()
        assert await departures.wait_departed(BERLIN) == 8
        assert asyncio.get_running_loop().time() - began >= RETRY_SECONDS
        assert order == [PARIS, BERLIN]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert [each["cluster"] for each in logs if each["log_level"] == "error"] == [BERLIN]


async def killed(process: Process, work: Callable[[Process], Awaitable[Any]]) -> None:
    """Runs until the ledger's process is gone, or until all is done."""

    async def live() -> None:
        await process.lifecycle.start()
        running = asyncio.create_task(process.lifecycle.run())
        try:
            working = asyncio.ensure_future(work(process))
            await asyncio.wait([running, working], return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            if running.done():
                running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    try:
        await live()
    except KilledError:
        return


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - the state has no event
            await asyncio.sleep(0)
