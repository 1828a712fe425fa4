"""The connection to the aggregator: its settings, its calls, and what their failures become."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import grpc
import grpc.aio

from federator.errors import AggregatorUnreachable, FederatorError
from federator.v1 import inventory_pb2_grpc
from federator.wire.limits import MAX_MESSAGE_BYTES
from federator.wire.status import from_rpc_error

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

C = TypeVar("C", bound=grpc.aio.Call)


class Connection:
    """One channel and the calls that are under way on it.

    Attributes:
        address: the aggregator.
        reached: the aggregator has answered at least once.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.reached = False
        self._channel: grpc.aio.Channel | None = None
        self._stub: inventory_pb2_grpc.InventoryServiceAsyncStub | None = None
        self._calls: set[grpc.aio.Call] = set()
        self._made = 0

    @property
    def closed(self) -> bool:
        """No calls can be made: it was closed, or not opened yet."""
        return self._stub is None

    @property
    def stub(self) -> inventory_pb2_grpc.InventoryServiceAsyncStub:
        """The service's methods.

        Raises:
            AggregatorUnreachable: the connection is closed.
        """
        if self._stub is None:
            raise AggregatorUnreachable(self.address, "the client is closed; use it within `async with`")
        return self._stub

    def open(self) -> None:
        """Prepares the channel, on the running event loop; nothing is sent yet."""
        self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        self._stub = inventory_pb2_grpc.InventoryServiceStub(self._channel)

    async def close(self) -> None:
        """Cancels what is under way and closes the channel; idempotent."""
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            # The channel alone would leave calls behind that nobody ends any more.
            for call in self._calls:
                call.cancel()
            await channel.close(None)

    @contextmanager
    def call(self, method: Callable[..., C], request: object, timeout: float | None) -> Iterator[C]:
        """Makes a call that ends with the context, and whose failures are errors of federator.

        Args:
            method: of `stub`.
            request: its request.
            timeout: seconds; None for as long as it takes.

        Raises:
            FederatorError: rebuilt from the status of the call.
            AggregatorUnreachable: there was no answer, or none in time, or the connection was closed.
            asyncio.CancelledError: the task was cancelled.
        """
        call = method(request, timeout=timeout)
        self._made += 1
        self._calls.add(call)
        try:
            yield call
        except grpc.aio.AioRpcError as error:
            raise _federator_error(error, self.address) from error
        except asyncio.CancelledError:
            # A call that `close` cancels raises this too, though nobody cancelled the task that waits for it, and it
            # must not look as if somebody had.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise AggregatorUnreachable(self.address, "the client was closed") from None
        finally:
            self._calls.discard(call)
            call.cancel()

    def statistics(self) -> Mapping[str, int | bool]:
        """Calls made so far and under way, and whether the aggregator has ever answered."""
        return {"calls": self._made, "open_calls": len(self._calls), "reached": self.reached}


def _federator_error(error: grpc.aio.AioRpcError, address: str) -> FederatorError:
    match error.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return AggregatorUnreachable(address, "no answer within the timeout")
        case grpc.StatusCode.CANCELLED:
            return AggregatorUnreachable(address, "it cancelled the call")
        case _:
            return from_rpc_error(error, address)
