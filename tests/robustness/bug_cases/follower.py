"""An informer of one type over real HTTP, and everything its handler was told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import pytest

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache.backoff import Backoff
from federator.cache.handler import ResourceEventHandlerFuncs
from federator.cache.list_watch import ListWatch
from federator.cache.reflector_status import ReflectorStatus
from federator.cache.shared_informer import SharedInformer
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer
from federator.testing.fake_api_server import Request

CONFIG_MAPS = ResourceType(group="", version="v1", resource="configmaps", kind="ConfigMap", namespaced=True)
PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)

both_ways = pytest.mark.parametrize("use_watch_list", [True, False], ids=["watch-list", "list"])


class RecordedBackoff(Backoff):
    """The usual schedule; remembers what it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def next_delay(self, retry_after: float | None = None) -> float:
        delay = super().next_delay(retry_after)
        self.drawn.append(delay)
        return delay


class Follower:
    """Runs one informer while its context is open.

    Attributes:
        told: what the handler was told, in order: `add`, `update`, `delete` or `tombstone`, and the name.
        failures: what ended rounds.
        delays: what the informer waited between attempts, in seconds.
    """

    def __init__(
        self,
        list_watch: MemberClient | ListWatch,
        *,
        resource_type: ResourceType = CONFIG_MAPS,
        name: str = "follower",
        **options: Any,
    ) -> None:
        if isinstance(list_watch, MemberClient):
            list_watch = ResourceListWatch(list_watch, resource_type)
        self.told: list[tuple[str, str]] = []
        self.failures: list[Exception] = []
        self._backoff = RecordedBackoff()
        self.delays = self._backoff.drawn
        self.informer = SharedInformer(list_watch, name=name, backoff=self._backoff, **options)
        self.informer.add_event_handler(
            ResourceEventHandlerFuncs(
                add=lambda obj, _: self.told.append(("add", obj.name)),
                update=lambda _, new: self.told.append(("update", new.name)),
                delete=self._deleted,
            )
        )
        self.informer.set_watch_error_handler(self.failures.append)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.informer.run(), name=f"{self.informer.name} informer")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    @property
    def held(self) -> Mapping[str, str]:
        """The resourceVersion of each object in the store, by name."""
        return {obj.name: obj.resource_version for obj in self.informer.indexer.list()}

    @property
    def status(self) -> ReflectorStatus:
        return self.informer.status()

    @property
    def is_running(self) -> bool:
        """Whether the task that keeps the store in step is there."""
        return f"{self.informer.name} reflector" in {task.get_name() for task in asyncio.all_tasks()}

    def statistics(self, part: str) -> Mapping[str, Any]:
        statistics: Any = self.informer.statistics()[part]
        return dict(statistics)

    async def synced(self) -> Self:
        async with asyncio.timeout(600):
            await self.informer.wait_synced()
        await until(lambda: len(self.told) >= len(self.held))
        return self

    def _deleted(self, obj: KubeObject | Tombstone) -> None:
        if isinstance(obj, Tombstone):
            assert obj.object is not None
            self.told.append(("tombstone", obj.object.name))
        else:
            self.told.append(("delete", obj.name))


async def until(condition: Callable[[], Any], *, timeout: float = 1200.0, step: float = 1.0) -> None:
    """Waits until a condition holds; in seconds of the loop's clock, which jumps in these tests."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - a time that jumps, not a wait
            await asyncio.sleep(step)


def truth(server: FakeApiServer, resource: str = "configmaps") -> Mapping[str, str]:
    """What a store has to hold."""
    return {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in server.list(resource)}


def is_watch_list(request: Request) -> bool:
    return "sendInitialEvents" in request.query


def version_of(request: Request) -> str | None:
    return request.query.get("resourceVersion")


def assert_polite(server: FakeApiServer) -> None:
    """What holds of all requests whatever happens: no version that is none, no watch from nowhere."""
    assert not server.requests.refused_versions
    unversioned = [each for each in server.requests.of("watch") if not version_of(each) and not is_watch_list(each)]
    assert not unversioned
