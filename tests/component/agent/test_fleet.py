"""AgentFleet: agents on scripted clusters and one real aggregator, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from federator.agent import fleet as fleet_module
from federator.agent.agent import Agent, AgentPhase
from federator.agent.fleet import AgentFleet, NamedAgent
from federator.agent.settings import AgentSettings
from federator.aggregator.aggregator import Aggregator
from federator.api.cluster import ClusterID, ClusterState
from federator.errors import ClusterUIDKnown, InvalidInput, MemberUnreachable, UnknownResourceType
from tests.component.aggregator.running import running, settings
from tests.unit.agent.scripted_cluster import CRDS, PODS, WIDGETS, ScriptedCluster
from tests.unit.aggregator.federation import eventually


class SlowCluster(ScriptedCluster):
    """Answers nobody until it is told to."""

    def __init__(self, *, uid: str) -> None:
        super().__init__(PODS, uid=uid)
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def cluster_uid(self) -> str:
        self.asked.set()
        await self.may_answer.wait()
        return await super().cluster_uid()


class ImpossibleCluster(ScriptedCluster):
    """Cannot be opened at all."""

    async def __aenter__(self) -> Any:
        raise InvalidInput("server", "scripted", "a server that can be")


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "LOOK_INTERVAL", 0.01)


@pytest.fixture
async def aggregator(tmp_path: Path) -> AsyncIterator[Aggregator]:
    async with running(Aggregator(settings(tmp_path, http_listen=""))) as started:
        yield started


def named(
    context: str, cluster: ScriptedCluster, aggregator: Aggregator, *, server: str = "", **more: Any
) -> NamedAgent:
    values: dict[str, Any] = {
        "cluster_id": ClusterID(context),
        "aggregator": aggregator.ingest_address,
        "backoff_min": 0.01,
        "backoff_max": 0.05,
        "flush_timeout": 0.2,
    }
    return NamedAgent(context, server or f"https://{context}", Agent(AgentSettings(**(values | more)), cluster))


def phases(fleet: AgentFleet) -> dict[str, AgentPhase]:
    return {context: status.phase for context, status in fleet.status().items()}


@asynccontextmanager
async def running_fleet(*agents: NamedAgent) -> AsyncIterator[AgentFleet]:
    fleet = AgentFleet(agents)
    task = asyncio.create_task(fleet.run(), name="fleet")
    try:
        yield fleet
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task


async def test_agents_run_side_by_side(aggregator: Aggregator) -> None:
    clusters = {name: ScriptedCluster(PODS, uid=f"uid-{name}") for name in ("berlin", "paris")}
    for name, cluster in clusters.items():
        cluster.put(PODS, f"web-{name}")
    async with running_fleet(*(named(name, cluster, aggregator) for name, cluster in clusters.items())) as fleet:
        await eventually(lambda: aggregator.statistics()["merge"].get("objects") == 2)
        assert phases(fleet) == dict.fromkeys(clusters, AgentPhase.PUSHING)
        assert set(fleet.statistics()) == set(clusters)
        assert fleet.left_out() == {}


async def test_of_contexts_with_one_server_the_first_joins_however_slow(aggregator: Aggregator) -> None:
    first, second = SlowCluster(uid="uid-berlin"), ScriptedCluster(PODS, uid="uid-berlin")
    agents = (
        named("admin", first, aggregator, server="https://berlin"),
        named("reader", second, aggregator, server="https://berlin"),
    )
    async with running_fleet(*agents) as fleet:
        await first.asked.wait()
        await asyncio.sleep(0.1)
        assert second.discoveries == 0
        first.may_answer.set()
        await eventually(lambda: "reader" in fleet.left_out())
        # It is left out first, and stops then.
        await eventually(lambda: phases(fleet) == {"admin": AgentPhase.PUSHING, "reader": AgentPhase.STOPPED})
        error = fleet.left_out()["reader"]
        assert isinstance(error, ClusterUIDKnown)
        assert error.holder == "admin"


async def test_contexts_with_other_servers_wait_for_nobody(aggregator: Aggregator) -> None:
    slow = SlowCluster(uid="uid-berlin")
    agents = (named("berlin", slow, aggregator), named("paris", ScriptedCluster(PODS, uid="uid-paris"), aggregator))
    async with running_fleet(*agents) as fleet:
        await eventually(lambda: phases(fleet)["paris"] is AgentPhase.PUSHING)
        assert phases(fleet)["berlin"] is AgentPhase.WAITING_FOR_MEMBER


async def test_a_first_context_that_fails_makes_way(aggregator: Aggregator) -> None:
    agents = (
        named("admin", ScriptedCluster(PODS, uid="uid-b"), aggregator, server="https://b", resources=("unicorns",)),
        named("reader", ScriptedCluster(PODS, uid="uid-b"), aggregator, server="https://b"),
    )
    async with running_fleet(*agents) as fleet:
        await eventually(lambda: phases(fleet)["reader"] is AgentPhase.PUSHING)
        assert isinstance(fleet.left_out()["admin"], UnknownResourceType)


async def test_a_first_context_that_gets_no_answer_makes_way_and_is_not_given_up(aggregator: Aggregator) -> None:
    down = ScriptedCluster(PODS, uid="uid-b")
    down.go_down()
    agents = (
        named("admin", down, aggregator, server="https://b"),
        named("reader", ScriptedCluster(PODS, uid="uid-b"), aggregator, server="https://b"),
    )
    async with running_fleet(*agents) as fleet:
        await eventually(lambda: phases(fleet)["reader"] is AgentPhase.PUSHING)
        assert fleet.left_out() == {}
        assert isinstance(fleet.status()["admin"].error, MemberUnreachable)


async def test_an_agent_that_fails_is_left_out_while_the_others_run(aggregator: Aggregator) -> None:
    paris = ScriptedCluster(PODS, uid="uid-paris")
    agents = (
        named("berlin", ScriptedCluster(PODS, uid="uid-berlin"), aggregator, resources=("unicorns",)),
        named("rome", ImpossibleCluster(PODS, uid="uid-rome"), aggregator),
        named("paris", paris, aggregator),
    )
    async with running_fleet(*agents) as fleet:
        await eventually(lambda: set(fleet.left_out()) == {"berlin", "rome"})
        await eventually(lambda: phases(fleet)["paris"] is AgentPhase.PUSHING)
        paris.put(PODS, "web")
        await eventually(lambda: aggregator.statistics()["merge"].get("objects") == 1)
        assert set(fleet.left_out()) == {"berlin", "rome"}


async def test_a_cluster_without_the_types_that_others_have_joins_and_follows_them_once_it_has(
    aggregator: Aggregator,
) -> None:
    berlin, paris = (ScriptedCluster(CRDS, uid=f"uid-{name}") for name in ("berlin", "paris"))
    berlin.types.append(WIDGETS)
    more: dict[str, Any] = {"resources": ("widgets",), "waits_for_types": True, "discovery_interval": 0.1}
    agents = (named("berlin", berlin, aggregator, **more), named("paris", paris, aggregator, **more))

    def clusters() -> dict[str, ClusterState]:
        assert aggregator._parts is not None
        return {cluster_id: record.state for cluster_id, record in aggregator._parts.ledger.clusters().items()}

    async with running_fleet(*agents) as fleet:
        await eventually(lambda: clusters() == {"berlin": ClusterState.LIVE, "paris": ClusterState.LIVE})
        paris.types.append(WIDGETS)
        paris.put(WIDGETS, "w")
        await eventually(lambda: aggregator.statistics()["merge"].get("objects") == 1)
        paris.delete(WIDGETS, "w")
        for cluster in (berlin, paris):
            cluster.types.remove(WIDGETS)
        await eventually(lambda: not any(agent.agent._follower.types for agent in agents))
        await asyncio.sleep(0.1)
        assert fleet.left_out() == {}, "they were served once, so nobody has misspelt them"


async def test_types_that_no_cluster_has_ever_had_leave_all_out(aggregator: Aggregator) -> None:
    berlin, paris = ScriptedCluster(PODS, uid="uid-berlin"), SlowCluster(uid="uid-paris")
    more: dict[str, Any] = {"resources": ("podz",), "waits_for_types": True}
    fleet = AgentFleet((named("berlin", berlin, aggregator, **more), named("paris", paris, aggregator, **more)))
    running_it = asyncio.create_task(fleet.run(), name="fleet")
    await eventually(lambda: phases(fleet)["berlin"] is AgentPhase.PUSHING)
    assert fleet.left_out() == {}, "the other one may have them"
    paris.may_answer.set()
    await asyncio.wait_for(running_it, 10)
    assert {context: type(error) for context, error in fleet.left_out().items()} == dict.fromkeys(
        ("berlin", "paris"), UnknownResourceType
    )


async def test_it_ends_by_itself_only_when_every_agent_was_left_out(aggregator: Aggregator) -> None:
    before = asyncio.all_tasks()
    fleet = AgentFleet(
        named(name, ScriptedCluster(PODS, uid=f"uid-{name}"), aggregator, resources=("unicorns",))
        for name in ("berlin", "paris")
    )
    await asyncio.wait_for(fleet.run(), 10)
    assert set(fleet.left_out()) == {"berlin", "paris"}
    assert asyncio.all_tasks() == before


async def test_cancelled_it_leaves_no_task_and_sends_what_it_had(aggregator: Aggregator) -> None:
    before = asyncio.all_tasks()
    berlin = ScriptedCluster(PODS, uid="uid-berlin")
    waiting = SlowCluster(uid="uid-paris")
    agents = (
        named("berlin", berlin, aggregator, flush_timeout=5),
        named("paris", waiting, aggregator),
        named("paris-again", ScriptedCluster(PODS, uid="uid-paris"), aggregator, server="https://paris"),
    )
    async with running_fleet(*agents) as fleet:
        await eventually(lambda: phases(fleet)["berlin"] is AgentPhase.PUSHING)
        await waiting.asked.wait()
        berlin.put(PODS, "web")
    assert set(phases(fleet).values()) <= {AgentPhase.STOPPED, AgentPhase.WAITING_FOR_MEMBER}
    assert aggregator.statistics()["ingest"]["session_ends"] == {"goodbye": 1}
    assert aggregator.statistics()["merge"]["objects"] == 1
    await eventually(lambda: asyncio.all_tasks() <= before)  # the aggregator ends its side of a session in its own time
