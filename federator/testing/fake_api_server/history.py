"""The fake's etcd: every state of every object, under one ascending revision."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from federator.api.resource import GroupResource
from federator.testing.fake_api_server.status import Json


class Version:
    """One state of one object.

    Attributes:
        revision: of the write that made it.
        obj: the object without apiVersion and kind. Never changed.
        encoded: its bytes, by who wrote them down and how; a cache.
    """

    __slots__ = ("encoded", "obj", "revision")

    def __init__(self, revision: int, obj: Json) -> None:
        self.revision = revision
        self.obj = obj
        self.encoded: dict[tuple[str, str, str], bytes] = {}


class Event(NamedTuple):
    """One write.

    Attributes:
        revision: its revision.
        group_resource: type of the object.
        key: key of the object.
        old: state before, None if the object was created.
        new: state after; of a deletion the last state with the deletion's resourceVersion.
        deleted: the object is gone.
        lost: no watch will ever show it.
    """

    revision: int
    group_resource: GroupResource
    key: str
    old: Version | None
    new: Version
    deleted: bool
    lost: bool


class _Entry(NamedTuple):
    revision: int
    version: Version | None


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """All that a history held at one moment: what a backup of etcd is."""

    revision: int
    compacted: int
    events: tuple[Event, ...]
    entries: dict[GroupResource, dict[str, list[_Entry]]]


class History:
    """Objects and how they came to be.

    Promises: each write has the next revision; what was listed at a revision lists the same again until that revision
    is compacted; listeners are called after each write, inside it, with its type, or with None after anything else.

    Attributes:
        revision: of the newest write.
        compacted: revisions before this one are forgotten: nothing can be listed at them, no watch begins at them.
        losing: writes of this moment are seen by no watch.
    """

    def __init__(self, limit: int) -> None:
        self.revision = 0
        self.compacted = 0
        self.losing = False
        self.listeners: list[Callable[[GroupResource | None], None]] = []
        self._limit = limit
        self._events: list[Event] = []
        self._entries: dict[GroupResource, dict[str, list[_Entry]]] = {}

    def current(self, group_resource: GroupResource, key: str) -> Version | None:
        """The newest state of an object, None if there is none."""
        entries = self._entries.get(group_resource, {}).get(key)
        return entries[-1].version if entries else None

    def at(self, group_resource: GroupResource, revision: int) -> list[tuple[str, Version]]:
        """All objects of a type as of a revision, by key."""
        found: list[tuple[str, Version]] = []
        for key, entries in self._entries.get(group_resource, {}).items():
            for entry in reversed(entries):
                if entry.revision <= revision:
                    if entry.version is not None:
                        found.append((key, entry.version))
                    break
        found.sort(key=lambda pair: pair[0])
        return found

    def write(self, group_resource: GroupResource, key: str, obj: Json, *, deleted: bool = False) -> Json:
        """Stores a state, or a last one, and returns it with its resourceVersion."""
        self.revision += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.revision)}
        new = Version(self.revision, {**obj, "metadata": metadata})
        old = self.current(group_resource, key)
        entries = self._entries.setdefault(group_resource, {}).setdefault(key, [])
        entries.append(_Entry(self.revision, None if deleted else new))
        self._events.append(Event(self.revision, group_resource, key, old, new, deleted, self.losing))
        if len(self._events) > 2 * self._limit:
            self.compact(keep=self._limit)
        self.notify(group_resource)
        return new.obj

    def events(self, after: int, until: int) -> list[Event]:
        """The writes with `after` < revision <= `until`."""
        begin = bisect.bisect_right(self._events, after, key=lambda event: event.revision)
        end = bisect.bisect_right(self._events, until, key=lambda event: event.revision)
        return self._events[begin:end]

    def compact(self, *, keep: int) -> None:
        """Forgets all but the newest writes."""
        forgotten = self._events[: len(self._events) - keep]
        if not forgotten:
            return
        self.compacted = forgotten[-1].revision
        del self._events[: len(forgotten)]
        for keys in self._entries.values():
            for key, entries in list(keys.items()):
                while len(entries) > 1 and entries[1].revision <= self.compacted:
                    del entries[0]
                if entries[-1].version is None and entries[-1].revision <= self.compacted:
                    del keys[key]

    def snapshot(self) -> Snapshot:
        """A copy of everything."""
        return Snapshot(self.revision, self.compacted, tuple(self._events), _copied(self._entries))

    def restore(self, snapshot: Snapshot) -> None:
        """Goes back to a snapshot, and so do revisions."""
        self.revision = snapshot.revision
        self.compacted = snapshot.compacted
        self._events = list(snapshot.events)
        self._entries = _copied(snapshot.entries)
        self.notify()

    def skip_to(self, revision: int) -> None:
        """Leaves out revisions, as writes to types the fake does not serve would."""
        if revision <= self.revision:
            raise ValueError(f"revision {revision} is not after {self.revision}")
        self.revision = revision
        self.notify()

    def notify(self, written: GroupResource | None = None) -> None:
        """Tells the listeners: of a write to a type, or that anything may have changed."""
        for listener in list(self.listeners):
            listener(written)


def _copied(
    entries: dict[GroupResource, dict[str, list[_Entry]]],
) -> dict[GroupResource, dict[str, list[_Entry]]]:
    return {
        group_resource: {key: list(states) for key, states in keys.items()} for group_resource, keys in entries.items()
    }
