"""The inventory service: answers over all member clusters, as inventory.proto documents them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import grpc

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_indexer import ObjectReference, sorted_references
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.completeness import asked_freshness, cluster_freshness
from federator.aggregator.query.encoding import OBJECTS
from federator.aggregator.query.object_state import ObjectState
from federator.aggregator.query.pins import Pins
from federator.aggregator.serve.freshness_answers import FreshnessAnswers
from federator.aggregator.serve.freshness_gate import FreshnessGate
from federator.aggregator.serve.listing import Listing
from federator.aggregator.serve.messages import (
    checked_name,
    cluster_freshness_to_proto,
    cluster_to_proto,
    selection_from_proto,
    served_type_to_proto,
)
from federator.aggregator.serve.question import Question
from federator.aggregator.serve.watch import (
    DEFAULT_BOOKMARK_INTERVAL,
    MAX_BOOKMARK_INTERVAL,
    MIN_BOOKMARK_INTERVAL,
    Watch,
)
from federator.aggregator.serve.watch_hub import WatchHub
from federator.api.cluster import ClusterID, parse_cluster_id
from federator.api.selector import ClusterSelector
from federator.errors import (
    AmbiguousName,
    CursorAhead,
    InvalidInput,
    ObjectNotFound,
    UnknownCluster,
    WatchTooSlow,
)
from federator.v1 import inventory_pb2, inventory_pb2_grpc
from federator.wire.status import aio_error_boundary, aio_writer_boundary

WRITE_SECONDS = 30.0
"""How long a client may take for one message of a stream: twenty times what 1 MiB takes on a 6 Mbit/s line."""

Context = grpc.aio.ServicerContext[Any, Any]


class InventoryServicer(inventory_pb2_grpc.InventoryServiceServicer):
    """Reads the merged view and the ledger's history; changes nothing.

    Every answer is exact at one revision, which it names, and says how fresh its clusters were in that step. A stream
    holds a message or two at a time; a client that does not take one within the deadline is told WATCH_TOO_SLOW with
    its last cursor.
    """

    def __init__(
        self, view: MergedView, ledger: Ledger, hub: WatchHub, *, write_seconds: float = WRITE_SECONDS
    ) -> None:
        """Serves from these, which the assembly moves forward with each commit.

        Args:
            view: the merged view, loaded.
            ledger: history and bodies.
            hub: recent commits.
            write_seconds: how long a client may take for one message of a stream.
        """
        self._view = view
        self._ledger = ledger
        self._hub = hub
        self._write_seconds = write_seconds
        self._pins = Pins()
        self._gate = FreshnessGate(view.freshness, view.types)
        self._freshness_answers = FreshnessAnswers(view, ledger)
        self._answers: Counter[str] = Counter()

    @property
    def oldest_pinned_revision(self) -> int:
        """The revision that compaction must not pass: of the oldest list still read, and of the hub's ring."""
        return min(self._hub.floor, self._pins.oldest() or self._hub.floor)

    def statistics(self) -> Mapping[str, int]:
        """Answers by method and completeness, readers that pin a revision, and the hub's statistics."""
        return {
            **{f"answers_{name}": number for name, number in self._answers.items()},
            "pinned_readers": self._pins.readers,
            **self._gate.statistics(),
            **self._hub.statistics(),
        }

    @aio_error_boundary
    async def Get(self, request: inventory_pb2.GetRequest, context: Context) -> inventory_pb2.GetResponse:  # noqa: N802
        """Reads one object."""
        await self._wait_until_fresh(request)
        selection = self._selection_of_one(request)
        found = self._view.indexer.references(self._view.indexer.select(selection))
        (resource,) = selection.resources
        if not found:
            raise ObjectNotFound(
                str(resource), request.name, cluster_id=request.cluster_id, namespace=request.namespace
            )
        if len(found) > 1:
            raise AmbiguousName(str(resource), request.name, tuple(references.cluster_id for references in found))
        cluster_id = found[0].cluster_id
        (reference,) = sorted_references(found[0])
        fresh = cluster_freshness(self._view, self._ledger.clusters().get(cluster_id), cluster_id, selection)
        self._count_answer("get", complete=fresh.is_complete)
        return inventory_pb2.GetResponse(
            object=self._message(reference),
            revision=self._view.revision,
            freshness=cluster_freshness_to_proto(fresh),
        )

    @aio_writer_boundary
    async def List(self, request: inventory_pb2.ListRequest, context: Context) -> None:  # noqa: N802
        """Reads everything selected."""
        await self._wait_until_fresh(request)
        selection = selection_from_proto(request.selection, self._view.types)
        fresh = asked_freshness(self._view, self._ledger.clusters(), selection)
        listing = Listing(self._view, self._ledger, selection, limit=request.limit)
        complete = all(cluster.is_complete for cluster in fresh)
        last = b""
        with self._pins.hold(listing.revision):
            async with aclosing(listing.pages()) as pages:
                async for page in pages:
                    if last:
                        await self._write(context, last)
                    last = OBJECTS.encode(page)
        if listing.left_out:
            fresh = asked_freshness(self._view, self._ledger.clusters(), selection)
            complete = False
        summary = inventory_pb2.ListSummary(
            revision=listing.revision,
            cursor=self._ledger.cursors.encode(listing.revision),
            total=listing.total,
            complete=complete,
            clusters=map(cluster_freshness_to_proto, fresh),
        )
        self._count_answer("list", complete=complete)
        await self._write(context, last + inventory_pb2.ListResponse(summary=summary).SerializeToString())

    @aio_writer_boundary
    async def Watch(self, request: inventory_pb2.WatchRequest, context: Context) -> None:  # noqa: N802
        """Streams what happens to everything selected."""
        selection = selection_from_proto(request.selection, self._view.types)
        asked_freshness(self._view, self._ledger.clusters(), selection)  # refuses unknown clusters
        after = self._position(request.cursor)
        await self._wait_until_fresh(request)
        seconds = request.bookmark_interval_ms / 1000 or DEFAULT_BOOKMARK_INTERVAL
        watch = Watch(
            self._hub,
            self._view,
            self._ledger,
            self._pins,
            Question(selection, request.with_previous),
            after=after,
            bookmark_interval=min(MAX_BOOKMARK_INTERVAL, max(MIN_BOOKMARK_INTERVAL, seconds)),
            freshness=lambda: self._freshness_answers.of(selection),
        )
        with self._hub.watching(watch):
            async with aclosing(watch.messages()) as messages:
                async for message in messages:
                    await self._write(context, message.encoded, watch.cursor)

    @aio_error_boundary
    async def ListClusters(  # noqa: N802
        self, request: inventory_pb2.ListClustersRequest, context: Context
    ) -> inventory_pb2.ListClustersResponse:
        """Tells every member's state and freshness."""
        table = self._view.freshness
        selector = ClusterSelector.parse(request.clusters, field="clusters")
        asked = selector.resolve(table.members(), table.former_members())
        records = self._ledger.clusters()
        objects: Counter[ClusterID] = Counter()
        for (cluster_id, _), number in self._view.indexer.objects().items():
            objects[cluster_id] += number
        return inventory_pb2.ListClustersResponse(
            clusters=[
                cluster_to_proto(records[cluster_id], table.of(cluster_id), objects[cluster_id]) for cluster_id in asked
            ],
            revision=self._view.revision,
        )

    @aio_error_boundary
    async def ListResourceTypes(  # noqa: N802
        self, request: inventory_pb2.ListResourceTypesRequest, context: Context
    ) -> inventory_pb2.ListResourceTypesResponse:
        """Tells which types are served, and where."""
        return inventory_pb2.ListResourceTypesResponse(types=map(served_type_to_proto, self._view.types.served()))

    def _selection_of_one(self, request: inventory_pb2.GetRequest) -> Selection:
        resources = self._view.types.resolve((request.resource,), field="resource")
        if len(resources) != 1:
            raise InvalidInput("resource", request.resource, "one resource type, neither a list nor a category")
        if not request.name:
            raise InvalidInput("name", request.name, "the name of one object")
        (resource,) = resources
        if not request.namespace and self._view.types.is_namespaced(resource):
            raise InvalidInput("namespace", "", f"a namespace, since {resource} live in namespaces")
        return Selection(
            resources,
            self._one_cluster(request.cluster_id) if request.cluster_id else ClusterSelector(),
            checked_name("namespace", request.namespace),
            checked_name("name", request.name),
        )

    def _one_cluster(self, given: str) -> ClusterSelector:
        cluster_id = parse_cluster_id(given)
        if self._view.freshness.state(cluster_id) is None:
            raise UnknownCluster(cluster_id, tuple(sorted(self._view.freshness.members())))
        return ClusterSelector((cluster_id,))

    def _message(self, reference: ObjectReference) -> inventory_pb2.InventoryObject:
        entry = self._ledger.entry(reference.revision)
        assert entry is not None, "the newest state of a present object is never compacted"
        return ObjectState(entry, self._ledger.bodies, self._view.types).message

    def _position(self, cursor: bytes) -> int | None:
        if not cursor:
            return None
        revision = self._ledger.cursors.decode(cursor)
        if revision > self._hub.revision:
            self._hub.flush()  # it may be of a list
        if revision > self._hub.revision:
            raise CursorAhead(revision, self._hub.revision)
        return revision

    async def _wait_until_fresh(
        self, request: inventory_pb2.GetRequest | inventory_pb2.ListRequest | inventory_pb2.WatchRequest
    ) -> None:
        conditions = self._gate.conditions(request.fresh_as_of)
        await self._gate.wait(conditions, request.fresh_within_ms)

    def _count_answer(self, method: str, *, complete: bool) -> None:
        self._answers[f"{method}_{'complete' if complete else 'partial'}"] += 1

    async def _write(self, context: Context, message: bytes, cursor: bytes = b"") -> None:
        """Sends a message, or gives up on a client that does not take it."""
        try:
            async with asyncio.timeout(self._write_seconds):
                await context.write(message)
        except TimeoutError:
            raise WatchTooSlow(cursor, self._write_seconds) from None
