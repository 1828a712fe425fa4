"""Puts the events of a watch into messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from federator.aggregator.query.listing import PAGE_BYTES
from federator.aggregator.serve.change import Event
from federator.aggregator.serve.segment import Portion
from federator.v1 import inventory_pb2

ENOUGH_BYTES = 256 * 1024
"""A message this large is sent although more is at hand. A message costs as much as 50 KiB in it, so smaller ones are
filled up; much larger ones would hold up the event loop."""


class Message(NamedTuple):
    """One message of a watch.

    Attributes:
        encoded: a WatchResponse.
        cursor: of its last event; empty before INITIAL_END.
    """

    encoded: bytes
    cursor: bytes


class MessageBuilder:
    """Collects events into messages of at most `PAGE_BYTES`, in order; a larger object travels alone.

    The events of a commit are never spread over several messages, unless they alone exceed `PAGE_BYTES`.
    """

    def __init__(self, counts: Counter[str]) -> None:
        """`counts` is told of each event by its type."""
        self._counts = counts
        self._closed: list[bytes] = []  # of whole commits
        self._closed_bytes = 0
        self._closed_cursor = b""
        self._open: list[bytes] = []  # of the commit that may go on
        self._open_bytes = 0
        self._open_cursor = b""
        self._commit: int | None = None

    def add(self, portion: Portion, *, ends_commit: bool) -> Iterator[Message]:
        """Takes in the next events and yields the messages that became full.

        Args:
            portion: the events.
            ends_commit: whether the last commit in it is whole with it.
        """
        for event_type, number in portion.counts.items():
            self._counts[event_name(event_type)] += number
        if portion.encoded and ends_commit and not self._open:
            if self._closed_bytes + portion.size > PAGE_BYTES:
                yield from self.take_closed()
            self._closed.append(portion.encoded)
            self._closed_bytes += portion.size
            self._closed_cursor = portion.events[-1].cursor
        else:
            for event in portion.events:
                yield from self._add_event(event)
            if ends_commit:
                self._close()
        if self._closed_bytes >= ENOUGH_BYTES:
            yield from self.take_closed()

    def take_closed(self) -> Iterator[Message]:
        """Yields the message of all whole commits at hand, if there are any."""
        parts, cursor = self._closed, self._closed_cursor
        self._closed, self._closed_bytes = [], 0
        if parts:
            yield Message(b"".join(parts), cursor)

    def take_all(self) -> Iterator[Message]:
        """Yields the message of everything at hand, if there is anything."""
        self._close()
        yield from self.take_closed()

    def _add_event(self, event: Event) -> Iterator[Message]:
        if event.commit != self._commit:
            self._close()
            self._commit = event.commit
            if self._closed_bytes >= ENOUGH_BYTES:
                yield from self.take_closed()
        if self._closed_bytes + self._open_bytes + event.size > PAGE_BYTES:
            yield from self.take_closed()
        if self._open_bytes + event.size > PAGE_BYTES:
            yield from self.take_all()
        self._open += event.parts
        self._open_bytes += event.size
        self._open_cursor = event.cursor

    def _close(self) -> None:
        if self._open:
            self._closed += self._open
            self._closed_bytes += self._open_bytes
            self._closed_cursor = self._open_cursor
            self._open, self._open_bytes = [], 0


def event_name(event_type: inventory_pb2.WatchEventType.ValueType) -> str:
    """The type's name without its prefix, e.g. `ADDED`."""
    return _NAMES[event_type]


_NAMES = {number: name.removeprefix("WATCH_EVENT_TYPE_") for name, number in inventory_pb2.WatchEventType.items()}
