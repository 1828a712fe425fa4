"""The connection to the aggregator: its settings, its calls, and what their failures become."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias, TypeVar

import grpc
import grpc.aio
import msgspec
import structlog

from federator.errors import AggregatorUnreachable, FederatorError, InvalidInput
from federator.v1 import inventory_pb2_grpc
from federator.wire.limits import MAX_MESSAGE_BYTES
from federator.wire.status import from_rpc_error
from federator.wire.tls import FileVersion, Pem, TLSFiles, explained, open_channel, require_dialable

log = structlog.get_logger(__name__)

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A connection cut without a word is noticed within 40 s. A watch carries a bookmark every 10 s, so these pings
    # never count as abuse with the server.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # The channel waits at most as long as a watch does between its attempts; the minimum is also its time limit for
    # connecting.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)

Stub: TypeAlias = "inventory_pb2_grpc.InventoryServiceAsyncStub"
C = TypeVar("C", bound=grpc.aio.Call)


class _Dialled(msgspec.Struct, eq=False):
    """A channel, what its files were when it was made, and the calls under way on it."""

    channel: grpc.aio.Channel
    stub: Stub
    files: FileVersion
    calls: set[grpc.aio.Call]


class Connection:
    """One channel and the calls that are under way on it.

    A channel keeps the certificates it was made with. When their files have changed, the next call makes another one,
    and the former is closed with the last call on it.

    Attributes:
        address: the aggregator.
        reached: the aggregator has answered at least once.
    """

    def __init__(self, address: str, tls: TLSFiles | None = None) -> None:
        """Opens nothing.

        Raises:
            InvalidInput: the address may not be dialled so.
        """
        require_dialable(address, tls, field="server")
        self.address = address
        self.reached = False
        self._tls = tls
        self._newest: _Dialled | None = None
        self._dialled: set[_Dialled] = set()
        self._made = 0

    @property
    def closed(self) -> bool:
        """No calls can be made: it was closed, or not opened yet."""
        return self._newest is None

    async def open(self) -> None:
        """Prepares the channel, on the running event loop; nothing is sent yet.

        Raises:
            InvalidInput: a file of TLS cannot be used.
        """
        if self._tls is None:
            self._dial(None, ())
        else:
            files = self._tls.version()
            self._dial(await asyncio.to_thread(self._tls.read), files)

    async def close(self) -> None:
        """Cancels what is under way and closes the channel; idempotent."""
        self._newest = None
        dialled, self._dialled = self._dialled, set()
        for each in dialled:
            # The channel alone would leave calls behind that nobody ends any more.
            for call in each.calls:
                call.cancel()
            await each.channel.close(None)

    @asynccontextmanager
    async def call(
        self, method: Callable[[Stub], Callable[..., C]], request: object, timeout: float | None
    ) -> AsyncIterator[C]:
        """Makes a call that ends with the context, and whose failures are errors of federator.

        Args:
            method: chooses it from the service's.
            request: its request.
            timeout: seconds; None for as long as it takes.

        Raises:
            FederatorError: rebuilt from the status of the call.
            AggregatorUnreachable: there was no answer, or none in time, or the connection is or was closed.
            asyncio.CancelledError: the task was cancelled.
        """
        await self._follow_files()
        dialled = self._newest
        if dialled is None:
            raise AggregatorUnreachable(self.address, "the client is closed; use it within `async with`")
        call = method(dialled.stub)(request, timeout=timeout)
        self._made += 1
        dialled.calls.add(call)
        try:
            yield call
        except grpc.aio.AioRpcError as error:
            raise self._federator_error(error) from error
        except asyncio.CancelledError:
            # A call that `close` cancels raises this too, though nobody cancelled the task that waits for it, and it
            # must not look as if somebody had.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise AggregatorUnreachable(self.address, "the client was closed") from None
        finally:
            dialled.calls.discard(call)
            call.cancel()
            await self._close_outdated()

    def statistics(self) -> Mapping[str, int | bool]:
        """Calls made so far and under way, and whether the aggregator has ever answered."""
        open_calls = sum(len(dialled.calls) for dialled in self._dialled)
        return {"calls": self._made, "open_calls": open_calls, "reached": self.reached}

    async def _follow_files(self) -> None:
        """Makes a new channel where the files have changed.

        What cannot be used is waited out: it may be half written.
        """
        newest = self._newest
        if self._tls is None or newest is None or (files := self._tls.version()) == newest.files:
            return
        try:
            pem = await asyncio.to_thread(self._tls.read)
        except InvalidInput as error:
            log.warning("TLS files are not taken, the former are used", cause=str(error))
            return
        if self._newest is newest:  # else it was closed meanwhile, or another call was faster
            self._dial(pem, files)
            await self._close_outdated()

    def _dial(self, pem: Pem | None, files: FileVersion) -> None:
        channel = open_channel(self.address, pem, _OPTIONS)
        self._newest = _Dialled(channel, inventory_pb2_grpc.InventoryServiceStub(channel), files, set())
        self._dialled.add(self._newest)

    async def _close_outdated(self) -> None:
        outdated = [each for each in self._dialled if each is not self._newest and not each.calls]
        self._dialled.difference_update(outdated)
        for each in outdated:
            await each.channel.close(None)

    def _federator_error(self, error: grpc.aio.AioRpcError) -> FederatorError:
        match error.code():
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return AggregatorUnreachable(self.address, "no answer within the timeout")
            case grpc.StatusCode.CANCELLED:
                return AggregatorUnreachable(self.address, "it cancelled the call")
            case _:
                return explained(from_rpc_error(error, self.address), self._tls)
