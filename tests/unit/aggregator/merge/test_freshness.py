from __future__ import annotations

import asyncio

import pytest

from federator.aggregator.ledger.records import Batch
from federator.aggregator.merge.freshness import (
    GROUP_UNREAD,
    MAX_UNREAD_GROUPS,
    PROVED_WITHIN,
    FreshnessTable,
    TypeFreshness,
)
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import GroupResource
from federator.cache.stream_guard import MIN_SILENCE
from tests.unit.aggregator.federation import DEPLOYMENTS, NODES, PODS, Federation, put

A, B = ClusterID("a"), ClusterID("b")
PODS_GR, NODES_GR = PODS.group_resource, NODES.group_resource


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Table:
    """A federation of one cluster on a clock that stands still."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.federation = Federation(monotonic=self.clock)
        self.freshness = self.federation.view.freshness

    def pods(self) -> TypeFreshness:
        return self.freshness.of(A, [PODS_GR]).types[0]


@pytest.fixture
async def table() -> Table:
    table = Table()
    await table.federation.join("a", [PODS, NODES])
    return table


async def test_who_waits_for_a_change_is_told_of_those_of_its_type_and_cluster(table: Table) -> None:
    federation, freshness = table.federation, table.freshness
    await federation.join("b", [PODS])
    waiting = asyncio.create_task(freshness.changed(A, PODS_GR))
    await asyncio.sleep(0)

    async def is_told_by(batch: Batch) -> bool:
        nonlocal waiting
        await federation.ledger.append(batch)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if is_told := waiting.done():
            waiting = asyncio.create_task(freshness.changed(A, PODS_GR))
            await asyncio.sleep(0)
        return is_told

    term = federation.ledger.clusters()[A].term
    assert not await is_told_by(Batch(A, term, 0, PODS, (put("x"),)))
    assert not await is_told_by(Batch(A, term, 0, NODES, low_water="5"))
    assert not await is_told_by(Batch(B, federation.ledger.clusters()[B].term, 0, PODS, low_water="5"))
    assert await is_told_by(Batch(A, term, 0, PODS, low_water="5"))
    await federation.ledger.set_type_state(A, PODS, TypeState.DENIED)
    await waiting
    waiting = asyncio.create_task(freshness.changed(A, PODS_GR))
    await asyncio.sleep(0)
    await federation.ledger.set_cluster_state(A, ClusterState.STALE)
    await waiting
    assert not freshness._waiting


async def test_a_proved_type_of_a_live_cluster_is_live(table: Table) -> None:
    fresh = table.freshness.of(A)
    assert fresh.state is ClusterState.LIVE
    assert [(str(of.group_resource), of.state) for of in fresh.types] == [("nodes", "LIVE"), ("pods", "LIVE")]
    assert fresh.is_complete
    assert (fresh.seen_age, fresh.proved_age) == (0, 0)


def test_a_quiet_watch_that_is_dialled_again_has_time_for_its_next_bookmark() -> None:
    longest_between_bookmarks = 60 * 1.25  # a minute, and a quarter of it at random
    assert MIN_SILENCE + longest_between_bookmarks < PROVED_WITHIN


async def test_ages_grow_and_a_proof_that_is_too_old_proves_nothing(table: Table) -> None:
    table.clock.now += PROVED_WITHIN
    assert table.pods().state is TypeState.LIVE
    table.freshness.proved(A, NODES_GR, 5)
    table.clock.now += 1
    assert table.pods() == TypeFreshness(PODS_GR, TypeState.STALE, "last proved 181 s ago", "", 181)
    fresh = table.freshness.of(A)
    assert (fresh.seen_age, fresh.proved_age) == (181, 181)
    assert not fresh.is_complete
    assert table.freshness.of(A, [NODES_GR]).proved_age == 6
    table.freshness.seen(A)
    table.freshness.proved(A, PODS_GR, 2)
    assert table.pods().state is TypeState.LIVE
    assert table.freshness.of(A).seen_age == 0


async def test_an_older_proof_changes_nothing_and_a_negative_age_is_now(table: Table) -> None:
    table.freshness.proved(A, PODS_GR, 500)
    assert table.pods().proved_age == 0
    table.clock.now += 10
    table.freshness.proved(A, PODS_GR, -5)
    assert table.pods().proved_age == 0


@pytest.mark.parametrize(
    ("cluster_state", "expected"),
    [
        (ClusterState.JOINING, TypeState.SYNCING),
        (ClusterState.SYNCING, TypeState.SYNCING),
        (ClusterState.STALE, TypeState.STALE),
        (ClusterState.RECOVERING, TypeState.STALE),
        (ClusterState.REMOVED, TypeState.STALE),
    ],
)
async def test_no_type_of_a_cluster_that_is_not_live_is_live_or_absent(
    table: Table, cluster_state: ClusterState, expected: TypeState
) -> None:
    await table.federation.ledger.set_cluster_state(A, cluster_state, "because")
    fresh = table.freshness.of(A, [PODS_GR, DEPLOYMENTS.group_resource])
    assert [of_type.state for of_type in fresh.types] == [expected, expected]
    assert not fresh.is_complete
    assert fresh.reason == "because"


@pytest.mark.parametrize("state", [TypeState.DENIED, TypeState.NOT_COLLECTED, TypeState.SYNCING, TypeState.STALE])
async def test_what_the_agent_says_stands_whatever_the_cluster(table: Table, state: TypeState) -> None:
    await table.federation.ledger.set_type_state(A, PODS, state, "pods is forbidden")
    for cluster_state in (ClusterState.LIVE, ClusterState.STALE):
        await table.federation.ledger.set_cluster_state(A, cluster_state)
        assert (table.pods().state, table.pods().reason) == (state, "pods is forbidden")
        assert not table.pods().is_complete


async def test_what_the_agent_never_told_of_is_absent(table: Table) -> None:
    fresh = table.freshness.of(A, [DEPLOYMENTS.group_resource])
    assert fresh.types[0].state is TypeState.ABSENT
    assert fresh.is_complete
    assert fresh.proved_age is None


async def test_a_type_that_was_never_proved_to_this_process_is_not_live(table: Table) -> None:
    restarted = FreshnessTable(clock=table.clock)
    restarted.load(table.federation.ledger)
    fresh = restarted.of(A)
    assert {of_type.state for of_type in fresh.types} == {TypeState.STALE}
    assert (fresh.seen_age, fresh.proved_age) == (None, None)
    restarted.proved(A, PODS_GR, 1)
    assert restarted.of(A, [PODS_GR]).is_complete
    assert restarted.of(A).proved_age is None
    assert restarted.statistics() == {"clusters": 1, "types": 2}


async def test_types_that_are_not_followed_have_no_say_in_the_proof(table: Table) -> None:
    await table.federation.ledger.set_type_state(A, DEPLOYMENTS, TypeState.DENIED)
    table.clock.now += 3
    assert table.freshness.of(A).proved_age == 3


async def test_low_water_follows_bookmarks(table: Table) -> None:
    term = table.federation.ledger.clusters()[A].term
    await table.federation.ledger.append(Batch(A, term, 0, PODS, (), "1234"))
    assert table.pods().low_water == "1234"
    reloaded = FreshnessTable()
    reloaded.load(table.federation.ledger)
    assert reloaded.of(A, [PODS_GR]).types[0].low_water == "1234"


async def test_members_and_former_members(table: Table) -> None:
    await table.federation.join("b", state=ClusterState.STALE)
    assert sorted(table.freshness.members()) == [A, B]
    await table.federation.ledger.set_cluster_state(B, ClusterState.REMOVED)
    assert (table.freshness.members(), table.freshness.former_members()) == ([A], [B])
    assert table.freshness.state(B) is ClusterState.REMOVED
    assert table.freshness.state(ClusterID("c")) is None


async def test_what_is_heard_of_strangers_is_nothing(table: Table) -> None:
    table.freshness.seen(B)
    table.freshness.proved(B, PODS_GR, 0)
    table.freshness.proved(A, GroupResource("evil.example.com", "bombs"), 0)
    assert table.freshness.members() == [A]
    assert table.freshness.statistics() == {"clusters": 1, "types": 2}


async def test_a_removed_cluster_has_no_age(table: Table) -> None:
    await table.federation.ledger.set_cluster_state(A, ClusterState.REMOVED)
    fresh = table.freshness.of(A)
    assert (fresh.seen_age, fresh.proved_age) == (None, None)


class TestUnreadGroups:
    METRICS = GroupResource("metrics.k8s.io", "pods")

    def told(self, table: Table, resource: GroupResource) -> tuple[TypeState, str]:
        (fresh,) = table.freshness.of(A, [resource]).types
        return fresh.state, fresh.reason

    async def test_a_type_of_which_nobody_knows_whether_it_is_served_is_not_absent(self, table: Table) -> None:
        assert self.told(table, self.METRICS) == (TypeState.ABSENT, "")
        table.freshness.unread_groups(A, ["metrics.k8s.io"])
        assert self.told(table, self.METRICS) == (TypeState.STALE, GROUP_UNREAD)
        assert self.told(table, GroupResource("other", "pods"))[0] is TypeState.ABSENT
        assert self.told(table, PODS_GR)[0] is not TypeState.ABSENT
        table.freshness.unread_groups(A, [])
        assert self.told(table, self.METRICS) == (TypeState.ABSENT, "")

    async def test_what_an_agent_has_told_of_a_type_stands(self, table: Table) -> None:
        before = self.told(table, PODS_GR)
        table.freshness.unread_groups(A, [""])
        assert self.told(table, PODS_GR) == before

    async def test_it_is_forgotten_with_the_cluster(self, table: Table) -> None:
        table.freshness.unread_groups(A, ["metrics.k8s.io"])
        await table.federation.ledger.set_cluster_state(A, ClusterState.REMOVED)
        assert self.told(table, self.METRICS)[1] != GROUP_UNREAD

    async def test_no_agent_fills_the_memory_with_them(self, table: Table) -> None:
        many = [f"g{number}" for number in range(MAX_UNREAD_GROUPS)]
        table.freshness.unread_groups(A, ["x" * 254, *many, "one-more"])
        assert self.told(table, GroupResource(many[-1], "x"))[0] is TypeState.STALE
        assert self.told(table, GroupResource("one-more", "x"))[0] is TypeState.ABSENT
        assert self.told(table, GroupResource("x" * 254, "x"))[0] is TypeState.ABSENT

    async def test_a_cluster_that_never_joined_has_none(self, table: Table) -> None:
        table.freshness.unread_groups(ClusterID("stranger"), ["metrics.k8s.io"])
        assert table.freshness.state(ClusterID("stranger")) is None

    async def test_who_waits_for_such_a_type_is_told(self, table: Table) -> None:
        waiting = asyncio.create_task(table.freshness.changed(A, self.METRICS))
        await asyncio.sleep(0)
        table.freshness.unread_groups(A, ["other"])
        await asyncio.sleep(0)
        assert not waiting.done()
        table.freshness.unread_groups(A, ["other", "metrics.k8s.io"])
        await waiting
