"""A Reflector between a fake apiserver, over HTTP, and a store that remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

from federator.api.list_watch import Known, ListOptions, ListPage, WatchEvent, nothing_known
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache import Backoff, ListWatch, Reflector
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer
from federator.testing.fake_api_server import OpenWatch, Request

CONFIG_MAPS = ResourceType(group="", version="v1", resource="configmaps", kind="ConfigMap", namespaced=True)
PATH = "/api/v1/configmaps"

LONG = 3600.0
"""Seconds to wait for what comes after delays; under looptime they pass at once."""


def no_jitter() -> float:
    """In place of a random draw, so that every delay is exactly the schedule's."""
    return 0.0


class Store:
    """Remembers what a Reflector tells it, in short words; raises what it is asked to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.objects: dict[str, KubeObject] = {}
        self.resync_error: Exception | None = None
        self.resync_times: list[float] = []
        self._changed = asyncio.Event()

    async def add(self, obj: KubeObject) -> None:
        self._put("add", obj)

    async def update(self, obj: KubeObject) -> None:
        self._put("update", obj)

    async def delete(self, obj: KubeObject) -> None:
        self.objects.pop(obj.name, None)
        self._told(f"delete {obj.name}@{obj.resource_version}")

    async def replace(self, objects: Sequence[KubeObject], resource_version: str) -> None:
        self.objects = {obj.name: obj for obj in objects}
        self._told(f"replace {','.join(sorted(self.objects))}@{resource_version}")

    async def bookmark(self, resource_version: str) -> None:
        self._told(f"bookmark @{resource_version}")

    def resync(self) -> None:
        self.resync_times.append(asyncio.get_running_loop().time())
        if self.resync_error is not None:
            raise self.resync_error

    @property
    def names(self) -> list[str]:
        return sorted(self.objects)

    @property
    def versions(self) -> list[str]:
        """The resourceVersions of all calls, in order."""
        return [call.rpartition("@")[2] for call in self.calls]

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition, looking after every call; the test's time limit is the only one."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _put(self, verb: str, obj: KubeObject) -> None:
        self.objects[obj.name] = obj
        self._told(f"{verb} {obj.name}@{obj.resource_version}")

    def _told(self, call: str) -> None:
        self.calls.append(call)
        self._changed.set()


class Dials:
    """A ListWatch that notes when it is asked, also where nobody answers.

    Attributes:
        times: loop time of each request.
        waits: seconds between two requests.
    """

    times: list[float]

    def __init__(self, list_watch: ListWatch) -> None:
        self._list_watch = list_watch
        self.times = []

    @property
    def waits(self) -> Sequence[float]:
        return [later - earlier for earlier, later in pairwise(self.times)]

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        self._note()
        return await self._list_watch.list(options, known=known)

    @asynccontextmanager
    async def watch(self, options: ListOptions) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        self._note()
        async with self._list_watch.watch(options) as events:
            yield events

    def _note(self) -> None:
        self.times.append(asyncio.get_running_loop().time())


class Rig:
    """One Reflector and its two ends.

    Attributes:
        dials: when the server was asked.
        store: what is kept in step.
        reflector: by default without jitter in its delays and in the lengths of its watches.
        failures: what ended each failed round.
    """

    def __init__(
        self,
        client: MemberClient,
        *,
        resource_type: ResourceType = CONFIG_MAPS,
        metadata_only: bool = False,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        **options: Any,
    ) -> None:
        self.dials = Dials(
            ResourceListWatch(
                client,
                resource_type,
                namespace=namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                metadata_only=metadata_only,
            )
        )
        self.store = Store()
        self.failures: list[Exception] = []
        options.setdefault("uniform", no_jitter)
        options.setdefault("backoff", Backoff(uniform=no_jitter))
        self.reflector = Reflector(self.dials, self.store, name=resource_type.resource, **options)
        self.reflector.on_error = self.failures.append

    async def synced(self, server: FakeApiServer) -> OpenWatch:
        """Waits until the store was told what exists, and for the watch that follows; returns that watch."""
        await self.store.until(lambda: self.store.calls)
        return await server.wait_for_watch(timeout=LONG)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Runs the Reflector while the body runs."""
        task = asyncio.create_task(self.reflector.run())
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def settle() -> None:
    """Lets everything that can happen now happen, also what goes through sockets; under looptime it takes no time."""
    for _ in range(20):
        await asyncio.sleep(0.001)


async def ended(server: FakeApiServer, watch: OpenWatch) -> None:
    """Waits until a watch is over, from either end."""
    await server.wait_for(lambda: not watch.request.live, timeout=LONG)


async def until_names(store: Store, names: Sequence[str]) -> None:
    """Waits until a store holds objects of exactly these names."""
    await store.until(lambda: store.names == sorted(names))


def versions(server: FakeApiServer, verb: str, resource: str = "configmaps") -> list[str]:
    """The resourceVersions of all lists or watches so far; of pages too."""
    return [request.query.get("resourceVersion", "") for request in server.requests.of(verb, resource)]


def waits(requests: Sequence[Request]) -> list[float]:
    """Seconds between the beginnings of requests."""
    return [later.started - earlier.started for earlier, later in pairwise(requests)]


def config_map(name: str, version: int | str, **metadata: Any) -> dict[str, Any]:
    """As a watch carries it."""
    names = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {**names, **metadata}}


def send(watch: OpenWatch, event_type: str, obj: dict[str, Any]) -> None:
    """Sends an event that the server's history does not have."""
    watch.send({"type": event_type, "object": obj})


def send_end_of_initial_events(watch: OpenWatch, version: int | str, *, value: str = "true") -> None:
    metadata = {"resourceVersion": str(version), "annotations": {"k8s.io/initial-events-end": value}}
    send(watch, "BOOKMARK", {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata})


def status_frame(code: int, reason: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason, "code": code}
