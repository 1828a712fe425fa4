"""Agents of many clusters in one process, each with a session and a connection of its own.

    python -m tests.bench.agent_load ADDRESS FOLDER FIRST CLUSTERS

makes an agent for each cluster of `tests.bench.member_load`. Commands:

- `{"run": true}` starts them.
- `{"stop": true}` ends them in order, each with a goodbye.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from federator.agent.agent import Agent
from federator.agent.member import KubeMember
from federator.agent.settings import AgentSettings
from federator.api.cluster import ClusterID
from federator.kube.member_client import MemberClient
from federator.observability.logs import configure_logging
from tests.bench.load_process import Json, serve
from tests.bench.member_load import allow_many_files, kubeconfig_of, member_name


class Agents:
    """All agents of this process."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._agents = agents
        self._running: list[asyncio.Task[None]] = []

    async def answer(self, command: Json) -> Json:
        """Does what a command says."""
        if "run" in command:
            self._running = [asyncio.create_task(agent.run()) for agent in self._agents]
        elif "stop" in command:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
        return {"running": sum(not task.done() for task in self._running)}


async def main(address: str, folder: str, first: str, clusters: str) -> None:
    """Serves commands."""
    allow_many_files()
    configure_logging("error")
    agents = []
    for number in range(int(first), int(first) + int(clusters)):
        name = member_name(number)
        client = MemberClient.from_kubeconfig(name, path=kubeconfig_of(Path(folder), number))
        agents.append(Agent(AgentSettings(cluster_id=ClusterID(name), aggregator=address), KubeMember(client)))
    await serve(Agents(agents).answer)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
