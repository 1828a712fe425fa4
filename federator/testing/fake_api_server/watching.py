"""One open watch."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from federator.api.resource import GroupResource
from federator.testing.fake_api_server.faults import BookmarkVersion, ErrorEvent, How
from federator.testing.fake_api_server.history import Event, History, Version
from federator.testing.fake_api_server.list_options import ListOptions
from federator.testing.fake_api_server.listing import encode
from federator.testing.fake_api_server.reply_writer import ReplyWriter, Severed
from federator.testing.fake_api_server.request_log import Request
from federator.testing.fake_api_server.served_type import ServedType, encode_partial
from federator.testing.fake_api_server.status import ApiError, Json, expired_watch

DEFAULT_LENGTH = (1800.0, 3600.0)
"""Seconds between which a watch ends whose client did not say when."""

END_OF_INITIAL_EVENTS = "k8s.io/initial-events-end"
"""Annotation of the bookmark that ends the initial events."""

LAST_BOOKMARK = 2.0
"""Seconds before its end a watch has its last bookmark."""

WatchListMode = Literal["on", "off", "endless"]


class OpenWatch:
    """A watch that is open, for a test to do things to. They happen in the order asked for, after this moment.

    Attributes:
        request: its entry in the log.
        position: the revision up to which it was shown everything.
    """

    def __init__(
        self,
        request: Request,
        served: ServedType,
        options: ListOptions,
        history: History,
        *,
        partial: bool,
        visible: Callable[[], int],
        bookmark_interval: float | None,
        mode: WatchListMode,
        told: Callable[[], None],
    ) -> None:
        self.request = request
        self.served = served
        self.position = options.revision
        self._group_resource = served.group_resource
        self._asked = self.position
        self._options = options
        self._history = history
        self._partial = partial
        self._visible = visible
        self._bookmark_interval = bookmark_interval
        self._mode = mode
        self._told = told
        self._wake = asyncio.Event()
        # Each with the revision that comes before it.
        self._orders: deque[tuple[int, Callable[[ReplyWriter], Awaitable[None]]]] = deque()
        self._gone = False
        self._idle = False

    def send(self, frame: bytes | Json) -> None:
        """Writes any bytes, or any JSON, as one frame."""
        content = frame if isinstance(frame, bytes) else msgspec.json.encode(frame) + b"\n"
        self._order(lambda writer: writer.frame(content))

    def error(self, code: int = 410, *, reason: str | None = None, message: str | None = None) -> None:
        """Sends an ERROR event and ends the watch."""
        frame = ErrorEvent(code, reason, message).frame()

        async def send_and_end(writer: ReplyWriter) -> None:
            await writer.frame(frame)
            raise Severed(How.END)

        self._order(send_and_end)

    def bookmark(self, resource_version: str | None = None) -> None:
        """Sends a bookmark, with any resourceVersion or that of the newest write.

        Without one given it is only sent to a client that takes bookmarks, and never goes back.
        """
        revision = self._visible()

        async def send(writer: ReplyWriter) -> None:
            if resource_version is not None:
                await writer.frame(self._bookmark(resource_version))
            elif self._options.bookmarks:
                await self._send_bookmark(writer, revision)

        self._order(send)

    def end(self) -> None:
        """Ends it cleanly, as its timeout would."""
        self._sever(How.END)

    def reset(self) -> None:
        """Resets its connection."""
        self._sever(How.RESET)

    def fin(self) -> None:
        """Closes its connection without the end of the body."""
        self._sever(How.FIN)

    def drain(self) -> None:
        """Ends it cleanly and closes its connection."""
        self._sever(How.DRAIN)

    def black_hole(self) -> None:
        """Sends nothing more; the connection stays up. It counts as open no longer."""
        self._sever(How.BLACK_HOLE)

    @property
    def up_to_date(self) -> bool:
        """It was sent everything it should be shown."""
        return self._idle and not self._orders and self.position >= self._visible()

    def wake(self) -> None:
        """Has it look for new events."""
        self._idle = False
        self._wake.set()

    def tell(self, written: GroupResource | None) -> None:
        """Has it look for new events, after a write to a type, or (None) where anything may have changed.

        Of another type it has nothing to show, and is not woken for that: most writes are of another type.
        """
        if written is None or written == self._group_resource or not self._idle or self._orders:
            self.wake()
        else:
            self.position = max(self.position, self._visible())

    def client_gone(self) -> None:
        """Has it end, because nobody listens."""
        self._gone = True
        self.wake()

    async def run(self, writer: ReplyWriter, wait_for: Callable[[int], Awaitable[None]]) -> None:
        """Writes the whole watch; returns when its time is over.

        Raises:
            Severed: something ended it before.
            ConnectionError: the client did.
        """
        await writer.begin_watch()
        try:
            await self._begin(writer, wait_for)
        except ApiError as error:
            await writer.frame(b'{"type":"ERROR","object":%b}\n' % error.encoded)
            return
        await self._follow(writer)

    async def _begin(self, writer: ReplyWriter, wait_for: Callable[[int], Awaitable[None]]) -> None:
        asked = self._asked
        initial = self._options.initial_events
        if asked and not initial:
            if asked < self._history.compacted:
                raise expired_watch(asked, self._history.compacted)
            return
        if asked:
            await wait_for(asked)
        # Without a resourceVersion it is a consistent read, also of a replica that lags.
        consistent = not self._options.resource_version
        self.position = self._history.revision if consistent else self._visible()
        if initial is False:
            return
        revision = self.position
        states = self._history.at(self._group_resource, revision)
        # Newest first: the initial events promise no order, and this is the one that catches who relies on it.
        for _, version in sorted(states, key=lambda state: -state[1].revision):
            if self._options.selection.contains(version.obj):
                await writer.frame(self._frame("ADDED", version))
        # Also without sendInitialEvents: who takes bookmarks is told the end of what came unasked.
        if self._options.bookmarks and self._mode == "on":
            await writer.frame(self._bookmark(str(revision), ends_initial_events=True))

    async def _follow(self, writer: ReplyWriter) -> None:
        clock = asyncio.get_running_loop().time
        length = float(self._options.timeout or random.uniform(*DEFAULT_LENGTH))
        now = clock()
        end = now + length
        bookmark_at = self._next_bookmark(now, end)
        while not self._gone:
            self._wake.clear()
            while self._orders:
                revision, order = self._orders.popleft()
                await self._catch_up(writer, revision)
                await order(writer)
            await self._catch_up(writer, self._visible())
            if now >= end:
                return
            if now >= bookmark_at:
                await self._send_bookmark(writer, self._visible())
                bookmark_at = self._next_bookmark(now, end)
            due = min(end, bookmark_at)
            timed_out = await self._wait(due)
            # A timer may come a little early by the clock, which must not make this a busy loop.
            now = max(clock(), due) if timed_out else clock()
        raise ConnectionResetError("the client has gone")

    def _next_bookmark(self, now: float, end: float) -> float:
        if self._bookmark_interval is None or not self._options.bookmarks:
            return end
        last = end - LAST_BOOKMARK
        due = now + self._bookmark_interval
        return min(due, last) if now < last else end

    async def _wait(self, when: float) -> bool:
        """Waits for something to do, or until then; returns whether it was the latter."""
        if not self._wake.is_set():
            self._idle = True
            self._told()
        try:
            async with asyncio.timeout_at(when):
                await self._wake.wait()
        except TimeoutError:
            return True
        return False

    async def _catch_up(self, writer: ReplyWriter, until: int) -> None:
        for event in self._history.events(self.position, until):
            frame = self._event(event)
            # Before the write: an event that was begun is never begun again.
            self.position = event.revision
            if frame is not None:
                await writer.frame(frame)
        self.position = max(self.position, until)

    def _event(self, event: Event) -> bytes | None:
        if event.group_resource != self._group_resource or event.lost:
            return None
        contains = self._options.selection.contains
        before = event.old is not None and contains(event.old.obj)
        after = not event.deleted and contains(event.new.obj)
        if after:
            return self._frame("MODIFIED" if before else "ADDED", event.new)
        if not before or event.old is None:
            return None
        if event.deleted:
            return self._frame("DELETED", event.new)
        # It left the selection: its last selected state, under the resourceVersion of now.
        metadata = {**event.old.obj["metadata"], "resourceVersion": str(event.revision)}
        return self._frame("DELETED", Version(event.revision, {**event.old.obj, "metadata": metadata}))

    def _frame(self, event_type: str, version: Version) -> bytes:
        content = encode(self.served, version, partial=self._partial)
        return b'{"type":"%b","object":%b}\n' % (event_type.encode(), content)

    async def _send_bookmark(self, writer: ReplyWriter, revision: int) -> None:
        if revision >= self.position:
            overrides = writer.faults(BookmarkVersion)
            version = overrides[0].resource_version if overrides else str(revision)
            await writer.frame(self._bookmark(version))

    def _bookmark(self, resource_version: str, *, ends_initial_events: bool = False) -> bytes:
        metadata: Json = {"resourceVersion": resource_version}
        if ends_initial_events:
            metadata["annotations"] = {END_OF_INITIAL_EVENTS: "true"}
        obj: Json = {"metadata": metadata}
        content = encode_partial(obj) if self._partial else self.served.encode({**obj, **self.served.stub})
        return b'{"type":"BOOKMARK","object":%b}\n' % content

    def _sever(self, how: How) -> None:
        async def sever(_: ReplyWriter) -> None:
            raise Severed(how)

        self._order(sever)

    def _order(self, order: Callable[[ReplyWriter], Awaitable[None]]) -> None:
        self._orders.append((self._visible(), order))
        self.wake()
