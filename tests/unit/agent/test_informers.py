"""Informers: what one type's trouble means for the others, and how all come back from an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from federator.agent.frame import (
    Change,
    Frame,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotItems,
    StateBuckets,
    StatedDigest,
    StateItems,
    TypeStatus,
)
from federator.agent.informers import Informers
from federator.agent.listing import Plan
from federator.agent.outbox import Outbox
from federator.agent.settings import AgentSettings
from federator.api.cluster import ClusterID, TypeState
from federator.api.resource import GroupResource
from federator.cache.reflector_status import ReflectorState
from tests.unit.agent.scripted_cluster import CRDS, DEPLOYMENTS, NODES, PODS, WIDGETS, ScriptedCluster

pytestmark = pytest.mark.looptime

TYPES = (PODS, NODES, DEPLOYMENTS, WIDGETS, CRDS)


@asynccontextmanager
async def running(
    cluster: ScriptedCluster, outbox: Outbox | None = None, floors: Mapping[GroupResource, str] | None = None
) -> AsyncIterator[Informers]:
    informers = Informers(
        cluster,
        outbox or Outbox(),
        AgentSettings(cluster_id=ClusterID("c"), aggregator="unix:/run/x.sock"),
        secrets_key=None,
        types_may_have_changed=lambda: None,
    )
    informers.set_types(cluster.types)
    informers.start_from(floors or {})
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(informers.run())
        await asyncio.sleep(5)
        yield informers
        task.cancel()


def states(informers: Informers) -> set[TypeState]:
    return {health.state for health in informers.health()}


async def test_after_an_outage_all_types_are_back_soon_after_the_first() -> None:
    cluster = ScriptedCluster(*TYPES)
    async with running(cluster) as informers:
        assert states(informers) == {TypeState.LIVE}
        cluster.go_down()
        await asyncio.sleep(600)
        assert states(informers) == {TypeState.STALE}
        cluster.come_back()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while TypeState.LIVE not in states(informers):  # noqa: ASYNC110 - a time that jumps, not a wait
            await asyncio.sleep(0.5)
        first = loop.time()
        assert first - began < 60, "the longest delay"
        while states(informers) != {TypeState.LIVE}:  # noqa: ASYNC110 - a time that jumps, not a wait
            await asyncio.sleep(0.5)
        assert loop.time() - first < 6, "the others would have waited up to a minute"
        assert cluster.lists.total() == len(TYPES), "and nobody listed anew"


async def test_what_is_denied_and_asks_seldom_hides_no_outage() -> None:
    cluster = ScriptedCluster(*TYPES)
    cluster.denied.update(each.group_resource for each in (NODES, DEPLOYMENTS, WIDGETS))
    async with running(cluster):
        for _ in range(20):  # until its delays are long
            await asyncio.sleep(30)
            cluster.bookmark(PODS)
            cluster.bookmark(CRDS)
        with capture_logs() as logs:
            cluster.go_down()
            await asyncio.sleep(10)
            cluster.come_back()
            await asyncio.sleep(20)
    said = [log["event"] for log in logs if log["event"].startswith("apiserver")]
    assert said == ["apiserver does not answer", "apiserver answers again"]


async def test_bug28_a_first_list_that_is_not_answered_is_told() -> None:
    cluster = ScriptedCluster(*TYPES)
    cluster.silent.add(WIDGETS.group_resource)
    async with running(cluster) as informers:
        await asyncio.sleep(2)
        (health,) = [health for health in informers.health() if health.resource_type == WIDGETS]
        assert (health.state, health.reason) == (TypeState.SYNCING, "waiting for a list")
        outbox = informers._outbox
        outbox.resume(0, snapshot_all=False, window_bytes=1 << 20)
        told = [frame.content for frame in iter(outbox.take, None) if frame.type == WIDGETS]
        assert told == [TypeStatus(TypeState.SYNCING, "waiting for a list")]


async def test_a_type_that_is_served_and_not_collected_any_more_is_not_told_absent() -> None:
    cluster = ScriptedCluster(*TYPES)
    async with running(cluster) as informers:
        outbox = informers._outbox
        outbox.report(WIDGETS, TypeState.NOT_COLLECTED, "not asked for")
        informers.set_types([each for each in TYPES if each != WIDGETS])
        await asyncio.sleep(1)
        outbox.resume(0, snapshot_all=False, window_bytes=1 << 20)
        told = [frame.content for frame in iter(outbox.take, None) if frame.type == WIDGETS]
        assert [content.state for content in told if isinstance(content, TypeStatus)] == [TypeState.NOT_COLLECTED]


async def test_a_type_that_alone_is_unreachable_keeps_its_delays() -> None:
    cluster = ScriptedCluster(*TYPES)
    async with running(cluster) as informers:
        cluster.cut_off(WIDGETS)
        await asyncio.sleep(600)
        (widgets,) = (health for health in informers.health() if health.resource_type == WIDGETS)
        assert widgets.state is TypeState.STALE
        assert widgets.reflector.state is ReflectorState.BACKING_OFF
        assert widgets.reflector.attempts < 30, "600 s of delays that grow to 30 s and more"
        assert {health.state for health in informers.health() if health is not widgets} >= {TypeState.LIVE}


class TestBackAfterAway:
    """What a new agent finds of a cluster that another one followed before."""

    FLOOR = "500"

    async def test_a_cluster_that_was_restored_meanwhile_is_told_as_restored(self) -> None:
        cluster = ScriptedCluster(PODS, NODES)
        cluster.version = 400
        outbox = open_outbox()
        async with running(cluster, outbox, {PODS.group_resource: self.FLOOR}):
            begins = {frame.type: frame.content for frame in taken(outbox)}
        assert begins == {
            PODS: SnapshotBegin("400", digest(begins[PODS]), is_restored=True),
            NODES: SnapshotBegin("400", digest(begins[NODES])),
        }

    async def test_one_that_only_went_on_is_not(self) -> None:
        cluster = ScriptedCluster(PODS)
        cluster.version = 600
        outbox = open_outbox()
        async with running(cluster, outbox, {PODS.group_resource: self.FLOOR}):
            (frame,) = taken(outbox)
        assert frame.content == SnapshotBegin("600", digest(frame.content))

    async def test_one_that_is_restored_while_it_is_followed_is(self) -> None:
        cluster = ScriptedCluster(PODS)
        cluster.version = 600
        outbox = open_outbox()
        async with running(cluster, outbox):
            (begin,) = taken(outbox)
            outbox.planned(begin.sequence, Plan.NOTHING)
            (end,) = taken(outbox)
            assert isinstance(end.content, SnapshotEnd)
            outbox.acknowledge(end.sequence)
            cluster.restore(300)
            await asyncio.sleep(1200)
            (begin,) = (frame for frame in taken(outbox) if isinstance(frame.content, SnapshotBegin))
        assert begin.content == SnapshotBegin("300", digest(begin.content), is_restored=True)


async def test_of_a_recheck_what_differs_is_got_one_by_one_and_nothing_is_listed() -> None:
    cluster = ScriptedCluster(PODS)
    for name in ("a", "b", "c", "gone"):
        cluster.put(PODS, name)
    outbox = open_outbox()
    async with running(cluster, outbox):
        (begin,) = taken(outbox)
        outbox.planned(begin.sequence, Plan.NOTHING)
        (end,) = taken(outbox)
        outbox.acknowledge(end.sequence)
        del cluster.objects[PODS.group_resource]["default", "gone"]  # which the watch has still to tell
        outbox.recheck(PODS.group_resource)
        (begin,) = taken(outbox)
        outbox.planned(begin.sequence, Plan.DIFFERING)
        (buckets,) = taken(outbox)
        assert isinstance(buckets.content, StateBuckets)
        outbox.differing(buckets.sequence, [0])
        (items,) = taken(outbox)
        assert isinstance(items.content, StateItems)
        outbox.differing(items.sequence, range(4))
        await asyncio.sleep(1)
        repairs = [frame.content for frame in taken(outbox)]
    changes: list[Change] = [
        change for content in repairs if isinstance(content, SnapshotItems) for change in content.changes
    ]
    assert sorted(change.name for change in changes) == ["a", "b", "c"]
    assert isinstance(repairs[-1], SnapshotEnd)
    assert (cluster.gets.total(), cluster.lists.total()) == (4, 1)


def open_outbox() -> Outbox:
    outbox = Outbox()
    outbox.resume(0, snapshot_all=True, window_bytes=1 << 20, has_plans=True)
    return outbox


def taken(outbox: Outbox) -> Iterator[Frame]:
    """What can be taken, but for states."""
    return (frame for frame in iter(outbox.take, None) if not isinstance(frame.content, TypeStatus))


def digest(begin: object) -> StatedDigest:
    assert isinstance(begin, SnapshotBegin)
    assert begin.digest is not None
    return begin.digest
