"""One address in front of several apiservers."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from federator.testing import FakeApiServer


class LoadBalancer:
    """Passes each new connection on to the server it points at; an async context manager.

    Attributes:
        target: where new connections go.
    """

    def __init__(self, target: FakeApiServer) -> None:
        self.target = target
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._listener is not None
        return int(self._listener.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self.target.port)
        # Cancelled, it has ended: start_server's own task would report a cancellation as an error.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        for each in (writer, back):
            each.close()
        self._connections.discard(task)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(64 * 1024):
            writer.write(chunk)
            await writer.drain()
    writer.close()
