"""Doubles for the two ends of an informer: apiservers that misbehave on request, and handlers that remember."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from federator.api.delta import Tombstone
from federator.api.list_watch import Known, ListOptions, ListPage, WatchEvent, WatchEventType, nothing_known
from federator.api.object import KubeObject
from federator.cache.shared_informer import SharedInformer
from federator.errors import KubeStatusError, MemberUnreachable


def pod(
    name: str, resource_version: int | str, *, namespace: str = "default", labels: Mapping[str, str] | None = None
) -> KubeObject:
    """A pod with just enough JSON to have labels."""
    metadata = {"name": name, "namespace": namespace, "resourceVersion": str(resource_version), "labels": labels or {}}
    raw = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}).encode()
    return KubeObject(namespace, name, f"uid-{name}", str(resource_version), raw)


def added(obj: KubeObject) -> WatchEvent:
    return WatchEvent(WatchEventType.ADDED, obj)


def modified(obj: KubeObject) -> WatchEvent:
    return WatchEvent(WatchEventType.MODIFIED, obj)


def deleted(obj: KubeObject) -> WatchEvent:
    return WatchEvent(WatchEventType.DELETED, obj)


def bookmark(resource_version: int | str) -> WatchEvent:
    return WatchEvent(WatchEventType.BOOKMARK, KubeObject("", "", "", str(resource_version)))


def initial_events_end(resource_version: int | str) -> WatchEvent:
    return WatchEvent(WatchEventType.BOOKMARK, KubeObject("", "", "", str(resource_version)), initial_events_end=True)


def expired(*, in_stream: bool = False) -> KubeStatusError:
    return KubeStatusError(410, "Expired", "too old resource version", in_stream=in_stream)


def too_many_requests(*, retry_after: float | None = None, in_stream: bool = False) -> KubeStatusError:
    return KubeStatusError(429, "TooManyRequests", "slow down", retry_after=retry_after, in_stream=in_stream)


def refused() -> MemberUnreachable:
    return MemberUnreachable("https://member:6443", "connection refused")


def page(resource_version: int | str, *objects: KubeObject, continue_token: str = "") -> ListPage:
    return ListPage(str(resource_version), list(objects), continue_token)


Step = WatchEvent | Exception | float
"""A step of a scripted watch: an event, a failure, or seconds of silence. After the last one the stream ends."""

FOREVER = 1e9


class ScriptedListWatch:
    """Answers from a script and remembers what it was asked; at the end of the script it never answers again.

    An exception in place of a watch fails the dial.
    """

    def __init__(
        self,
        lists: Iterable[ListPage | Exception] = (),
        watches: Iterable[Sequence[Step] | Exception] = (),
    ) -> None:
        self._lists = list(lists)
        self._watches = list(watches)
        self.lists: list[ListOptions] = []
        self.watches: list[ListOptions] = []
        self.requests: list[ListOptions] = []
        self.times: list[float] = []
        self.open_watches = 0
        self.exhausted = asyncio.Event()

    @property
    def asked(self) -> list[tuple[float, ListOptions]]:
        """Every request with the loop time it came at, counted from the first."""
        return [(time - self.times[0], options) for time, options in zip(self.times, self.requests, strict=True)]

    @property
    def list_versions(self) -> list[str]:
        return [options.resource_version for options in self.lists]

    @property
    def watch_versions(self) -> list[str]:
        return [options.resource_version for options in self.watches]

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        self.lists.append(options)
        self.requests.append(options)
        self.times.append(asyncio.get_running_loop().time())
        if not self._lists:
            await self._never()
        answer = self._lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @asynccontextmanager
    async def watch(self, options: ListOptions) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        self.watches.append(options)
        self.requests.append(options)
        self.times.append(asyncio.get_running_loop().time())
        script = self._watches.pop(0) if self._watches else None
        if isinstance(script, Exception):
            raise script
        self.open_watches += 1
        try:
            yield self._events(script)
        finally:
            self.open_watches -= 1

    async def _events(self, script: Sequence[Step] | None) -> AsyncIterator[WatchEvent]:
        if script is None:
            await self._never()
        for step in script or ():
            if isinstance(step, Exception):
                raise step
            if isinstance(step, WatchEvent):
                yield step
            else:
                await asyncio.sleep(step)

    async def _never(self) -> None:
        self.exhausted.set()
        await asyncio.sleep(FOREVER)


def _decoded(obj: KubeObject, known: Known) -> KubeObject:
    """A copy, as a decoder makes one, unless the state is known."""
    held = known(obj.namespace, obj.name)
    return held if held is not None and held.is_state(obj.uid, obj.resource_version) else copy.copy(obj)


class FakeSource:
    """An apiserver of one type: state, a version counter, and watches that replay what came after their version."""

    def __init__(self, *objects: KubeObject, version: int = 100) -> None:
        self.version = version
        self.objects = {obj.key: obj for obj in objects}
        self.lists = 0
        self.watches = 0
        self.failure: Exception | None = None
        self._history: list[tuple[int, WatchEvent]] = []
        self._forgotten = 0
        self._streams: set[asyncio.Queue[WatchEvent | Exception | None]] = set()

    def put(self, name: str, **fields: object) -> KubeObject:
        """Creates or changes an object."""
        obj = pod(name, self._next_version(), **fields)  # type: ignore[arg-type]
        event_type = WatchEventType.MODIFIED if obj.key in self.objects else WatchEventType.ADDED
        self.objects[obj.key] = obj
        self._tell(WatchEvent(event_type, obj))
        return obj

    def remove(self, name: str, namespace: str = "default") -> None:
        """Deletes an object; the event carries the version of the deletion."""
        del self.objects[f"{namespace}/{name}"]
        self._tell(deleted(pod(name, self._next_version(), namespace=namespace)))

    def bookmark(self) -> None:
        """Sends a bookmark to the open streams."""
        for stream in self._streams:
            stream.put_nowait(bookmark(self.version))

    def cut(self, error: Exception | None = None) -> None:
        """Ends all streams, cleanly or with an error."""
        for stream in self._streams:
            stream.put_nowait(error)

    def compact(self) -> None:
        """Forgets the history; streams from before are refused with 410."""
        self._history.clear()
        self._forgotten = self.version

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        self.lists += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return ListPage(str(self.version), [_decoded(obj, known) for obj in self.objects.values()])

    @asynccontextmanager
    async def watch(self, options: ListOptions) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        self.watches += 1
        if self.failure is not None:
            raise self.failure
        since = int(options.resource_version or 0)
        if since < self._forgotten and not options.send_initial_events:
            raise expired()
        stream: asyncio.Queue[WatchEvent | Exception | None] = asyncio.Queue()
        if options.send_initial_events:
            for obj in self.objects.values():
                stream.put_nowait(added(copy.copy(obj)))
            stream.put_nowait(initial_events_end(self.version))
        for version, event in self._history:
            if version > since and not options.send_initial_events:
                stream.put_nowait(event)
        self._streams.add(stream)
        try:
            yield self._events(stream)
        finally:
            self._streams.discard(stream)

    async def _events(self, stream: asyncio.Queue[WatchEvent | Exception | None]) -> AsyncIterator[WatchEvent]:
        while (event := await stream.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    def _next_version(self) -> int:
        self.version += 1
        return self.version

    def _tell(self, event: WatchEvent) -> None:
        self._history.append((self.version, event))
        for stream in self._streams:
            stream.put_nowait(event)


class RecordingHandler:
    """Remembers what it is told, after an optional look at the state of the world at that moment."""

    def __init__(self, on_event: Callable[[str], None] | None = None) -> None:
        self.events: list[tuple[str, ...]] = []
        self.deletes: list[KubeObject | Tombstone] = []
        self._on_event = on_event

    def on_add(self, obj: KubeObject, is_initial: bool) -> None:
        self._note("initial" if is_initial else "add", obj.key, obj.resource_version)

    def on_update(self, old: KubeObject, new: KubeObject) -> None:
        self._note("update", new.key, old.resource_version, new.resource_version)

    def on_delete(self, obj: KubeObject | Tombstone) -> None:
        self.deletes.append(obj)
        self._note("delete", obj.key)

    def take(self) -> list[tuple[str, ...]]:
        """Returns what was told since the last take."""
        events, self.events = self.events, []
        return events

    def _note(self, *event: str) -> None:
        self.events.append(event)
        if self._on_event is not None:
            self._on_event(event[1])


class RecordingSink:
    """Remembers the calls of an informer."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.low_water = ""

    def replaced_all(
        self, resource_version: str, objects: Sequence[KubeObject], withheld: Mapping[str, KubeObject | None]
    ) -> None:
        self.calls.append(("replaced_all", resource_version, [obj.key for obj in objects]))

    def upserted(self, obj: KubeObject, before: KubeObject | None) -> None:
        self.calls.append(("upserted", obj.key, obj.resource_version))

    def deleted(self, key: str, obj: KubeObject | None, before: KubeObject) -> None:
        self.calls.append(("deleted", key, obj.resource_version if obj else None))

    def bookmark(self, resource_version: str) -> None:
        self.calls.append(("bookmark", resource_version))

    def settled(self, low_water: str) -> None:
        self.low_water = low_water


@asynccontextmanager
async def running(*informers: SharedInformer) -> AsyncIterator[None]:
    """Runs informers while the body runs."""
    tasks = [asyncio.create_task(informer.run()) for informer in informers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def settle() -> None:
    """Lets everything that can happen now happen."""
    await asyncio.sleep(0.01)
