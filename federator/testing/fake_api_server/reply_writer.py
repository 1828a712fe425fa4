"""One reply, written to the socket in whatever way the faults want it."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from federator.testing.fake_api_server import http
from federator.testing.fake_api_server.faults import (
    BadObject,
    Cut,
    DuplicateEvent,
    ErrorEvent,
    Fault,
    Frame,
    Gzip,
    How,
    LoseEvent,
    Merge,
    Split,
)
from federator.testing.fake_api_server.request_log import Request

F = TypeVar("F", bound=Fault)


class Severed(Exception):
    """The reply is over before its end; the connection has not been touched yet.

    Attributes:
        how: what is to be done to it.
    """

    def __init__(self, how: How) -> None:
        self.how = how
        super().__init__(how.value)


class ReplyWriter:
    """Writes one reply: a whole one with Content-Length, or the frames of a watch in chunks.

    Every method may raise `Severed`, where a fault ends the reply, or ConnectionError, where the client has.
    """

    def __init__(self, writer: asyncio.StreamWriter, request: Request, faults: Sequence[Fault]) -> None:
        self._writer = writer
        self._request = request
        self._faults = list(faults)
        self._chunked = False
        self._held: list[bytes] = []
        self._number = 0
        accepts = "gzip" in request.headers.get("accept-encoding", "")
        self._gzip = any(accepts or fault.force for fault in self.faults(Gzip))
        self._merge = max((fault.frames for fault in self.faults(Merge)), default=1)

    def faults(self, kind: type[F]) -> list[F]:
        """Those of a kind."""
        return [fault for fault in self._faults if isinstance(fault, kind)]

    async def whole(
        self, code: int, body: bytes, headers: Mapping[str, str], *, close: bool = False, compress: bool = False
    ) -> None:
        """A reply with Content-Length.

        Args:
            code: HTTP code.
            body: all of it.
            headers: beside those about length, encoding and connection.
            close: the connection ends with this reply.
            compress: gzip it, also without a fault that says so.
        """
        written = dict(headers)
        if self._gzip or compress:
            body = gzip.compress(body, compresslevel=1)
            written["Content-Encoding"] = "gzip"
        written["Content-Length"] = str(len(body))
        if close or any(cut.how is How.DRAIN for cut in self.faults(Cut)):
            written["Connection"] = "close"
        await self._head(code, written)
        await self._body(body)

    async def begin_watch(self) -> None:
        """The head of a watch."""
        self._chunked = True
        headers = {
            "Cache-Control": "no-cache, private",
            "Content-Type": "application/json",
            "Transfer-Encoding": "chunked",
        }
        if self._gzip:
            headers["Content-Encoding"] = "gzip"
        if any(cut.how is How.DRAIN for cut in self.faults(Cut)):
            headers["Connection"] = "close"
        await self._head(200, headers)
        await self._act_on_due()

    async def frame(self, content: bytes) -> None:
        """One frame of a watch, and what the faults put in its place or behind it."""
        self._number += 1
        if any(fault.number == self._number for fault in self.faults(LoseEvent)):
            return
        for _ in range(1 + sum(fault.number == self._number for fault in self.faults(DuplicateEvent))):
            await self._frame(content)
            await self._act_on_due()

    async def finish(self) -> None:
        """The clean end of a watch."""
        if self._held:
            await self._body(b"".join(self._held))
            self._held.clear()
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def sever(self, how: How) -> None:
        """Ends the connection, or the reply, in this way; does nothing for a black hole."""
        match how:
            case How.RESET:
                reset(self._writer)
            case How.END | How.DRAIN if self._chunked:
                await self.finish()
                if how is How.DRAIN:
                    self._writer.close()
            case How.FIN | How.END | How.DRAIN:
                self._writer.close()
            case How.BLACK_HOLE:
                pass

    async def _head(self, code: int, headers: dict[str, str]) -> None:
        self._request.status = code
        self._writer.write(http.head(code, headers))
        await self._flush()
        self._cut_by_bytes()

    async def _frame(self, content: bytes) -> None:
        self._held.append(gzip.compress(content, compresslevel=1) if self._gzip else content)
        self._request.events += 1
        if len(self._held) >= self._merge:
            held, self._held = b"".join(self._held), []
            await self._body(held)

    async def _act_on_due(self) -> None:
        while (fault := self._next_due()) is not None:
            self._faults.remove(fault)
            match fault:
                case Cut():
                    raise Severed(fault.how)
                case ErrorEvent():
                    await self._frame(fault.frame())
                    raise Severed(How.END)
                case Frame():
                    await self._frame(fault.content)
                case BadObject():
                    await self._frame(fault.frame())

    def _next_due(self) -> Fault | None:
        for fault in self._faults:
            if isinstance(fault, Cut | ErrorEvent | Frame | BadObject):
                after = fault.after_events
                if after is not None and after <= self._request.events:
                    return fault
        return None

    async def _body(self, content: bytes) -> None:
        cuts = [cut for cut in self.faults(Cut) if cut.after_bytes is not None]
        for piece in self._pieces(content):
            begin = self._request.bytes_sent
            for cut in cuts:
                assert cut.after_bytes is not None
                if begin < cut.after_bytes < begin + len(piece):
                    await self._part(piece, cut.after_bytes - begin, clean=cut.how in {How.END, How.DRAIN})
                    raise Severed(cut.how)
            if self._chunked:
                self._writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            else:
                self._writer.write(piece)
            self._request.bytes_sent += len(piece)
            await self._flush()
            self._cut_by_bytes()

    def _pieces(self, content: bytes) -> Iterator[bytes]:
        begin = self._request.bytes_sent
        end = begin + len(content)
        edges = {begin, end}
        for split in self.faults(Split):
            edges.update(offset for offset in split.at if begin < offset < end)
            if split.every:
                edges.update(range(begin + split.every - begin % split.every, end, split.every))
        ordered = sorted(edges)
        for left, right in itertools.pairwise(ordered):
            yield content[left - begin : right - begin]

    async def _part(self, piece: bytes, length: int, *, clean: bool) -> None:
        """The beginning of a piece; unless clean, in a chunk that promises all of it."""
        part = piece[:length]
        if not self._chunked:
            self._writer.write(part)
        elif clean:
            self._writer.write(b"%x\r\n%b\r\n" % (length, part))
        else:
            self._writer.write(b"%x\r\n%b" % (len(piece), part))
        self._request.bytes_sent += length
        await self._flush()

    def _cut_by_bytes(self) -> None:
        for cut in self.faults(Cut):
            if cut.after_bytes == self._request.bytes_sent:
                raise Severed(cut.how)

    async def _flush(self) -> None:
        await self._writer.drain()
        if self.faults(Split):
            await asyncio.sleep(0)  # a client in this process has its turn to read the piece alone


def reset(writer: asyncio.StreamWriter) -> None:
    """Resets a connection: RST instead of FIN."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
