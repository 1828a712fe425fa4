"""One aggregator and its agents as processes of their own, for tests and the demo."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from federator.api.cluster import ClusterState, normalise_cluster_id
from federator.client import InventoryClient, TLSFiles, aconnect
from federator.errors import AggregatorUnreachable, TestbedError
from federator.testing.certificates import CertificateAuthority, write_pem
from federator.testing.process_group import Process, ProcessGroup
from federator.testing.scratch import ScratchFolder

START_TIMEOUT = 60.0
"""Seconds the federation may take until every cluster is LIVE."""

STOP_TIMEOUT = 15.0
"""Seconds a process may take to end by itself before it is killed."""

_POLL = 0.1


class FederationTLS:
    """The authorities of one federation and the files that its processes are given.

    Attributes:
        folder: of the files; those of an agent are `agent-<ClusterID>.crt` and `.key`.
        aggregators: signs the aggregator's certificate.
        agents: signs those of agents.
        readers: signs those of whoever asks.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.aggregators = CertificateAuthority("aggregators")
        self.agents = CertificateAuthority("agents")
        self.readers = CertificateAuthority("readers")
        self.write_authorities()
        self.aggregators.serving("aggregator", hosts=("localhost",), addresses=("127.0.0.1",)).write(folder, "server")
        self.readers.client("reader").write(folder, "reader")

    def write_authorities(self) -> None:
        """Writes or replaces what each side trusts."""
        write_pem(self.folder / "aggregators.crt", self.aggregators.certificate)
        write_pem(self.folder / "agents.crt", self.agents.certificate)
        write_pem(self.folder / "readers.crt", self.readers.certificate)

    @property
    def reader(self) -> TLSFiles:
        """With which the aggregator is asked."""
        return TLSFiles(
            ca_file=self.folder / "aggregators.crt",
            certificate_file=self.folder / "reader.crt",
            private_key_file=self.folder / "reader.key",
        )

    def aggregator_arguments(self) -> tuple[str, ...]:
        """Options of the aggregator."""
        return (
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            f"--agent-ca-file={self.folder / 'agents.crt'}",
            f"--client-ca-file={self.folder / 'readers.crt'}",
        )

    def agent_arguments(self, cluster_id: str) -> tuple[str, ...]:
        """Options of an agent. Its certificate is made if there is none yet, so that a test may put another there."""
        name = f"agent-{cluster_id}"
        if not (self.folder / f"{name}.crt").exists():
            self.agents.agent(cluster_id).write(self.folder, name)
        return (
            f"--aggregator-ca-file={self.folder / 'aggregators.crt'}",
            f"--tls-cert-file={self.folder / f'{name}.crt'}",
            f"--tls-private-key-file={self.folder / f'{name}.key'}",
        )


class Federation:
    """An aggregator and one agent per context, each a process that can be killed, paused and started again.

    The aggregator keeps its ledger in the federation's folder, so that a restarted one continues. Reading goes over
    `address`, metrics over `metrics_url`. No process outlives the one that made this object.

    Attributes:
        tls: certificates, where agents push over TCP with TLS; None where they push over a unix socket, without.
        aggregator_module: what its aggregator is: `federator`, or what takes the same arguments.
        agent_module: what its agents are.
    """

    aggregator_module: ClassVar[str] = "federator"
    agent_module: ClassVar[str] = "federator"

    def __init__(
        self,
        kubeconfig: Path,
        contexts: Sequence[str],
        *,
        folder: Path | None = None,
        port: int = 0,
        tls: bool = False,
        agent_arguments: Sequence[str] = (),
        aggregator_arguments: Sequence[str] = (),
    ) -> None:
        """Describes a federation; `start` makes it.

        Args:
            kubeconfig: file with the contexts.
            contexts: one agent each.
            folder: keeps ledger and logs here; temporary if None.
            port: port of the reading side on 127.0.0.1; 0 for a free one.
            tls: agents and clients are asked for certificates, and speak TLS.
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
        self.tls = FederationTLS(self.folder / "tls") if tls else None
        self.ingest_address = f"127.0.0.1:{_free_port()}" if tls else f"unix:{self.folder / 'ingest.sock'}"

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
        return aconnect(self.address, tls=self.tls.reader if self.tls else None)

    def start_aggregator(self, *arguments: str) -> None:
        """Starts the aggregator; further arguments are for this start only."""
        self._launch(
            "aggregator",
            "aggregator",
            f"--listen={self.address}",
            f"--ingest-listen={self.ingest_address}",
            f"--http-listen={self._http_address}",
            f"--state-directory={self.folder / 'state'}",
            *(self.tls.aggregator_arguments() if self.tls else ()),
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
            f"--aggregator={self.ingest_address}",
            *(self.tls.agent_arguments(normalise_cluster_id(context)) if self.tls else ()),
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
        await self._wait_listening()
        for context in self.contexts:
            self.start_agent(context)
        await self.wait_state(ClusterState.LIVE)

    async def _wait_listening(self) -> None:
        # An agent that finds nobody tries again only after a second or two.
        try:
            async with asyncio.timeout(START_TIMEOUT):
                while not await _accepts(self.ingest_address):
                    self._check_running()
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            raise TestbedError(f"no listener after {START_TIMEOUT:g} s\n{self._log_tails()}") from None

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
        self._processes[name] = self._group.launch_module(
            name,
            self.aggregator_module if name == "aggregator" else self.agent_module,
            arguments,
            log=self.folder / f"{name}.log",
            folder=self.folder,
            environment=self._environment(),
        )

    def _environment(self) -> dict[str, str]:
        # No settings of the user's: what runs here is told everything by arguments.
        return {key: value for key, value in os.environ.items() if not key.startswith("FEDERATOR_")}

    def _check_running(self) -> None:
        for name, process in self._processes.items():
            if not process.running and process.exit_code != -9:
                raise TestbedError(
                    f"{name} ended with exit code {process.exit_code}; the end of {process.log}:\n{process.log_tail()}"
                )

    def _log_tails(self) -> str:
        return "\n".join(f"the end of {process.log}:\n{process.log_tail()}" for process in self._processes.values())


async def _accepts(address: str) -> bool:
    """Whether something listens at `host:port` or `unix:PATH`."""
    try:
        if address.startswith("unix:"):
            _, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
