"""Several control planes behind one kubeconfig."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from federator.errors import InvalidInput, TestbedError
from federator.testing.binaries import CONTROL_PLANE, LIVING, provide
from federator.testing.control_plane import ControlPlane
from federator.testing.kubeconfig import write_kubeconfig
from federator.testing.scratch import ScratchFolder


class Testbed:
    """Control planes that are started together and listed in one kubeconfig, a context each.

    An async context manager; iterates over its control planes and gives one by name: `bed["eu-1"]`.
    Each is as independent as clusters are: own data, own authority, own processes. Belongs to no event loop.
    """

    __test__ = False  # not a test class, whatever its name suggests to collectors

    def __init__(
        self,
        names: Sequence[str] = ("eu-1", "us-1", "ap-1"),
        *,
        folder: Path | None = None,
        living: bool = False,
        nodes: int = 3,
        fsync: bool = False,
        apiserver_arguments: Sequence[str] = (),
    ) -> None:
        """Describes a testbed; `start` makes it.

        Args:
            names: names of the control planes and of their contexts.
            folder: keeps data and logs here, a folder for each control plane; temporary if None.
            living: runs workloads, on fake nodes.
            nodes: number of fake nodes in each living control plane.
            fsync: etcd survives a crash of the machine, at the price of slow writes.
            apiserver_arguments: further flags of each kube-apiserver.

        Raises:
            InvalidInput: no names, or the same name twice.
        """
        if not names or len(set(names)) != len(names):
            raise InvalidInput("names", tuple(names), "one or more different names")
        self._given_folder = folder
        self._living = living
        self._scratch: ScratchFolder | None = None
        self._planes = {
            name: ControlPlane(
                name,
                folder=folder / name if folder else None,
                living=living,
                nodes=nodes,
                fsync=fsync,
                apiserver_arguments=apiserver_arguments,
            )
            for name in names
        }

    @property
    def control_planes(self) -> Mapping[str, ControlPlane]:
        """The control planes by name."""
        return self._planes

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file with one context for each control plane, as administrator; mode 0600."""
        if self._given_folder is not None:
            return self._given_folder / "kubeconfig"
        if self._scratch is None:
            raise TestbedError("the testbed was not started, or is closed")
        return self._scratch.path / "kubeconfig"

    def __getitem__(self, name: str) -> ControlPlane:
        return self._planes[name]

    def __iter__(self) -> Iterator[ControlPlane]:
        return iter(self._planes.values())

    async def start(self) -> None:
        """Starts all control planes at once and writes the kubeconfig.

        Where one fails, or the call is cancelled, the others' starts are cancelled, which kills what they run.

        Raises:
            TestbedError: as in `ControlPlane.start`.
        """
        await provide(LIVING if self._living else CONTROL_PLANE)  # once, or each would wait for the other's build
        try:
            async with asyncio.TaskGroup() as starts:
                for plane in self:
                    starts.create_task(plane.start(), name=f"start {plane.name}")
        except* TestbedError as failures:
            raise failures.exceptions[0] from None
        if self._given_folder is None and self._scratch is None:
            self._scratch = await asyncio.to_thread(ScratchFolder)
        await asyncio.to_thread(write_kubeconfig, self.kubeconfig, [plane.access for plane in self])

    async def create_namespace(self, name: str) -> None:
        """Creates a namespace of this name in every control plane.

        Raises:
            KubeStatusError, MemberUnreachable: from the first control plane that fails.
        """
        for plane in self:
            async with plane.client() as client:
                await client.create("/api/v1/namespaces", {"metadata": {"name": name}})

    async def stop(self) -> None:
        """Ends everything in order; data and ports are kept."""
        async with asyncio.TaskGroup() as stops:
            for plane in self:
                stops.create_task(plane.stop(), name=f"stop {plane.name}")

    async def close(self) -> None:
        """Kills everything and removes what is temporary; idempotent."""
        for plane in self:
            await plane.close()
        if self._scratch is not None:
            scratch, self._scratch = self._scratch, None
            await asyncio.to_thread(scratch.remove)

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
        """Statistics of each control plane."""
        return {plane.name: plane.statistics() for plane in self}
