"""A SharedInformer between a fake apiserver, over HTTP, and handlers that remember and judge what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache import Backoff, SharedInformer
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer
from tests.conformance.rig import CONFIG_MAPS, no_jitter, settle
from tests.unit.cache.doubles import RecordingHandler


def informer_of(client: MemberClient, **options: Any) -> SharedInformer:
    """An informer of ConfigMaps; by default without jitter in its delays."""
    options.setdefault("backoff", Backoff(uniform=no_jitter))
    return SharedInformer(ResourceListWatch(client, CONFIG_MAPS), name="configmaps", **options)


async def until(condition: Callable[[], object]) -> None:
    """Waits for a condition, for a minute at most, looking every millisecond of the loop's time."""
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("what was waited for did not happen")


async def followed(server: FakeApiServer, informer: SharedInformer) -> None:
    """Waits until the informer has everything the server has, and its handlers were told."""
    await until(lambda: states(informer.indexer.list()) == states_of(server))
    await settle()


def states(objects: Sequence[KubeObject]) -> dict[str, str]:
    """Each object's resourceVersion by its name."""
    return {obj.name: obj.resource_version for obj in objects}


def states_of(server: FakeApiServer) -> dict[str, str]:
    """Likewise, as the server has them."""
    found = [obj["metadata"] for obj in server.list("configmaps")]
    return {metadata["name"]: metadata["resourceVersion"] for metadata in found}


def handlers_of(informer: SharedInformer) -> Mapping[str, Mapping[str, Any]]:
    """The statistics of each handler that is registered, by its name."""
    return cast("Mapping[str, Mapping[str, Any]]", informer.statistics()["handlers"])


def resync_periods(informer: SharedInformer) -> list[float]:
    """The seconds between resyncs that each handler gets."""
    return [statistics["resync_period"] for statistics in handlers_of(informer).values()]


def names(handler: RecordingHandler) -> list[str]:
    """The names in what a handler was told since the last look, each once, sorted."""
    return sorted({key.rpartition("/")[2] for _, key, *_ in handler.take()})


class Picture(RecordingHandler):
    """Draws its picture of the world from what it is told, and raises for what cannot follow from that picture."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, str] = {}

    def on_add(self, obj: KubeObject, is_initial: bool) -> None:
        assert obj.name not in self.objects, f"add of {obj.name}, which is known"
        self.objects[obj.name] = obj.resource_version
        super().on_add(obj, is_initial)

    def on_update(self, old: KubeObject, new: KubeObject) -> None:
        assert self.objects.get(new.name) == old.resource_version, f"update of {new.name} from what is not known"
        self.objects[new.name] = new.resource_version
        super().on_update(old, new)

    def on_delete(self, obj: KubeObject | Tombstone) -> None:
        del self.objects[obj.key.rpartition("/")[2]]
        super().on_delete(obj)


class Blocking(RecordingHandler):
    """Is told of an add and does not return until it is released.

    Attributes:
        started: adds it was told of.
        finished: adds it returned from.
        cancelled: adds in which it was cancelled.
    """

    def __init__(self, before_return: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__()
        self.started: list[str] = []
        self.finished: list[str] = []
        self.cancelled: list[str] = []
        self._released = asyncio.Event()
        self._before_return = before_return

    def release(self) -> None:
        """Lets it return, from this add and all later ones."""
        self._released.set()

    async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
        self.started.append(obj.name)
        try:
            await self._released.wait()
            if self._before_return is not None:
                await self._before_return()
        except asyncio.CancelledError:
            for _ in range(5):
                await asyncio.sleep(0)  # as one that has something to put in order, for which who stops it must wait
            self.cancelled.append(obj.name)
            raise
        self.finished.append(obj.name)
