"""ClusterLifecycle on a clock of its own: silence, late looks, farewells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

import pytest

from federator.aggregator.ingest.lifecycle import (
    BROKEN_AFTER,
    REASON_INTERVAL,
    Candidate,
    ClusterLifecycle,
    Opened,
)
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import ClusterRecord, TypeEntry
from federator.api.cluster import LISTING_ANEW, ClusterID, ClusterState, TypeState
from federator.api.resource import GroupResource, ResourceType
from federator.errors import ClusterHeld, FederatorError, SessionFenced
from tests.unit.agent.scripted_cluster import NODES, PODS

C = ClusterID("c")


class World:
    """A lifecycle, its ledger and its clock."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self.now = 1000.0
        self.ledger = MemoryLedger(clock=wall)
        self.ended: list[FederatorError | None] = []
        self.lifecycle = ClusterLifecycle(self.ledger, self, IngestSettings(), clock=lambda: self.now)

    def seen(self, cluster_id: ClusterID) -> None: ...

    def proved(self, cluster_id: ClusterID, resource: GroupResource, age_seconds: float) -> None: ...

    def unread_groups(self, cluster_id: ClusterID, groups: Collection[str]) -> None: ...

    def state(self) -> ClusterState:
        return self.ledger.clusters()[C].state

    async def open(self, instance: str = "one") -> Opened:
        record = ClusterRecord(C, "uid", agent_instance=instance)
        return await self.lifecycle.open(Candidate(record, (PODS, NODES), False, self.ended.append))

    def reason(self, resource_type: ResourceType = PODS) -> str:
        return next(known.reason for known in self.ledger.types(C) if known.type == resource_type)

    async def all_live(self, term: int) -> None:
        for resource_type in (PODS, NODES):
            await self.lifecycle.type_told(C, term, resource_type, TypeState.LIVE)


@pytest.fixture
def world() -> World:
    return World()


class _EnoughError(Exception):
    """Ends what would run for ever."""


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
            raise _EnoughError from None

    looks: list[float] = []
    look = world.lifecycle.look

    async def counted() -> None:
        looks.append(world.now)
        await look()

    monkeypatch.setattr(asyncio, "sleep", nap)
    monkeypatch.setattr(world.lifecycle, "look", counted)
    with pytest.raises(_EnoughError):
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


class TestReasons:
    """What but says otherwise why a type is STALE is committed at most once a minute, and then as it is told last."""

    async def test_reasons_that_take_turns(self, world: World) -> None:
        term = (await world.open()).record.term
        await world.all_live(term)
        before = world.ledger.revision
        for number in range(240):
            await world.lifecycle.type_told(C, term, PODS, TypeState.STALE, f"connection {number % 2} refused")
            world.now += 1.0
            await world.lifecycle.heard(C, term)
            await world.lifecycle.look()
        told = [entry for entry in world.ledger.read(before, 1000) if isinstance(entry, TypeEntry)]
        assert 1 < len(told) <= 1 + 240 // REASON_INTERVAL

    async def test_the_newest_is_told_a_minute_after_the_last_at_most(self, world: World) -> None:
        term = (await world.open()).record.term
        await world.all_live(term)
        for reason in ("first", "second", "third"):
            await world.lifecycle.type_told(C, term, PODS, TypeState.STALE, reason)
        await world.lifecycle.type_told(C, term, NODES, TypeState.STALE, "of the nodes")
        assert (world.reason(), world.reason(NODES)) == ("first", "of the nodes")
        world.now += REASON_INTERVAL - 0.1
        await world.lifecycle.look()
        assert world.reason() == "first"
        world.now += 0.1
        await world.lifecycle.look()
        assert world.reason() == "third"

    async def test_why_a_listing_does_not_come_is_told_at_once(self, world: World) -> None:
        term = (await world.open()).record.term
        await world.lifecycle.type_told(C, term, PODS, TypeState.STALE, LISTING_ANEW)
        await world.lifecycle.type_told(C, term, PODS, TypeState.STALE, "a")
        assert world.reason() == "a"
        await world.lifecycle.type_told(C, term, PODS, TypeState.STALE, "b")
        assert world.reason() == "a"

    async def test_a_reason_that_comes_back_leaves_nothing_to_tell(self, world: World) -> None:
        term = (await world.open()).record.term
        for reason in ("first", "second", "first"):
            await world.lifecycle.type_told(C, term, PODS, TypeState.STALE, reason)
        world.now += REASON_INTERVAL
        await world.lifecycle.heard(C, term)
        before = world.ledger.revision
        await world.lifecycle.look()
        assert (world.ledger.revision, world.reason()) == (before, "first")

    async def test_a_change_of_state_is_told_at_once_and_ends_what_waited(self, world: World) -> None:
        term = (await world.open()).record.term
        for state, reason in ((TypeState.STALE, "a"), (TypeState.STALE, "b"), (TypeState.LIVE, "")):
            await world.lifecycle.type_told(C, term, PODS, state, reason)
        assert world.reason() == ""
        await world.lifecycle.type_told(C, term, PODS, TypeState.STALE, "c")
        assert world.reason() == "c"
        await world.lifecycle.type_told(C, term, PODS, TypeState.LIVE)
        world.now += REASON_INTERVAL
        await world.lifecycle.look()
        (pods,) = (known for known in world.ledger.types(C) if known.type == PODS)
        assert (pods.state, pods.reason) == (TypeState.LIVE, "")

    async def test_a_session_that_follows_makes_no_difference(self, world: World) -> None:
        for reason in ("first", "second", "third"):
            term = (await world.open()).record.term
            await world.lifecycle.type_told(C, term, PODS, TypeState.STALE, reason)
        assert world.reason() == "first"
        world.now += REASON_INTERVAL
        await world.lifecycle.look()
        assert world.reason() == "third"


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_clock_that_is_set_makes_nothing_stale_and_revisions_grow(hours: int) -> None:
    wall = 1_800_000_000.0
    world = World(lambda: wall)
    term = (await world.open()).record.term
    await world.all_live(term)
    since, before = world.ledger.clusters()[C].since_ms, world.ledger.revision
    wall += hours * 3600
    for _ in range(3):
        world.now += 5
        await world.lifecycle.heard(C, term)
        await world.lifecycle.look()
    assert world.state() is ClusterState.LIVE
    assert world.ledger.revision == before
    await world.lifecycle.type_told(C, term, PODS, TypeState.STALE, "refused")
    assert world.ledger.revision > before
    world.now += 11
    await world.lifecycle.look()
    assert world.state() is ClusterState.STALE, "silence is measured all the same"
    assert world.ledger.clusters()[C].since_ms >= since, "a time in the ledger never goes back"
