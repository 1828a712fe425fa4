"""One real control plane: etcd and kube-apiserver, and what makes its workloads live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

from federator.errors import KubeStatusError, MemberUnreachable, TestbedError
from federator.testing import programs
from federator.testing.admin_client import AdminClient
from federator.testing.binaries import CONTROL_PLANE, LIVING, provide
from federator.testing.certificates import KeyPair
from federator.testing.ground import Ground
from federator.testing.kubeconfig import Access
from federator.testing.process_group import Process

log = structlog.get_logger(__name__)

START_TIMEOUT = 60.0
"""Seconds a control plane may take to become ready. About 3 on an idle machine; loaded ones are slow."""

STOP_TIMEOUT = 20.0
"""Seconds one program may take to end by itself before it is killed. About 1 at rest."""

_READY_POLL = 0.05

T = TypeVar("T")


class ControlPlane:
    """A Kubernetes control plane of real processes on loopback, without containers and without nodes.

    The apiserver has RBAC on, TLS with an authority of its own, and the watch cache and bookmarks of every Kubernetes.
    With `living`, controller-manager, scheduler and kwok run too, on fake nodes: a Deployment becomes a ReplicaSet
    and Running pods.

    Promises:
        - After `start` everything runs and answers; after a failed or cancelled `start` nothing runs.
        - URL, port, certificates and data stay the same until `close`, over any `kill`, `stop` and `start`. While the
          apiserver is down nobody else can get its port.
        - No process outlives the one that made this object, even when that is killed by SIGKILL.
        - It belongs to no event loop: started in one, it can be used and stopped in another, but not at the same time.

    Attributes:
        name: name of the kubeconfig context.
        living: controllers and scheduler run, and pods become Running.
        nodes: number of its fake nodes, `node-0` and on, if it is living.
    """

    def __init__(
        self,
        name: str = "testbed",
        *,
        folder: Path | None = None,
        living: bool = False,
        nodes: int = 3,
        fsync: bool = False,
        apiserver_arguments: Sequence[str] = (),
    ) -> None:
        """Describes a control plane; `start` makes it.

        Args:
            name: name of the kubeconfig context.
            folder: keeps data and logs here; what an earlier control plane has left here is taken up again. A
                temporary folder that `close` removes if None.
            living: runs workloads, on fake nodes.
            nodes: number of fake nodes of a living one.
            fsync: etcd survives a crash of the machine, at the price of slow writes.
            apiserver_arguments: further flags of the kube-apiserver, after all others, so that they win.
        """
        self.name = name
        self._given_folder = folder
        self.living = living
        self.nodes = nodes
        self._fsync = fsync
        self._apiserver_arguments = tuple(apiserver_arguments)
        self._ground: Ground | None = None
        self._processes: dict[str, Process] = {}

    @property
    def context(self) -> str:
        """Name of its context in the kubeconfig."""
        return self.name

    @property
    def folder(self) -> Path:
        """Folder with its data, its certificates, its kubeconfig and a log of each program."""
        return self._grounded.folder

    @property
    def url(self) -> str:
        """URL of its apiserver."""
        return self._grounded.access.server

    @property
    def port(self) -> int:
        """Port of its apiserver on 127.0.0.1."""
        return self._grounded.port

    @property
    def etcd_socket(self) -> Path:
        """Unix socket of its etcd, which asks nobody for credentials."""
        return self._grounded.folder / programs.ETCD_SOCKET

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file with this control plane alone, as administrator."""
        return self._grounded.folder / "kubeconfig"

    @property
    def access(self) -> Access:
        """How the administrator reaches it."""
        return self._grounded.access

    @property
    def processes(self) -> Mapping[str, Process]:
        """The programs that were started, by name."""
        return self._processes

    def client(self, *, connections: int = 100) -> AdminClient:
        """A new client of its administrator, to be used as an async context manager."""
        return AdminClient(self.url, self._grounded.tls, connections=connections)

    def user_credentials(self, user: str, *, groups: tuple[str, ...] = ()) -> KeyPair:
        """A client certificate of another user, who may do only what RBAC allows."""
        return self._grounded.authority.client(user, groups=groups)

    async def start(self, *, timeout: float = START_TIMEOUT) -> None:
        """Starts what does not run and waits until all of it answers. Builds missing programs first.

        A cancelled or failed start kills everything this control plane runs.

        Raises:
            TestbedError: the programs cannot be built, or one ended or did not become ready in time; carries the end
                of its log.
        """
        names = LIVING if self.living else CONTROL_PLANE
        binaries = await provide(names)
        begin = time.monotonic()
        if self._ground is None:
            await _to_the_end(lambda: Ground(self.name, self._given_folder), self._stand_on)
        self._processes = {name: process for name, process in self._processes.items() if process.running}
        try:
            async with asyncio.timeout(timeout):
                settings = programs.Settings(
                    port=self.port,
                    fsync=self._fsync,
                    living=self.living,
                    apiserver_arguments=self._apiserver_arguments,
                    stages=binaries.stages,
                )
                for name in names:
                    if name not in CONTROL_PLANE:
                        # They give up where no apiserver answers, so they come last.
                        await self._wait_ready()
                    await self._launch(name, binaries.paths[name], settings)
                await self._wait_ready()
                if self.living:
                    await self._populate()
        except (TimeoutError, KubeStatusError, MemberUnreachable) as error:
            self._kill_all()
            cause = f"not ready after {timeout:.0f} s" if isinstance(error, TimeoutError) else str(error)
            raise TestbedError(f"{self.name} did not start: {cause}\n{self._log_tails()}") from error
        except BaseException:
            self._kill_all()
            raise
        log.info("control plane ready", name=self.name, url=self.url, seconds=round(time.monotonic() - begin, 2))

    async def stop(self, *, timeout: float = STOP_TIMEOUT) -> None:
        """Ends everything in order (SIGTERM, the apiserver before its etcd); data and port are kept.

        Args:
            timeout: seconds for each program, after which it is killed.
        """
        for name in reversed(LIVING):
            process = self._processes.get(name)
            if process is not None and process.running and not await process.stop(timeout):
                log.warning("program did not stop and was killed", name=self.name, program=name, seconds=timeout)

    async def restart(self) -> None:
        """Stops everything and starts it again on the same data and port.

        Raises:
            TestbedError: as in `start`.
        """
        await self.stop()
        await self.start()

    def kill(self, *names: str) -> None:
        """Ends programs at once (SIGKILL); `start` brings them back.

        Args:
            names: programs, e.g. "etcd"; the apiserver alone if none is given.
        """
        for process in self._named(names):
            process.kill()

    def pause(self, *names: str) -> None:
        """Freezes programs (SIGSTOP): connections stay open, nothing answers, new ones are taken by the kernel alone.

        Args:
            names: programs, e.g. "etcd"; the apiserver alone if none is given.
        """
        for process in self._named(names):
            process.pause()

    def resume(self, *names: str) -> None:
        """Lets paused programs go on; the apiserver alone if no names are given."""
        for process in self._named(names):
            process.resume()

    async def close(self) -> None:
        """Kills everything, gives the port back and removes the temporary folder; idempotent.

        A folder that was given stays, with etcd's data as a crash would leave it; `stop` first for a clean end.
        """
        ground, self._ground = self._ground, None
        if ground is not None:
            # The thread goes on where this call is cancelled: a close is never half done.
            await asyncio.to_thread(self._close, ground)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def statistics(self) -> Mapping[str, Any]:
        """PID and resident memory in bytes of each running program."""
        running = {name: process for name, process in self._processes.items() if process.running}
        return {name: {"pid": process.pid, "memory": process.memory()} for name, process in running.items()}

    @property
    def _grounded(self) -> Ground:
        if self._ground is None:
            raise TestbedError(f"{self.name} was not started, or is closed")
        return self._ground

    def _stand_on(self, ground: Ground) -> None:
        self._ground = ground

    def _named(self, names: tuple[str, ...]) -> list[Process]:
        unknown = [name for name in names if name not in self._processes]
        if unknown or not self._processes:
            running = ", ".join(self._processes) or "nothing"
            raise TestbedError(f"{self.name} runs {running}; asked for {', '.join(unknown) or 'kube-apiserver'}")
        return [self._processes[name] for name in names or ("kube-apiserver",)]

    async def _launch(self, name: str, program: Path, settings: programs.Settings) -> None:
        process = self._processes.get(name)
        if process is not None and process.running:
            return
        arguments = [str(program), *programs.arguments(name, settings)]
        launch = self._grounded.group.launch
        try:
            await _to_the_end(
                lambda: launch(
                    name,
                    arguments,
                    log=self.folder / f"{name}.log",
                    folder=self.folder,
                    environment=programs.environment(),
                ),
                lambda process: self._processes.update({name: process}),
            )
        except OSError as error:
            raise TestbedError(f"{name} of {self.name} cannot be run: {program}: {error.strerror}") from error

    async def _wait_ready(self) -> None:
        async with self.client() as client:
            while True:
                self._check_running()
                try:
                    await client.text("/readyz")
                except (KubeStatusError, MemberUnreachable):
                    await asyncio.sleep(_READY_POLL)
                else:
                    return

    def _check_running(self) -> None:
        for name, process in self._processes.items():
            if not process.running:
                raise TestbedError(
                    f"{name} of {self.name} ended with exit code {process.exit_code}; the end of {process.log}:\n"
                    f"{process.log_tail()}"
                )

    async def _populate(self) -> None:
        """Creates the fake nodes and waits until workloads can run on them."""
        async with self.client() as client:
            for number in range(self.nodes):
                try:
                    await client.create("/api/v1/nodes", programs.fake_node(f"node-{number}"))
                except KubeStatusError as error:
                    if error.status_reason != "AlreadyExists":
                        raise
            while not await _lives(client):
                self._check_running()
                await asyncio.sleep(_READY_POLL)

    def _close(self, ground: Ground) -> None:
        ground.close()
        self._processes.clear()

    def _kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _log_tails(self) -> str:
        return "\n".join(f"the end of {process.log}:\n{process.log_tail()}" for process in self._processes.values())


async def _to_the_end(call: Callable[[], T], keep: Callable[[T], None]) -> None:
    """Makes something in a thread and keeps it, even if we are cancelled while it is being made."""
    making = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        await asyncio.shield(making)
    finally:
        keep(await making)


async def _lives(client: AdminClient) -> bool:
    """Every node is Ready, and the controllers have given the default namespace its service account."""
    nodes = await client.get("/api/v1/nodes")
    conditions = [node["status"].get("conditions", []) for node in nodes["items"]]
    if not all({"Ready"} <= {c["type"] for c in each if c["status"] == "True"} for each in conditions):
        return False
    accounts = await client.get("/api/v1/namespaces/default/serviceaccounts")
    return any(account["metadata"]["name"] == "default" for account in accounts["items"])
