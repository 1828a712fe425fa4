"""Changes: ledger entries as watchers look at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ClusterEntry, Entry, EntryType, ObjectEntry
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.encoding import EVENTS, OBJECT, PREVIOUS
from federator.aggregator.query.object_state import ObjectState
from federator.aggregator.serve.messages import cluster_event_to_proto
from federator.aggregator.serve.question import Question
from federator.api.cluster import ClusterID
from federator.errors import CursorExpired, LedgerCorrupt
from federator.v1 import inventory_pb2

EventNumber: TypeAlias = "inventory_pb2.WatchEventType.ValueType"

EVENT_BYTES = 512
"""Counted for an encoded event besides its object's bytes, which it shares with others."""


class Event(NamedTuple):
    """What a change means for one question, encoded.

    Attributes:
        type: ADDED, MODIFIED, DELETED or CLUSTER.
        commit: tells the commit it is of; equal for the events of one.
        cursor: where to continue after it.
        parts: the event as a field of a WatchResponse, in pieces; large ones are shared with other events.
        size: bytes of all pieces.
    """

    type: EventNumber
    commit: int
    cursor: bytes
    parts: tuple[bytes, ...]
    size: int


class SelectionEnd(NamedTuple):
    """What ends watches whose selection a change of labels changes; fields as in `SelectionChanged`."""

    cursor: bytes
    cluster_id: ClusterID
    is_selected: bool


class Change:
    """One ledger entry, with what has been decoded and encoded of it for any watcher.

    Whether an object entered or left a selection is decided from its state after and before the entry, which the
    ledger names. So the decision is the same whenever and from wherever the entry is looked at. Each possible outcome
    is encoded once.
    """

    __slots__ = ("_before", "_count", "_events", "_ledger", "_now", "_types", "commit", "entry")

    def __init__(
        self, entry: Entry, commit: int, ledger: Ledger, types: ResourceTypes, count: Callable[[int], None]
    ) -> None:
        """Takes an entry.

        Args:
            entry: what was committed.
            commit: a number that the entries of one commit share, and no others near them.
            ledger: where its previous state is.
            types: tells the kinds of objects.
            count: told of each growth, in bytes.
        """
        self.entry = entry
        self.commit = commit
        self._ledger = ledger
        self._types = types
        self._count = count
        self._events: dict[tuple[EventNumber, bool], Event] | None = None
        self._now: ObjectState | None = None
        self._before: ObjectState | None = None

    @property
    def revision(self) -> int:
        """Revision of the entry."""
        return self.entry.revision

    def event(self, question: Question) -> Event | None:
        """Returns what the change means for a question, or None where it means nothing.

        Raises:
            CursorExpired: the object's previous state is compacted.
        """
        match self.entry:
            case ObjectEntry():
                return self._object_event(self.entry, question)
            case ClusterEntry() if self.entry.is_transition and question.selection.has_cluster(self.entry.cluster_id):
                return self._encoded(_CLUSTER, None, None)
            case _:
                return None

    def end(self, question: Question) -> SelectionEnd | None:
        """Returns what ends the watches of a question: a cluster enters or leaves its selection by its labels."""
        entry = self.entry
        if not isinstance(entry, ClusterEntry) or not question.selection.is_changed_by(entry):
            return None
        is_selected = question.selection.cluster_labels.matches(entry.labels)
        return SelectionEnd(self._ledger.cursors.encode(entry.revision), entry.cluster_id, is_selected)

    def _object_event(self, entry: ObjectEntry, question: Question) -> Event | None:
        selection = question.selection
        if not selection.matches_key(entry.key) or not question.scope.allows(entry.key):
            return None
        is_selected = entry.type is not EntryType.DELETED
        was_selected = entry.previous_revision != 0
        if not selection.is_by_key:
            is_selected = is_selected and _matches(selection, self._state(entry))
            was_selected = was_selected and _matches(selection, self._previous_state(entry))
        previous = self._previous_state(entry) if was_selected and question.with_previous else None
        if is_selected:
            return self._encoded(_MODIFIED if was_selected else _ADDED, self._state(entry), previous)
        if was_selected:
            return self._encoded(_DELETED, self._previous_state(entry), previous)
        return None

    def _encoded(self, event_type: EventNumber, state: ObjectState | None, previous: ObjectState | None) -> Event:
        if self._events is None:
            self._events = {}
        outcome = (event_type, previous is not None)
        event = self._events.get(outcome)
        if event is None:
            event = self._events[outcome] = self._encode(event_type, state, previous)
            self._count(EVENT_BYTES)
        return event

    def _encode(self, event_type: EventNumber, state: ObjectState | None, previous: ObjectState | None) -> Event:
        cursor = self._ledger.cursors.encode(self.entry.revision)
        cluster = cluster_event_to_proto(self.entry) if isinstance(self.entry, ClusterEntry) else None
        head = inventory_pb2.WatchEvent(
            type=event_type, revision=self.entry.revision, cursor=cursor, cluster=cluster
        ).SerializeToString()
        parts: list[bytes] = []
        if state is not None:
            head += OBJECT.prefix(len(state.encoded))
            parts.append(state.encoded)
        if previous is not None:
            parts += (PREVIOUS.prefix(len(previous.encoded)), previous.encoded)
        head = EVENTS.prefix(len(head) + sum(map(len, parts))) + head
        return Event(event_type, self.commit, cursor, (head, *parts), len(head) + sum(map(len, parts)))

    def _state(self, entry: ObjectEntry) -> ObjectState:
        if self._now is None:
            self._now = ObjectState(entry, self._ledger.bodies, self._types, self._count)
        return self._now

    def _previous_state(self, entry: ObjectEntry) -> ObjectState:
        if self._before is None:
            try:
                previous = self._ledger.entry(entry.previous_revision)
            except LedgerCorrupt:  # lost to damage: as good as compacted for whoever asks for it
                previous = None
            if previous is None:
                raise CursorExpired(entry.revision, self._ledger.oldest_revision)
            self._before = ObjectState(previous, self._ledger.bodies, self._types, self._count)
        return self._before


_ADDED = inventory_pb2.WATCH_EVENT_TYPE_ADDED
_MODIFIED = inventory_pb2.WATCH_EVENT_TYPE_MODIFIED
_DELETED = inventory_pb2.WATCH_EVENT_TYPE_DELETED
_CLUSTER = inventory_pb2.WATCH_EVENT_TYPE_CLUSTER


def _matches(selection: Selection, state: ObjectState) -> bool:
    matches = selection.matches_state(state)
    state.settle()
    return matches
