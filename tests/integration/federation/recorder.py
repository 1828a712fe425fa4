"""Records a watch, and checks its history against what a watch promises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing

from federator.api.cluster import ClusterID, ClusterState
from federator.api.key import ObjectKey
from federator.api.resource_version import is_older
from federator.client import ClusterTransition, Event, EventType, InventoryClient, InventoryObject
from federator.errors import CursorExpired, CursorForeign

OBJECT_EVENTS = {EventType.ADDED, EventType.MODIFIED, EventType.DELETED}

_AT_REST = 1.0
"""Seconds without a change after which a federation counts as being at rest; pods come and go within less."""


class Recorder:
    """One watch from its start, with the state that follows from its events.

    It lives as a client does: resumes where it was cut, and starts over where it is told to.

    Attributes:
        events: what came, in order; may be cleared at any time.
        state: newest state of each object.
        members: newest state of each cluster that changed state.
        synced: the present state has come.
        starts: how often it began with the present state.
    """

    def __init__(self, fed: InventoryClient, resources: Iterable[str], **options: object) -> None:
        self._fed = fed
        self._resources = list(resources)
        self._options = options
        self.events: list[Event] = []
        self.state: dict[ObjectKey, InventoryObject] = {}
        self.members: dict[ClusterID, ClusterState] = {}
        self.synced = asyncio.Event()
        self.starts = 0
        self._deleted: dict[ObjectKey, InventoryObject] = {}
        self._revision = 0
        self._is_told = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Recorder:
        self._task = asyncio.create_task(self._run(), name="recorder")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        has_ended = self._task.done()
        self._task.cancel()
        await asyncio.wait([self._task])
        if has_ended and not self._is_told:
            self._task.result()

    async def listed(self) -> dict[ObjectKey, int] | None:
        """What List answers of the same selection, as revisions by key; None while it is not complete."""
        chosen = {name: value for name, value in self._options.items() if name in {"labels", "fields", "clusters"}}
        answer = await self._fed.list(self._resources, **chosen)  # type: ignore[arg-type]
        return {item.key: item.revision for item in answer.items} if answer.complete else None

    def check_running(self) -> None:
        """Raises what ended the watch, if it has ended."""
        assert self._task is not None
        if self._task.done():
            self._is_told = True
            self._task.result()

    async def wait_for(self, wanted: dict[ObjectKey, int], timeout: float = 30) -> None:
        """Waits until the watch's state is this, as revisions by key."""
        try:
            async with asyncio.timeout(timeout):
                while self.revisions() != wanted:
                    self.check_running()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(self.difference(wanted)) from None

    def difference(self, wanted: dict[ObjectKey, int]) -> str:
        """Says where the watch's state is not this."""
        mine = self.revisions()
        differing = sorted(key for key in mine.keys() | wanted.keys() if mine.get(key) != wanted.get(key))
        first = [(key, mine.get(key), wanted.get(key)) for key in differing[:5]]
        return f"{len(differing)} differ, as (key, watched, listed): {first}"

    def revisions(self) -> dict[ObjectKey, int]:
        return {key: obj.revision for key, obj in self.state.items()}

    async def _run(self) -> None:
        while True:
            self._start_over()
            watch = self._fed.watch(self._resources, **self._options)  # type: ignore[arg-type]
            try:
                async with aclosing(watch) as events:
                    async for event in events:
                        self._check(event)
                        self.events.append(event)
                return
            except (CursorExpired, CursorForeign):
                self._options["cursor"] = None

    def _start_over(self) -> None:
        self.starts += 1
        self.synced.clear()
        self.state.clear()
        self.members.clear()
        self._deleted.clear()

    def _check(self, event: Event) -> None:
        if event.type is EventType.RELISTED:
            self._start_over()
            return
        if event.type is EventType.INITIAL_END:
            self.synced.set()
        if not self.synced.is_set() and not self._options.get("cursor"):
            assert event.type is EventType.ADDED, event.type
            assert not event.cursor, "a cursor before INITIAL_END would lose the rest"
        else:
            assert event.cursor, event.type
            assert event.revision >= self._revision, "the revision only grows"
            if event.type in OBJECT_EVENTS:
                assert event.revision > self._revision, "no two changes share a revision"
            self._revision = event.revision
        if event.cluster is not None:
            self._enter(event.cluster)
        if event.object is not None:
            self._apply(event.type, event.object)

    def _enter(self, transition: ClusterTransition) -> None:
        before = self.members.get(transition.cluster_id, transition.previous_state)
        assert transition.previous_state == before, f"{transition} follows {before}"
        assert transition.state != before, transition
        self.members[transition.cluster_id] = transition.state

    def _apply(self, kind: EventType, obj: InventoryObject) -> None:
        before = self.state.get(obj.key)
        if kind is EventType.ADDED:
            assert before is None, f"{obj.key} added twice"
            self._check_reborn(obj)
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
            self._deleted[obj.key] = self.state.pop(obj.key)

    def _check_reborn(self, obj: InventoryObject) -> None:
        """An object that was deleted comes back as another one, later. Selections may be left and entered again."""
        former = self._deleted.pop(obj.key, None)
        if former is None or self._options.get("labels") or self._options.get("fields"):
            return
        assert former.uid != obj.uid, f"{obj.key} was told to be deleted, and was not"
        assert not is_older(obj.resource_version, former.resource_version), f"{obj.key} went back in time"


async def settled(*recorders: Recorder, timeout: float = 90) -> dict[ObjectKey, int]:
    """Waits until nothing changes any more and every watch's state is what List answers of the same selection.

    Returns:
        What List answers of the first one's selection, as revisions by key.
    """
    loop = asyncio.get_running_loop()
    listed: list[dict[ObjectKey, int] | None] = []
    since = loop.time()
    try:
        async with asyncio.timeout(timeout):
            while True:
                now = [await recorder.listed() for recorder in recorders]
                for recorder in recorders:
                    recorder.check_running()
                watched: list[dict[ObjectKey, int] | None] = [recorder.revisions() for recorder in recorders]
                if now != listed or now != watched:
                    listed, since = now, loop.time()
                elif loop.time() - since >= _AT_REST:
                    return now[0] or {}
                await asyncio.sleep(0.1)
    except TimeoutError:
        told = [recorder.difference(each or {}) for recorder, each in zip(recorders, listed, strict=False)]
        raise AssertionError(f"still changing, or different: {told}") from None
