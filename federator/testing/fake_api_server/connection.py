"""One TCP connection of a client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from federator.testing.fake_api_server import http
from federator.testing.fake_api_server.reply_writer import reset


class Connection:
    """One TCP connection.

    Attributes:
        number: from 1.
        reader: what comes.
        writer: what goes.
        on_gone: is called when the client ends it, or when it is reset.
    """

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self.reader = reader
        self.writer = writer
        self.on_gone: Callable[[], None] | None = None
        self._gone = asyncio.Event()

    @property
    def tls(self) -> ssl.SSLObject | None:
        """Its TLS session, if it has one."""
        session: ssl.SSLObject | None = self.writer.get_extra_info("ssl_object")
        return session

    @property
    def left(self) -> bool:
        """The client has ended it, or it was reset; what it sent before may not have been read yet."""
        return self._gone.is_set()

    def reset(self) -> None:
        """Resets it."""
        reset(self.writer)

    def gone(self) -> None:
        """Notes that the client has ended it."""
        self._gone.set()
        if self.on_gone is not None:
            self.on_gone()

    async def until_client_leaves(self) -> None:
        """Does nothing until then."""
        await self._gone.wait()


Connect = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Connection]


class StreamProtocol(asyncio.StreamReaderProtocol):
    """Asyncio's stream protocol, which also tells when the client leaves while nobody reads."""

    def __init__(self, connect: Connect) -> None:
        reader = asyncio.StreamReader(limit=http.MAX_HEAD)
        super().__init__(reader, self._connected)
        self._connect = connect
        self._connection: Connection | None = None

    def eof_received(self) -> bool | None:  # noqa: D102
        stays_open = super().eof_received()
        self._tell()
        return stays_open

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        super().connection_lost(exc)
        self._tell()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connection = self._connect(reader, writer)

    def _tell(self) -> None:
        if self._connection is not None:
            self._connection.gone()
