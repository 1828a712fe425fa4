"""One aggregator and its agents as processes of their own, for tests and the demo."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from federator.api.cluster import ClusterState, normalise_cluster_id
from federator.client import InventoryClient, aconnect
from federator.errors import AggregatorUnreachable, TestbedError
from federator.testing.process_group import Process, ProcessGroup
from federator.testing.scratch import ScratchFolder

START_TIMEOUT = 60.0
"""Seconds the federation may take until every cluster is LIVE."""

STOP_TIMEOUT = 15.0
"""Seconds a process may take to end by itself before it is killed."""

_POLL = 0.1


class Federation:
    """An aggregator and one agent per context, each a process that can be killed, paused and started again.

    The aggregator keeps its ledger in the federation's folder, so that a restarted one continues. Reading goes over
    `address`, metrics over `metrics_url`. No process outlives the one that made this object.
    """

    def __init__(
        self,
        kubeconfig: Path,
        contexts: Sequence[str],
        *,
        folder: Path | None = None,
        port: int = 0,
        agent_arguments: Sequence[str] = (),
        aggregator_arguments: Sequence[str] = (),
    ) -> None:
        """Describes a federation; `start` makes it.

        Args:
            kubeconfig: file with the contexts.
            contexts: one agent each.
            folder: keeps ledger and logs here; temporary if None.
            port: port of the reading side on 127.0.0.1; 0 for a free one.
            agent_arguments: further arguments of each agent.
            aggregator_arguments: further arguments of the aggregator.
        """
        self._kubeconfig = kubeconfig
        self.contexts = tuple(contexts)
        self._scratch = ScratchFolder() if folder is None else None
        self.folder = self._scratch.path if self._scratch else folder or Path()
        self._group = ProcessGroup()
        self._processes: dict[str, Process] = {}
        self._agent_arguments = tuple(agent_arguments)
        self._aggregator_arguments = tuple(aggregator_arguments)
        self.address = f"127.0.0.1:{port or _free_port()}"
        self._http_address = f"127.0.0.1:{_free_port()}"
        self._ingest_address = f"unix:{self.folder / 'ingest.sock'}"

    @property
    def metrics_url(self) -> str:
        """Where the aggregator tells its metrics."""
        return f"http://{self._http_address}/metrics"

    @property
    def processes(self) -> Mapping[str, Process]:
        """The processes that were started, by name: `aggregator` and `agent-<context>`."""
        return self._processes

    def client(self) -> InventoryClient:
        """A new client of the aggregator, to be used with `async with`."""
        return aconnect(self.address)

    def start_aggregator(self, *arguments: str) -> None:
        """Starts the aggregator; further arguments are for this start only."""
        self._launch(
            "aggregator",
            "aggregator",
            f"--listen={self.address}",
            f"--ingest-listen={self._ingest_address}",
            f"--http-listen={self._http_address}",
            f"--state-directory={self.folder / 'state'}",
            *self._aggregator_arguments,
            *arguments,
        )

    def start_agent(self, context: str, *arguments: str) -> None:
        """Starts the agent of a context; further arguments are for this start only."""
        self._launch(
            f"agent-{context}",
            "agent",
            f"--kubeconfig={self._kubeconfig}",
            f"--context={context}",
            f"--aggregator={self._ingest_address}",
            *self._agent_arguments,
            *arguments,
        )

    def kill(self, name: str) -> None:
        """Ends a process at once (SIGKILL)."""
        self._processes[name].kill()

    async def start(self) -> None:
        """Starts everything and waits until every cluster is LIVE.

        Raises:
            TestbedError: a process ended, or not all are LIVE in time; carries the end of the logs.
        """
        self.start_aggregator()
        for context in self.contexts:
            self.start_agent(context)
        await self.wait_state(ClusterState.LIVE)

    async def wait_state(self, state: ClusterState, *contexts: str, timeout: float = START_TIMEOUT) -> None:
        """Waits until the clusters of some contexts (all if none is named) are in a state.

        Raises:
            TestbedError: a process ended, or it takes too long; carries the end of the logs.
        """
        wanted = {normalise_cluster_id(context) for context in contexts or self.contexts}
        last: Any = "no answer"
        try:
            async with asyncio.timeout(timeout), self.client() as fed:
                while True:
                    self._check_running()
                    try:
                        answer = await fed.clusters(timeout=5)
                    except AggregatorUnreachable as error:
                        last = error
                    else:
                        last = {cluster.cluster_id: (cluster.state, cluster.reason) for cluster in answer.clusters}
                        if wanted <= {name for name, (reached, _) in last.items() if reached is state}:
                            return
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            raise TestbedError(f"not {state} after {timeout:g} s: {last}\n{self._log_tails()}") from None

    async def stop(self) -> bool:
        """Ends agents, then the aggregator, in order (SIGTERM); returns whether all ended by themselves."""
        aggregator = self._processes.get("aggregator")
        agents = [process for name, process in self._processes.items() if name != "aggregator" and process.running]
        by_themselves = await asyncio.gather(*(process.stop(STOP_TIMEOUT) for process in agents))
        if aggregator is not None and aggregator.running:
            by_themselves.append(await aggregator.stop(STOP_TIMEOUT))
        return all(by_themselves)

    def close(self) -> None:
        """Kills what still runs and removes what is temporary; idempotent."""
        for process in self._processes.values():
            process.kill()
        self._processes.clear()
        self._group.close()
        if self._scratch is not None:
            scratch, self._scratch = self._scratch, None
            scratch.remove()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        finally:
            self.close()

    def _launch(self, name: str, *arguments: str) -> None:
        running = self._processes.get(name)
        if running is not None and running.running:
            raise TestbedError(f"{name} runs already")
        # No settings of the user's environment: what runs here is told everything by arguments.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FEDERATOR_")}
        self._processes[name] = self._group.launch(
            name,
            [sys.executable, "-m", "federator", *arguments],
            log=self.folder / f"{name}.log",
            folder=self.folder,
            environment=environment,
        )

    def _check_running(self) -> None:
        for name, process in self._processes.items():
            if not process.running and process.exit_code != -9:
                raise TestbedError(
                    f"{name} ended with exit code {process.exit_code}; the end of {process.log}:\n{process.log_tail()}"
                )

    def _log_tails(self) -> str:
        return "\n".join(f"the end of {process.log}:\n{process.log_tail()}" for process in self._processes.values())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
