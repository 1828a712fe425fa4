"""What one client of a watch saw, message by message, and how it resumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from federator.client import Event, EventType, InventoryObject
from tests.robustness.watch_checks.asked import Asked

CHANGES = frozenset({EventType.ADDED, EventType.MODIFIED, EventType.DELETED, EventType.CLUSTER})
"""Events that each have a place in the order; the others are marks in it."""

MARKS = frozenset({EventType.BOOKMARK, EventType.INITIAL_END})

PRESENT = -1
"""In place of a revision: from the present state, without a cursor."""

EXPIRED = "CURSOR_EXPIRED"


class Message(msgspec.Struct):
    """One message as it came.

    Attributes:
        events: all of it, in order.
        taken: how many of them the client has taken; it went away in the middle of the others.
        previous: the states before the changes that came with them, by revision.
    """

    events: tuple[Event, ...]
    taken: int
    previous: Mapping[int, InventoryObject] = {}

    @classmethod
    def of(cls, *events: Event) -> Message:
        """A message that was taken whole."""
        return cls(events, len(events))


class Call(msgspec.Struct):
    """One call of Watch.

    Attributes:
        after: revision of the cursor it was opened with; PRESENT for none.
        messages: in the order in which they came.
        with_previous: it was asked for the states before the changes.
        opened_at: seconds of the machine's monotonic clock.
        ended_at: likewise.
        end: reason of the error that ended it; empty where the client did.
        refused: for EXPIRED: the revision that is compacted and the oldest to be had, as told.
    """

    after: int
    messages: list[Message] = []
    with_previous: bool = False
    opened_at: float = 0.0
    ended_at: float = float("inf")
    end: str = ""
    refused: tuple[int, int] = (0, 0)

    def taken(self) -> Iterator[Event]:
        """The events that the client took."""
        for message in self.messages:
            yield from message.events[: message.taken]

    def changes(self) -> Iterator[Event]:
        """The changes among them: none of the present state."""
        is_present = self.after == PRESENT
        for event in self.taken():
            if event.type is EventType.INITIAL_END:
                is_present = False
            elif event.type in CHANGES and not is_present:
                yield event


class Part(msgspec.Struct):
    """Calls of which each continues the one before, from a beginning: the present state, a list, or a cursor.

    Attributes:
        calls: one after another.
        listed: what the list brought whose cursor the first call was opened with; None where there was no list.
    """

    calls: list[Call] = []
    listed: tuple[InventoryObject, ...] | None = None

    @property
    def begin(self) -> int:
        """Revision after which changes come; PRESENT where the present state has not come whole."""
        if self.calls and self.calls[0].after != PRESENT:
            return self.calls[0].after
        ends = (event.revision for event in self.taken() if event.type is EventType.INITIAL_END)
        return next(ends, PRESENT)

    @property
    def initial(self) -> Sequence[InventoryObject] | None:
        """What the client began with; None where it was only given a cursor."""
        if self.calls and self.calls[0].after != PRESENT:
            return self.listed
        found = []
        for event in self.taken():
            if event.type is EventType.INITIAL_END:
                break
            if event.object is not None:
                found.append(event.object)
        return found

    @property
    def end(self) -> int:
        """Revision of the last event taken; that of the beginning where there was none."""
        return max((event.revision for event in self.taken()), default=self.begin)

    def taken(self) -> Iterator[Event]:
        """The events that the client took."""
        for call in self.calls:
            yield from call.taken()

    def changes(self) -> Iterator[Event]:
        """The changes among them."""
        for call in self.calls:
            yield from call.changes()


class History(msgspec.Struct):
    """Everything one client saw.

    Attributes:
        client: what it is called.
        asked: its selection.
        parts: more than one where it had to start over.
    """

    client: str
    asked: Asked
    parts: list[Part] = []
