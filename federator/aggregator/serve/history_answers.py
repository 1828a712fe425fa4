"""Answers of GetHistory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.scope import EVERYTHING, Scope
from federator.aggregator.query.budget import QueryLimits
from federator.aggregator.query.completeness import cluster_freshness
from federator.aggregator.query.gaps import Gap
from federator.aggregator.query.history import History, HistoryQuestion, Version
from federator.aggregator.query.listing import PAGE_BYTES
from federator.aggregator.query.patch import Patches
from federator.aggregator.query.pins import Pins
from federator.aggregator.serve.history_messages import WATCH_EVENT_TYPES, gap_to_proto
from federator.aggregator.serve.messages import budget_of, cluster_freshness_to_proto
from federator.aggregator.serve.one_object import key_with_history
from federator.v1 import inventory_pb2


class HistoryAnswers:
    """Tells every version of one object."""

    def __init__(self, view: MergedView, ledger: Ledger, pins: Pins, limits: QueryLimits, patches: Patches) -> None:
        """Answers from these.

        Args:
            view: the merged view, loaded.
            ledger: the history.
            pins: keep compaction away from what is read.
            limits: of one answer.
            patches: makes the patches; shared by all that make some.
        """
        self._view = view
        self._ledger = ledger
        self._pins = pins
        self._limits = limits
        self._patches = patches

    async def parts(
        self, request: inventory_pb2.GetHistoryRequest, scope: Scope = EVERYTHING
    ) -> AsyncGenerator[inventory_pb2.GetHistoryResponse, None]:
        """Yields the parts of an answer, at most about 1 MiB each; the last one has the summary.

        Raises:
            FederatorError: as inventory.proto says of GetHistory; what was yielded before is true.
        """
        budget = budget_of(self._limits, request.limits)
        key, selection = key_with_history(self._view, self._ledger, request, scope)
        question = HistoryQuestion(
            key, request.before_revision, request.since_ms, request.limit, with_objects=request.with_objects
        )
        with self._pins.hold(self._ledger.oldest_revision):
            history = History(question, self._ledger, self._view.types, self._patches, budget)
            part, size = inventory_pb2.GetHistoryResponse(), 0
            async with aclosing(history.entries()) as entries:
                async for entry in entries:
                    message = _entry_to_proto(entry)
                    if size and size + message.ByteSize() > PAGE_BYTES:
                        yield part
                        budget.resume()
                        part, size = inventory_pb2.GetHistoryResponse(), 0
                    size += message.ByteSize()
                    part.entries.append(message)
        member = self._ledger.clusters().get(key.cluster_id)
        fresh = cluster_freshness(self._view, member, key.cluster_id, selection)
        part.summary.CopyFrom(
            inventory_pb2.HistorySummary(
                revision=history.revision,
                oldest_revision=self._ledger.oldest_revision,
                freshness=cluster_freshness_to_proto(fresh),
                next_before_revision=history.next_before_revision,
            )
        )
        yield part


def _entry_to_proto(entry: Version | Gap) -> inventory_pb2.HistoryEntry:
    if isinstance(entry, Gap):
        return inventory_pb2.HistoryEntry(gap=gap_to_proto(entry))
    committed = entry.entry
    version = inventory_pb2.ObjectVersion(
        type=WATCH_EVENT_TYPES[committed.type],
        revision=committed.revision,
        previous_revision=committed.previous_revision,
        time_ms=committed.time_ms,
        uid=committed.uid,
        resource_version=committed.resource_version,
        patch=entry.patch,
    )
    if entry.state is not None:
        version.object.ParseFromString(entry.state.encoded)
    return inventory_pb2.HistoryEntry(version=version)
