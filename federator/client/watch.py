"""Watches that outlive their connection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import grpc
import grpc.aio

from federator.client.connection import Connection
from federator.client.event import Event, EventType
from federator.errors import AggregatorUnreachable, FederatorError, LimitReached, SelectionChanged, WatchTooSlow
from federator.v1 import inventory_pb2

DisconnectHandler = Callable[[FederatorError, float], None]
"""Told of a lost stream: its error, and the seconds until the next attempt."""

_FIRST_DELAY = 0.2
_MAX_DELAY = 5.0
"""Seconds between attempts. Jittered by half, 1,000 watchers of a dead aggregator attempt 270 times a second."""

_BROKEN = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
"""Codes of a stream reset in the middle of a message, or of a fault that the next attempt would meet again: it is
opened again if it carried something since it was opened.
"""


class WatchStream:
    """One watch over as many calls as it takes.

    Every event arrives once and in order: a lost call is followed by one from the cursor of the last event handed
    over. A call lost before its first cursor cannot be continued; the stream says RELISTED and starts over. So does one
    that began with the present state, when a cluster's labels change what is selected.

    Attributes:
        resumes: calls after the first.
    """

    def __init__(
        self,
        connection: Connection,
        request: inventory_pb2.WatchRequest,
        *,
        resume: bool,
        on_disconnect: DisconnectHandler | None,
    ) -> None:
        """Describes the watch; `events` starts it.

        Args:
            connection: where it is asked for.
            request: what is asked for; its cursor is kept up to date here, and what it has to contain is asked once.
            resume: a lost call is followed by another.
            on_disconnect: told of each lost call that is followed by another.
        """
        self._connection = connection
        self._request = request
        self._resume = resume
        self._begins_with_state = not request.cursor
        self._on_disconnect = on_disconnect
        self.resumes = 0

    async def events(self, timeout: float | None) -> AsyncGenerator[Event, None]:
        """Yields the events until cancelled.

        Args:
            timeout: seconds after which the stream ends by itself; None for never.

        Raises:
            FederatorError: what no further attempt would mend, or anything where resuming was not asked for.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        delay = _FIRST_DELAY
        while True:
            remaining = None if deadline is None else max(0.0, deadline - loop.time())
            progress = False
            lost: FederatorError
            try:
                async with aclosing(self._one_call(remaining)) as events:
                    async for event in events:
                        progress = True
                        yield event
                lost = AggregatorUnreachable(self._connection.address, "it ended the watch")
            except FederatorError as error:
                lost = error
            if deadline is not None and _code(lost) is grpc.StatusCode.DEADLINE_EXCEEDED:
                return
            if not self._is_worth_another(lost, progress=progress):
                raise lost
            if isinstance(lost, SelectionChanged):
                self._request.cursor = b""
            delay = _FIRST_DELAY if progress else min(_MAX_DELAY, delay * 2)
            wait = delay * random.uniform(0.5, 1.0)
            if self._on_disconnect is not None:
                self._on_disconnect(lost, wait)
            await asyncio.sleep(wait)
            self.resumes += 1
            if not self._request.cursor:
                yield Event(EventType.RELISTED)

    async def _one_call(self, timeout: float | None) -> AsyncGenerator[Event, None]:
        async with self._connection.call(lambda stub: stub.Watch, self._request, timeout) as call:
            async for response in call:
                self._connection.reached = True
                del self._request.fresh_as_of[:]
                for message in response.events:
                    if message.cursor:
                        self._request.cursor = message.cursor
                    yield Event.from_message(message)

    def _is_worth_another(self, lost: FederatorError, *, progress: bool) -> bool:
        if not self._resume or self._connection.closed or not self._connection.reached:
            return False
        if isinstance(lost, SelectionChanged):
            return self._begins_with_state
        return isinstance(lost, AggregatorUnreachable | WatchTooSlow | LimitReached) or (
            progress and _code(lost) in _BROKEN
        )


def _code(error: FederatorError) -> grpc.StatusCode | None:
    cause = error.__cause__
    return cause.code() if isinstance(cause, grpc.aio.AioRpcError) else None
