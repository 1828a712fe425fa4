"""HTTP as a test wants to see it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

from federator.testing.fake_api_server import FakeApiServer

Json = dict[str, Any]

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
WATCH_LIST = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
PARTIAL = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
PARTIAL_LIST = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}


class Reply(NamedTuple):
    code: int
    body: Json
    text: str
    headers: dict[str, str]


class Stream:
    """The frames of one watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.received = b""
        self.chunks: list[bytes] = []

    async def next(self) -> Json:
        """The next frame."""
        while b"\n" not in self.received:
            chunk = await self.response.content.readany()
            if not chunk:
                raise EOFError(self.received)
            self.chunks.append(chunk)
            self.received += chunk
        line, self.received = self.received.split(b"\n", 1)
        frame: Json = json.loads(line)
        return frame

    async def take(self, number: int) -> list[str]:
        """The next frames, in short."""
        return [brief(await self.next()) for _ in range(number)]

    async def rest(self) -> list[str]:
        """All frames up to the clean end, in short."""
        frames = []
        while True:
            try:
                frames.append(brief(await self.next()))
            except EOFError as end:
                assert end.args == (b"",), "the end of a frame is missing"
                return frames


class Client:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session

    async def get(
        self, path: str, query: dict[str, str] | None = None, *, headers: dict[str, str] | None = None, **more: str
    ) -> Reply:
        return await self.send("GET", path, headers=headers, query={**(query or {}), **more})

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
    ) -> Reply:
        content = None if body is None else json.dumps(body)
        async with self.session.request(method, path, params=query, data=content, headers=headers) as response:
            text = await response.text()
        try:
            decoded = json.loads(text)
        except ValueError:
            decoded = {}
        return Reply(response.status, decoded, text, dict(response.headers))

    @asynccontextmanager
    async def watch(
        self,
        path: str = CONFIG_MAPS,
        query: dict[str, str] | None = None,
        *,
        headers: dict[str, str] | None = None,
        **more: str,
    ) -> AsyncIterator[Stream]:
        params = {"watch": "1", **(query or {}), **more}
        async with self.session.get(path, params=params, headers=headers) as response:
            assert response.status == 200, await response.text()
            yield Stream(response)


@asynccontextmanager
async def client_of(server: FakeApiServer) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(server.url) as session:
        yield Client(session)


def brief(frame: Json) -> str:
    """`ADDED a`, `BOOKMARK 7`, `BOOKMARK 7 end`, `ERROR 410`."""
    obj = frame["object"]
    metadata = obj.get("metadata", {})
    match frame["type"]:
        case "ERROR":
            return f"ERROR {obj['code']}"
        case "BOOKMARK":
            return f"BOOKMARK {metadata['resourceVersion']}" + (" end" if "annotations" in metadata else "")
        case event:
            return f"{event} {metadata.get('name', '?')}"


def names(reply: Reply) -> list[str]:
    return [item["metadata"]["name"] for item in reply.body["items"]]


async def raw(server: FakeApiServer, content: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sends any bytes on a connection of their own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(content)
    return reader, writer


def request(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: fake", *headers, "", ""]).encode()
