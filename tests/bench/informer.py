"""Scenario `informer`: `federator.cache`'s informer alone, beside the official client's, on one real apiserver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import msgspec

from federator._aio.task_group import task_group
from federator.testing.control_plane import ControlPlane
from federator.testing.etcd_store import store_objects
from federator.testing.testbed import Testbed
from tests.bench.figure import FEDERATOR, MACHINE, Figure, WrongResult
from tests.bench.first_sync import fill
from tests.bench.informer_process import Reading, digest
from tests.bench.load_process import LoadProcess
from tests.bench.usage import Span

CLUSTER = "ap-1"

REST_SECONDS = 10.0

RATE = 100
"""Updates a second; each contender hears all of them."""

SECONDS = 20.0

RELIST_RATE = 20
RELIST_SECONDS = 15.0
"""How long there are updates while the contenders list anew."""

RESYNC_SECONDS = 40.0
"""When the official informer lists anew, from its first list on: by then the updates are through."""

CONFIG_MAPS = 20_000

WAYS = ("watch-list", "list", "list, compressed")
"""How federator learns what exists, and keeps it."""

_SETTLE = 2.0  # what a first list needs for a moment has been given back by then
_CATCH_UP = 60.0
_POLL = 0.1


class Contender:
    """An informer in a process of its own, for as long as the context is open.

    Attributes:
        name: as in the report.
        ready: taken before the informer was started.
    """

    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
        self._process = LoadProcess(module, *arguments)

    async def __aenter__(self) -> Self:
        await self._process.__aenter__()
        self.ready = await self.ask("read")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._process.__aexit__(kind, error, trace)

    async def ask(self, command: str) -> Reading:
        """Gives a command and returns what the process tells of itself after it.

        Raises:
            WrongResult: the process failed.
        """
        return msgspec.convert(await self._process.ask(do=command), Reading)

    async def wait_told(self, told: int) -> Reading:
        """Waits until its handler was told so often.

        Raises:
            WrongResult: it was told more often, or is not told.
        """
        async with self._catching_up():
            while True:
                reading = await self.ask("read")
                if reading.told >= told:
                    break
                await asyncio.sleep(_POLL)
        if reading.told > told:
            raise WrongResult(f"{self.name}: {reading.told - told} notifications of nothing new")
        return reading

    async def wait_state(self, state: str) -> None:
        """Waits until its store has this `digest`.

        Raises:
            WrongResult: it does not get there.
        """
        async with self._catching_up():
            while True:
                if (await self.ask("state")).state == state:
                    return
                await asyncio.sleep(_POLL)

    @asynccontextmanager
    async def _catching_up(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_CATCH_UP):
                yield
        except TimeoutError:
            raise WrongResult(f"{self.name} does not come to what its apiserver has") from None


async def informer(pods: int) -> list[Figure]:
    """Runs the scenario on a cluster of its own with this many pods.

    Raises:
        WrongResult: a contender misses an update, or holds something else than its apiserver.
    """
    async with Testbed((CLUSTER,)) as bed:
        await fill(bed, pods)
        return [*await _pods(bed[CLUSTER]), *await _config_maps(bed[CLUSTER])]


async def _pods(plane: ControlPlane) -> list[Figure]:
    truth = Truth(plane, "/api/v1/pods")
    async with AsyncExitStack() as stack:
        load = await stack.enter_async_context(
            LoadProcess("tests.bench.update_load", plane.name, plane.url, str(plane.folder))
        )
        contenders = [
            *(_federator(plane, "pods", way) for way in WAYS),
            # The last, since its next list is due some time after its first.
            Contender(
                f"kubernetes.informer {version('kubernetes')}",
                "tests.bench.informer_official",
                str(plane.kubeconfig),
                str(RESYNC_SECONDS),
            ),
        ]
        objects, _ = await truth.ask()
        figures: list[Figure] = []
        for contender in contenders:
            await stack.enter_async_context(contender)
            figures += await _first_sync(contender, "pods", objects)
        figures += await _at_rest(contenders, objects)
        figures += await _updates(load, contenders)
        await truth.check(contenders)
        figures += await _relists(load, contenders)
        await truth.check(contenders)
    return figures


async def _config_maps(plane: ControlPlane) -> list[Figure]:
    """What a list costs in memory where the objects are small, and so what is needed beside them counts."""
    await store_objects(plane.etcd_socket, _small_objects())
    truth = Truth(plane, "/api/v1/configmaps")
    objects, _ = await truth.ask()
    figures: list[Figure] = []
    for way in WAYS:
        async with _federator(plane, "configmaps", way) as contender:
            figures += await _first_sync(contender, "ConfigMaps", objects)
            await asyncio.sleep(_SETTLE)
            steady = await contender.ask("read")
            figures += [
                *_memory(f"informer, {objects} ConfigMaps at rest", contender, steady, objects),
                *_relist(f"informer, relist of {objects} ConfigMaps", contender, steady, await contender.ask("relist")),
            ]
            await truth.check([contender])
    return figures


def _federator(plane: ControlPlane, resource: str, way: str) -> Contender:
    return Contender(f"{FEDERATOR} {way}", "tests.bench.informer_federator", str(plane.kubeconfig), resource, way)


async def _first_sync(contender: Contender, what: str, objects: int) -> list[Figure]:
    scenario = f"informer, first sync of {objects} {what}"
    ready, synced = contender.ready, await contender.ask("sync")
    if not synced.held == synced.told == objects:
        raise WrongResult(f"{contender.name} holds {synced.held} and told {synced.told} of {objects} {what}")
    return [
        Figure(scenario, contender.name, "CPU before it starts", ready.cpu, "CPU-s"),
        Figure(scenario, contender.name, "memory before it starts", ready.memory, "MB"),
        Figure(scenario, contender.name, "wall time", synced.seconds, "s"),
        Figure(scenario, contender.name, what, objects / synced.seconds, "1/s"),
        Figure(scenario, contender.name, "CPU per 10000", (synced.cpu - ready.cpu) / objects * 10_000, "CPU-s"),
    ]


async def _at_rest(contenders: Sequence[Contender], objects: int) -> list[Figure]:
    scenario = f"informer, {objects} pods at rest"
    figures: list[Figure] = []
    before = [await contender.ask("read") for contender in contenders]
    await asyncio.sleep(REST_SECONDS)
    for contender, then in zip(contenders, before, strict=True):
        now = await contender.ask("read")
        cpu = (now.cpu - then.cpu) / REST_SECONDS * 1000
        figures.append(Figure(scenario, contender.name, "CPU", cpu, "CPU-ms/s"))
        figures += _memory(scenario, contender, now, objects)
    return figures


async def _updates(load: LoadProcess, contenders: Sequence[Contender]) -> list[Figure]:
    scenario = f"informer, {RATE} updates/s"
    before = [await contender.ask("read") for contender in contenders]
    machine = Span({})
    done = await load.ask(rate=RATE, seconds=SECONDS)
    machine.end()
    updates = done["written"][CLUSTER]
    figures = [
        Figure(scenario, "kube-apiserver", "updates", updates / done["wall"], "1/s"),
        Figure(scenario, MACHINE, "CPU in use", machine.machine_percent, "%"),
    ]
    for contender, then in zip(contenders, before, strict=True):
        now = await contender.wait_told(then.told + updates)
        figures.append(
            Figure(scenario, contender.name, "CPU per event", (now.cpu - then.cpu) / updates * 1e6, "CPU-us")
        )
    return figures


async def _relists(load: LoadProcess, contenders: Sequence[Contender]) -> list[Figure]:
    scenario = f"informer, relist of the pods under {RELIST_RATE} updates/s"
    figures: list[Figure] = []
    async with task_group() as tasks:
        tasks.create_task(load.ask(rate=RELIST_RATE, seconds=RELIST_SECONDS), name="updates")
        for contender in contenders:
            steady = await contender.ask("read")
            figures += _relist(scenario, contender, steady, await contender.ask("relist"))
    return figures


def _memory(scenario: str, contender: Contender, now: Reading, objects: int) -> list[Figure]:
    own = (now.memory - contender.ready.memory) / objects * 1000
    return [
        Figure(scenario, contender.name, "memory", now.memory, "MB"),
        Figure(scenario, contender.name, "memory per object", own, "kB"),
    ]


def _relist(scenario: str, contender: Contender, steady: Reading, relisted: Reading) -> list[Figure]:
    return [
        Figure(scenario, contender.name, "memory before, the steady one", steady.memory, "MB"),
        Figure(scenario, contender.name, "memory, peak", relisted.peak, "MB"),
        Figure(scenario, contender.name, "peak to steady memory", relisted.peak / steady.memory, "ratio"),
    ]


class Truth:
    """What the apiserver has of one type."""

    def __init__(self, plane: ControlPlane, path: str) -> None:
        self._plane = plane
        self._path = path

    async def ask(self) -> tuple[int, str]:
        """The number of objects now, and their `digest`."""
        async with self._plane.client() as client:
            listed = await client.get(self._path)
        metadata = [obj["metadata"] for obj in listed["items"]]
        return len(metadata), digest(
            (f"{meta['namespace']}/{meta['name']}", meta["resourceVersion"]) for meta in metadata
        )

    async def check(self, contenders: Sequence[Contender]) -> None:
        """Compares, once nobody writes any more.

        Raises:
            WrongResult: a contender does not come to hold the same.
        """
        _, state = await self.ask()
        for contender in contenders:
            await contender.wait_state(state)


def _small_objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """The path in etcd and the content of each small object: some 400 bytes as they are read."""
    for number in range(CONFIG_MAPS):
        name = f"settings-{number:06}"
        yield (
            f"configmaps/default/{name}",
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "namespace": "default",
                    "name": name,
                    "uid": str(UUID(int=number)),
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                    "labels": {"app.kubernetes.io/name": "settings", "app.kubernetes.io/part-of": "shop"},
                },
                "data": {"level": "info", "number": str(number)},
            },
        )
