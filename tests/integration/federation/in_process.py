"""A federation inside the test's own process: a real aggregator, real agents, real gRPC over a unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from federator.agent.agent import Agent
from federator.agent.member import KubeMember
from federator.agent.settings import AgentSettings
from federator.aggregator.aggregator import Aggregator
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.settings import AggregatorSettings
from federator.api.cluster import ClusterID, ClusterState
from federator.client import InventoryClient, aconnect
from federator.kube.member_client import MemberClient
from federator.testing.testbed import Testbed

HEARTBEAT = 2.0
"""Seconds. Two missed ones end a session, and the one loop that all share stalls for some on a busy machine."""


class InProcess:
    """Tasks of an aggregator and its agents, each of which can be ended and started again."""

    def __init__(self, bed: Testbed, folder: Path, tasks: asyncio.TaskGroup, *, heartbeat: float) -> None:
        self._bed = bed
        self._heartbeat = heartbeat
        self._folder = folder
        self._tasks = tasks
        self._running: dict[str, asyncio.Task[None]] = {}
        self.address = f"unix:{folder / 'read.sock'}"
        self.agents: dict[str, Agent] = {}
        self.aggregator: Aggregator | None = None

    async def start_aggregator(self) -> Aggregator:
        self.aggregator = Aggregator(
            AggregatorSettings(
                listen=self.address,
                ingest_listen=f"unix:{self._folder / 'ingest.sock'}",
                http_listen="127.0.0.1:0",
                state_directory=self._folder / "state",
                ingest=IngestSettings(heartbeat_interval=self._heartbeat),
            )
        )
        self._running["aggregator"] = self._tasks.create_task(self.aggregator.run(), name="aggregator")
        await self.aggregator.started.wait()
        return self.aggregator

    def start_agent(self, name: str, **settings: Any) -> Agent:
        agent = Agent(
            AgentSettings(
                cluster_id=ClusterID(settings.pop("cluster_id", name)),
                aggregator=f"unix:{self._folder / 'ingest.sock'}",
                display_name=name,
                discovery_interval=5,
                stale_after=1,
                backoff_max=1,
                **settings,
            ),
            KubeMember(MemberClient.from_kubeconfig(name, path=self._bed.kubeconfig)),
        )
        self.agents[name] = agent
        self._running[name] = self._tasks.create_task(agent.run(), name=f"agent {name}")
        return agent

    async def end(self, name: str) -> None:
        """Ends the aggregator or an agent in order."""
        task = self._running.pop(name)
        task.cancel()
        await asyncio.wait([task])

    async def end_all(self) -> None:
        for name in sorted(self._running, key=lambda name: name == "aggregator"):
            await self.end(name)

    async def wait_state(self, fed: InventoryClient, state: ClusterState, *names: str, timeout: float = 60) -> None:
        seen: dict[str, tuple[ClusterState, str]] = {}
        try:
            async with asyncio.timeout(timeout):
                while True:
                    clusters = (await fed.clusters(timeout=10)).clusters
                    seen = {cluster.cluster_id: (cluster.state, cluster.reason) for cluster in clusters}
                    if all(seen.get(name, ("",))[0] == state for name in names or self.agents):
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not {state}: {seen}") from None


@asynccontextmanager
async def federated(
    bed: Testbed, folder: Path, names: Iterable[str] | None = None, *, heartbeat: float = HEARTBEAT, **settings: Any
) -> AsyncIterator[tuple[InProcess, InventoryClient]]:
    """Runs a federation of some clusters (all if none are named), and yields it when they are LIVE."""
    async with asyncio.TaskGroup() as tasks:
        federation = InProcess(bed, folder, tasks, heartbeat=heartbeat)
        try:
            await federation.start_aggregator()
            for name in bed.control_planes if names is None else names:
                federation.start_agent(name, **settings)
            async with aconnect(federation.address) as fed:
                await federation.wait_state(fed, ClusterState.LIVE)
                yield federation, fed
        finally:
            await federation.end_all()
