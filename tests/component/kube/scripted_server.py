"""An HTTP server on a loopback socket whose every byte a test decides: chunk edges, FIN, RST, silence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit


class Request(NamedTuple):
    """What a client sent."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    target: str


class Exchange:
    """The answer to one request, written by the test's script."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def body(self, data: bytes, *, code: int = 200, headers: dict[str, str] | None = None) -> None:
        """A whole answer with Content-Length."""
        lines = [f"HTTP/1.1 {code} X", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        await self.raw("\r\n".join([*lines, "", ""]).encode() + data)

    async def json(self, content: Any, *, code: int = 200, headers: dict[str, str] | None = None) -> None:
        await self.body(json.dumps(content).encode(), code=code, headers=headers)

    async def stream(self) -> None:
        """The head of a chunked answer."""
        await self.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")

    async def chunk(self, data: bytes) -> None:
        """One chunk, in a segment of its own."""
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))
        await asyncio.sleep(0)  # the client's turn to read, so that it does not join the next one

    async def end(self) -> None:
        await self.raw(b"0\r\n\r\n")

    def fin(self) -> None:
        self._writer.close()

    def rst(self) -> None:
        connection = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def closed_by_client(self) -> None:
        """Waits until the client has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(1024):
                pass


Script = Callable[[Request, Exchange], Awaitable[None]]


class ScriptedServer:
    """Answers every request by `script`, which a test sets; keeps what it was asked.

    Attributes:
        requests: all requests in order.
        connections: connections accepted so far.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.script: Script = _not_scripted
        self.requests: list[Request] = []
        self.connections = 0
        self.url = ""
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        # With room for a crowd that connects at once: whom the kernel turns away tries again a second later.
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls, backlog=256)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def kubeconfig(self, path: Path, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None) -> Path:
        """Writes a kubeconfig with one context, `member`."""
        path.write_text(
            json.dumps(
                {
                    "current-context": "member",
                    "contexts": [{"name": "member", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": self.url, **(cluster or {})}}],
                    "users": [{"name": "u", "user": user or {}}],
                }
            )
        )
        return path

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer), name=f"connection {self.connections}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                request = _parse(head)
                self.requests.append(request)
                await self.script(request, Exchange(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.transport.abort()


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits for what happens in another process or behind a socket, where no event tells; at most 20 s."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def _not_scripted(request: Request, exchange: Exchange) -> None:
    await exchange.body(f"no script for {request.path}".encode(), code=501)


def _parse(head: bytes) -> Request:
    first, *lines = head.decode("latin-1").split("\r\n")
    target = first.split(" ")[1]
    url = urlsplit(target)
    headers = dict(line.split(": ", 1) for line in lines if line)
    return Request(url.path, dict(parse_qsl(url.query)), {k.lower(): v for k, v in headers.items()}, target)
