"""Informers: what one type's trouble means for the others, and how all come back from an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from federator.agent.frame import TypeStatus
from federator.agent.informers import Informers
from federator.agent.outbox import Outbox
from federator.agent.settings import AgentSettings
from federator.api.cluster import ClusterID, TypeState
from federator.cache.reflector_status import ReflectorState
from tests.unit.agent.scripted_cluster import CRDS, DEPLOYMENTS, NODES, PODS, WIDGETS, ScriptedCluster

pytestmark = pytest.mark.looptime

TYPES = (PODS, NODES, DEPLOYMENTS, WIDGETS, CRDS)


@asynccontextmanager
async def running(cluster: ScriptedCluster) -> AsyncIterator[Informers]:
    informers = Informers(
        cluster,
        Outbox(),
        AgentSettings(cluster_id=ClusterID("c"), aggregator="unix:/run/x.sock"),
        secrets_key=None,
        types_may_have_changed=lambda: None,
    )
    informers.set_types(cluster.types)
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
            await asyncio.sleep(0.1)
        first = loop.time()
        assert first - began < 60, "the longest delay"
        while states(informers) != {TypeState.LIVE}:  # noqa: ASYNC110 - a time that jumps, not a wait
            await asyncio.sleep(0.1)
        assert loop.time() - first < 6, "the others would have waited up to a minute"
        assert cluster.lists.total() == len(TYPES), "and nobody listed anew"


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
