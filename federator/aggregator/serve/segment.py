"""Segments: short runs of changes in revision order, the pieces that watches read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ClusterEntry, Entry, ObjectEntry
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.query.listing import PAGE_BYTES
from federator.aggregator.serve.change import Change, Event, SelectionEnd
from federator.aggregator.serve.question import Question
from federator.api.resource import GroupResource

SLICE = 64
"""Changes in a segment at most: at 25 µs for one not decoded and encoded yet, 1.6 ms before the event loop gets a turn.
"""

ENTRY_BYTES = 512
"""Counted for a change besides what is decoded and encoded of it."""


class Holder(Protocol):
    """What keeps segments within a bound."""

    def grow(self, number: int) -> None:
        """Counts bytes that one of its segments has grown by."""
        ...


class Segment:
    """The changes after one revision up to another.

    Attributes:
        after: revision before it.
        revision: of its last change.
        changes: in order; at most `SLICE`.
        ends_commit: whether a commit ends with it. Else the next one goes on with the same.
        bytes: what it counts where it is kept: bodies as stored, and what has been decoded and encoded of them.
        holder: who keeps it; None once nobody does.
    """

    __slots__ = ("_resources", "after", "bytes", "changes", "ends_commit", "holder", "revision")

    def __init__(
        self,
        after: int,
        entries: Sequence[tuple[int, Entry]],
        ledger: Ledger,
        types: ResourceTypes,
        *,
        ends_commit: bool,
        holder: Holder | None,
    ) -> None:
        """Takes entries, each with the number of its commit (see `Change`)."""
        self.after = after
        self.revision = entries[-1][1].revision
        self.changes = tuple([Change(entry, commit, ledger, types, self._grow) for commit, entry in entries])
        self.ends_commit = ends_commit
        self.bytes = sum([stored_bytes(entry) for _, entry in entries])
        self.holder = holder
        self._resources = {_resource_of(entry) for _, entry in entries}

    def may_concern(self, resources: frozenset[GroupResource]) -> bool:
        """Whether a watcher of these types has to look at the changes."""
        return None in self._resources or not self._resources.isdisjoint(resources)

    def _grow(self, number: int) -> None:
        self.bytes += number
        if self.holder is not None:
            self.holder.grow(number)


class Portion:
    """What a segment means for one question, from a position on.

    Attributes:
        events: in order.
        size: bytes of the events.
        encoded: all of them in one piece, which is a WatchResponse; empty where that would be too large.
        counts: events by type.
        end: what ends the question's watches behind the events; None where they go on.
    """

    __slots__ = ("counts", "encoded", "end", "events", "size")

    def __init__(self, events: Iterable[Event], end: SelectionEnd | None = None) -> None:
        self.end = end
        self.events = tuple(events)
        self.size = sum([event.size for event in self.events])
        is_small = self.size <= PAGE_BYTES
        self.encoded = b"".join([part for event in self.events for part in event.parts]) if is_small else b""
        self.counts = Counter([event.type for event in self.events])


def portion_of(segment: Segment, position: int, question: Question) -> Portion:
    """Evaluates the changes of a segment after a position.

    Raises:
        CursorExpired: a previous state is compacted.
    """
    events: list[Event] = []
    for change in segment.changes:
        if change.revision <= position:
            continue
        if (end := change.end(question)) is not None:
            return Portion(events, end)
        event = change.event(question)
        if event is not None:
            events.append(event)
    return Portion(events)


def stored_bytes(entry: Entry) -> int:
    """What an entry counts before anybody has looked at it."""
    return ENTRY_BYTES + (len(entry.body) if isinstance(entry, ObjectEntry) else 0)


def _resource_of(entry: Entry) -> GroupResource | None:
    """The type whose watchers an entry may concern; None for all watchers."""
    if isinstance(entry, ClusterEntry):
        return None
    return entry.key.group_resource if isinstance(entry, ObjectEntry) else entry.resource_type.group_resource
