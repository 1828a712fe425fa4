"""Many agents in one process: one per context, none of which can stop another."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import structlog

from federator.agent.agent import Agent, AgentPhase, AgentStatus
from federator.errors import ClusterUIDKnown, FederatorError

log = structlog.get_logger(__name__)

LOOK_INTERVAL = 0.25
"""Seconds between two looks at how an agent stands."""


class NamedAgent(NamedTuple):
    """An agent and the context it was made for.

    Attributes:
        context: the context's name.
        server: URL of its apiserver.
        agent: the agent, not yet running.
    """

    context: str
    server: str
    agent: Agent


class AgentFleet:
    """Runs agents side by side until cancelled.

    An agent whose settings or cluster make it fail is reported and left out; the others go on. One whose cluster is
    already a member under another ClusterID is skipped: two contexts of a kubeconfig may well reach one cluster. Of
    several contexts with one server the first joins, as long as it can: the others wait until it has, or has failed.
    A cluster need not serve the types that were named (`AgentSettings.waits_for_types`), but where none of all clusters
    ever has, their agents are left out.
    """

    def __init__(self, agents: Iterable[NamedAgent]) -> None:
        self._agents = tuple(agents)
        self._settled = {named.context: asyncio.Event() for named in self._agents}
        self._left_out: dict[str, FederatorError] = {}

    async def run(self) -> None:
        """Runs until cancelled, and leaves no task. Returns early only if every agent was left out."""
        async with asyncio.TaskGroup() as tasks:
            for named in self._agents:
                tasks.create_task(self._run_one(named), name=f"agent {named.context}")

    def left_out(self) -> Mapping[str, FederatorError]:
        """Contexts that are not followed, and why."""
        return dict(self._left_out)

    def status(self) -> Mapping[str, AgentStatus]:
        """Status of each agent by context."""
        return {named.context: named.agent.status() for named in self._agents}

    def statistics(self) -> Mapping[str, Mapping[str, Mapping[str, object]]]:
        """Statistics of each agent by ClusterID."""
        return {named.agent.status().cluster_id: named.agent.statistics() for named in self._agents}

    async def _run_one(self, named: NamedAgent) -> None:
        for earlier in itertools.takewhile(lambda other: other is not named, self._agents):
            if earlier.server == named.server:
                await self._settled[earlier.context].wait()
        running = asyncio.create_task(named.agent.run(), name=f"run {named.context}")
        try:
            while not (await asyncio.wait([running], timeout=LOOK_INTERVAL))[0]:
                status = named.agent.status()
                error = status.session.error
                if isinstance(error, ClusterUIDKnown):
                    self._leave_out(named, error)
                    return
                if status.lacking is not None and self._all_lack():
                    self._leave_out(named, status.lacking)
                    return
                if status.phase is AgentPhase.PUSHING or status.error is not None:
                    self._settled[named.context].set()
            await running
        except FederatorError as error:
            self._leave_out(named, error)
        finally:
            self._settled[named.context].set()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _all_lack(self) -> bool:
        return all(
            named.context in self._left_out or named.agent.status().lacking is not None for named in self._agents
        )

    def _leave_out(self, named: NamedAgent, error: FederatorError) -> None:
        self._left_out[named.context] = error
        log.error("context left out", context=named.context, cause=str(error))
