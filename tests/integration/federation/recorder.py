"""Records a watch, and checks its history against what a watch promises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing

from federator.api.key import ObjectKey
from federator.api.resource_version import is_older
from federator.client import Event, EventType, InventoryClient, InventoryObject

OBJECT_EVENTS = {EventType.ADDED, EventType.MODIFIED, EventType.DELETED}


class Recorder:
    """One watch from its start, with the state that follows from its events."""

    def __init__(self, fed: InventoryClient, resources: Iterable[str], **options: object) -> None:
        self._fed = fed
        self._resources = list(resources)
        self._options = options
        self.events: list[Event] = []
        self.state: dict[ObjectKey, InventoryObject] = {}
        self.synced = asyncio.Event()
        self._revision = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Recorder:
        self._task = asyncio.create_task(self._run(), name="recorder")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        failed = self._task.done()
        self._task.cancel()
        await asyncio.wait([self._task])
        if failed:
            self._task.result()

    async def wait_for(self, wanted: dict[ObjectKey, int], timeout: float = 30) -> None:
        """Waits until the watch's state is this, as revisions by key."""
        try:
            async with asyncio.timeout(timeout):
                while self.revisions() != wanted:
                    assert self._task is not None
                    if self._task.done():
                        self._task.result()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            mine = self.revisions()
            differing = {key for key in mine.keys() | wanted.keys() if mine.get(key) != wanted.get(key)}
            raise AssertionError(f"differs in {sorted(differing)[:5]}") from None

    def revisions(self) -> dict[ObjectKey, int]:
        return {key: obj.revision for key, obj in self.state.items()}

    async def _run(self) -> None:
        async with aclosing(self._fed.watch(self._resources, **self._options)) as events:  # type: ignore[arg-type]
            async for event in events:
                self._check(event)
                self.events.append(event)

    def _check(self, event: Event) -> None:
        if event.type is EventType.INITIAL_END:
            self.synced.set()
        if not self.synced.is_set() and not self._options.get("cursor"):
            assert event.type in {EventType.ADDED, EventType.RELISTED}, event.type
            assert not event.cursor, "a cursor before INITIAL_END would lose the rest"
        else:
            assert event.cursor, event.type
            assert event.revision >= self._revision, "the revision only grows"
            if event.type in OBJECT_EVENTS:
                assert event.revision > self._revision, "no two changes share a revision"
            self._revision = event.revision
        if event.object is not None:
            self._apply(event.type, event.object)

    def _apply(self, kind: EventType, obj: InventoryObject) -> None:
        before = self.state.get(obj.key)
        if kind is EventType.ADDED:
            assert before is None, f"{obj.key} added twice"
            self.state[obj.key] = obj
        elif kind is EventType.MODIFIED:
            assert before is not None, f"{obj.key} modified before it was added"
            assert before.uid == obj.uid, "another UID is another object"
            assert not is_older(obj.resource_version, before.resource_version), f"{obj.key} went back in time"
            self.state[obj.key] = obj
        else:
            assert before is not None, f"{obj.key} deleted before it was added"
            assert before.uid == obj.uid
            assert obj.body, "a deletion carries the last state"
            del self.state[obj.key]
