"""HTTP/1.1 read carefully and written byte by byte."""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

MAX_HEAD = 64 * 1024
"""Bytes of the longest request line and headers together."""

MAX_BODY = 3 * 1024 * 1024
"""Bytes of the longest request body, the apiserver's own limit."""

_REQUEST_LINE = re.compile(rb"([A-Z]+) (/[!-~]*) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_PHRASES = {200: "OK", 201: "Created", 410: "Gone"}


class BadRequest(Exception):
    """What came is no request that can be read; the connection has to end.

    Attributes:
        code: HTTP code of the answer.
    """

    def __init__(self, code: int, cause: str) -> None:
        self.code = code
        super().__init__(cause)


class Incoming(NamedTuple):
    """A request as it came.

    Attributes:
        method: HTTP method.
        path: decoded.
        query: parameters; the last of each name.
        headers: by lower-case name.
        body: all of it.
        keep_alive: another request may follow.
    """

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    keep_alive: bool


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Incoming | None:
    """Reads the next request of a connection; None where the client has ended it.

    The reader's limit has to be `MAX_HEAD`.

    Raises:
        BadRequest: it is malformed, too long, or has a chunked body.
        ConnectionError: the connection broke.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise BadRequest(431, "the headers are too long") from None
    line, *lines = head[:-4].split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(line)
    if request is None:
        raise BadRequest(400, "malformed request line")
    headers: dict[str, str] = {}
    for raw in lines:
        header = _HEADER.fullmatch(raw)
        if header is None:
            raise BadRequest(400, "malformed header")
        headers[header[1].decode().lower()] = header[2].decode("latin-1")
    if "transfer-encoding" in headers:
        raise BadRequest(411, "a body needs a Content-Length")
    body = await _read_body(reader, writer, headers)
    target = urlsplit(request[2].decode())
    connection = headers.get("connection", "").lower()
    return Incoming(
        request[1].decode(),
        unquote(target.path),
        dict(parse_qsl(target.query, keep_blank_values=True)),
        headers,
        body,
        keep_alive="close" not in connection and request[3] == b"1",
    )


async def _read_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, headers: dict[str, str]) -> bytes:
    text = headers.get("content-length", "0")
    if not re.fullmatch("[0-9]{1,10}", text):
        raise BadRequest(400, "malformed Content-Length")
    length = int(text)
    if length > MAX_BODY:
        raise BadRequest(413, "the body is too long")
    if length and headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise ConnectionResetError("the client left in the middle of a body") from None


def head(code: int, headers: dict[str, str]) -> bytes:
    """The head of a reply."""
    lines = [f"HTTP/1.1 {code} {_PHRASES.get(code, 'Status')}", *(f"{name}: {text}" for name, text in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
