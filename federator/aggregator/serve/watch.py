"""One client's watch: what it is sent, in order, from its first message to its last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.query.encoding import EVENTS, OBJECT
from federator.aggregator.query.listing import present_listing
from federator.aggregator.query.pins import Pins
from federator.aggregator.serve.audience import Audience
from federator.aggregator.serve.message_builder import Message, MessageBuilder, event_name
from federator.aggregator.serve.question import Question
from federator.aggregator.serve.segment import SLICE
from federator.aggregator.serve.watch_hub import WatchHub
from federator.errors import AggregatorUnreachable, SelectionChanged
from federator.v1 import inventory_pb2

DEFAULT_BOOKMARK_INTERVAL = 10.0
"""Seconds; a client that resumes replays at most this much that does not concern it."""

MIN_BOOKMARK_INTERVAL = 1.0
MAX_BOOKMARK_INTERVAL = 3600.0

Freshness = Callable[[], bytes]
"""Returns the freshness of the asked clusters now, as encoded fields of a WatchEvent."""


class Watch:
    """The messages of one client, made when it takes them.

    What holds, from the first cursor to the last:

    - *Filtered*: only objects and clusters that the selection means.
    - *Ordered, unique, reliable*: every selected change once, by growing revision.
    - *Atomic*: one commit's events are in one message, unless they exceed 1 MiB.
    - *Resumable*: a watch from any event's cursor continues with exactly the rest.
    - *Bookmarkable*: a bookmark's cursor is never ahead of an event that is still to come.

    The watch is live while its position is in the hub's ring, and lagging while it reads the ledger instead; the client
    sees no difference. It keeps no queue: a client that does not read holds one message and a position. What equal
    watches are sent at about the same time are the same bytes.

    Clusters are selected by the labels that they had where the watch began, and by those that they join with. Where a
    change of labels would change that, the watch ends: what it would have to tell has happened long ago.

    A watch of a hub that closes ends with what is there, or what of it the client takes in time, and a last bookmark.
    One that is lagging then ends where it is.

    Attributes:
        position: revision up to which everything was looked at.
        cursor: the last cursor the client was handed; empty before INITIAL_END.
        is_waiting: whether it has sent everything that concerns it.
    """

    __slots__ = (
        "_bookmark_at",
        "_bookmark_interval",
        "_freshness",
        "_hub",
        "_is_new",
        "_ledger",
        "_pins",
        "_question",
        "_view",
        "cursor",
        "is_waiting",
        "position",
    )

    def __init__(
        self,
        hub: WatchHub,
        view: MergedView,
        ledger: Ledger,
        pins: Pins,
        question: Question,
        *,
        after: int | None,
        bookmark_interval: float,
        freshness: Freshness,
    ) -> None:
        """Begins after a revision, or with the present state where `after` is None."""
        self.position = hub.revision if after is None else after
        self.is_waiting = False
        self.cursor = b"" if after is None else ledger.cursors.encode(after)
        self._hub = hub
        self._view = view
        self._ledger = ledger
        self._pins = pins
        self._question = question
        self._is_new = after is None
        self._bookmark_interval = bookmark_interval
        self._bookmark_at = 0.0
        self._freshness = freshness

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Yields messages until cancelled.

        Raises:
            CursorExpired: the history after the position is compacted.
            SelectionChanged: a cluster's labels have changed, and with them the selection; everything before is sent.
            AggregatorUnreachable: the hub was closed.
        """
        with self._hub.audience(self._question) as audience:
            try:
                async with aclosing(self._messages(audience)) as messages:
                    async for message in messages:
                        yield message
                        self.cursor = message.cursor  # it was taken, or we would not be here
            finally:
                self._hub.clock.forget(self)

    async def _messages(self, audience: Audience) -> AsyncGenerator[Message, None]:
        hub = self._hub
        hub.flush()  # what was committed before the watch began is there, and a list ends where a publication does
        if self._is_new:
            async with aclosing(self._present_state()) as messages:
                async for message in messages:
                    yield message
        self._schedule_bookmark(audience)
        while True:
            async with aclosing(self._available(audience)) as messages:
                async for message in messages:
                    yield message
            is_closed = hub.is_closed
            if is_closed or self._is_bookmark_due:
                yield self._mark(inventory_pb2.WATCH_EVENT_TYPE_BOOKMARK)
                self._schedule_bookmark(audience)
            if is_closed:
                raise _closing()
            await hub.wait(self, audience)

    async def _present_state(self) -> AsyncGenerator[Message, None]:
        listing = present_listing(self._view, self._ledger, self._question.selection, self._question.scope)
        self.position = listing.revision
        head = inventory_pb2.WatchEvent(
            type=inventory_pb2.WATCH_EVENT_TYPE_ADDED, revision=listing.revision
        ).SerializeToString()
        with self._pins.hold(listing.revision):
            async with aclosing(listing.parts()) as parts:
                async for part in parts:
                    events: list[bytes] = []
                    for encoded in part:
                        prefix = OBJECT.prefix(len(encoded))
                        events += (EVENTS.prefix(len(head) + len(prefix) + len(encoded)), head, prefix, encoded)
                    self._hub.events["ADDED"] += len(part)
                    yield Message(b"".join(events), b"")
                    if self._hub.is_closed:
                        raise _closing()
            yield self._mark(inventory_pb2.WATCH_EVENT_TYPE_INITIAL_END)

    async def _available(self, audience: Audience) -> AsyncGenerator[Message, None]:
        """What was published after the position, until there is no more or a bookmark is due.

        The event loop gets a turn whenever a slice was looked at for the first time.
        """
        hub, resources = self._hub, self._question.selection.resources
        builder = MessageBuilder(hub.events)
        looked_at = 0
        while True:
            if self.position >= audience.concerned_at:
                self.position = max(self.position, hub.revision)
                break
            segment = hub.segment_after(self.position)
            if segment is None:
                break
            if segment.may_concern(resources):
                portion = hub.portions.find(segment, self.position, audience)
                if portion is None:
                    portion = hub.portions.evaluate(segment, self.position, audience)
                    looked_at += len(segment.changes)
                if portion.events or segment.ends_commit:
                    for message in builder.add(portion, ends_commit=segment.ends_commit):
                        yield message
                if portion.end is not None:
                    for message in builder.take_all():
                        yield message
                    raise SelectionChanged(*portion.end)
            else:
                looked_at += 1
            self.position = segment.revision
            if segment.ends_commit and (self._is_bookmark_due or (hub.is_closed and self.position < hub.floor)):
                break
            if looked_at >= SLICE:
                looked_at = 0
                await asyncio.sleep(0)
        for message in builder.take_all():
            yield message

    @property
    def _is_bookmark_due(self) -> bool:
        return asyncio.get_running_loop().time() >= self._bookmark_at

    def _schedule_bookmark(self, audience: Audience) -> None:
        self._bookmark_at = asyncio.get_running_loop().time() + self._bookmark_interval
        self._hub.clock.schedule(self, self._bookmark_at, partial(self._hub.wake, self, audience))

    def _mark(self, event_type: inventory_pb2.WatchEventType.ValueType) -> Message:
        """A message of one event that says: everything up to the position has been sent."""
        self._hub.events[event_name(event_type)] += 1
        cursor = self._ledger.cursors.encode(self.position)
        mark = inventory_pb2.WatchEvent(type=event_type, revision=self.position, cursor=cursor).SerializeToString()
        mark += self._freshness()
        return Message(EVENTS.prefix(len(mark)) + mark, cursor)


def _closing() -> AggregatorUnreachable:
    return AggregatorUnreachable("", "it is shutting down")
