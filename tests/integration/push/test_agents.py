"""Whole agents against ingest, through links that break, aggregators that restart and apiservers that go away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from federator.agent.agent import Agent, AgentPhase
from federator.agent.pusher import PusherState
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import ResourceType
from federator.errors import ClusterHeld, ClusterUIDChanged, ClusterUIDKnown, MemberUnreachable, UnknownResourceType
from federator.testing.fault_proxy import FaultProxy
from tests.integration.push.harness import Aggregator, agent_settings, eventually, running_agent
from tests.unit.agent.scripted_cluster import CRDS, DEPLOYMENTS, NODES, PODS, WIDGETS, ScriptedCluster


@pytest.fixture
async def link(aggregator: Aggregator) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(aggregator.address) as link:
        yield link


REFUSED = "cannot reach https://scripted: connection refused"


def cluster_of(pods: int, *types: Any) -> ScriptedCluster:
    cluster = ScriptedCluster(PODS, NODES, *types)
    for number in range(pods):
        cluster.put(PODS, f"p{number}", text="x" * 200)
    cluster.put(NODES, "node")
    return cluster


def is_live(aggregator: Aggregator) -> bool:
    return aggregator.state("c0") is ClusterState.LIVE


def outbox(agent: Agent) -> Any:
    return agent.statistics()["outbox"]


class TestLinks:
    async def test_a_resumed_session_sends_what_is_missing_and_no_snapshot(
        self, aggregator: Aggregator, link: FaultProxy
    ) -> None:
        cluster = cluster_of(1500)
        async with running_agent(cluster, agent_settings("c0", link.address)) as agent:
            await eventually(lambda: is_live(aggregator) and outbox(agent)["in_flight_frames"] == 0)
            frames, lists = outbox(agent)["frames"], cluster.lists.copy()
            link.refuse_connections()
            link.reset_connections()
            await eventually(lambda: aggregator.state("c0") is ClusterState.STALE)
            cluster.put(PODS, "new")
            cluster.delete(PODS, "p0")
            link.accept_connections()
            await eventually(lambda: is_live(aggregator))
            assert aggregator.holds("c0", cluster)
            assert cluster.lists == lists
            assert outbox(agent)["snapshots"] == 2
            assert outbox(agent)["frames"] - frames <= 6, "two changes, a bookmark perhaps, and a state per type"
            assert aggregator.recorder.states("c0")[-3:] == [
                ClusterState.STALE,
                ClusterState.RECOVERING,
                ClusterState.LIVE,
            ]

    async def test_a_snapshot_cut_midway_deletes_nothing_and_completes_after_reconnecting(
        self, aggregator: Aggregator, link: FaultProxy
    ) -> None:
        cluster = cluster_of(5000)
        link.cut_after(200_000)
        async with running_agent(cluster, agent_settings("c0", link.address)) as agent:
            await eventually(lambda: is_live(aggregator), timeout=15)
            assert aggregator.holds("c0", cluster)
            assert outbox(agent)["snapshots"] > 2
            assert aggregator.servicer.statistics()["snapshots"]["c0", "broken"] >= 1  # type: ignore[index]
        assert aggregator.recorder.counts()["DELETED"] == 0
        assert aggregator.recorder.counts()["MODIFIED"] == 0

    async def test_a_link_that_swallows_everything_is_noticed_by_both(
        self, aggregator: Aggregator, link: FaultProxy
    ) -> None:
        cluster = cluster_of(10)
        async with running_agent(cluster, agent_settings("c0", link.address)) as agent:
            await eventually(lambda: is_live(aggregator))
            link.black_hole()
            await eventually(lambda: aggregator.state("c0") is ClusterState.STALE)
            await eventually(lambda: agent.status().session.state is not PusherState.OPEN)
            assert agent.status().phase is AgentPhase.WAITING_FOR_AGGREGATOR
            cluster.delete(PODS, "p1")
            link.heal()
            link.reset_connections()
            await eventually(lambda: is_live(aggregator))
            await eventually(lambda: aggregator.holds("c0", cluster))

    async def test_it_converges_while_the_link_breaks_again_and_again(
        self, aggregator: Aggregator, link: FaultProxy
    ) -> None:
        cluster = cluster_of(300)
        async with running_agent(cluster, agent_settings("c0", link.address)):
            for round_ in range(12):
                for number in range(0, 300, 7):
                    cluster.put(PODS, f"p{number}", round=round_)
                cluster.put(PODS, f"extra-{round_}")
                if round_ % 3 == 0:
                    cluster.delete(PODS, f"p{round_ + 1}")
                await asyncio.sleep(0.05)
                link.reset_connections()
            await eventually(lambda: is_live(aggregator) and aggregator.holds("c0", cluster), timeout=15)


class TestAggregatorRestarts:
    async def test_with_its_ledger_sessions_resume(self, tmp_path: Path) -> None:
        aggregator = Aggregator(f"unix:{tmp_path}/i.sock")
        cluster = cluster_of(50)
        async with running_agent(cluster, agent_settings("c0", aggregator.address)):
            async with aggregator.running():
                await eventually(lambda: is_live(aggregator))
            lists = cluster.lists.copy()
            cluster.put(PODS, "during")
            async with aggregator.running():
                await eventually(lambda: is_live(aggregator) and aggregator.holds("c0", cluster))
            assert cluster.lists == lists
        states = aggregator.recorder.states("c0")
        assert states[2:6] == [
            ClusterState.LIVE,
            ClusterState.STALE,
            ClusterState.RECOVERING,
            ClusterState.LIVE,
        ]

    async def test_with_an_empty_ledger_everything_is_listed_anew(self, tmp_path: Path) -> None:
        aggregator = Aggregator(f"unix:{tmp_path}/i.sock")
        cluster = cluster_of(50)
        async with running_agent(cluster, agent_settings("c0", aggregator.address)) as agent:
            async with aggregator.running():
                await eventually(lambda: is_live(aggregator))
            aggregator.new_ledger()
            async with aggregator.running():
                await eventually(lambda: is_live(aggregator) and aggregator.holds("c0", cluster))
            assert cluster.lists[PODS.group_resource] == 2
            assert outbox(agent)["snapshots"] == 4


class TestMembers:
    async def test_an_apiserver_out_of_reach_makes_stale_and_its_return_live(
        self, aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("federator.cache.reflector.DIAL_SPREAD", 0.2)
        cluster = cluster_of(20)
        async with running_agent(cluster, agent_settings("c0", aggregator.address)) as agent:
            await eventually(lambda: is_live(aggregator))
            cluster.go_down()
            await eventually(lambda: aggregator.state("c0") is ClusterState.STALE)
            assert aggregator.ledger.clusters()["c0"].reason  # type: ignore[index]
            assert len(aggregator.names("c0", PODS)) == 20
            await eventually(lambda: {health.reason for health in agent.status().types} == {REFUSED}, timeout=15)
            assert {health.state for health in agent.status().types} == {TypeState.STALE}
            cluster.put(PODS, "during")
            cluster.come_back()
            await eventually(lambda: is_live(aggregator), timeout=15)
            await eventually(lambda: aggregator.holds("c0", cluster))
        assert ClusterState.RECOVERING in aggregator.recorder.states("c0")

    async def test_an_apiserver_that_is_down_at_the_start_is_waited_for(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(5)
        cluster.go_down()
        async with running_agent(cluster, agent_settings("c0", aggregator.address)) as agent:
            await eventually(lambda: agent.status().error is not None)
            assert agent.status().phase is AgentPhase.WAITING_FOR_MEMBER
            assert isinstance(agent.status().error, MemberUnreachable)
            cluster.come_back()
            await eventually(lambda: is_live(aggregator))
            assert agent.status().error is None

    async def test_a_forbidden_type_is_denied_and_the_others_go_on(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(5)
        cluster.denied.add(NODES.group_resource)
        async with running_agent(cluster, agent_settings("c0", aggregator.address)):
            await eventually(lambda: is_live(aggregator))
            assert aggregator.type_state("c0", NODES) is TypeState.DENIED
            assert aggregator.names("c0", PODS) == cluster.names(PODS)
            cluster.denied.clear()
            await eventually(lambda: aggregator.type_state("c0", NODES) is TypeState.LIVE)
            assert aggregator.names("c0", NODES) == {"node"}

    async def test_types_come_and_go_with_their_definitions(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(3, CRDS)
        async with running_agent(cluster, agent_settings("c0", aggregator.address)):
            await eventually(lambda: is_live(aggregator))
            for _ in range(2):
                cluster.types.append(WIDGETS)
                cluster.put(CRDS, "widgets.example.com")
                cluster.put(WIDGETS, "w")
                await eventually(lambda: aggregator.names("c0", WIDGETS) == {"default/w"})
                await eventually(lambda: aggregator.type_state("c0", WIDGETS) is TypeState.LIVE)
                cluster.delete(WIDGETS, "w")
                cluster.types.remove(WIDGETS)
                cluster.delete(CRDS, "widgets.example.com")
                await eventually(lambda: aggregator.type_state("c0", WIDGETS) is TypeState.ABSENT)
            assert is_live(aggregator)
        assert aggregator.recorder.changes("c0", WIDGETS) == [("ADDED", "w"), ("DELETED", "w")] * 2

    async def test_a_type_that_is_again_what_it_was_before_is_taken_for_that(self, aggregator: Aggregator) -> None:
        """It is described once in a session; whoever was told of another since has to be told again."""
        cluster = cluster_of(3, CRDS)
        cluster_wide = msgspec.structs.replace(WIDGETS, namespaced=False)
        async with running_agent(cluster, agent_settings("c0", aggregator.address)):
            await eventually(lambda: is_live(aggregator))
            for described, key in ((WIDGETS, "default/w"), (cluster_wide, "w"), (WIDGETS, "default/w")):
                cluster.types.append(described)
                cluster.put(CRDS, "widgets.example.com")
                cluster.put(described, "w")
                await eventually(lambda key=key: aggregator.names("c0", WIDGETS) == {key})  # type: ignore[misc]
                await eventually(lambda: aggregator.type_state("c0", WIDGETS) is TypeState.LIVE)
                cluster.delete(described, "w")
                cluster.types.remove(described)
                cluster.delete(CRDS, "widgets.example.com")
                await eventually(lambda: aggregator.type_state("c0", WIDGETS) is TypeState.ABSENT)
        assert aggregator.recorder.changes("c0", WIDGETS) == [("ADDED", "w"), ("DELETED", "w")] * 3

    async def test_a_version_that_is_rolled_back_is_that_of_the_type_again(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(3, CRDS, WIDGETS)
        cluster.put(WIDGETS, "w")
        newer = msgspec.structs.replace(WIDGETS, version="v2")

        def served() -> set[ResourceType]:
            return {one.type for one in aggregator.ledger.types(ClusterID("c0")) if one.type.kind == WIDGETS.kind}

        async with running_agent(cluster, agent_settings("c0", aggregator.address)):
            for described in (WIDGETS, newer, WIDGETS):
                cluster.types[-1] = described
                cluster.put(CRDS, "widgets.example.com")
                await eventually(lambda described=described: served() == {described})  # type: ignore[misc]
                await eventually(lambda: is_live(aggregator))

    async def test_a_group_that_discovery_knows_nothing_of_keeps_its_types(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(3, CRDS, WIDGETS)
        cluster.put(WIDGETS, "w")
        async with running_agent(cluster, agent_settings("c0", aggregator.address)):
            await eventually(lambda: is_live(aggregator))
            cluster.types.remove(WIDGETS)
            cluster.failed_groups = ("example.com",)
            cluster.put(CRDS, "any")
            looks = cluster.discoveries
            await eventually(lambda: cluster.discoveries > looks)
            await asyncio.sleep(0.3)
            assert aggregator.names("c0", WIDGETS) == {"default/w"}

    async def test_a_type_that_discovery_misses_once_is_not_given_up(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(3, CRDS, WIDGETS)
        cluster.put(WIDGETS, "w")
        async with running_agent(cluster, agent_settings("c0", aggregator.address, discovery_confirm=0.4)):
            await eventually(lambda: is_live(aggregator))
            await asyncio.sleep(0.5)
            cluster.types.remove(WIDGETS)
            cluster.put(CRDS, "any")
            looks = cluster.discoveries
            await eventually(lambda: cluster.discoveries > looks)
            cluster.types.append(WIDGETS)
            await asyncio.sleep(0.6)
            assert aggregator.names("c0", WIDGETS) == {"default/w"}
        assert TypeState.ABSENT not in aggregator.recorder.type_states("c0", WIDGETS)

    async def test_what_is_served_and_not_collected_is_told(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(3, DEPLOYMENTS)
        async with running_agent(cluster, agent_settings("c0", aggregator.address, resources=("pods", "podz"))):
            await eventually(lambda: is_live(aggregator))
            await eventually(lambda: aggregator.type_state("c0", DEPLOYMENTS) is TypeState.NOT_COLLECTED)
            assert aggregator.names("c0", NODES) == set()

    async def test_what_a_former_agent_collected_and_this_one_does_not_is_taken_out(
        self, aggregator: Aggregator
    ) -> None:
        cluster = cluster_of(3, WIDGETS)
        cluster.put(WIDGETS, "w")
        async with running_agent(cluster, agent_settings("c0", aggregator.address)):
            await eventually(lambda: is_live(aggregator))
        cluster.types.remove(WIDGETS)
        async with running_agent(cluster, agent_settings("c0", aggregator.address, resources=("pods",))):
            await eventually(lambda: aggregator.type_state("c0", NODES) is TypeState.NOT_COLLECTED)
            await eventually(lambda: aggregator.type_state("c0", WIDGETS) is TypeState.ABSENT)
            await eventually(lambda: is_live(aggregator))
        assert (aggregator.names("c0", NODES), aggregator.names("c0", WIDGETS)) == (set(), set())
        assert aggregator.names("c0", PODS) == cluster.names(PODS)

    async def test_only_unknown_names_end_the_agent(self, aggregator: Aggregator) -> None:
        agent = Agent(agent_settings("c0", aggregator.address, resources=("podz",)), cluster_of(1))
        with pytest.raises(UnknownResourceType, match="podz"):
            await agent.run()

    async def test_another_cluster_behind_the_address_ends_the_agent(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(3)
        agent = Agent(agent_settings("c0", aggregator.address, discovery_interval=0.2), cluster)
        task = asyncio.create_task(agent.run())
        await eventually(lambda: is_live(aggregator))
        cluster.uid = "server-0123"
        await asyncio.sleep(0.5)
        assert not task.done(), "a stand-in says nothing"
        cluster.uid = "another"
        with pytest.raises(ClusterUIDChanged, match="uid-of-cluster"):
            await asyncio.wait_for(task, 5)
        assert aggregator.names("c0", PODS) == cluster.names(PODS)

    async def test_a_recreated_object_is_a_deletion_and_an_addition(
        self, aggregator: Aggregator, link: FaultProxy
    ) -> None:
        cluster = cluster_of(1)
        async with running_agent(cluster, agent_settings("c0", link.address)):
            await eventually(lambda: is_live(aggregator))
            link.refuse_connections()
            link.reset_connections()
            cluster.delete(PODS, "p0")
            cluster.put(PODS, "p0", uid="another")
            link.accept_connections()
            await eventually(lambda: aggregator.holds("c0", cluster))
        assert aggregator.recorder.changes("c0", PODS) == [("ADDED", "p0"), ("DELETED", "p0"), ("ADDED", "p0")]


class TestAgents:
    async def test_a_standby_waits_asks_nothing_of_its_apiserver_and_takes_over(
        self, aggregator: Aggregator, link: FaultProxy
    ) -> None:
        first, second = cluster_of(5), cluster_of(5)
        second.objects = first.objects
        async with running_agent(first, agent_settings("c0", link.address)):
            await eventually(lambda: is_live(aggregator))
            async with running_agent(second, agent_settings("c0", aggregator.address)) as standby:
                await eventually(lambda: isinstance(standby.status().error, ClusterHeld))
                await asyncio.sleep(3 * aggregator.settings.heartbeat_interval)
                assert standby.status().phase is AgentPhase.WAITING_FOR_AGGREGATOR
                assert not second.lists
                link.black_hole()
                await eventually(lambda: standby.status().phase is AgentPhase.PUSHING)
                await eventually(lambda: is_live(aggregator))
                link.heal()
                await asyncio.sleep(3 * aggregator.settings.heartbeat_interval)
                assert standby.status().phase is AgentPhase.PUSHING, "they don't take turns"
                assert aggregator.ledger.clusters()["c0"].term == 2  # type: ignore[index]
            # The first one takes over again: its cluster is behind, and neither silent nor out of reach.
            await eventually(lambda: aggregator.ledger.clusters()["c0"].term == 3)  # type: ignore[index]
            await eventually(lambda: is_live(aggregator))
        assert "listing anew" not in aggregator.recorder.reasons("c0")

    async def test_one_cluster_has_one_name(self, aggregator: Aggregator) -> None:
        cluster = cluster_of(2)
        async with running_agent(cluster, agent_settings("c0", aggregator.address)):
            await eventually(lambda: is_live(aggregator))
            async with running_agent(cluster, agent_settings("c1", aggregator.address)) as other:
                await eventually(lambda: isinstance(other.status().error, ClusterUIDKnown))

    async def test_large_objects_and_many_of_them_pass(self, aggregator: Aggregator) -> None:
        cluster = ScriptedCluster(PODS)
        for number in range(4):
            cluster.put(PODS, f"large-{number}", noise=random.Random(number).randbytes(1_000_000).hex())
        async with running_agent(cluster, agent_settings("c0", aggregator.address)):
            await eventually(lambda: is_live(aggregator), timeout=15)
            assert aggregator.holds("c0", cluster)

    async def test_an_informers_defect_concerns_its_type_alone(
        self, aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("federator.agent.informers.RESTART_AFTER", (0.3, 0.4))
        cluster = cluster_of(2)
        async with running_agent(cluster, agent_settings("c0", aggregator.address)) as agent:
            await eventually(lambda: is_live(aggregator))
            queue = agent._outbox._queues[PODS.group_resource]
            monkeypatch.setattr(queue, "put", lambda obj: 1 / 0)
            cluster.put(PODS, "breaks-it")
            await eventually(lambda: TypeState.STALE in aggregator.recorder.type_states("c0", PODS))
            cluster.put(NODES, "goes-on")
            await eventually(lambda: "goes-on" in aggregator.names("c0", NODES))
            await eventually(lambda: aggregator.holds("c0", cluster))
            await eventually(lambda: aggregator.type_state("c0", PODS) is TypeState.LIVE)
