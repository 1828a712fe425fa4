"""Answers of GetChanges."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.scope import EVERYTHING, Scope
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.budget import QueryLimits
from federator.aggregator.query.changes import Change, Changes, ChangesQuestion
from federator.aggregator.query.completeness import require_known_clusters
from federator.aggregator.query.encoding import EmbeddedField
from federator.aggregator.query.listing import PAGE_BYTES
from federator.aggregator.query.patch import Patches
from federator.aggregator.query.pins import Pins
from federator.aggregator.serve.freshness_answers import FreshnessAnswers
from federator.aggregator.serve.history_messages import WATCH_EVENT_TYPES, gap_to_proto
from federator.aggregator.serve.messages import asked_revision, budget_of
from federator.errors import InvalidInput
from federator.v1 import inventory_pb2

_CHANGES = EmbeddedField(inventory_pb2.GetChangesResponse, "changes")
_OBJECT = EmbeddedField(inventory_pb2.ObjectChange, "object")
_SUMMARY = EmbeddedField(inventory_pb2.GetChangesResponse, "summary")
_CLUSTERS = EmbeddedField(inventory_pb2.ChangesSummary, "clusters")


class ChangeAnswers:
    """Tells what became of everything selected between two revisions."""

    def __init__(
        self,
        view: MergedView,
        ledger: Ledger,
        pins: Pins,
        limits: QueryLimits,
        patches: Patches,
        freshness: FreshnessAnswers | None = None,
    ) -> None:
        """Answers from these; arguments as in `HistoryAnswers` and `ListAnswers`."""
        self._view = view
        self._ledger = ledger
        self._pins = pins
        self._limits = limits
        self._patches = patches
        self._freshness = freshness or FreshnessAnswers(view, ledger)

    async def parts(
        self, request: inventory_pb2.GetChangesRequest, selection: Selection, scope: Scope = EVERYTHING
    ) -> AsyncGenerator[bytes, None]:
        """Yields the parts of an answer, encoded GetChangesResponses of at most about 1 MiB; the last has the summary.

        Args:
            request: the request.
            selection: its selection.
            scope: what the asker may see.

        Raises:
            FederatorError: as inventory.proto says of GetChanges; what was yielded before is true.
        """
        budget = budget_of(self._limits, request.limits)
        require_known_clusters(self._view, selection)
        question = self._question(request, selection, scope)
        with self._pins.hold(question.after_revision):
            changes = Changes(question, self._ledger, self._view.types, self._patches, budget)
            part: list[bytes] = []
            size = 0
            async with aclosing(changes.changes()) as found:
                async for change in found:
                    encoded = _encode(change)
                    if part and size + len(encoded) > PAGE_BYTES:
                        yield _CHANGES.encode(part)
                        budget.resume()
                        part, size = [], 0
                    part.append(encoded)
                    size += len(encoded)
            fresh = self._freshness.asked(selection)
            gaps = await changes.gaps(tuple(cluster.cluster_id for cluster in fresh.clusters))
        summary = inventory_pb2.ChangesSummary(
            after_revision=question.after_revision,
            until_revision=question.until_revision,
            total=changes.total,
            complete=fresh.is_complete,
            gaps=[inventory_pb2.ClusterGap(cluster_id=cluster_id, gap=gap_to_proto(gap)) for cluster_id, gap in gaps],
            scan=inventory_pb2.Scan(objects=budget.scanned, history=True),
        )
        self._freshness.count("changes", is_complete=summary.complete)
        encoded = summary.SerializeToString() + _CLUSTERS.encode(fresh.messages)
        yield _CHANGES.encode(part) + _SUMMARY.encode([encoded])

    def _question(
        self, request: inventory_pb2.GetChangesRequest, selection: Selection, scope: Scope
    ) -> ChangesQuestion:
        if request.WhichOneof("after") is None:
            raise InvalidInput("after", "", "a revision or a time")
        return ChangesQuestion(
            selection,
            asked_revision(self._ledger, request, "after"),
            asked_revision(self._ledger, request, "until"),
            with_transient=request.with_transient,
            with_patches=request.with_patches,
            limit=request.limit,
            scope=scope,
        )


def _encode(change: Change) -> bytes:
    head = inventory_pb2.ObjectChange(
        type=WATCH_EVENT_TYPES[change.type],
        previous_revision=change.previous_revision,
        revision=change.newest.revision,
        time_ms=change.newest.time_ms,
        versions=change.versions,
        patch=change.patch,
    ).SerializeToString()
    body = change.state.encoded
    return b"".join((head, _OBJECT.prefix(len(body)), body))
