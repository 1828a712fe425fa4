"""Puts the events of a watch into messages."""

from __future__ import annotations

from collections import Counter

from federator.aggregator.serve.change import Event
from federator.aggregator.serve.listing import PAGE_BYTES
from federator.v1 import inventory_pb2

ENOUGH_BYTES = 64 * 1024
"""A message this large is sent although more is at hand; smaller ones are filled up, as a message costs 100 µs."""


class ResponseBuilder:
    """Collects events into messages of at most `PAGE_BYTES`, in order; a larger object travels alone.

    Events come in groups, such as a commit's. A group is never spread over several messages, unless it alone exceeds
    `PAGE_BYTES`.
    """

    def __init__(self, counts: Counter[str]) -> None:
        """`counts` is told of each event by its type."""
        self._counts = counts
        self._closed: list[Event] = []  # of whole groups
        self._closed_bytes = 0
        self._open: list[Event] = []  # of the group that may go on
        self._open_bytes = 0
        self._group: int | None = None

    def add(self, event: Event, group: int) -> list[inventory_pb2.WatchResponse]:
        """Takes in an event of a group and returns the messages that became full."""
        full: list[inventory_pb2.WatchResponse] = []
        if group != self._group:
            self._group = group
            self._close()
            if self._closed_bytes >= ENOUGH_BYTES:
                full += self.take_closed()
        size = event.size
        if self._closed_bytes + self._open_bytes + size > PAGE_BYTES:
            full += self.take_closed()
        if self._open_bytes + size > PAGE_BYTES:
            full += self.take_all()
        self._open.append(event)
        self._open_bytes += size
        return full

    def take_closed(self) -> list[inventory_pb2.WatchResponse]:
        """Returns the message of all groups but the last one, if there is anything in it."""
        events, self._closed, self._closed_bytes = self._closed, [], 0
        return [self._message(events)] if events else []

    def take_all(self) -> list[inventory_pb2.WatchResponse]:
        """Returns the message of everything at hand, if there is anything."""
        self._close()
        return self.take_closed()

    def _close(self) -> None:
        self._closed += self._open
        self._closed_bytes += self._open_bytes
        self._open, self._open_bytes = [], 0

    def _message(self, events: list[Event]) -> inventory_pb2.WatchResponse:
        message = inventory_pb2.WatchResponse()
        for event in events:
            change = event.change
            message.events.add(
                type=event.type,
                revision=change.revision,
                cursor=change.cursor,
                object=event.state.message if event.state else None,
                cluster=change.cluster_event(),
            )
            self._counts[event_name(event.type)] += 1
        return message


def event_name(event_type: inventory_pb2.WatchEventType.ValueType) -> str:
    """The type's name without its prefix, e.g. `ADDED`."""
    return _NAMES[event_type]


_NAMES = {number: name.removeprefix("WATCH_EVENT_TYPE_") for name, number in inventory_pb2.WatchEventType.items()}
