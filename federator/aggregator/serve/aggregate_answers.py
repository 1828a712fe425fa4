"""Answers to Aggregate: groups of objects, and how far they can be trusted."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.scope import EVERYTHING, Scope
from federator.aggregator.query.aggregate import Group, aggregate
from federator.aggregator.query.aggregate_question import (
    AggregateQuestion,
    Function,
    Measure,
    parse_group_by,
    parse_measures,
)
from federator.aggregator.query.budget import QueryLimits
from federator.aggregator.query.encoding import SUMMARY_CLUSTERS, EmbeddedField
from federator.aggregator.query.measures import Measured
from federator.aggregator.query.moment import selection_as_of
from federator.aggregator.query.pins import Pins
from federator.aggregator.query.snapshot import take_snapshot
from federator.aggregator.serve.freshness_answers import FreshnessAnswers
from federator.aggregator.serve.messages import asked_revision, budget_of, selection_from_proto
from federator.errors import InvalidInput
from federator.v1 import inventory_pb2

SLICE = 128
"""Groups written down between two looks at the clock: some 1 ms."""

_FUNCTIONS = {
    inventory_pb2.AggregateFunction.Value(f"AGGREGATE_FUNCTION_{function.name}"): function for function in Function
}


class AggregateAnswers:
    """Answers Aggregate from the merged view and the ledger's history; changes nothing."""

    def __init__(
        self,
        view: MergedView,
        ledger: Ledger,
        pins: Pins,
        limits: QueryLimits | None = None,
        freshness: FreshnessAnswers | None = None,
    ) -> None:
        """Answers from these.

        Args:
            view: the merged view, loaded.
            ledger: history and bodies.
            pins: keep what is read from being compacted.
            limits: what one answer may take, where its request does not lower it.
            freshness: what answers say of it; shared by all that say it.
        """
        self._view = view
        self._ledger = ledger
        self._pins = pins
        self._limits = limits or QueryLimits()
        self._freshness = freshness or FreshnessAnswers(view, ledger)

    async def answer(self, request: inventory_pb2.AggregateRequest, scope: Scope = EVERYTHING) -> bytes:
        """Returns the answer to one request, an encoded AggregateResponse; freshness was waited for.

        Args:
            request: what is asked for.
            scope: what the asker may see.

        Raises:
            InvalidInput: a field has a value that is not allowed; the error names it.
            UnknownResourceType: no member has ever named a type like one of these.
            UnknownCluster: a cluster is named that never was a member.
            RevisionExpired: history does not reach back to what is asked for.
            QueryTooCostly: the answer would take more than it may, or have more than 10,000 groups.
        """
        question = self._question(request)
        budget = budget_of(self._limits, request.limits)
        revision = asked_revision(self._ledger, request, "at")
        selection = selection_as_of(question.selection, self._view.cluster_labels, self._ledger, revision)
        question = msgspec.structs.replace(question, selection=selection)
        fresh = self._freshness.asked(selection)
        with self._pins.hold(revision):
            snapshot = await take_snapshot(self._view, self._ledger, selection, scope, revision, budget)
            found = await aggregate(question, snapshot, self._view, self._ledger, budget)
        if found.left_out:
            fresh = self._freshness.asked(selection)
        is_complete = not found.left_out and fresh.is_complete
        summary = inventory_pb2.ListSummary(revision=snapshot.revision, total=found.total, complete=is_complete)
        if budget.scanned or snapshot.scanned_history:
            summary.scan.objects = budget.scanned
            summary.scan.history = snapshot.scanned_history
        parts = []
        for start in range(0, len(found.groups), SLICE):
            await budget.turn()
            parts.append(_GROUPS.encode(map(_encode_group, found.groups[start : start + SLICE])))
        parts.append(inventory_pb2.AggregateResponse(total_groups=found.total_groups).SerializeToString())
        parts.append(_SUMMARY.encode([summary.SerializeToString() + SUMMARY_CLUSTERS.encode(fresh.messages)]))
        self._freshness.count("aggregate", is_complete=is_complete)
        return b"".join(parts)

    def _question(self, request: inventory_pb2.AggregateRequest) -> AggregateQuestion:
        return AggregateQuestion(
            selection_from_proto(request.selection, self._view),
            parse_group_by(request.group_by),
            _measures(request),
            request.top,
        )


def _measures(request: inventory_pb2.AggregateRequest) -> tuple[Measure, ...]:
    terms = []
    for message in request.measures:
        function = _FUNCTIONS.get(message.function)
        if function is None:
            raise InvalidInput("measures.function", message.function, ", ".join(_NAMES))
        terms.append((function, message.field))
    return parse_measures(terms)


_NAMES = [inventory_pb2.AggregateFunction.Name(number) for number in _FUNCTIONS]


def _encode_group(group: Group) -> bytes:
    return b"".join([*map(_encode_key, group.keys), *map(_encode_measured, group.measures)])


@lru_cache(maxsize=4096)  # the clusters and types of most groups are few
def _encode_key(key: str | None) -> bytes:
    return inventory_pb2.Group(keys=[inventory_pb2.GroupKey(value=key)]).SerializeToString()


@lru_cache(maxsize=1024)  # most numbers are small
def _encode_measured(measured: Measured) -> bytes:
    measure = inventory_pb2.MeasureValue(value=measured.value, number=measured.number, ignored=measured.ignored)
    return inventory_pb2.Group(measures=[measure]).SerializeToString()


_GROUPS = EmbeddedField(inventory_pb2.AggregateResponse, "groups")
_SUMMARY = EmbeddedField(inventory_pb2.AggregateResponse, "summary")
