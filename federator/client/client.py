"""The client of the aggregator's InventoryService."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime
from types import TracebackType
from typing import Self

from federator.api.selector import LabelSelector
from federator.client.aggregate import AggregateResult, Measure, ask_aggregate, measure_messages
from federator.client.changes import ChangesResult, ask_changes
from federator.client.connection import Connection
from federator.client.event import Event
from federator.client.field_index import FieldIndex
from federator.client.fresh_as_of import FreshAsOf, fresh_as_of_messages
from federator.client.history import HistoryResult, ask_history
from federator.client.limits import Limits
from federator.client.moment import Moment, moment_fields
from federator.client.object import InventoryObject
from federator.client.page_walk import list_stream, walk_pages
from federator.client.result import ClustersResult, GetResult, ListPage, ListResult, ServedType
from federator.client.selection import cluster_globs, comma_list, selection
from federator.client.watch import DisconnectHandler, WatchStream
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
        cluster_labels: str = "",
        namespace: str = "",
        name: str = "",
        labels: str = "",
        fields: str = "",
        uid: str = "",
        owner_uid: str = "",
        limit: int = 0,
        order_by: str = "",
        at: Moment | None = None,
        page_size: int = 0,
        page_token: bytes = b"",
        read_mask: str | Iterable[str] = (),
        count_only: bool = False,
        limits: Limits | None = None,
        fresh_as_of: FreshAsOf | Iterable[FreshAsOf] = (),
        fresh_within: float = 0,
        timeout: float | None = None,
    ) -> ListResult:
        """Reads everything selected, or one page of it, at one revision; `pages` reads all without holding it.

        Args:
            resources: types.
            clusters: globs; empty for all.
            cluster_labels: label selector on the clusters' own labels, e.g. `env=prod`; empty for all.
            namespace: empty for all.
            name: empty for all.
            labels: label selector, e.g. `app=web,tier in (a,b),!canary`.
            fields: field selector, `path=value` or `path!=value`, comma-joined.
            uid: metadata.uid; empty for all.
            owner_uid: UID of an owner that the objects name; empty for all.
            limit: at most this many objects in all; 0 for no limit.
            order_by: comma-separated terms: name, namespace, cluster, type, age, created, or the path of a field index;
                " desc" behind one turns it round. Empty for type, cluster, namespace, name.
            at: when, as long as history reaches; None for the present.
            page_size: at most this many objects, and the result names the next page; 0 for everything. At most 10,000.
            page_token: which page, as the result before named it; the rest of the call has to be the same.
            read_mask: dotted paths of the fields that bodies are to have; empty for the whole.
            count_only: whether only the number and freshness are wanted.
            limits: what the answer may cost; None for the aggregator's own bounds.
            fresh_as_of: what the answer has to contain.
            fresh_within: seconds to wait for it.
            timeout: seconds.

        Raises:
            UnknownResourceType: no member serves a type.
            UnknownCluster: a glob without glob characters names no member.
            InvalidInput: a selector, term or path does not parse, or a name, moment or token is not allowed.
            RevisionExpired: history does not reach back to the moment any more, or (PageTokenExpired) to the revision
                of the pages.
            QueryTooCostly: the answer would take more than the limits.
            NotFreshYet: what the answer has to contain is not there in time.
        """
        request = inventory_pb2.ListRequest(
            selection=selection(
                resources,
                clusters=clusters,
                cluster_labels=cluster_labels,
                namespace=namespace,
                name=name,
                labels=labels,
                fields=fields,
                uid=uid,
                owner_uid=owner_uid,
            ),
            limit=limit,
            order_by=order_by,
            page_size=page_size,
            page_token=page_token,
            read_mask=comma_list(read_mask),
            count_only=count_only,
            limits=limits.message() if limits else None,
            fresh_as_of=fresh_as_of_messages(fresh_as_of),
            fresh_within_ms=_milliseconds(fresh_within),
            **moment_fields("at", at),
        )
        items: list[InventoryObject] = []
        summary = None
        async with aclosing(list_stream(self._connection, request, timeout)) as parts:
            async for part in parts:
                items.extend(part.objects)
                summary = part.summary
        assert summary is not None  # else `list_stream` has raised
        return ListResult(
            items=tuple(items),
            revision=summary.revision,
            cursor=summary.cursor,
            clusters=summary.clusters,
            complete=summary.complete,
            total=summary.total,
            next_page_token=summary.next_page_token,
            scan=summary.scan,
        )

    def pages(
        self,
        resources: str | Iterable[str],
        *,
        clusters: str | Iterable[str] = (),
        cluster_labels: str = "",
        namespace: str = "",
        name: str = "",
        labels: str = "",
        fields: str = "",
        uid: str = "",
        owner_uid: str = "",
        limit: int = 0,
        order_by: str = "",
        at: Moment | None = None,
        page_size: int = 0,
        page_token: bytes = b"",
        read_mask: str | Iterable[str] = (),
        limits: Limits | None = None,
        fresh_as_of: FreshAsOf | Iterable[FreshAsOf] = (),
        fresh_within: float = 0,
        timeout: float | None = None,
    ) -> AsyncGenerator[ListPage, None]:
        """Reads what `list` reads, bit by bit; arguments and errors as there.

        Without a page size it is one call, yielded in the parts it comes in, of which the last carries the summary.
        With one it is a call for each page, from the token's on; each page carries its own summary, and the walk
        outlives a lost connection, also to an aggregator that was started again. `timeout` is for all of it.

        Leave the iteration early through `contextlib.aclosing`, which cancels the call at once.
        """
        request = inventory_pb2.ListRequest(
            selection=selection(
                resources,
                clusters=clusters,
                cluster_labels=cluster_labels,
                namespace=namespace,
                name=name,
                labels=labels,
                fields=fields,
                uid=uid,
                owner_uid=owner_uid,
            ),
            limit=limit,
            order_by=order_by,
            page_size=page_size,
            page_token=page_token,
            read_mask=comma_list(read_mask),
            limits=limits.message() if limits else None,
            fresh_as_of=fresh_as_of_messages(fresh_as_of),
            fresh_within_ms=_milliseconds(fresh_within),
            **moment_fields("at", at),
        )
        return (walk_pages if page_size else list_stream)(self._connection, request, timeout)

    async def aggregate(
        self,
        resources: str | Iterable[str],
        *,
        group_by: Iterable[str] = (),
        measures: Measure | Iterable[Measure] = (),
        top: int = 0,
        clusters: str | Iterable[str] = (),
        cluster_labels: str = "",
        namespace: str = "",
        name: str = "",
        labels: str = "",
        fields: str = "",
        uid: str = "",
        owner_uid: str = "",
        at: Moment | None = None,
        limits: Limits | None = None,
        fresh_as_of: FreshAsOf | Iterable[FreshAsOf] = (),
        fresh_within: float = 0,
        timeout: float | None = None,
    ) -> AggregateResult:
        """Counts and sums up what is selected, by groups.

        Args:
            resources: types, and so on as in `list`.
            group_by: each one of cluster, namespace, type, node, owner_kind, `label:KEY`, `cluster_label:KEY`, or the
                dotted path of a field that begins with "."; at most 8. Empty for one group of everything. An object
                that has several values is in several groups.
            measures: what to compute of each group, at most 16; empty for the number of objects.
            top: only so many groups, those with the largest first measure; 0 for all, sorted by their keys.
            clusters: globs.
            cluster_labels: label selector on the clusters' own labels.
            namespace: empty for all.
            name: empty for all.
            labels: label selector.
            fields: field selector.
            uid: metadata.uid.
            owner_uid: UID of an owner.
            at: when, as long as history reaches; None for the present.
            limits: what the answer may cost; None for the aggregator's own bounds.
            fresh_as_of: what the answer has to contain.
            fresh_within: seconds to wait for it.
            timeout: seconds.

        Raises:
            InvalidInput: a term or path does not parse, or there are too many.
            QueryTooCostly: there are more than 10,000 groups, or the answer would take more than the limits.
            FederatorError: others as `list` raises them.
        """
        request = inventory_pb2.AggregateRequest(
            selection=selection(
                resources,
                clusters=clusters,
                cluster_labels=cluster_labels,
                namespace=namespace,
                name=name,
                labels=labels,
                fields=fields,
                uid=uid,
                owner_uid=owner_uid,
            ),
            group_by=group_by,
            measures=measure_messages(measures),
            top=top,
            limits=limits.message() if limits else None,
            fresh_as_of=fresh_as_of_messages(fresh_as_of),
            fresh_within_ms=_milliseconds(fresh_within),
            **moment_fields("at", at),
        )
        return await ask_aggregate(self._connection, request, timeout)

    async def count(
        self,
        resources: str | Iterable[str],
        *,
        clusters: str | Iterable[str] = (),
        cluster_labels: str = "",
        namespace: str = "",
        name: str = "",
        labels: str = "",
        fields: str = "",
        uid: str = "",
        owner_uid: str = "",
        at: Moment | None = None,
        timeout: float | None = None,
    ) -> AggregateResult:
        """Counts what is selected: `total` of the result. Arguments and errors as in `aggregate`."""
        return await self.aggregate(
            resources,
            clusters=clusters,
            cluster_labels=cluster_labels,
            namespace=namespace,
            name=name,
            labels=labels,
            fields=fields,
            uid=uid,
            owner_uid=owner_uid,
            at=at,
            timeout=timeout,
        )

    async def watch(
        self,
        resources: str | Iterable[str],
        *,
        clusters: str | Iterable[str] = (),
        cluster_labels: str = "",
        namespace: str = "",
        name: str = "",
        labels: str = "",
        fields: str = "",
        uid: str = "",
        owner_uid: str = "",
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
            cluster_labels: label selector on the clusters' own labels.
            namespace: empty for all.
            name: empty for all.
            labels: label selector.
            fields: field selector.
            uid: metadata.uid; empty for all.
            owner_uid: UID of an owner that the objects name; empty for all.
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
            SelectionChanged: a cluster's labels have changed, and with them what is selected. A watch that began with
                the present state starts over by itself, which RELISTED says; one that began at a cursor ends with this,
                since only the caller knows what it holds. The error's cursor continues it.
            NotFreshYet: what the beginning has to contain is not there in time.
            FederatorError: others as `list` raises them.
        """
        request = inventory_pb2.WatchRequest(
            selection=selection(
                resources,
                clusters=clusters,
                cluster_labels=cluster_labels,
                namespace=namespace,
                name=name,
                labels=labels,
                fields=fields,
                uid=uid,
                owner_uid=owner_uid,
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

    async def clusters(
        self, clusters: str | Iterable[str] = (), *, labels: str = "", timeout: float | None = None
    ) -> ClustersResult:
        """The member clusters, their labels, states and freshness.

        Args:
            clusters: globs; empty for all.
            labels: label selector on the clusters' own labels; empty for all. It is evaluated here.
            timeout: seconds.

        Raises:
            UnknownCluster: a glob without glob characters names no member.
            MalformedSelector: the label selector does not parse.
        """
        selector = LabelSelector.parse(labels, field="labels")
        request = inventory_pb2.ListClustersRequest(clusters=cluster_globs(clusters))
        connection = self._connection
        async with connection.call(lambda stub: stub.ListClusters, request, timeout) as call:
            response = await call
        connection.reached = True
        result = ClustersResult.from_message(response)
        selected = tuple(cluster for cluster in result.clusters if selector.matches(cluster.labels))
        return ClustersResult(selected, result.revision)

    async def resource_types(self, *, timeout: float | None = None) -> tuple[ServedType, ...]:
        """The merged discovery of all members, sorted by group and name."""
        connection = self._connection
        request = inventory_pb2.ListResourceTypesRequest()
        async with connection.call(lambda stub: stub.ListResourceTypes, request, timeout) as call:
            response = await call
        connection.reached = True
        return tuple(map(ServedType.from_message, response.types))

    async def field_indexes(self, *, timeout: float | None = None) -> tuple[FieldIndex, ...]:
        """The fields that are indexed besides those that always are, sorted by path."""
        connection = self._connection
        request = inventory_pb2.ListFieldIndexesRequest()
        async with connection.call(lambda stub: stub.ListFieldIndexes, request, timeout) as call:
            response = await call
        connection.reached = True
        return tuple(map(FieldIndex.from_message, response.indexes))

    async def history(
        self,
        resource: str,
        name: str,
        *,
        namespace: str = "",
        cluster: str = "",
        before_revision: int = 0,
        since: datetime | None = None,
        limit: int = 0,
        with_objects: bool = False,
        limits: Limits | None = None,
        timeout: float | None = None,
    ) -> HistoryResult:
        """Reads every version of one object, newest first, as far back as history reaches, and the gaps between them.

        The object need not be present. Where it was deleted and created again, both are one history.

        Args:
            resource: its type, as kubectl takes it.
            name: its name.
            namespace: its namespace; empty for cluster-scoped types.
            cluster: its ClusterID; may be empty where only one cluster has the name, or, if none has, had it.
            before_revision: only versions before it, as the result before names it; 0 for all.
            since: only versions since this time, with its offset; None for all.
            limit: at most so many versions; 0 for 100, at most 1,000.
            with_objects: whether each version carries the object as it was.
            limits: what the answer may cost; None for the aggregator's own bounds.
            timeout: seconds.

        Raises:
            ObjectNotFound: history knows no such object.
            AmbiguousName: several clusters have the name and none was given.
            UnknownCluster: no such member.
            UnknownResourceType: no member serves the type.
            InvalidInput: a value is not allowed.
            RevisionExpired: history does not reach back to `before_revision` any more.
            QueryTooCostly: the answer would take more than the limits.
        """
        request = inventory_pb2.GetHistoryRequest(
            cluster_id=cluster,
            resource=resource,
            namespace=namespace,
            name=name,
            before_revision=before_revision,
            since_ms=moment_fields("since", since).get("since_time_ms", 0),
            limit=limit,
            with_objects=with_objects,
            limits=limits.message() if limits else None,
        )
        return await ask_history(self._connection, request, timeout)

    async def changes(
        self,
        resources: str | Iterable[str],
        *,
        after: Moment,
        until: Moment | None = None,
        clusters: str | Iterable[str] = (),
        cluster_labels: str = "",
        namespace: str = "",
        name: str = "",
        labels: str = "",
        fields: str = "",
        with_transient: bool = False,
        with_patches: bool = False,
        limit: int = 0,
        limits: Limits | None = None,
        timeout: float | None = None,
    ) -> ChangesResult:
        """Reads what became of everything selected between two moments: one change for each object.

        What is selected is decided by an object's state at both ends.

        Args:
            resources: types, and so on as in `list`.
            after: the beginning, which is not part of it; as long as history reaches.
            until: the end, which is; None for now.
            clusters: globs.
            cluster_labels: label selector on the clusters' own labels.
            namespace: empty for all.
            name: empty for all.
            labels: label selector.
            fields: field selector.
            with_transient: whether objects that came and went in between are told, too.
            with_patches: whether changes carry what differs.
            limit: at most this many changes in all; 0 for no limit.
            limits: what the answer may cost; None for the aggregator's own bounds.
            timeout: seconds.

        Raises:
            RevisionExpired: history does not reach back to `after`.
            InvalidInput: a moment is yet to come, or the beginning after the end.
            FederatorError: others as `list` raises them.
        """
        request = inventory_pb2.GetChangesRequest(
            selection=selection(
                resources,
                clusters=clusters,
                cluster_labels=cluster_labels,
                namespace=namespace,
                name=name,
                labels=labels,
                fields=fields,
            ),
            with_transient=with_transient,
            with_patches=with_patches,
            limit=limit,
            limits=limits.message() if limits else None,
            **moment_fields("after", after),
            **moment_fields("until", until),
        )
        return await ask_changes(self._connection, request, timeout)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
