from __future__ import annotations

import asyncio

import pytest

from federator.aggregator.merge.selection import Selection
from federator.aggregator.serve.freshness_answers import MAX_AGE, FreshnessAnswers
from federator.api.cluster import ClusterID, ClusterState
from federator.api.selector import ClusterSelector
from federator.v1 import inventory_pb2, types_pb2
from tests.unit.aggregator.federation import PODS, Federation

pytestmark = pytest.mark.looptime

ALL_PODS = Selection(frozenset({PODS.group_resource}))


async def test_an_answer_is_repeated_for_a_moment_to_who_asks_the_same() -> None:
    federation = Federation(monotonic=asyncio.get_running_loop().time)
    for cluster in ("a", "b"):
        await federation.join(cluster)
    answers = FreshnessAnswers(federation.view, federation.ledger)
    first = answers.of(ALL_PODS)
    assert [each.cluster_id for each in inventory_pb2.WatchEvent.FromString(first).freshness] == ["a", "b"]
    assert answers.of(Selection(frozenset({PODS.group_resource}))) is first
    only_a = answers.of(Selection(frozenset({PODS.group_resource}), ClusterSelector.parse(["a"])))
    assert [each.cluster_id for each in inventory_pb2.WatchEvent.FromString(only_a).freshness] == ["a"]
    await asyncio.sleep(MAX_AGE * 2)
    (later, _) = inventory_pb2.WatchEvent.FromString(answers.of(ALL_PODS)).freshness
    assert later.seen_age_ms == int(MAX_AGE * 2000)


async def test_a_change_of_state_is_told_at_once() -> None:
    federation = Federation(monotonic=asyncio.get_running_loop().time)
    await federation.join("a")
    answers = FreshnessAnswers(federation.view, federation.ledger)
    answers.of(ALL_PODS)
    await federation.ledger.set_cluster_state(ClusterID("a"), ClusterState.STALE)
    (fresh,) = inventory_pb2.WatchEvent.FromString(answers.of(ALL_PODS)).freshness
    assert fresh.state == types_pb2.CLUSTER_STATE_STALE
