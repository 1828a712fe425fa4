"""Controller: the loop that takes deltas off the queue, applies them to the Indexer and tells everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from federator.api.delta import DeltaType, Tombstone
from federator.api.object import KubeObject
from federator.cache.delta_fifo import Bookmark, DeltaFIFO, Deltas, FIFOClosed, Popped, ReplacedAll
from federator.cache.delta_sink import DeltaSink
from federator.cache.indexer import Indexer
from federator.cache.processor import SharedProcessor

_POPS_PER_TURN = 128
"""Keys handled before other tasks get the loop: about a millisecond."""


class Controller:
    """Applies deltas in the order of the queue: first the Indexer, then the sink, then the handlers."""

    def __init__(
        self,
        fifo: DeltaFIFO,
        indexer: Indexer,
        processor: SharedProcessor,
        *,
        retain: Callable[[KubeObject], KubeObject] | None = None,
        sink: DeltaSink | None = None,
    ) -> None:
        """Joins a queue with what it feeds; `retain` makes what the Indexer keeps of an object."""
        self._fifo = fifo
        self._indexer = indexer
        self._processor = processor
        self._retain = retain
        self._sink = sink
        self._deltas = 0
        self._unknown_deletes = 0

    async def run(self) -> None:
        """Runs until the queue is closed and empty, or until cancelled.

        Raises:
            Exception: what the sink raised; its delta counts as handled.
        """
        pops = 0
        while True:
            try:
                await self._fifo.pop(self.process)
            except FIFOClosed:
                return
            pops += 1
            if pops % _POPS_PER_TURN == 0:
                await asyncio.sleep(0)

    def process(self, item: Popped, low_water: str) -> None:
        """Applies what was popped; afterwards the Indexer stands at the low-water mark."""
        if type(item) is Deltas:
            self._apply_deltas(item)
        elif type(item) is ReplacedAll:
            self._replace_all(item)
        elif type(item) is Bookmark:
            if self._sink is not None:
                self._sink.bookmark(item.resource_version)
        else:
            self._sync_all()
        self._indexer.bookmark(low_water)
        if self._sink is not None:
            self._sink.settled(low_water)

    def statistics(self) -> Mapping[str, object]:
        """Counts since the start; `unknown_deletes` were of objects that were not stored, and told to nobody."""
        return {"deltas": self._deltas, "unknown_deletes": self._unknown_deletes}

    def _apply_deltas(self, item: Deltas) -> None:
        key, arrived_at = item.key, self._fifo.arrived_at
        is_initial = not self._fifo.has_synced()
        for delta in item.deltas:
            self._deltas += 1
            obj = delta.object
            if isinstance(obj, Tombstone) or delta.type is DeltaType.DELETED:
                self._delete(key, obj)
                continue
            before = self._indexer.put(key, self._retain(obj) if self._retain else obj)
            if self._sink is not None and delta.type is not DeltaType.SYNC:
                self._sink.upserted(obj, before)
            if not self._processor.has_listeners:
                continue
            if before is None:
                self._processor.distribute_add(key, obj, is_initial=is_initial, arrived_at=arrived_at)
            else:
                self._processor.distribute_update(key, before, obj, arrived_at=arrived_at)

    def _delete(self, key: str, obj: KubeObject | Tombstone) -> None:
        before = self._indexer.remove(key)
        if before is None:
            self._unknown_deletes += 1
            return
        if isinstance(obj, Tombstone) and obj.object is None:
            obj = Tombstone(key, before)
        if self._sink is not None:
            self._sink.deleted(key, obj.object if isinstance(obj, Tombstone) else obj, before)
        if self._processor.has_listeners:
            self._processor.distribute_delete(key, obj, arrived_at=self._fifo.arrived_at)

    def _replace_all(self, item: ReplacedAll) -> None:
        """Swaps the store in one step, then tells: all deletes, then adds and updates in the list's order."""
        is_initial = not self._fifo.has_synced()
        kept = [self._retain(obj) for obj in item.objects] if self._retain else list(item.objects)
        held = {key: self._indexer.kept(key) for key in item.withheld}
        withheld = {key: None if state is None else self._indexer.whole(state) for key, state in held.items()}
        kept += filter(None, withheld.values())
        before = self._indexer.replace(kept, item.resource_version)
        if self._sink is not None:
            self._sink.replaced_all(item.resource_version, item.objects, withheld)
        if not self._processor.has_listeners:
            return
        keep, arrived_at = self._indexer.keep, self._fifo.arrived_at
        for key, old in before.items():
            if self._indexer.kept(key) is None:
                self._processor.distribute_delete(key, Tombstone(key, old), arrived_at=arrived_at)
        for obj in item.objects:
            key = obj.key
            stored = before.get(key)
            if stored is None:
                self._processor.distribute_add(key, keep(obj), is_initial=is_initial, arrived_at=arrived_at)
            elif self._is_other_state(stored, obj):
                self._processor.distribute_update(key, stored, keep(obj), arrived_at=arrived_at, is_sync=False)
            elif self._processor.has_due_for_resync:
                self._processor.distribute_update(key, stored, keep(obj), arrived_at=arrived_at)

    def _is_other_state(self, stored: KubeObject, listed: KubeObject) -> bool:
        """Whether a listed state is not the stored one: after a restore one version may name two states."""
        if stored is listed:
            return False
        if not stored.is_state(listed.uid, listed.resource_version):
            return True
        kept = self._retain(listed) if self._retain else listed
        return self._indexer.whole(stored) != self._indexer.whole(kept)

    def _sync_all(self) -> None:
        if self._processor.has_listeners:
            for obj in self._indexer.list_kept():
                self._processor.distribute_update(obj.key, obj, obj, arrived_at=self._fifo.arrived_at)
