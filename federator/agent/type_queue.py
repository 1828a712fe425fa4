"""TypeQueue: what is still to be sent of one resource type."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

import msgspec

from federator.agent.frame import (
    Bookmark,
    Change,
    Content,
    Deltas,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotItems,
    TypeStatus,
)
from federator.api.cluster import LISTING_ANEW, TypeState
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.api.resource_version import compare
from federator.wire.body import BodyCodec, dictionary_of

MAX_CHANGES = 1024
"""Changes in one frame, as many as a ledger commit takes."""

MAX_SNAPSHOT_ITEMS = 256
"""Objects in one frame of a snapshot. They are compressed as the frame is cut, about 5 ms of the loop at a time."""


_BEHIND = TypeStatus(TypeState.STALE, LISTING_ANEW)
_NEVER_TOLD = TypeStatus(TypeState.SYNCING)


class _Snapshot:
    """A full listing on its way out; its objects are given up as they are taken."""

    def __init__(self, resource_version: str, objects: Sequence[KubeObject]) -> None:
        self.resource_version = resource_version
        self.left = list(reversed(objects))
        self.is_begun = False


class TypeQueue:
    """Latest state per object in its first place, and markers, in the order they have to be sent.

    - *Coalescing*: an object has one entry, in the place of its oldest unsent change, with its newest state. So no
      bookmark overtakes a change, and a storm on one object costs one entry.
    - *A snapshot comes first*: it supersedes everything that was to be sent before it, and what follows is newer.
    - *Awaiting a list*, it takes nothing but that list: whatever happens before is in it.
    """

    def __init__(self, resource_type: ResourceType, request_list: Callable[[], None], bodies: BodyCodec) -> None:
        """Starts awaiting the informer's first list.

        Args:
            resource_type: the type.
            request_list: makes the informer list anew; called only after it has listed once.
            bodies: compresses objects.
        """
        self.type = resource_type
        self.is_retired = False
        self.is_awaiting_list = True
        self.bytes = 0
        self.counted_bytes = 0  # the outbox's note of `bytes`
        self._request_list = request_list
        self._bodies = bodies
        self._last_version = ""
        self._has_listed = False
        self._status = _NEVER_TOLD
        self._snapshot: _Snapshot | None = None
        self._end_in_flight: SnapshotEnd | None = None
        self._entries: OrderedDict[str | int, Change | Bookmark | TypeStatus] = OrderedDict()
        self._next_marker = 0

    def __len__(self) -> int:
        """Entries and snapshot objects still to be taken."""
        return len(self._entries) + (len(self._snapshot.left) + 1 if self._snapshot else 0)

    @property
    def holds_list(self) -> bool:
        """Whether objects of a snapshot wait to be taken."""
        return self._snapshot is not None

    @property
    def is_snapshot_open(self) -> bool:
        """Whether a snapshot is on its way whose end is not known to be durable."""
        return self._snapshot is not None or self._end_in_flight is not None

    def replace(self, resource_version: str, objects: Sequence[KubeObject]) -> None:
        """Queues a snapshot in place of everything else."""
        self._clear()
        self._last_version = resource_version
        self._has_listed = True
        self.is_awaiting_list = False
        self._snapshot = _Snapshot(resource_version, objects)
        told, self._status = self._status, TypeStatus(TypeState.LIVE)
        if told.state is TypeState.DENIED:
            # Who may list may still be denied to watch: it is LIVE only when it is watched, which will be reported.
            self.report(told)

    @property
    def takes_changes(self) -> bool:
        """Whether changes and bookmarks mean anything at present."""
        return not (self.is_awaiting_list or self.is_retired)

    def put(self, obj: KubeObject) -> bool:
        """Queues an object's newest state, only while the queue takes changes; tells whether an older one gave way."""
        self._last_version = obj.resource_version
        return self._change(self._put(obj))

    def delete(self, key: str, obj: KubeObject | None) -> bool:
        """Queues that an object is gone, as `put` does.

        Args:
            key: its key.
            obj: its last state. Of one whose deletion was seen, that has the version of the deletion; of one that was
                missing in a list it is an old one, which proves nothing.
        """
        if obj is not None and compare(obj.resource_version, self._last_version) == 1:
            self._last_version = obj.resource_version
        return self._change(Change.delete(key))

    def recode(self, dictionary_ids: Collection[int]) -> None:
        """Compresses anew what waits and was made with another dictionary than these."""
        for key, entry in self._entries.items():
            if isinstance(entry, Change) and entry.body and dictionary_of(entry.body) not in {0, *dictionary_ids}:
                body = self._bodies.encode(self._bodies.decode(entry.body), self.type.group_resource)
                self._entries[key] = msgspec.structs.replace(entry, body=body)
                self.bytes += len(body) - len(entry.body)

    def _put(self, obj: KubeObject) -> Change:
        return Change.put(obj, self._bodies.encode(obj.raw, self.type.group_resource))

    def _change(self, change: Change) -> bool:
        key = change.key
        older = self._entries.get(key)
        if isinstance(older, Change):
            self.bytes -= older.size
        self._entries[key] = change
        self.bytes += change.size
        return older is not None

    def bookmark(self, resource_version: str) -> None:
        """Queues a bookmark, only while the queue takes changes; an older one gives way if no change lies between."""
        self._last_version = resource_version
        self._mark(Bookmark(resource_version))

    def report(self, status: TypeStatus) -> None:
        """Queues a change of state; an older one gives way if no change of an object lies between.

        That a type is gone or not collected supersedes everything else. That it is LIVE again says nothing while a
        list is awaited: the end of the snapshot will say it.
        """
        if status == self._status or (status.state is TypeState.LIVE and self.is_awaiting_list):
            return
        self._status = status
        if status.state in {TypeState.ABSENT, TypeState.NOT_COLLECTED}:
            self._clear()
            self.is_retired = True
        self._mark(status)

    def await_list(self, *, is_known: bool = True) -> None:
        """Drops everything; only a new list can tell what is.

        Args:
            is_known: the aggregator believes in what it has of the type, and learns that it is behind.
        """
        if self.is_retired:
            return
        self._clear()
        self.is_awaiting_list = True
        if self._status.state is TypeState.LIVE or self._status == _BEHIND:
            self._status = _BEHIND if is_known else _NEVER_TOLD
        self.confirm()

    def drop_list(self) -> None:
        """A list came that cannot be sent; another one is awaited."""
        self._has_listed = True
        self.await_list()

    def request_list(self) -> None:
        """Asks the informer for the list that is awaited, unless its first one is still to come anyway."""
        if self._has_listed:
            self._request_list()

    def confirm(self) -> None:
        """Queues the present state behind everything: once it is received, so is all that a session left open."""
        if self._status != _NEVER_TOLD:
            self._mark(self._status)

    def take(self, max_bytes: int) -> Content | None:
        """Takes what one frame can carry: at least one entry, where there is one, and none beyond `max_bytes`."""
        if self._snapshot is not None:
            return self._take_snapshot(self._snapshot, max_bytes)
        if not self._entries:
            return None
        first = next(iter(self._entries.values()))
        if not isinstance(first, Change):
            self._entries.popitem(last=False)
            return first
        changes: list[Change] = []
        size = 0
        while self._entries and len(changes) < MAX_CHANGES and size < max_bytes:
            change = next(iter(self._entries.values()))
            if not isinstance(change, Change):
                break
            self._entries.popitem(last=False)
            changes.append(change)
            size += change.size
        self.bytes -= size
        return Deltas(tuple(changes), "" if self._entries else self._last_version)

    def put_back(self, content: Content) -> None:
        """Queues again, in front, what was taken and perhaps not received; newer states keep precedence.

        Contents must come back newest first. Parts of snapshots don't come back, since a snapshot is sent whole, and
        states don't either, since `confirm` tells the newest.
        """
        match content:
            case Deltas(changes, _):
                for change in reversed(changes):
                    key = change.key
                    if key not in self._entries:
                        self._entries[key] = change
                        self.bytes += change.size
                    self._entries.move_to_end(key, last=False)
            case Bookmark():
                self._entries[self._next_marker] = content
                self._entries.move_to_end(self._next_marker, last=False)
                self._next_marker += 1

    def acknowledge(self, content: Content) -> None:
        """What was taken is durable."""
        if content is self._end_in_flight:
            self._end_in_flight = None

    def _take_snapshot(self, snapshot: _Snapshot, max_bytes: int) -> Content:
        if not snapshot.is_begun:
            snapshot.is_begun = True
            return SnapshotBegin()
        if not snapshot.left:
            self._snapshot = None
            self._end_in_flight = SnapshotEnd(snapshot.resource_version)
            return self._end_in_flight
        changes: list[Change] = []
        size = 0
        while snapshot.left and len(changes) < MAX_SNAPSHOT_ITEMS and size < max_bytes:
            change = self._put(snapshot.left.pop())
            changes.append(change)
            size += change.size
        return SnapshotItems(tuple(changes))

    def _mark(self, marker: Bookmark | TypeStatus) -> None:
        for key in reversed(self._entries):
            entry = self._entries[key]
            if type(entry) is type(marker):
                del self._entries[key]
                break
            if isinstance(entry, Change):
                break
        self._entries[self._next_marker] = marker
        self._next_marker += 1

    def _clear(self) -> None:
        self._snapshot = None
        self._end_in_flight = None
        self._entries.clear()
        self.bytes = 0
