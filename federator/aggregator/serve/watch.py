"""One client's watch: what it is sent, in order, from its first message to its last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.selection import Selection
from federator.aggregator.serve.listing import Listing
from federator.aggregator.serve.pins import Pins
from federator.aggregator.serve.response_builder import ResponseBuilder, event_name
from federator.aggregator.serve.watch_hub import WatchHub
from federator.v1 import inventory_pb2

DEFAULT_BOOKMARK_INTERVAL = 10.0
"""Seconds; a client that resumes replays at most this much that does not concern it."""

MIN_BOOKMARK_INTERVAL = 1.0
MAX_BOOKMARK_INTERVAL = 3600.0

SLICE = 64
"""Entries looked at before the event loop gets a turn: at 20 µs for one not decoded yet, about a millisecond."""

Freshness = Callable[[], Sequence[inventory_pb2.ClusterFreshness]]


class Watch:
    """The messages of one client, made when it takes them.

    What holds, from the first cursor to the last:

    - *Filtered*: only objects and clusters that the selection means.
    - *Ordered, unique, reliable*: every selected change once, by growing revision.
    - *Atomic*: one commit's events are in one message, unless they exceed 1 MiB.
    - *Resumable*: a watch from any event's cursor continues with exactly the rest.
    - *Bookmarkable*: a bookmark's cursor is never ahead of an event that is still to come.

    The watch is live while its position is in the hub's ring, and lagging while it reads the ledger instead; the client
    sees no difference. It keeps no queue: a client that does not read holds one message and a position.

    Attributes:
        position: revision up to which everything was looked at.
        cursor: the last cursor the client was handed; empty before INITIAL_END.
    """

    def __init__(
        self,
        hub: WatchHub,
        view: MergedView,
        ledger: Ledger,
        pins: Pins,
        selection: Selection,
        *,
        after: int | None,
        bookmark_interval: float,
        freshness: Freshness,
    ) -> None:
        """Begins after a revision, or with the present state where `after` is None."""
        self.position = hub.revision if after is None else after
        self.cursor = b"" if after is None else ledger.cursors.encode(after)
        self._hub = hub
        self._view = view
        self._ledger = ledger
        self._pins = pins
        self._selection = selection
        self._is_new = after is None
        self._bookmark_interval = bookmark_interval
        self._bookmark_at = 0.0
        self._freshness = freshness

    async def responses(self) -> AsyncGenerator[inventory_pb2.WatchResponse, None]:
        """Yields messages until cancelled.

        Raises:
            CursorExpired: the history after the position is compacted.
            AggregatorUnreachable: the hub was closed.
        """
        async with aclosing(self._messages()) as messages:
            async for message in messages:
                yield message
                self.cursor = message.events[-1].cursor  # it was taken, or we would not be here

    async def _messages(self) -> AsyncGenerator[inventory_pb2.WatchResponse, None]:
        if self._is_new:
            async with aclosing(self._present_state()) as messages:
                async for message in messages:
                    yield message
        self._schedule_bookmark()
        while True:
            async with aclosing(self._replay() if self._is_lagging else self._live()) as messages:
                async for message in messages:
                    yield message
            if self._is_bookmark_due:
                yield self._mark(inventory_pb2.WATCH_EVENT_TYPE_BOOKMARK)
                self._schedule_bookmark()
            await self._hub.wait(self.position, self._bookmark_at)

    async def _present_state(self) -> AsyncGenerator[inventory_pb2.WatchResponse, None]:
        listing = Listing(self._view, self._ledger, self._selection)
        self.position = listing.revision
        with self._pins.hold(listing.revision):
            async with aclosing(listing.pages()) as pages:
                async for page in pages:
                    response = inventory_pb2.WatchResponse()
                    for message in page:
                        response.events.add(
                            type=inventory_pb2.WATCH_EVENT_TYPE_ADDED, revision=listing.revision, object=message
                        )
                    self._hub.events["ADDED"] += len(page)
                    yield response
            yield self._mark(inventory_pb2.WATCH_EVENT_TYPE_INITIAL_END)

    async def _live(self) -> AsyncGenerator[inventory_pb2.WatchResponse, None]:
        """Takes from the ring what is there now."""
        builder = ResponseBuilder(self._hub.events)
        newest = self._hub.revision
        looked_at = 0
        while self.position < newest:
            commit = self._hub.next_commit(self.position)
            if commit is None:
                if not self._is_lagging:  # else the ring moved on while the client took its time
                    self.position = newest
                break
            if commit.may_concern(self._selection.resources):
                for change in commit.changes:
                    event = change.event(self._selection) if change.revision > self.position else None
                    for response in builder.add(event, commit.revision) if event else ():
                        yield response
                    looked_at += 1
                    if looked_at % SLICE == 0:
                        await asyncio.sleep(0)
            self.position = commit.revision
        for response in builder.take_all():
            yield response

    async def _replay(self) -> AsyncGenerator[inventory_pb2.WatchResponse, None]:
        """Reads from the ledger until the ring is reached or a bookmark is due.

        The ledger does not tell where its commits end, but all entries of one have the same time. So entries of one
        time are kept together, which may join commits and never splits one.
        """
        builder = ResponseBuilder(self._hub.events)
        time_ms: int | None = None
        while self._is_lagging:
            entries = self._ledger.read(self.position, SLICE)
            if not entries:
                self.position = self._hub.floor
            for entry in entries:
                floor = self._hub.floor
                if entry.revision > floor:  # a commit ends at the floor
                    self.position = floor
                    break
                if time_ms not in {None, entry.time_ms} and self._is_bookmark_due:
                    for response in builder.take_all():
                        yield response
                    return
                time_ms = entry.time_ms
                event = self._hub.change(entry).event(self._selection)
                for response in builder.add(event, time_ms) if event else ():
                    yield response
                self.position = entry.revision
            for response in builder.take_closed():
                yield response
            await asyncio.sleep(0)
        for response in builder.take_all():
            yield response

    @property
    def _is_lagging(self) -> bool:
        return self.position < self._hub.floor

    @property
    def _is_bookmark_due(self) -> bool:
        return asyncio.get_running_loop().time() >= self._bookmark_at

    def _schedule_bookmark(self) -> None:
        self._bookmark_at = asyncio.get_running_loop().time() + self._bookmark_interval

    def _mark(self, event_type: inventory_pb2.WatchEventType.ValueType) -> inventory_pb2.WatchResponse:
        """A message of one event that says: everything up to the position has been sent."""
        self._hub.events[event_name(event_type)] += 1
        mark = inventory_pb2.WatchEvent(
            type=event_type,
            revision=self.position,
            cursor=self._ledger.cursors.encode(self.position),
            freshness=self._freshness(),
        )
        return inventory_pb2.WatchResponse(events=[mark])
