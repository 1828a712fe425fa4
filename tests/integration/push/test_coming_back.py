"""Real agents that come back: what they send, what is mended, and what a restored cluster's state is worth."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from federator.agent.agent import Agent
from federator.aggregator.ledger.records import Batch, Delete, Put
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.wire.body import content_hash
from tests.integration.push.harness import Aggregator, agent_settings, eventually, running_agent
from tests.unit.agent.scripted_cluster import NODES, PODS, WIDGETS, ScriptedCluster

CLUSTER = ClusterID("c0")


def cluster_of(pods: int) -> ScriptedCluster:
    cluster = ScriptedCluster(PODS, NODES)
    for number in range(pods):
        cluster.put(PODS, f"p{number}", text="x" * 200)
    cluster.put(NODES, "node")
    return cluster


@asynccontextmanager
async def synced(cluster: ScriptedCluster, aggregator: Aggregator, **settings: Any) -> AsyncIterator[Agent]:
    """An agent whose cluster is LIVE, with nothing on its way."""
    async with running_agent(cluster, agent_settings("c0", aggregator.address, **settings)) as agent:
        await eventually(lambda: outbox(agent)["snapshots"] >= len(cluster.types) and is_idle(agent))
        await eventually(lambda: aggregator.state("c0") is ClusterState.LIVE)
        yield agent


def outbox(agent: Agent) -> Any:
    return agent.statistics()["outbox"]


def is_idle(agent: Agent) -> bool:
    return not any(outbox(agent)[what] for what in ("queued_entries", "in_flight_frames", "types_awaiting_list"))


def count(aggregator: Aggregator, statistic: str, *labels: str) -> int:
    counted: Any = aggregator.servicer.statistics()[statistic]
    number: int = counted.get((CLUSTER, *labels) if labels else CLUSTER, 0)
    return number


def plans(agent: Agent) -> dict[str, int]:
    return {plan: outbox(agent)[f"plans_{plan}"] for plan in ("nothing", "differing", "all")}


async def change(aggregator: Aggregator, *changes: Put | Delete) -> None:
    """Changes what is stored behind the agent's back."""
    record = aggregator.ledger.clusters()[CLUSTER]
    await aggregator.ledger.append(Batch(CLUSTER, record.term, 0, PODS, changes))


def other(name: str) -> Put:
    raw = b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s","namespace":"default","uid":"u"}}' % name.encode()
    return Put("default", name, "u", "1", content_hash(raw), raw)


class TestNewInstance:
    """An agent process that knows nothing, of a cluster that the aggregator knows."""

    async def test_of_an_unchanged_cluster_nothing_is_sent(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(2000)
        async with synced(cluster, aggregator):
            everything = count(aggregator, "bytes")
        async with synced(cluster, aggregator) as agent:
            assert plans(agent) == {"nothing": 2, "differing": 0, "all": 0}
            assert count(aggregator, "bytes") - everything < everything / 100
        assert aggregator.recorder.counts() == {"ADDED": 2001}
        assert aggregator.holds("c0", cluster)

    async def test_of_one_that_changed_only_that(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(2000)
        async with synced(cluster, aggregator):
            everything = count(aggregator, "bytes")
        before = aggregator.recorder.counts()
        for number in range(0, 200, 10):
            cluster.put(PODS, f"p{number}", text="y" * 200)
        for number in range(1, 50, 10):
            cluster.delete(PODS, f"p{number}")
        cluster.put(PODS, "new")
        async with synced(cluster, aggregator) as agent:
            assert plans(agent) == {"nothing": 1, "differing": 1, "all": 0}
            assert count(aggregator, "bytes") - everything < everything / 20
            assert aggregator.holds("c0", cluster)
        assert aggregator.recorder.counts() - before == {"ADDED": 1, "MODIFIED": 20, "DELETED": 5}

    async def test_a_name_that_is_another_object_now_is_a_deletion_and_an_addition(
        self, aggregator: Aggregator
    ) -> None:
        cluster = cluster_of(50)
        async with synced(cluster, aggregator):
            pass
        cluster.delete(PODS, "p7")
        cluster.put(PODS, "p7", text="x" * 200)
        async with synced(cluster, aggregator):
            assert aggregator.holds("c0", cluster)
        assert aggregator.recorder.changes("c0", PODS)[-2:] == [("DELETED", "p7"), ("ADDED", "p7")]


class TestRepairs:
    """What is stored is not what was sent, however that came."""

    async def test_one_object_swapped_for_another_is_found_by_the_next_bookmark(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(300)
        async with synced(cluster, aggregator) as agent:
            lists = cluster.lists.copy()
            await change(aggregator, Delete("default", "p7"), other("intruder"))
            cluster.bookmark(PODS)
            await eventually(
                lambda: aggregator.recorder.type_states("c0", PODS)[-2:] == [TypeState.STALE, TypeState.LIVE]
            )
            assert aggregator.holds("c0", cluster)
            assert (cluster.lists, cluster.gets) == (lists, Counter({PODS.group_resource: 1})), "got, and not listed"
            cluster.bookmark(PODS)
            await eventually(lambda: count(aggregator, "comparisons", "equal") >= 1)
            assert count(aggregator, "comparisons", "different") == 1
            assert outbox(agent)["rechecks"] == 1
        repaired: Any = aggregator.servicer.statistics()["repaired"]
        assert repaired == {(CLUSTER, "pods", "missing"): 1, (CLUSTER, "pods", "extra"): 1}

    async def test_many_are_listed_once(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(300)
        async with synced(cluster, aggregator) as agent:
            await change(aggregator, *(Delete("default", f"p{number}") for number in range(100)))
            cluster.bookmark(PODS)
            await eventually(
                lambda: aggregator.holds("c0", cluster) and aggregator.type_state("c0", PODS) is TypeState.LIVE
            )
            assert cluster.lists[PODS.group_resource] == 2
            assert not cluster.gets
            assert plans(agent) == {"nothing": 0, "differing": 2, "all": 2}
            assert count(aggregator, "repaired", "pods", "missing") == 100

    async def test_under_load_no_difference_is_found_where_there_is_none(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(300)
        async with synced(cluster, aggregator):
            for step in range(200):
                for number in range(step % 50, 300, 50):
                    cluster.put(PODS, f"p{number}", step=step)
                cluster.bookmark(PODS)
                if step % 10 == 0:
                    cluster.delete(PODS, f"p{step}")
                    cluster.put(PODS, f"p{step}", step=step)
                await asyncio.sleep(0)
            await eventually(lambda: aggregator.holds("c0", cluster))
            cluster.bookmark(PODS)
            await eventually(lambda: count(aggregator, "comparisons", "equal") >= 2)
            assert count(aggregator, "comparisons", "different") == 0

    async def test_a_refused_object_is_left_alone_and_starts_no_repair(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(20)
        cluster.put(PODS, "p%25")  # which no apiserver would have
        async with synced(cluster, aggregator) as agent:
            await eventually(lambda: outbox(agent)["left_out"] == 1)
            assert agent.status().left_out == {PODS.group_resource: ("default/p%25",)}
            for step in range(3):
                equal = count(aggregator, "comparisons", "equal")
                cluster.put(PODS, "p1", step=step)
                cluster.bookmark(PODS)
                await eventually(lambda equal=equal: count(aggregator, "comparisons", "equal") > equal)  # type: ignore[misc]
            assert count(aggregator, "comparisons", "different") == 0
            assert count(aggregator, "rejected", "OBJECT_MALFORMED") == 1
        async with synced(cluster, aggregator) as agent:
            await eventually(lambda: outbox(agent)["left_out"] == 1)
            assert aggregator.names("c0", PODS) == {f"default/p{number}" for number in range(20)}


class TestRestored:
    """The member cluster was restored from a backup: its resourceVersions went back."""

    def generation(self, aggregator: Aggregator) -> int:
        return next(one.generation for one in aggregator.ledger.types(CLUSTER) if one.type == PODS)

    async def test_while_its_agent_was_away(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(50)
        backup = cluster.version
        async with synced(cluster, aggregator):
            for number in range(10):
                cluster.put(PODS, f"p{number}", text="after the backup")
            cluster.put(PODS, "lost")
            await eventually(lambda: aggregator.holds("c0", cluster))
        restored = cluster_of(50)
        assert restored.version == backup
        async with synced(restored, aggregator):
            assert aggregator.holds("c0", restored)
            assert self.generation(aggregator) == 1
        async with synced(restored, aggregator) as agent:
            assert plans(agent)["nothing"] == 2
            assert self.generation(aggregator) == 1, "once is once"

    async def test_while_its_agent_was_away_and_its_versions_have_grown_past_ours(self, aggregator: Aggregator) -> None:
        """No version of a list tells; but an object that is older than stored, in a list that is not, does."""
        cluster = cluster_of(50)
        async with synced(cluster, aggregator):
            cluster.put(PODS, "p3", text="after the backup")
            await eventually(lambda: aggregator.holds("c0", cluster))
        restored = cluster_of(50)
        restored.version += 1000
        restored.put(PODS, "p4", text="after the restore")
        async with synced(restored, aggregator):
            assert aggregator.holds("c0", restored)
            assert self.generation(aggregator) == 1

    async def test_while_it_is_followed(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(50)
        backup = cluster.version
        async with synced(cluster, aggregator) as agent:
            cluster.put(PODS, "lost")
            await eventually(lambda: aggregator.holds("c0", cluster))
            cluster.restore(backup)
            agent._outbox.list_anew(PODS.group_resource)  # in place of the look after minutes of silence
            await eventually(lambda: aggregator.holds("c0", cluster))
            await eventually(lambda: aggregator.type_state("c0", PODS) is TypeState.LIVE)
            assert self.generation(aggregator) == 1


class TestTypes:
    async def test_a_type_served_in_another_version_is_sent_anew_and_no_other(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(20)
        cluster.types.append(WIDGETS)
        for number in range(5):
            cluster.put(WIDGETS, f"w{number}")
        async with synced(cluster, aggregator) as agent:
            lists = cluster.lists.copy()
            newer = type(WIDGETS)(group=WIDGETS.group, version="v2", resource="widgets", kind="Widget", namespaced=True)
            cluster.types[-1] = newer
            cluster.objects[WIDGETS.group_resource].clear()
            for number in range(5):
                cluster.put(newer, f"w{number}", uid=f"u{number}")
            agent._follower.types_may_have_changed()
            await eventually(
                lambda: (
                    {entry.api_version for entry in aggregator.recorder.objects("c0", WIDGETS)[-5:]}
                    == {"example.com/v2"}
                )
            )
            await eventually(lambda: aggregator.type_state("c0", newer) is TypeState.LIVE)
            assert {one for one, number in cluster.lists.items() if number != lists[one]} == {WIDGETS.group_resource}

    async def test_a_group_that_cannot_be_discovered_is_told_of(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(1)
        cluster.failed_groups = ("metrics.k8s.io",)
        async with synced(cluster, aggregator):
            await eventually(lambda: "metrics.k8s.io" in aggregator.recorder.unread.get(CLUSTER, ()))


class TestSpool:
    async def test_what_was_not_acknowledged_outlives_the_process(self, tmp_path: Path) -> None:
        """Neither the aggregator nor the list of the apiserver is there when the agent is killed, and started again."""
        aggregator = Aggregator(f"unix:{tmp_path}/i.sock")
        cluster = cluster_of(50)
        settings = {"spool_directory": tmp_path / "spool"}
        killed = agent_settings("c0", aggregator.address, flush_timeout=0.0, **settings)
        agent = Agent(killed, cluster)
        running = asyncio.create_task(agent.run())
        async with aggregator.running():
            await eventually(lambda: aggregator.state("c0") is ClusterState.LIVE)
            await eventually(lambda: not outbox(agent)["in_flight_frames"])
        cluster.put(PODS, "p1", text="changed")
        cluster.delete(PODS, "p2")
        await eventually(lambda: outbox(agent)["changes"] == 2)  # whether they were sent into the void, or not
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        cluster.silent |= {PODS.group_resource, NODES.group_resource}
        async with (
            aggregator.running(),
            running_agent(cluster, agent_settings("c0", aggregator.address, **settings)) as agent,
        ):
            await eventually(lambda: aggregator.holds("c0", cluster))
            assert outbox(agent)["replayed"] == 2
            assert aggregator.recorder.changes("c0", PODS)[-2:] == [("MODIFIED", "p1"), ("DELETED", "p2")]
            await eventually(lambda: aggregator.type_state("c0", PODS) is TypeState.STALE)  # not listed again yet
            assert not agent._spool or agent._spool.statistics()["acknowledged"] >= 2
