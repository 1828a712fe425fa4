"""The connection to one member cluster's apiserver."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
import structlog
from aiolimiter import AsyncLimiter
from kubernetes.aio.client import ApiClient

from federator.api.cluster import STAND_IN_PREFIX
from federator.api.object import decode_meta
from federator.errors import CredentialsError, FederatorError, KubeStatusError
from federator.kube.credentials import CredentialsSource, InClusterCredentials, KubeconfigCredentials
from federator.kube.status import REQUEST_ERRORS, TRANSPORT_ERRORS, reply_error, undecodable, unreachable

CONNECT_TIMEOUT = 10.0
"""Seconds for a connection to stand, TLS included."""

REQUEST_TIMEOUT = 70.0
"""Seconds for a whole request other than a watch, and for the head of a watch's answer.

The apiserver gives up on its own after 60 s; its answer that says so should still arrive.
"""

LONGEST_WATCH = 3600
"""Seconds of the longest watch a server makes where none was asked: it draws from 1,800 to 3,600."""

WATCH_GRACE = 15.0
"""Seconds after which a watch that outlives its length is ended from here: nobody is at the other end any more."""

REFRESH_PAUSE = 5.0
"""Seconds between a refresh of credentials that did not help and the next.

Sixty watches of a cluster that refuses its credentials would otherwise start a plugin about twice a second.
"""

REQUESTS_PER_SECOND = 100.0
"""Requests a second to one cluster, after a burst of as many, whoever of its informers asks: sixty of them, each within
its own bound, could ask three thousand."""

_MAX_ERROR_BODY = 64 * 1024

Query = Sequence[tuple[str, str]]

log = structlog.get_logger(__name__)


class _Session:
    """One ApiClient, that is one aiohttp session and its connections, with the credentials it was made from.

    It is closed when it has been retired and the last request that uses it has ended, so new credentials do not tear
    down the watches that run.
    """

    def __init__(self, api_client: ApiClient) -> None:
        self.api_client = api_client
        self.closed = False
        self._users = 0
        self._retired = False

    async def __aenter__(self) -> Self:
        self._users += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        await self._close_if_unused()

    async def retire(self) -> None:
        self._retired = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._retired and not self._users:
            self.closed = True
            await self.api_client.close()


class MemberClient:
    """Sends requests to one member cluster; the one place that knows its connections and credentials.

    An async context manager: credentials are loaded on entering (`CredentialsError`), everything is closed on leaving,
    which ends requests that still run. One pool of connections, without a limit on their number: the types that are
    watched bound it.

    A request that is answered 401 has the credentials loaded anew and is sent once more; however many are refused at
    once, the credentials are loaded once. For a moment after that the cluster has a second pool, until the watches that
    run on the old one have ended.

    Requests wait their turn at `REQUESTS_PER_SECOND`, retries included.

    Safe for concurrent use on one event loop. Cancelling a request closes its connection and leaves nothing behind.
    """

    def __init__(self, source: CredentialsSource, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._limiter = AsyncLimiter(REQUESTS_PER_SECOND, 1)
        self._server = ""
        self._session: _Session | None = None
        self._sessions: list[_Session] = []  # the current one and those that watches still run on
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshes = 0
        self._refresh_failed_at: float | None = None
        self._requests: Counter[tuple[str, int]] = Counter()
        self._received_bytes = 0
        self._watch_frames = 0
        self._skipped_objects = 0

    @classmethod
    def from_kubeconfig(cls, context: str | None = None, *, path: str | Path | None = None) -> Self:
        """A client for a context of the kubeconfig (without a name: the current one); files are read on entering."""
        return cls(KubeconfigCredentials(context, path))

    @classmethod
    def in_cluster(cls) -> Self:
        """A client for the cluster whose pod this process runs in."""
        return cls(InClusterCredentials())

    @property
    def context(self) -> str:
        """What its credentials are called."""
        return self._source.name

    @property
    def server(self) -> str:
        """URL of the apiserver; empty until the client is entered."""
        return self._server

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        self._session = None
        while self._sessions:
            await self._sessions.pop().api_client.close()

    async def get(self, path: str, query: Query = (), *, accept: str = "application/json", verb: str = "get") -> bytes:
        """Returns the whole body of one GET.

        Args:
            path: absolute, e.g. `/api/v1/pods`.
            query: parameters in order.
            accept: media types.
            verb: what the request is counted as.

        Raises:
            KubeStatusError: an answer with a failure code.
            MemberUnreachable: no answer, or not a whole one, within `REQUEST_TIMEOUT`.
            CredentialsError: the server does not accept them, new ones neither, or there are no new ones.
        """
        return b"".join([chunk async for chunk in self.stream(path, query, accept=accept, verb=verb)])

    async def stream(
        self, path: str, query: Query = (), *, accept: str = "application/json", verb: str = "get"
    ) -> AsyncGenerator[bytes]:
        """Gives the body of one GET in chunks with the edges the network made, decompressed.

        Takes and raises what `get` does, a body that breaks off as MemberUnreachable. Closing it closes the connection.
        """
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT, connect=CONNECT_TIMEOUT)
        async with self._exchange(verb, path, query, {"Accept": accept}, timeout) as response:
            try:
                async for chunk in response.content.iter_any():
                    self._received_bytes += len(chunk)
                    yield chunk
            except TRANSPORT_ERRORS as error:
                raise unreachable(self.server, error) from None

    @asynccontextmanager
    async def watch(self, path: str, query: Query, *, accept: str, length: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """Opens a watch and gives the chunks of its body, with the edges the network made.

        The chunks end where the watch ends: by a terminating chunk, by a connection that breaks, or when it outlives
        its length by `WATCH_GRACE`. Leaving the context closes the connection at once.

        Args:
            path: of the collection.
            query: parameters in order.
            accept: media types.
            length: seconds the server was asked for, 0 where it was left to the server.

        Raises:
            KubeStatusError, MemberUnreachable, CredentialsError: on entering, as for `get`.
        """
        timeout = aiohttp.ClientTimeout(total=(length or LONGEST_WATCH) + WATCH_GRACE, connect=CONNECT_TIMEOUT)
        # Servers may gzip with a new member per flush, which is easily decoded wrong and saves little per event.
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        async with (
            self._exchange("watch", path, query, headers, timeout) as response,
            aclosing(self._chunks(response.content, path)) as chunks,
        ):
            yield chunks

    async def cluster_uid(self) -> str:
        """The cluster's UID: that of its namespace kube-system.

        Where that may not be read, or is not there, `server-` and 32 hexadecimal digits made from the server's URL and
        its certificate authority stand in; they change when either does.

        Raises:
            KubeStatusError, MemberUnreachable, CredentialsError: as for `get`, except 403 and 404.
        """
        try:
            namespace = await self.get("/api/v1/namespaces/kube-system")
        except KubeStatusError as error:
            if error.code not in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
                raise
            return await asyncio.to_thread(_stand_in_uid, self._current_session().api_client.configuration)
        try:
            uid = decode_meta(namespace).uid
        except msgspec.MsgspecError:
            uid = ""
        if not uid:
            raise undecodable("namespace kube-system without a UID", in_stream=False)
        return uid

    async def server_version(self) -> str:
        """The apiserver's version, e.g. `v1.37.2`.

        Raises:
            KubeStatusError, MemberUnreachable, CredentialsError: as for `get`.
        """
        try:
            return msgspec.json.decode(await self.get("/version"), type=_Version).gitVersion
        except msgspec.MsgspecError:
            raise undecodable("/version is no version", in_stream=False) from None

    def count_watch_frame(self) -> None:
        """Counts one frame that a watch of this cluster carried."""
        self._watch_frames += 1

    def count_skipped_objects(self, number: int) -> None:
        """Counts objects of this cluster that could not be used."""
        self._skipped_objects += number

    def statistics(self) -> Mapping[str, Any]:
        """Totals since the client was made.

        `requests` by (verb, HTTP code; 0 where there was no answer), `received_bytes` (bodies, after decompression),
        `watch_frames`, `skipped_objects` (unusable ones in lists and watches), `credential_refreshes`.
        """
        return {
            "requests": dict(self._requests),
            "received_bytes": self._received_bytes,
            "watch_frames": self._watch_frames,
            "skipped_objects": self._skipped_objects,
            "credential_refreshes": self._refreshes,
        }

    @asynccontextmanager
    async def _exchange(
        self, verb: str, path: str, query: Query, headers: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request and its successful answer, sent a second time where new credentials are needed."""
        refused: _Session | None = None
        while True:
            await self._limiter.acquire()
            async with self._current_session() as session:
                response = await self._send(session, verb, path, query, headers, timeout)
                try:
                    if response.status != HTTPStatus.UNAUTHORIZED:
                        if response.status != HTTPStatus.OK:
                            raise await self._error(response)
                        yield response
                        return
                finally:
                    response.close()  # of no effect where the body was read to its end
            if refused is not None:
                self._refresh_failed_at = self._clock()
                raise CredentialsError(self.context, f"{self.server} does not accept them")
            refused = session
            await self._new_credentials(session)

    async def _send(
        self,
        session: _Session,
        verb: str,
        path: str,
        query: Query,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        api_client = session.api_client
        method, url, sent_headers, _, _ = await api_client.param_serialize(
            "GET", path, query_params=list(query), header_params=dict(headers), auth_settings=["BearerToken"]
        )
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                reply = await api_client.call_api(
                    method, url, sent_headers, _request_timeout=timeout, _preload_content=False
                )
        except REQUEST_ERRORS as error:
            self._requests[verb, 0] += 1
            raise unreachable(self.server, error) from None
        response: aiohttp.ClientResponse = reply.response
        self._requests[verb, response.status] += 1
        return response

    async def _error(self, response: aiohttp.ClientResponse) -> KubeStatusError:
        body = bytearray()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > _MAX_ERROR_BODY:
                        break
        except TRANSPORT_ERRORS:
            pass  # the code says what matters, and it is here
        return reply_error(response.status, bytes(body), response.headers.get("Retry-After"))

    async def _chunks(self, content: aiohttp.StreamReader, path: str) -> AsyncGenerator[bytes]:
        try:
            async for chunk in content.iter_any():
                self._received_bytes += len(chunk)
                yield chunk
        except TRANSPORT_ERRORS as error:
            # A reset, a FIN in the middle or the deadline: for whoever watches the same as an end.
            log.debug("watch broke off", context=self.context, path=path, cause=unreachable("", error).cause)

    async def _new_credentials(self, refused: _Session) -> None:
        """Has the credentials loaded anew, unless that happened since `refused` was made."""
        if self._session is not refused:
            return
        if self._refreshing is None:
            if self._refresh_failed_at is not None and self._clock() - self._refresh_failed_at < REFRESH_PAUSE:
                raise CredentialsError(self.context, f"{self.server} does not accept them")
            self._refreshing = asyncio.create_task(self._replace_session(refused), name=f"credentials {self.context}")
            self._refreshing.add_done_callback(self._refresh_done)
        # One who waits and is cancelled must not take the others' credentials away.
        await asyncio.shield(self._refreshing)

    async def _replace_session(self, refused: _Session) -> None:
        await self._connect()
        self._refreshes += 1
        log.info("credentials refreshed", context=self.context)
        self._sessions = [session for session in self._sessions if not session.closed]
        await refused.retire()

    async def _connect(self) -> None:
        self._session = _Session(await self._source.connect())
        self._sessions.append(self._session)
        self._server = self._session.api_client.configuration.host

    def _refresh_done(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not task.cancelled() and isinstance(task.exception(), FederatorError):
            self._refresh_failed_at = self._clock()

    def _current_session(self) -> _Session:
        if self._session is None:
            raise RuntimeError("the MemberClient is not entered, or left already")
        return self._session


class _Version(msgspec.Struct):
    gitVersion: str  # noqa: N815  # the API's name


def _stand_in_uid(configuration: Any) -> str:
    authority = Path(configuration.ssl_ca_cert).read_bytes() if configuration.ssl_ca_cert else b""
    return STAND_IN_PREFIX + hashlib.sha256(configuration.host.encode() + b"\n" + authority).hexdigest()[:32]
