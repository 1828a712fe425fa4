"""Agent and ingest together, over a unix socket and over TCP, onto a ledger in memory and on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.api.cluster import ClusterID, ClusterState
from tests.integration.push.harness import Aggregator, agent_settings, eventually, running_agent
from tests.unit.agent.scripted_cluster import NODES, PODS, ScriptedCluster


@pytest.fixture(params=["memory ledger, unix socket", "memory ledger, TCP", "ledger on disk, unix socket"])
async def serving(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Aggregator]:
    aggregator = Aggregator("127.0.0.1:0" if "TCP" in request.param else f"unix:{tmp_path}/i.sock")
    if "disk" in request.param:
        aggregator.use(LmdbLedger.open(tmp_path))
    async with aggregator.running():
        yield aggregator
    await aggregator.ledger.close()


def small_cluster(number: int) -> ScriptedCluster:
    cluster = ScriptedCluster(PODS, NODES, uid=f"uid-{number}")
    for name in ("a", "b", "c"):
        cluster.put(PODS, name, of=number)
    cluster.put(NODES, "node", of=number)
    return cluster


async def test_first_sync_of_three_clusters_with_equal_names(serving: Aggregator) -> None:
    clusters = {f"c{number}": small_cluster(number) for number in range(3)}
    async with AsyncExitStack() as stack:
        for cluster_id, cluster in clusters.items():
            await stack.enter_async_context(running_agent(cluster, agent_settings(cluster_id, serving.address)))
        await eventually(lambda: all(serving.state(cluster_id) is ClusterState.LIVE for cluster_id in clusters))
        assert all(serving.holds(cluster_id, cluster) for cluster_id, cluster in clusters.items())
        for cluster_id in clusters:
            assert serving.recorder.states(cluster_id) == [
                ClusterState.JOINING,
                ClusterState.SYNCING,
                ClusterState.LIVE,
            ]
        clusters["c1"].delete(PODS, "b")
        clusters["c2"].put(PODS, "d")
        clusters["c2"].put(PODS, "a", changed=True)
        await eventually(lambda: all(serving.holds(cluster_id, each) for cluster_id, each in clusters.items()))
    assert serving.recorder.changes("c0", PODS)[3:] == []
    assert serving.recorder.changes("c1", PODS)[3:] == [("DELETED", "b")]
    assert serving.recorder.changes("c2", PODS)[3:] == [("ADDED", "d"), ("MODIFIED", "a")]


async def test_a_goodbye_sends_what_was_left(serving: Aggregator) -> None:
    cluster = small_cluster(0)
    async with running_agent(cluster, agent_settings("c0", serving.address)):
        await eventually(lambda: serving.state("c0") is ClusterState.LIVE)
        for number in range(500):
            cluster.put(PODS, f"p{number}")
        await eventually(lambda: len(serving.names("c0", PODS)) > 3)
    assert serving.servicer.statistics()["session_ends"] == {"goodbye": 1}
    assert serving.holds("c0", cluster)
    await eventually(lambda: serving.state("c0") is ClusterState.STALE)


async def test_the_low_water_follows_what_is_sent(serving: Aggregator) -> None:
    cluster = small_cluster(0)

    def low_water() -> str:
        return next(known.low_water for known in serving.ledger.types(ClusterID("c0")) if known.type == PODS)

    async with running_agent(cluster, agent_settings("c0", serving.address)):
        await eventually(lambda: serving.state("c0") is ClusterState.LIVE)
        cluster.put(PODS, "d")
        await eventually(lambda: low_water() == str(cluster.version))
        cluster.put(PODS, "d", changed=True)
        cluster.delete(PODS, "a")
        await eventually(lambda: low_water() == str(cluster.version))
        assert serving.holds("c0", cluster)
