"""A link between agent and aggregator that a test can cut, block, and cut at a given byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Link:
    """Relays connections to a unix socket."""

    def __init__(self, target: str) -> None:
        self._target = target.removeprefix("unix:")
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._passing = asyncio.Event()
        self._passing.set()
        self.address = ""
        self.is_refusing = False
        self.connections = 0
        self.sent = 0
        self.cut_at: int | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Link]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Resets every connection."""
        for writer in self._writers:
            writer.transport.abort()

    def block(self) -> None:
        """Carries nothing on, and closes nothing."""
        self._passing.clear()

    def unblock(self) -> None:
        """Carries on."""
        self._passing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_refusing:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            onward_reader, onward_writer = await asyncio.open_unix_connection(self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, onward_writer}
        for source, sink, counts in ((reader, onward_writer, True), (onward_reader, writer, False)):
            task = asyncio.create_task(self._carry(source, sink, counts=counts), name="link")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, counts: bool) -> None:
        try:
            while chunk := await source.read(16 * 1024):
                await self._passing.wait()
                if counts:
                    self.sent += len(chunk)
                    if self.cut_at is not None and self.sent >= self.cut_at:
                        self.cut_at = None
                        self.cut()
                        return
                sink.write(chunk)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.transport.abort()
            self._writers.discard(sink)
