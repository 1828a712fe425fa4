"""ClusterLifecycle on a clock of its own: silence, late looks, farewells."""

from __future__ import annotations

import asyncio

import pytest

from federator.aggregator.ingest.lifecycle import BROKEN_AFTER, Candidate, ClusterLifecycle, Opened
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import ClusterRecord
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import GroupResource
from federator.errors import ClusterHeld, FederatorError, SessionFenced
from tests.unit.agent.scripted_cluster import NODES, PODS

C = ClusterID("c")


class World:
    """A lifecycle, its ledger and its clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ledger = MemoryLedger()
        self.ended: list[FederatorError | None] = []
        self.lifecycle = ClusterLifecycle(self.ledger, self, IngestSettings(), clock=lambda: self.now)

    def seen(self, cluster_id: ClusterID) -> None: ...

    def proved(self, cluster_id: ClusterID, resource: GroupResource, age_seconds: float) -> None: ...

    def state(self) -> ClusterState:
        return self.ledger.clusters()[C].state

    async def open(self, instance: str = "one") -> Opened:
        record = ClusterRecord(C, "uid", agent_instance=instance)
        return await self.lifecycle.open(Candidate(record, (PODS, NODES), False, self.ended.append))

    async def all_live(self, term: int) -> None:
        for resource_type in (PODS, NODES):
            await self.lifecycle.type_told(C, term, resource_type, TypeState.LIVE)


@pytest.fixture
def world() -> World:
    return World()


async def test_two_heartbeats_of_silence_are_one_too_many(world: World) -> None:
    term = (await world.open()).record.term
    await world.all_live(term)
    world.now += 10.0
    await world.lifecycle.look()
    assert world.state() is ClusterState.LIVE
    world.now += 0.1
    await world.lifecycle.look()
    assert world.state() is ClusterState.STALE
    await world.lifecycle.heard(C, term)
    assert world.state() is ClusterState.LIVE


async def test_a_process_that_did_not_run_does_not_blame_the_agents(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.all_live((await world.open()).record.term)
    naps = iter([60.0, 2.5, 2.5])

    async def nap(_: float) -> None:
        try:
            world.now += next(naps)
        except StopIteration:
            raise asyncio.CancelledError from None

    looks: list[float] = []
    look = world.lifecycle.look

    async def counted() -> None:
        looks.append(world.now)
        await look()

    monkeypatch.setattr(asyncio, "sleep", nap)
    monkeypatch.setattr(world.lifecycle, "look", counted)
    with pytest.raises(asyncio.CancelledError):
        await world.lifecycle.run()
    assert looks == [1062.5, 1065.0], "after the long nap the agents get the time to be heard"


async def test_the_reason_says_how_the_agent_went(world: World) -> None:
    for has_left, word in ((True, "stopped"), (False, "lost")):
        term = (await world.open()).record.term
        await world.all_live(term)
        world.lifecycle.closed(C, term, has_left=has_left)
        assert world.state() is ClusterState.LIVE, "another session may follow at once"
        world.now += 11
        await world.lifecycle.look()
        assert world.state() is ClusterState.STALE
        assert word in world.ledger.clusters()[C].reason


async def test_a_quick_reconnect_of_the_instance_is_nobodys_business(world: World) -> None:
    await world.all_live((await world.open()).record.term)
    again = await world.open()
    assert (world.state(), again.snapshot_all) == (ClusterState.LIVE, False)
    assert isinstance(world.ended[0], SessionFenced)


async def test_nothing_of_an_older_session_counts(world: World) -> None:
    old = (await world.open()).record.term
    new = (await world.open()).record.term
    with pytest.raises(SessionFenced):
        await world.lifecycle.type_told(C, old, PODS, TypeState.DENIED)
    with pytest.raises(SessionFenced):
        await world.lifecycle.heard(C, old)
    world.lifecycle.closed(C, old, has_left=True)
    with pytest.raises(ClusterHeld):
        await world.open("two")
    assert world.lifecycle.collects(C, PODS.group_resource)
    assert new == old + 1


async def test_a_denied_type_counts_for_nothing_and_an_unconfirmed_one_does(world: World) -> None:
    term = (await world.open()).record.term
    await world.lifecycle.type_told(C, term, PODS, TypeState.DENIED, "forbidden")
    assert world.state() is ClusterState.SYNCING
    await world.lifecycle.type_told(C, term, NODES, TypeState.LIVE)
    assert world.state() is ClusterState.LIVE


async def test_a_type_that_stays_broken_holds_the_cluster_up_for_a_minute_only(world: World) -> None:
    term = (await world.open()).record.term
    await world.lifecycle.type_told(C, term, NODES, TypeState.LIVE)
    await world.lifecycle.type_told(C, term, PODS, TypeState.STALE, "500: conversion webhook failed")
    for _ in range(7):
        assert world.state() is ClusterState.SYNCING
        world.now += BROKEN_AFTER / 7
        await world.lifecycle.heard(C, term)
        await world.lifecycle.look()
    world.now += 1
    await world.lifecycle.look()
    assert world.state() is ClusterState.LIVE
    (pods,) = (one for one in world.ledger.types(C) if one.type == PODS)
    assert pods.state is TypeState.STALE, "the type itself is honest"


async def test_a_cluster_whose_types_are_all_denied_is_live(world: World) -> None:
    term = (await world.open()).record.term
    for resource_type in (PODS, NODES):
        await world.lifecycle.type_told(C, term, resource_type, TypeState.DENIED, "forbidden")
    assert world.state() is ClusterState.LIVE


async def test_silence_before_the_first_sync_and_the_way_back(world: World) -> None:
    term = (await world.open()).record.term
    world.now += 11
    await world.lifecycle.look()
    assert world.state() is ClusterState.STALE
    await world.lifecycle.heard(C, term)
    assert world.state() is ClusterState.RECOVERING
    await world.all_live(term)
    assert world.state() is ClusterState.LIVE


async def test_states_are_counted(world: World) -> None:
    await world.open()
    assert world.lifecycle.statistics()["clusters_syncing"] == 1
