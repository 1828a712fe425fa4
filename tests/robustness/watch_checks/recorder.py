"""Clients that write down what they see: real gRPC, message by message."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any

import grpc
import grpc.aio
import msgspec

from federator.client import Event, InventoryObject
from federator.errors import AggregatorUnreachable, CursorExpired, FederatorError, WatchTooSlow
from federator.v1 import inventory_pb2, inventory_pb2_grpc
from federator.wire.status import from_rpc_error
from tests.robustness.watch_checks.asked import Asked
from tests.robustness.watch_checks.history import MARKS, PRESENT, Call, History, Message, Part

_RETRY = 0.2
"""Seconds between two calls, on average."""

_NARROW: tuple[tuple[str, int], ...] = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4096))
"""Of a client that reads slowly: little is under way to it, so that it is the aggregator who has to wait."""

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Beginning(StrEnum):
    """With what a client begins."""

    PRESENT = "present"
    """No cursor: the present state comes first."""
    LISTED = "listed"
    """The cursor of a list."""


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How a client behaves.

    Attributes:
        begins: with what.
        late: seconds between that and its first call of Watch, or, where it begins with the present state, before it.
        bookmarks: seconds between bookmarks; 0 leaves it to the aggregator.
        pace: seconds it takes for each message.
        cut_after: seconds of a call, on average, before it goes away and comes back with its last cursor; 0 for never.
        tears: it goes away in the middle of a message, with the cursor of one of its events.
        away: seconds before it comes back, on average.
        previous: it asks for the states before the changes.
    """

    begins: Beginning = Beginning.PRESENT
    late: float = 0.0
    bookmarks: float = 2.0
    pace: float = 0.0
    cut_after: float = 0.0
    tears: bool = False
    away: float = _RETRY
    previous: bool = False

    def hastened(self, haste: float) -> Manner:
        """The same, so many times faster."""
        times = {name: getattr(self, name) / haste for name in ("late", "bookmarks", "pace", "cut_after", "away")}
        return msgspec.structs.replace(self, **times)


class WatchRecorder:
    """One client. It resumes where it was cut, and starts over where it is told to, as a client should.

    Attributes:
        history: what it has seen; a part begins whenever it starts over.
        cursor: its last one; empty for none.
        after: the revision that it stands for; PRESENT for none.
    """

    def __init__(self, address: str, name: str, asked: Asked, manner: Manner, source: random.Random) -> None:
        """Describes the client.

        Args:
            address: of the aggregator's reading side.
            name: what it is called.
            asked: its selection.
            manner: how it behaves.
            source: decides when it goes away.
        """
        self._address = address
        self._manner = manner
        self._random = source
        self._marked = asyncio.Condition()
        self._mark = PRESENT  # revision of the newest mark since it began
        self._settled = asyncio.Event()
        self.after = PRESENT
        self.cursor = b""
        self.history = History(name, asked)

    async def run(self) -> None:
        """Watches until cancelled.

        Raises:
            FederatorError: a refusal that a client cannot mend.
        """
        async with self._channel() as channel:
            stub = inventory_pb2_grpc.InventoryServiceStub(channel)
            await self._begin(stub)
            while True:
                await self._call(stub)
                away = _RETRY if self._settled.is_set() else self._manner.away
                await self._rest(self._random.uniform(0.5, 1.5) * away)

    async def replay(self, cursor: bytes, after: int, up_to: int) -> History:
        """Watches once, from a cursor until a mark says that nothing up to a revision is left; never resumes.

        Args:
            cursor: where to begin.
            after: the revision it stands for.
            up_to: where to end.

        Waits for as long as nobody answers. That a cursor is expired is no error, but stands in the history.

        Raises:
            FederatorError: as `run`.
        """
        self.cursor, self.after = cursor, after
        self._start_over()
        async with self._channel() as channel:
            stub = inventory_pb2_grpc.InventoryServiceStub(channel)
            while True:
                await self._call(stub, up_to=up_to)
                if self.history.parts[-1].calls:
                    return self.history
                await asyncio.sleep(_RETRY)

    def settle(self) -> None:
        """From now on it reads without pauses, and does not go away by itself; if it is away, it comes back."""
        self._settled.set()

    async def reached(self, revision: int) -> None:
        """Waits until a mark says that everything up to a revision has come."""
        async with self._marked:
            await self._marked.wait_for(lambda: self._mark >= revision)

    async def _rest(self, seconds: float) -> None:
        if self._settled.is_set() or not seconds:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()

    def _channel(self) -> grpc.aio.Channel:
        options = _OPTIONS + (_NARROW if self._manner.pace else ())
        return grpc.aio.insecure_channel(self._address, options=options)

    async def _begin(self, stub: inventory_pb2_grpc.InventoryServiceAsyncStub) -> None:
        if self._manner.begins is Beginning.PRESENT:
            self._start_over()
            await asyncio.sleep(self._manner.late)
            return
        while True:
            request = inventory_pb2.ListRequest(selection=self._selection())
            listed: list[InventoryObject] = []
            try:
                async for page in stub.List(request):
                    listed += map(InventoryObject.from_message, page.objects)
                    self.cursor, self.after = page.summary.cursor, page.summary.revision
            except grpc.aio.AioRpcError as error:
                self._mendable(error)
            if self.cursor:
                break
            await asyncio.sleep(_RETRY)
        self._start_over(tuple(listed))
        await asyncio.sleep(self._manner.late)

    async def _call(self, stub: inventory_pb2_grpc.InventoryServiceAsyncStub, *, up_to: int | None = None) -> None:
        request = inventory_pb2.WatchRequest(
            selection=self._selection(),
            cursor=self.cursor,
            bookmark_interval_ms=round(self._manner.bookmarks * 1000),
            with_previous=self._manner.previous,
        )
        if not self.cursor and self.history.parts[-1].calls:
            self._start_over()  # the present state did not come whole
        record = Call(self.after, with_previous=self._manner.previous, opened_at=time.monotonic())
        self.history.parts[-1].calls.append(record)
        lasts = None
        if self._manner.cut_after and not self._settled.is_set():
            lasts = self._random.expovariate(1 / self._manner.cut_after)
        leaves_at = None if lasts is None else record.opened_at + lasts
        call = stub.Watch(request)
        try:
            async with asyncio.timeout(None if self._manner.tears else lasts):
                async for response in call:
                    await self._take(record, response, leaves_at)
                    if record.messages[-1].taken < len(record.messages[-1].events):
                        return
                    if up_to is not None and self._mark >= up_to:
                        return
                    if not self._settled.is_set():
                        await self._rest(self._manner.pace)
        except TimeoutError:
            return
        except grpc.aio.AioRpcError as error:
            failure = self._mendable(error)
            record.end = failure.reason
            if isinstance(failure, CursorExpired):
                record.refused = failure.revision, failure.oldest
                self.cursor, self.after = b"", PRESENT
                if up_to is None:
                    self._start_over()
        finally:
            record.ended_at = time.monotonic()
            call.cancel()
            if record.end == AggregatorUnreachable.reason and not record.messages:
                self.history.parts[-1].calls.remove(record)  # nobody was there

    async def _take(self, record: Call, response: inventory_pb2.WatchResponse, leaves_at: float | None) -> None:
        message = Message.of(*map(Event.from_message, response.events))
        message.previous = {
            event.revision: InventoryObject.from_message(event.previous)
            for event in response.events
            if event.HasField("previous")
        }
        if self._manner.tears and not self._settled.is_set() and leaves_at is not None and time.monotonic() > leaves_at:
            inner = [number for number, event in enumerate(message.events[:-1], 1) if event.cursor]
            if inner:
                message.taken = self._random.choice(inner)
        record.messages.append(message)
        for event in message.events[: message.taken]:
            if event.cursor:
                self.cursor, self.after = event.cursor, event.revision
            if event.type in MARKS:
                self._mark = event.revision
        if any(event.type in MARKS for event in message.events):
            async with self._marked:
                self._marked.notify_all()

    def _mendable(self, error: grpc.aio.AioRpcError) -> FederatorError:
        failure = from_rpc_error(error, self._address)
        is_cut = error.code() in {grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
        if isinstance(failure, AggregatorUnreachable | CursorExpired | WatchTooSlow):
            return failure
        if is_cut and type(failure) is FederatorError:  # a stream that was reset
            return failure
        raise failure from error

    def _selection(self) -> inventory_pb2.Selection:
        request: Mapping[str, Any] = self.history.asked.request
        return inventory_pb2.Selection(**request)

    def _start_over(self, listed: tuple[InventoryObject, ...] | None = None) -> None:
        self.history.parts.append(Part(listed=listed))
        self._mark = PRESENT
