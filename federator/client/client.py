"""The client of the aggregator's InventoryService."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Self

from federator.client.connection import Connection
from federator.client.event import Event
from federator.client.fresh_as_of import FreshAsOf, fresh_as_of_messages
from federator.client.object import InventoryObject
from federator.client.result import ClustersResult, GetResult, ListPage, ListResult, ServedType
from federator.client.selection import comma_list, selection
from federator.client.watch import DisconnectHandler, WatchStream
from federator.errors import AggregatorUnreachable
from federator.v1 import inventory_pb2
from federator.wire.tls import TLSFiles


def aconnect(address: str, *, tls: TLSFiles | None = None) -> InventoryClient:
    """A client of the aggregator at `host:port` or `unix:/path`, to be used with `async with`.

    Nothing is sent before the first call, which raises AggregatorUnreachable where nobody answers.

    Args:
        address: where the aggregator is asked. Without `tls` only loopback and unix sockets.
        tls: the client's certificate and the authority of the aggregator's; None for plaintext. The files are read as
            `async with` is entered, and again when they have changed.

    Raises:
        InvalidInput: others could listen in on the address, or it is a unix socket, which has no TLS.
    """
    return InventoryClient(address, tls=tls)


class InventoryClient:
    """Reads the inventory of all member clusters.

    One connection, any number of calls at once; to be used within one event loop. Every call takes a `timeout` in
    seconds (None: as long as it takes) and raises `AggregatorUnreachable` when it passes. A cancelled call is cancelled
    at the aggregator too and leaves nothing behind; leaving `async with` cancels the calls that still run, which then
    raise AggregatorUnreachable.

    `fresh_as_of` asks that an answer contains what the caller knows to have happened, such as its own write to a member
    cluster: the answer waits for up to `fresh_within` seconds (0 for 5, at most 60) until the aggregator has it, and
    else `NotFreshYet` is raised, at once where waiting cannot help.

    Everywhere, `resources` and `clusters` are a comma-separated text or an iterable of entries: types as kubectl takes
    them, and globs on the ClusterID of which a leading "!" excludes.
    """

    def __init__(self, address: str, *, tls: TLSFiles | None = None) -> None:
        self._connection = Connection(address, tls)
        self._watches: set[WatchStream] = set()
        self._ended_resumes = 0

    async def __aenter__(self) -> Self:
        await self._connection.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """The aggregator's address."""
        return self._connection.address

    async def close(self) -> None:
        """Closes the connection; calls that still run raise AggregatorUnreachable. Closing twice is allowed."""
        await self._connection.close()

    def statistics(self) -> Mapping[str, int | bool]:
        """Those of the connection, watches open, and resumes of all watches so far."""
        return {
            **self._connection.statistics(),
            "watches": len(self._watches),
            "resumes": self._ended_resumes + sum(watch.resumes for watch in self._watches),
        }

    async def get(
        self,
        resource: str,
        name: str,
        *,
        namespace: str = "",
        cluster: str = "",
        fresh_as_of: FreshAsOf | Iterable[FreshAsOf] = (),
        fresh_within: float = 0,
        timeout: float | None = None,
    ) -> GetResult:
        """Reads one object.

        Args:
            resource: its type, as kubectl takes it.
            name: its name.
            namespace: its namespace; empty for cluster-scoped types.
            cluster: its ClusterID; may be empty where only one cluster has the name.
            fresh_as_of: what the answer has to contain.
            fresh_within: seconds to wait for it.
            timeout: seconds.

        Raises:
            ObjectNotFound: no such object.
            AmbiguousName: several clusters have the name and none was given.
            UnknownCluster: no such member.
            UnknownResourceType: no member serves the type.
            NotFreshYet: what the answer has to contain is not there in time.
        """
        request = inventory_pb2.GetRequest(
            cluster_id=cluster,
            resource=resource,
            namespace=namespace,
            name=name,
            fresh_as_of=fresh_as_of_messages(fresh_as_of),
            fresh_within_ms=_milliseconds(fresh_within),
        )
        connection = self._connection
        async with connection.call(lambda stub: stub.Get, request, timeout) as call:
            response = await call
        connection.reached = True
        return GetResult.from_message(response)

    async def list(
        self,
        resources: str | Iterable[str],
        *,
        clusters: str | Iterable[str] = (),
        namespace: str = "",
        name: str = "",
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        fresh_as_of: FreshAsOf | Iterable[FreshAsOf] = (),
        fresh_within: float = 0,
        timeout: float | None = None,
    ) -> ListResult:
        """Reads everything selected, at one revision; `pages` does the same without holding all of it.

        Args:
            resources: types.
            clusters: globs; empty for all.
            namespace: empty for all.
            name: empty for all.
            labels: label selector, e.g. `app=web,tier in (a,b),!canary`.
            fields: field selector, `path=value` or `path!=value`, comma-joined.
            limit: at most this many objects in all; 0 for no limit.
            fresh_as_of: what the answer has to contain.
            fresh_within: seconds to wait for it.
            timeout: seconds.

        Raises:
            UnknownResourceType: no member serves a type.
            UnknownCluster: a glob without glob characters names no member.
            InvalidInput: a selector does not parse, or a name is not allowed.
            NotFreshYet: what the answer has to contain is not there in time.
        """
        request = inventory_pb2.ListRequest(
            selection=selection(
                resources, clusters=clusters, namespace=namespace, name=name, labels=labels, fields=fields
            ),
            limit=limit,
            fresh_as_of=fresh_as_of_messages(fresh_as_of),
            fresh_within_ms=_milliseconds(fresh_within),
        )
        items: list[InventoryObject] = []
        summary = None
        async with aclosing(self._pages(request, timeout)) as pages:
            async for page in pages:
                items.extend(page.objects)
                summary = page.summary
        assert summary is not None  # else `_pages` has raised
        return ListResult(
            items=tuple(items),
            revision=summary.revision,
            cursor=summary.cursor,
            clusters=summary.clusters,
            complete=summary.complete,
            total=summary.total,
        )

    def pages(
        self,
        resources: str | Iterable[str],
        *,
        clusters: str | Iterable[str] = (),
        namespace: str = "",
        name: str = "",
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        fresh_as_of: FreshAsOf | Iterable[FreshAsOf] = (),
        fresh_within: float = 0,
        timeout: float | None = None,
    ) -> AsyncGenerator[ListPage, None]:
        """Reads what `list` reads, page by page; the last page carries the summary.

        Leave the iteration early through `contextlib.aclosing`, which cancels the call at once.
        """
        request = inventory_pb2.ListRequest(
            selection=selection(
                resources, clusters=clusters, namespace=namespace, name=name, labels=labels, fields=fields
            ),
            limit=limit,
            fresh_as_of=fresh_as_of_messages(fresh_as_of),
            fresh_within_ms=_milliseconds(fresh_within),
        )
        return self._pages(request, timeout)

    async def watch(
        self,
        resources: str | Iterable[str],
        *,
        clusters: str | Iterable[str] = (),
        namespace: str = "",
        name: str = "",
        labels: str = "",
        fields: str = "",
        cursor: bytes | None = None,
        bookmark_interval: float = 0,
        with_previous: bool = False,
        fresh_as_of: FreshAsOf | Iterable[FreshAsOf] = (),
        fresh_within: float = 0,
        resume: bool = True,
        on_disconnect: DisconnectHandler | None = None,
        timeout: float | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Follows everything selected, in the federation's one order, until cancelled.

        Each event that has a cursor may be stored and given again later, also to another process. A lost connection
        is mended without loss or repeat; where even the first attempt of a client fails, that is raised.

        Leave the iteration early through `contextlib.aclosing`, which cancels the call at once.

        Args:
            resources: types, and so on as in `list`.
            clusters: globs.
            namespace: empty for all.
            name: empty for all.
            labels: label selector.
            fields: field selector.
            cursor: where to continue; None starts with the present state as ADDED events, closed by INITIAL_END.
            bookmark_interval: seconds between BOOKMARK events; 0 leaves it to the aggregator.
            with_previous: events carry the object's state before the change.
            fresh_as_of: what the beginning has to contain; a later connection of this watch does not ask again.
            fresh_within: seconds to wait for it.
            resume: reconnect when the connection is lost.
            on_disconnect: told of each lost connection, with the seconds until the next attempt.
            timeout: seconds after which the watch ends by itself, without an error.

        Raises:
            CursorExpired: the history after the cursor is compacted.
            CursorForeign: the cursor is of another ledger.
            CursorMalformed: not a cursor.
            NotFreshYet: what the beginning has to contain is not there in time.
            FederatorError: others as `list` raises them.
        """
        request = inventory_pb2.WatchRequest(
            selection=selection(
                resources, clusters=clusters, namespace=namespace, name=name, labels=labels, fields=fields
            ),
            cursor=cursor or b"",
            bookmark_interval_ms=_milliseconds(bookmark_interval),
            with_previous=with_previous,
            fresh_as_of=fresh_as_of_messages(fresh_as_of),
            fresh_within_ms=_milliseconds(fresh_within),
        )
        stream = WatchStream(self._connection, request, resume=resume, on_disconnect=on_disconnect)
        self._watches.add(stream)
        try:
            async with aclosing(stream.events(timeout)) as events:
                async for event in events:
                    yield event
        finally:
            self._watches.discard(stream)
            self._ended_resumes += stream.resumes

    async def clusters(self, clusters: str | Iterable[str] = (), *, timeout: float | None = None) -> ClustersResult:
        """The member clusters, their states and freshness.

        Args:
            clusters: globs; empty for all.
            timeout: seconds.

        Raises:
            UnknownCluster: a glob without glob characters names no member.
        """
        request = inventory_pb2.ListClustersRequest(clusters=comma_list(clusters))
        connection = self._connection
        async with connection.call(lambda stub: stub.ListClusters, request, timeout) as call:
            response = await call
        connection.reached = True
        return ClustersResult.from_message(response)

    async def resource_types(self, *, timeout: float | None = None) -> tuple[ServedType, ...]:
        """The merged discovery of all members, sorted by group and name."""
        connection = self._connection
        request = inventory_pb2.ListResourceTypesRequest()
        async with connection.call(lambda stub: stub.ListResourceTypes, request, timeout) as call:
            response = await call
        connection.reached = True
        return tuple(map(ServedType.from_message, response.types))

    async def _pages(self, request: inventory_pb2.ListRequest, timeout: float | None) -> AsyncGenerator[ListPage, None]:
        connection = self._connection
        whole = False
        async with connection.call(lambda stub: stub.List, request, timeout) as call:
            async for response in call:
                connection.reached = True
                page = ListPage.from_message(response)
                whole = page.summary is not None
                yield page
        if not whole:
            raise AggregatorUnreachable(self.address, "the list ended before its last page")


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
