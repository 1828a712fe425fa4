"""The inventory service: answers over all member clusters, as inventory.proto documents them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import grpc

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.field_indexes import named_quarantined
from federator.aggregator.merge.merged_indexer import ObjectReference
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.scope import EVERYTHING, Scope
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.budget import QueryLimits
from federator.aggregator.query.completeness import cluster_freshness, require_known_clusters
from federator.aggregator.query.field_index_keeper import FieldIndexKeeper
from federator.aggregator.query.object_state import ObjectState
from federator.aggregator.query.patch import Patches
from federator.aggregator.query.pins import Pins
from federator.aggregator.serve.aggregate_answers import AggregateAnswers
from federator.aggregator.serve.change_answers import ChangeAnswers
from federator.aggregator.serve.freshness_answers import FreshnessAnswers
from federator.aggregator.serve.freshness_gate import FreshnessGate
from federator.aggregator.serve.history_answers import HistoryAnswers
from federator.aggregator.serve.list_answers import ListAnswers
from federator.aggregator.serve.messages import (
    cluster_freshness_to_proto,
    cluster_to_proto,
    field_index_to_proto,
    selection_from_proto,
    served_type_to_proto,
)
from federator.aggregator.serve.one_object import selection_of_one
from federator.aggregator.serve.question import Question
from federator.aggregator.serve.watch import (
    DEFAULT_BOOKMARK_INTERVAL,
    MAX_BOOKMARK_INTERVAL,
    MIN_BOOKMARK_INTERVAL,
    Watch,
)
from federator.aggregator.serve.watch_hub import WatchHub
from federator.api.selector import ClusterSelector
from federator.errors import (
    AmbiguousName,
    CursorAhead,
    ObjectNotFound,
    SelectionChanged,
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
        self,
        view: MergedView,
        ledger: Ledger,
        hub: WatchHub,
        *,
        write_seconds: float = WRITE_SECONDS,
        limits: QueryLimits | None = None,
        field_indexes: FieldIndexKeeper | None = None,
        scope_of: Callable[[Context], Scope] = lambda _: EVERYTHING,
    ) -> None:
        """Serves from these, which the assembly moves forward with each commit.

        Args:
            view: the merged view, loaded.
            ledger: history and bodies.
            hub: recent commits.
            write_seconds: how long a client may take for one message of a stream.
            limits: what one answer may take.
            field_indexes: knows which of them the settings name; None where none do.
            scope_of: tells what whoever makes a call may see. Names of clusters and types, and how fresh they are, are
                told to everybody.
        """
        limits = limits or QueryLimits()
        self._view = view
        self._ledger = ledger
        self._hub = hub
        self._write_seconds = write_seconds
        self._field_indexes = field_indexes
        self._scope_of = scope_of
        self._pins = Pins()
        self._gate = FreshnessGate(view.freshness, view.types)
        self._freshness_answers = FreshnessAnswers(view, ledger)
        patches = Patches()
        self._lists = ListAnswers(view, ledger, self._pins, limits=limits, freshness=self._freshness_answers)
        self._aggregates = AggregateAnswers(view, ledger, self._pins, limits, self._freshness_answers)
        self._histories = HistoryAnswers(view, ledger, self._pins, limits, patches)
        self._changes = ChangeAnswers(view, ledger, self._pins, limits, patches, self._freshness_answers)

    @property
    def oldest_pinned_revision(self) -> int:
        """The revision that compaction must not pass: of the oldest list still read, and of the hub's ring."""
        return min(self._hub.floor, self._pins.oldest() or self._hub.floor)

    def statistics(self) -> Mapping[str, int]:
        """Answers by method and completeness, readers that pin a revision, and the hub's statistics."""
        return {
            "pinned_readers": self._pins.readers,
            **self._freshness_answers.statistics(),
            **self._lists.statistics(),
            **self._gate.statistics(),
            **self._hub.statistics(),
        }

    def close(self) -> None:
        """Lets go of what is kept for answers to come."""
        self._lists.close()

    @aio_error_boundary
    async def Get(self, request: inventory_pb2.GetRequest, context: Context) -> inventory_pb2.GetResponse:  # noqa: N802
        """Reads one object."""
        await self._wait_until_fresh(request)
        selection = selection_of_one(self._view, request)
        found = self._view.indexer.references(self._view.indexer.select(selection, self._scope_of(context)))
        (resource,) = selection.resources
        if not found:
            raise ObjectNotFound(
                str(resource), request.name, cluster_id=request.cluster_id, namespace=request.namespace
            )
        if len(found) > 1:
            raise AmbiguousName(str(resource), request.name, tuple(references.cluster_id for references in found))
        cluster_id = found[0].cluster_id
        (reference,) = found[0].objects
        fresh = cluster_freshness(self._view, self._ledger.clusters().get(cluster_id), cluster_id, selection)
        self._freshness_answers.count("get", is_complete=fresh.is_complete)
        return inventory_pb2.GetResponse(
            object=self._message(reference),
            revision=self._view.revision,
            freshness=cluster_freshness_to_proto(fresh),
        )

    @aio_writer_boundary
    async def List(self, request: inventory_pb2.ListRequest, context: Context) -> None:  # noqa: N802
        """Reads everything selected, present or past, whole or page by page."""
        await self._wait_until_fresh(request)
        async with aclosing(self._lists.answer(request, self._scope_of(context))) as parts:
            async for part in parts:
                await self._write(context, part)

    @aio_error_boundary
    async def Aggregate(  # type: ignore[override]  # noqa: N802 - encoded, see registration
        self, request: inventory_pb2.AggregateRequest, context: Context
    ) -> bytes:
        """Counts and sums up what is selected."""
        await self._wait_until_fresh(request)
        return await self._aggregates.answer(request, self._scope_of(context))

    @aio_writer_boundary
    async def GetHistory(self, request: inventory_pb2.GetHistoryRequest, context: Context) -> None:  # noqa: N802
        """Tells every version of one object."""
        async with aclosing(self._histories.parts(request, self._scope_of(context))) as parts:
            async for part in parts:
                if part.HasField("summary"):
                    is_complete = not part.summary.freshness.incomplete_types
                    self._freshness_answers.count("history", is_complete=is_complete)
                await self._write(context, part.SerializeToString())

    @aio_writer_boundary
    async def GetChanges(self, request: inventory_pb2.GetChangesRequest, context: Context) -> None:  # noqa: N802
        """Tells what became of everything selected."""
        selection = selection_from_proto(request.selection, self._view)
        async with aclosing(self._changes.parts(request, selection, self._scope_of(context))) as parts:
            async for part in parts:
                await self._write(context, part)

    @aio_writer_boundary
    async def Watch(self, request: inventory_pb2.WatchRequest, context: Context) -> None:  # noqa: N802
        """Streams what happens to everything selected."""
        selection = selection_from_proto(request.selection, self._view)
        require_known_clusters(self._view, selection)
        after = self._position(request.cursor)
        await self._wait_until_fresh(request)
        selection = self._as_of(selection, self._view.revision if after is None else after)
        seconds = request.bookmark_interval_ms / 1000 or DEFAULT_BOOKMARK_INTERVAL
        watch = Watch(
            self._hub,
            self._view,
            self._ledger,
            self._pins,
            Question(selection, request.with_previous, self._scope_of(context)),
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
        objects = self._view.indexer.count(self._scope_of(context).rows(self._view.indexer))
        return inventory_pb2.ListClustersResponse(
            clusters=[
                cluster_to_proto(records[cluster_id], table.of(cluster_id), objects.get(cluster_id, 0))
                for cluster_id in asked
            ],
            revision=self._view.revision,
        )

    @aio_error_boundary
    async def ListResourceTypes(  # noqa: N802
        self, request: inventory_pb2.ListResourceTypesRequest, context: Context
    ) -> inventory_pb2.ListResourceTypesResponse:
        """Tells which types are served, and where."""
        return inventory_pb2.ListResourceTypesResponse(types=map(served_type_to_proto, self._view.types.served()))

    @aio_error_boundary
    async def ListFieldIndexes(  # noqa: N802
        self, request: inventory_pb2.ListFieldIndexesRequest, context: Context
    ) -> inventory_pb2.ListFieldIndexesResponse:
        """Tells which fields are indexed."""
        indexer = self._view.indexer
        return inventory_pb2.ListFieldIndexesResponse(
            indexes=[
                field_index_to_proto(
                    index,
                    named_quarantined(index, indexer.key),
                    is_from_settings=self._field_indexes is not None and self._field_indexes.is_from_settings(index),
                )
                for index in indexer.fields
            ]
        )

    def _message(self, reference: ObjectReference) -> inventory_pb2.InventoryObject:
        entry = self._ledger.entry(reference.revision)
        assert entry is not None, "the newest state of a present object is never compacted"
        return ObjectState(entry, self._ledger.bodies, self._view.types).message

    def _as_of(self, selection: Selection, revision: int) -> Selection:
        known = selection.as_of(self._view.cluster_labels, revision)
        if known is None:
            changed = self._view.cluster_labels.changed_since(revision, selection.clusters)
            raise SelectionChanged(b"", changed or "", is_selected=False)
        return known

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
        self,
        request: inventory_pb2.GetRequest
        | inventory_pb2.ListRequest
        | inventory_pb2.AggregateRequest
        | inventory_pb2.WatchRequest,
    ) -> None:
        conditions = self._gate.conditions(request.fresh_as_of)
        await self._gate.wait(conditions, request.fresh_within_ms)
        if conditions:
            self._freshness_answers.forget()

    async def _write(self, context: Context, message: bytes, cursor: bytes = b"") -> None:
        """Sends a message, or gives up on a client that does not take it."""
        try:
            async with asyncio.timeout(self._write_seconds):
                await context.write(message)
        except TimeoutError:
            raise WatchTooSlow(cursor, self._write_seconds) from None
