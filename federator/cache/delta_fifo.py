"""DeltaFIFO: what happened to which object, between the Reflector and the Indexer.

```
  Reflector ─ put: waits at `max_backlog` deltas ─►         pop: all deltas of a key, or a barrier ─► Controller
              a [Deleted] ║ Bookmark ║ b [Added]  a [Added, Updated]
              ╰─ newest ─╯            ╰──────── oldest segment ──────╯
```

Barriers (ReplacedAll, SyncAll, Bookmark) concern the whole store and cut the queue into segments. A delta joins the
list of its key only inside the newest segment: were it to join one from before a barrier, it would be popped ahead of
the barrier, and a ReplacedAll would then take the object back to an older state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Protocol

import msgspec
import structlog

from federator.api.delta import Delta, DeltaType, Tombstone
from federator.api.duration_histogram import DurationHistogram
from federator.api.object import KubeObject
from federator.cache.clock import loop_time

log = structlog.get_logger(__name__)

MAX_BACKLOG = 2000
"""Queued deltas at which the producer waits: a few hundred milliseconds of the pop loop's work."""

_TRANSFORMS_PER_TURN = 256
"""Objects of a list transformed before other tasks get the loop: at 20 µs each, 5 ms."""

_NAMED_QUARANTINED = 10


class Deltas(msgspec.Struct):
    """All queued deltas of one key inside one segment, oldest first."""

    key: str
    deltas: list[Delta]


class ReplacedAll(msgspec.Struct, frozen=True):
    """Barrier: the store is to hold exactly these objects.

    Attributes:
        resource_version: version of the list.
        objects: the list, in its order.
        withheld: keys of listed objects that no transform could be made of; their stored states stay.
    """

    type: ClassVar[DeltaType] = DeltaType.REPLACED_ALL
    resource_version: str
    objects: Sequence[KubeObject]
    withheld: frozenset[str] = frozenset()


class SyncAll(msgspec.Struct, frozen=True):
    """Barrier: everything stored is to be told again."""

    type: ClassVar[DeltaType] = DeltaType.SYNC_ALL


class Bookmark(msgspec.Struct, frozen=True):
    """Barrier: popped, it proves that everything up to its version was handled."""

    type: ClassVar[DeltaType] = DeltaType.BOOKMARK
    resource_version: str


Popped = Deltas | ReplacedAll | SyncAll | Bookmark

Transform = Callable[[KubeObject], KubeObject]
"""Changes an object before it is queued. Must keep namespace, name, UID and resourceVersion: by them states are told
apart, and a change that keeps no version looks like a resync."""


class KnownObjects(Protocol):
    """What the store holds, as far as the queue needs it."""

    def list_keys(self) -> Sequence[str]:
        """All keys."""
        ...

    def get_by_key(self, key: str) -> KubeObject | None:
        """The stored state, or None."""
        ...

    def kept(self, key: str) -> KubeObject | None:
        """The stored state as it is kept: what a list may give again."""
        ...


class FIFOClosed(Exception):
    """The queue takes no more; for a pop: and has no more."""


class DeltaFIFO:
    """A queue of deltas, with client-go's promises.

    Promises:
        * The deltas of one key are popped in order, all that are queued in a segment at once. Keys leave in the order
          in which they first arrived; nothing overtakes a barrier.
        * Of two consecutive Deleted of one key one is kept, preferably the one with the final state.
        * The transform sees every object once, and no tombstone. An object it raises for is not queued: it is
          quarantined, counted and named, and what is stored of it stays.
        * `has_synced` turns true when what the first `replace` brought is handled, not when it is popped.

    Not thread-safe: it belongs to one event loop.
    """

    def __init__(
        self,
        known_objects: KnownObjects,
        *,
        name: str = "",
        transform: Transform | None = None,
        max_backlog: int = MAX_BACKLOG,
        atomic: bool = True,
    ) -> None:
        """Creates an empty queue.

        Args:
            known_objects: the store behind the queue.
            name: names it in logs.
            transform: applied to every object before it is queued.
            max_backlog: queued deltas at which producers wait.
            atomic: `replace` queues one ReplacedAll, `resync` one SyncAll, and bookmarks pass through. Otherwise the
                classic way: Deleted for each missing key, then Replaced for each object; Sync for each object;
                bookmarks are dropped.
        """
        self._known_objects = known_objects
        self._name = name
        self._transform = transform
        self._max_backlog = max_backlog
        self._atomic = atomic
        # Each with the newest version that arrived before it, and when it arrived.
        self._queue: deque[tuple[str, float, Popped]] = deque()
        self._arrived_at = 0.0
        self._latencies = DurationHistogram()
        self._items: dict[str, Deltas] = {}  # the newest segment's, by key
        self._last_arrived = ""
        self._backlog = 0
        self._not_empty = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._sync_all_queued = False
        self._populated = False
        self._initial_items = 0
        self._synced = False
        self._synced_or_closed = asyncio.Event()
        self._quarantined: dict[str, str] = {}
        self._waits = 0
        self._closed = False

    async def add(self, obj: KubeObject) -> None:
        """Queues Added. Waits while the backlog is full; cancelled while waiting, nothing was queued.

        Raises:
            FIFOClosed: the queue is closed.
        """
        if self._backlog >= self._max_backlog or self._closed:
            await self._wait_room()
        self._put_object(DeltaType.ADDED, obj)

    async def update(self, obj: KubeObject) -> None:
        """Queues Updated; otherwise as `add`."""
        if self._backlog >= self._max_backlog or self._closed:
            await self._wait_room()
        self._put_object(DeltaType.UPDATED, obj)

    async def delete(self, obj: KubeObject | Tombstone) -> None:
        """Queues Deleted, also of keys that nobody knows; otherwise as `add`."""
        if self._backlog >= self._max_backlog or self._closed:
            await self._wait_room()
        self._populate()
        if self._transform is not None:
            if isinstance(obj, KubeObject):
                # What is told of a deleted object is as confidential as the object was.
                obj = self._transformed(obj) or Tombstone(obj.key, None)
            self._quarantined.pop(obj.key, None)
        self._enqueue(obj.key, Delta(DeltaType.DELETED, obj))
        self._arrived(obj)

    async def replace(self, objects: Sequence[KubeObject], resource_version: str) -> None:
        """Queues that exactly these objects exist, as of a version; otherwise as `add`.

        The transform runs here, in slices, so that other tasks get the loop in between.
        """
        self._quarantined.clear()
        if self._transform is not None:
            objects = await self._transform_all(objects)
        if self._backlog >= self._max_backlog or self._closed:
            await self._wait_room()
        withheld = frozenset(self._quarantined)
        queued_before = len(self._queue)
        if self._atomic:
            self._put_barrier(ReplacedAll(resource_version, objects, withheld))
        else:
            self._replace_each(objects, withheld)
            self._last_arrived = resource_version
        if not self._populated:
            self._populated = True
            self._initial_items = len(self._queue) - queued_before
            self._settle_initial()

    async def bookmark(self, resource_version: str) -> None:
        """Queues a bookmark, or drops it where the queue is not atomic; otherwise as `add`."""
        if self._backlog >= self._max_backlog or self._closed:
            await self._wait_room()
        if self._atomic:
            self._put_barrier(Bookmark(resource_version))

    def resync(self) -> None:
        """Queues that everything stored be told again. Does not wait: there is at most one at a time."""
        if not self._populated or self._closed:
            return
        if not self._atomic:
            self._resync_each()
        elif not self._sync_all_queued:
            self._sync_all_queued = True
            self._put_barrier(SyncAll())

    async def pop(self, process: Callable[[Popped, str], None]) -> None:
        """Waits for the first key or barrier, takes it off the queue and has it processed.

        `process` also gets the low-water mark: the version of the newest delta that has nothing queued from before it,
        once this item is processed. It counts as handled when `process` returns or raises.

        Raises:
            FIFOClosed: the queue is closed and empty.
            Exception: what `process` raised.
        """
        while not self._queue:
            if self._closed:
                raise FIFOClosed
            await self._not_empty.wait()
        _, self._arrived_at, item = self._queue.popleft()
        count = 1
        if type(item) is Deltas:
            count = len(item.deltas)
            if self._items.get(item.key) is item:
                del self._items[item.key]
        elif type(item) is SyncAll:
            self._sync_all_queued = False
        if self._queue:
            # Keys leave in the order in which they first arrived, so what still waits all came after this.
            low_water = self._queue[0][0]
        else:
            low_water = self._last_arrived
            if not self._closed:
                self._not_empty.clear()
        try:
            process(item, low_water)
        finally:
            self._latencies.observe(loop_time() - self._arrived_at)
            self._backlog -= count
            if self._backlog < self._max_backlog:
                self._has_room.set()
            if self._initial_items and type(item) in (Deltas, ReplacedAll):
                self._initial_items -= 1
                self._settle_initial()

    def close(self) -> None:
        """Refuses what comes from now on. Pops get what is queued, then FIFOClosed; everybody who waits is woken."""
        self._closed = True
        self._not_empty.set()
        self._has_room.set()
        self._synced_or_closed.set()

    def has_synced(self) -> bool:
        """Whether the first replace is handled, or was preceded by a single change."""
        return self._synced

    async def wait_synced(self) -> None:
        """Waits for `has_synced`.

        Raises:
            FIFOClosed: the queue was closed before.
        """
        await self._synced_or_closed.wait()
        if not self._synced:
            raise FIFOClosed

    @property
    def arrived_at(self) -> float:
        """Loop time at which what is being processed, or was last, arrived: of several deltas the first."""
        return self._arrived_at

    @property
    def withheld(self) -> Collection[str]:
        """Keys of the objects whose transform failed, as far as they are known to exist."""
        return self._quarantined.keys()

    def statistics(self) -> Mapping[str, object]:
        """Sizes and counts; `latencies` are from arrival to processed, `quarantined_keys` the first ten."""
        return {
            "backlog": self._backlog,
            "entries": len(self._queue),
            "producer_waits": self._waits,
            "latencies": self._latencies,
            "quarantined": len(self._quarantined),
            "quarantined_keys": tuple(self._quarantined)[:_NAMED_QUARANTINED],
        }

    async def _wait_room(self) -> None:
        if self._backlog >= self._max_backlog:
            self._waits += 1
        while self._backlog >= self._max_backlog and not self._closed:
            self._has_room.clear()
            await self._has_room.wait()
        if self._closed:
            raise FIFOClosed

    def _put_object(self, delta_type: DeltaType, obj: KubeObject) -> None:
        self._populate()
        if self._transform is not None:
            transformed = self._transformed(obj)
            if transformed is None:
                return
            obj = transformed
        self._enqueue(obj.key, Delta(delta_type, obj))
        self._arrived(obj)

    def _enqueue(self, key: str, delta: Delta) -> None:
        entry = self._items.get(key)
        if entry is None:
            entry = Deltas(key, [delta])
            self._items[key] = entry
            self._append(entry)
        elif delta.type is DeltaType.DELETED and entry.deltas[-1].type is DeltaType.DELETED:
            if isinstance(delta.object, KubeObject):
                entry.deltas[-1] = delta
        else:
            entry.deltas.append(delta)
            self._backlog += 1

    def _arrived(self, obj: KubeObject | Tombstone) -> None:
        """Tombstones, and what a transform left without a version, say nothing about how far we are."""
        if isinstance(obj, KubeObject) and obj.resource_version:
            self._last_arrived = obj.resource_version

    def _put_barrier(self, barrier: ReplacedAll | SyncAll | Bookmark) -> None:
        self._items = {}
        self._append(barrier)
        if not isinstance(barrier, SyncAll):
            self._last_arrived = barrier.resource_version

    def _append(self, item: Popped) -> None:
        self._queue.append((self._last_arrived, loop_time(), item))
        self._backlog += 1
        self._not_empty.set()

    def _replace_each(self, objects: Sequence[KubeObject], withheld: frozenset[str]) -> None:
        """Deletes precede adds, so that whoever counts never sees more than there are."""
        listed = {obj.key for obj in objects} | withheld
        for key, entry in list(self._items.items()):
            if key not in listed and entry.deltas[-1].type is not DeltaType.DELETED:
                newest = entry.deltas[-1].object
                last_state = newest if isinstance(newest, KubeObject) else newest.object
                self._enqueue(key, Delta(DeltaType.DELETED, Tombstone(key, last_state)))
        for key in self._known_objects.list_keys():
            if key not in listed and key not in self._items:
                tombstone = Tombstone(key, self._known_objects.get_by_key(key))
                self._enqueue(key, Delta(DeltaType.DELETED, tombstone))
        for obj in objects:
            self._enqueue(obj.key, Delta(DeltaType.REPLACED, obj))

    def _resync_each(self) -> None:
        for key in self._known_objects.list_keys():
            # What is queued of a key is newer than what is stored; telling the stored state after it would go back.
            obj = None if key in self._items else self._known_objects.get_by_key(key)
            if obj is not None:
                self._enqueue(key, Delta(DeltaType.SYNC, obj))

    async def _transform_all(self, objects: Sequence[KubeObject]) -> list[KubeObject]:
        kept = []
        for position, obj in enumerate(objects, 1):
            # A list may give stored objects again, which were transformed when they came.
            is_stored = self._known_objects.kept(obj.key) is obj
            transformed = obj if is_stored else self._transformed(obj)
            if transformed is not None:
                kept.append(transformed)
            if position % _TRANSFORMS_PER_TURN == 0:
                await asyncio.sleep(0)
        return kept

    def _transformed(self, obj: KubeObject) -> KubeObject | None:
        """Applies the transform; None when it raised."""
        assert self._transform is not None
        try:
            transformed = self._transform(obj)
        except Exception as error:  # noqa: BLE001 - foreign code; the object is quarantined
            log.warning("transform failed, object quarantined", informer=self._name, key=obj.key, error=repr(error))
            self._quarantined[obj.key] = repr(error)
            return None
        if self._quarantined:
            self._quarantined.pop(obj.key, None)
        return transformed

    def _populate(self) -> None:
        if not self._populated:
            self._populated = True
            self._settle_initial()

    def _settle_initial(self) -> None:
        if self._initial_items == 0:
            self._synced = True
            self._synced_or_closed.set()
