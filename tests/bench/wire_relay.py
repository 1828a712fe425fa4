"""A relay between agents and an aggregator that counts every byte: what the sockets carry, HTTP/2's own included."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, cast


class Carried(NamedTuple):
    """Bytes that were carried.

    Attributes:
        up: from agents to the aggregator.
        down: back.
    """

    up: int
    down: int

    @property
    def both(self) -> int:
        """Bytes in both directions."""
        return self.up + self.down

    def since(self, earlier: Carried) -> Carried:
        """What was carried since an earlier reading."""
        return Carried(self.up - earlier.up, self.down - earlier.down)


class WireRelay:
    """Takes connections on one unix socket and carries them to another, for as long as the context is open."""

    def __init__(self, path: Path, target: str) -> None:
        """Does nothing yet.

        Args:
            path: of the socket that is listened on.
            target: address of the aggregator, `unix:/path`.
        """
        self.address = f"unix:{path}"
        self._path = path
        self._target = target.removeprefix("unix:")
        self._ends: set[_End] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._is_cut = False
        self._up = self._down = self._connections = 0

    @property
    def carried(self) -> Carried:
        """Bytes so far."""
        return Carried(self._up, self._down)

    @property
    def connections(self) -> int:
        """Connections that were carried so far."""
        return self._connections

    def cut(self) -> None:
        """Breaks every connection, and each that is tried from now on."""
        self._is_cut = True
        self.break_all()

    def mend(self) -> None:
        """Takes connections again."""
        self._is_cut = False

    def break_all(self) -> None:
        """Breaks every connection; new ones are taken."""
        for end in list(self._ends):
            end.abort()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _End(self, is_agents=True), self._path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._opening:
            await asyncio.wait(self._opening)

    def _accepted(self, end: _End) -> None:
        if self._is_cut:
            end.abort()
            return
        end.transport.pause_reading()  # until there is somebody to carry it to
        opening = asyncio.create_task(self._open(end), name="relay")
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, end: _End) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, onward = await loop.create_unix_connection(lambda: _End(self, is_agents=False), self._target)
        except OSError:
            end.abort()
            return
        end.other, onward.other = onward, end
        self._connections += 1
        if self._is_cut or end.transport.is_closing():
            end.abort()
            onward.abort()
        else:
            end.transport.resume_reading()

    def _count(self, number: int, *, is_agents: bool) -> None:
        if is_agents:
            self._up += number
        else:
            self._down += number


class _End(asyncio.Protocol):
    """One of the two connections that are carried to each other."""

    transport: asyncio.Transport

    def __init__(self, relay: WireRelay, *, is_agents: bool) -> None:
        self._relay = relay
        self._is_agents = is_agents
        self.other: _End | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._relay._ends.add(self)
        if self._is_agents:
            self._relay._accepted(self)

    def data_received(self, data: bytes) -> None:
        self._relay._count(len(data), is_agents=self._is_agents)
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        if self.other is not None and self.other.transport.can_write_eof():
            self.other.transport.write_eof()
        return True  # the other direction may go on

    def connection_lost(self, error: Exception | None) -> None:
        self._relay._ends.discard(self)
        if self.other is None:
            return
        if error is None:
            self.other.transport.close()  # what it still has to write is written
        else:
            self.other.abort()

    def abort(self) -> None:
        """Breaks the connection."""
        self.transport.abort()
