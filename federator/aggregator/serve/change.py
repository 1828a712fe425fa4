"""Changes: ledger entries as watchers look at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ClusterEntry, Entry, EntryType, ObjectEntry
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.merge.selection import Selection
from federator.aggregator.serve.messages import cluster_event_to_proto
from federator.aggregator.serve.object_state import ObjectState
from federator.errors import CursorExpired
from federator.v1 import inventory_pb2


class Event(NamedTuple):
    """What a change means for one selection: a watch event without its copy of the object.

    Attributes:
        type: ADDED, MODIFIED, DELETED or CLUSTER.
        change: what happened.
        state: the object's new state, for DELETED its last one; None for CLUSTER.
    """

    type: inventory_pb2.WatchEventType.ValueType
    change: Change
    state: ObjectState | None

    @property
    def size(self) -> int:
        """Bytes of the message, about."""
        return self.state.size if self.state else 256


class Change:
    """One ledger entry, with what has been decoded of it for any watcher.

    Whether an object entered or left a selection is decided from its state after and before the entry, which the
    ledger names. So the decision is the same whenever and from wherever the entry is looked at.
    """

    __slots__ = ("_before", "_count", "_cursor", "_ledger", "_now", "_types", "entry")

    def __init__(self, entry: Entry, ledger: Ledger, types: ResourceTypes, count: Callable[[int], None]) -> None:
        self.entry = entry
        self._ledger = ledger
        self._types = types
        self._count = count
        self._cursor: bytes | None = None
        self._now: ObjectState | None = None
        self._before: ObjectState | None = None

    @property
    def revision(self) -> int:
        """Revision of the entry."""
        return self.entry.revision

    @property
    def cursor(self) -> bytes:
        """Where to continue after it."""
        if self._cursor is None:
            self._cursor = self._ledger.cursors.encode(self.entry.revision)
        return self._cursor

    def event(self, selection: Selection) -> Event | None:
        """Returns what the change means for a selection, or None where it means nothing.

        Raises:
            CursorExpired: the object's previous state is compacted.
        """
        match self.entry:
            case ObjectEntry():
                return self._object_event(self.entry, selection)
            case ClusterEntry() if selection.has_cluster(self.entry.cluster_id):
                return Event(inventory_pb2.WATCH_EVENT_TYPE_CLUSTER, self, None)
            case _:
                return None

    def cluster_event(self) -> inventory_pb2.ClusterEvent | None:
        """The transition, for the entry of a cluster."""
        return cluster_event_to_proto(self.entry) if isinstance(self.entry, ClusterEntry) else None

    def _object_event(self, entry: ObjectEntry, selection: Selection) -> Event | None:
        if not selection.matches_key(entry.key):
            return None
        is_selected = entry.type is not EntryType.DELETED
        was_selected = entry.previous_revision != 0
        if not selection.is_by_key:
            is_selected = is_selected and _matches(selection, self._state(entry))
            was_selected = was_selected and _matches(selection, self._previous_state(entry))
        if is_selected:
            return Event(_MODIFIED if was_selected else _ADDED, self, self._state(entry))
        if was_selected:
            return Event(_DELETED, self, self._previous_state(entry))
        return None

    def _state(self, entry: ObjectEntry) -> ObjectState:
        if self._now is None:
            self._now = ObjectState(entry, self._types, self._count)
        return self._now

    def _previous_state(self, entry: ObjectEntry) -> ObjectState:
        if self._before is None:
            previous = self._ledger.entry(entry.previous_revision)
            if previous is None:
                raise CursorExpired(entry.revision, self._ledger.oldest_revision)
            self._before = ObjectState(previous, self._types, self._count)
        return self._before


_ADDED = inventory_pb2.WATCH_EVENT_TYPE_ADDED
_MODIFIED = inventory_pb2.WATCH_EVENT_TYPE_MODIFIED
_DELETED = inventory_pb2.WATCH_EVENT_TYPE_DELETED


def _matches(selection: Selection, state: ObjectState) -> bool:
    matches = selection.matches_state(state)
    state.settle()
    return matches
