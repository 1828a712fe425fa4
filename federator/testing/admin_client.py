"""JSON over HTTPS to one apiserver, as its administrator."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from federator.errors import KubeStatusError, MemberUnreachable

Json = dict[str, Any]
"""A decoded JSON object."""

_REQUEST_TIMEOUT = 30.0


class AdminClient:
    """Reads and writes objects of one apiserver by their URL path, with client certificate and verified TLS.

    It does not import the product: what tests do to a cluster must not depend on what they test.
    Every request takes at most 30 seconds. An async context manager; belongs to one event loop.

    Every method raises:
        KubeStatusError: the apiserver answered with a failure.
        MemberUnreachable: it did not answer.
    """

    def __init__(self, server: str, tls: ssl.SSLContext, *, connections: int = 100) -> None:
        self.server = server
        self._session = aiohttp.ClientSession(
            server,
            connector=aiohttp.TCPConnector(ssl=tls, limit=connections),
            timeout=aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT),
        )

    async def get(self, path: str, **query: str) -> Json:
        """Gets an object, or lists a collection."""
        return await self._call("GET", path, query=query)

    async def create(self, path: str, obj: Json) -> Json:
        """Creates an object in a collection."""
        return await self._call("POST", path, obj)

    async def replace(self, path: str, obj: Json) -> Json:
        """Puts a whole object."""
        return await self._call("PUT", path, obj)

    async def patch(self, path: str, changes: Json) -> Json:
        """Merges changes into an object (JSON merge patch: None removes a field)."""
        return await self._call("PATCH", path, changes, content_type="application/merge-patch+json")

    async def delete(self, path: str, **query: str) -> Json:
        """Deletes an object, or a collection."""
        return await self._call("DELETE", path, query=query)

    async def text(self, path: str) -> str:
        """Gets what is not JSON, such as /readyz or /metrics."""
        return (await self._request("GET", path)).decode()

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Opens a watch, or another answer without end, and gives its lines; for as long as the context is open.

        Iterating raises MemberUnreachable where the connection breaks off.
        """
        try:
            # No limit to the whole: a watch lasts.
            async with self._session.get(path, timeout=aiohttp.ClientTimeout(connect=_REQUEST_TIMEOUT)) as response:
                if response.status >= 400:
                    raise _failure(response.status, await response.read())
                yield aiter(response.content)
        except (aiohttp.ClientError, OSError) as error:
            raise MemberUnreachable(self.server, str(error) or type(error).__name__) from error

    async def close(self) -> None:
        """Closes its connections."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        payload = None if body is None else msgspec.json.encode(body)
        content = await self._request(method, path, payload, query=query, content_type=content_type)
        return msgspec.json.decode(content, type=Json)

    async def _request(
        self,
        method: str,
        path: str,
        payload: bytes | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        try:
            async with self._session.request(
                method, path, data=payload, params=query, headers={"Content-Type": content_type}
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise MemberUnreachable(self.server, str(error) or type(error).__name__) from error
        if response.status >= 400:
            raise _failure(response.status, content)
        return content


def _failure(code: int, content: bytes) -> KubeStatusError:
    try:
        status = msgspec.json.decode(content, type=Json)
    except msgspec.MsgspecError:
        return KubeStatusError(code, "", content[:200].decode(errors="replace"))
    return KubeStatusError(code, status.get("reason", ""), status.get("message", ""))
