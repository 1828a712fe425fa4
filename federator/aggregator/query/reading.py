"""What an aggregate reads of the selected objects: out of the indexes what these have, and else out of the objects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.merge.axis import Axis, AxisKind, Column
from federator.aggregator.merge.cluster_labels import LabelledClusters
from federator.aggregator.merge.merged_indexer import MergedIndexer, row_numbers
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.selection import NODE_NAME
from federator.aggregator.query.aggregate_question import (
    CREATED,
    AggregateQuestion,
    Function,
    Measure,
    Property,
    PropertyKind,
)
from federator.aggregator.query.budget import Budget
from federator.aggregator.query.object_state import ObjectState
from federator.aggregator.query.snapshot import Snapshot
from federator.aggregator.query.value_column import ValueCoder, ValueColumn
from federator.api.cluster import ClusterID
from federator.api.field_path import format_field_path
from federator.api.resource import GroupResource
from federator.errors import LedgerCorrupt, RevisionExpired

SLICE = 64
"""Object states read between two looks at the clock."""


class Need(NamedTuple):
    """A property that is to be read.

    Attributes:
        of: which one.
        repeats: whether equal values of one object all count.
    """

    of: Property
    repeats: bool = False


_CLUSTER = Need(Property(PropertyKind.CLUSTER))
_TYPE = Need(Property(PropertyKind.TYPE))


def need_of(measure: Measure, of: Property) -> Need:
    """What a measure reads: only in a sum do equal values of one object all count."""
    return Need(of, measure.function is Function.SUM and of.is_repeated)


def is_of_times(measure: Measure) -> bool:
    """Whether the times at which objects were created, which every row has, are enough."""
    return measure.function in {Function.MIN, Function.MAX} and measure.of is not None and measure.of.path == CREATED


def needed(question: AggregateQuestion) -> list[Need]:
    """Everything that is read of the objects, each once."""
    by_measures = [need_of(each, each.of) for each in question.measures if each.of and not is_of_times(each)]
    return list(dict.fromkeys([*map(Need, question.group_by), *by_measures]))


class Reading:
    """Everything that is read of the objects of one answer.

    Made in the step in which the snapshot was taken: then it takes what the indexes have. `finish` reads the rest.

    Attributes:
        seconds: by position, when objects were created, 0 where that is not known; None where it is not asked for.
        damaged: positions of objects that could not be read.
    """

    def __init__(
        self,
        question: AggregateQuestion,
        snapshot: Snapshot,
        view: MergedView,
        labelled: LabelledClusters,
        budget: Budget,
    ) -> None:
        rows = row_numbers(snapshot.rows)
        self._view = view
        self._labelled = labelled
        self._budget = budget
        self._past = snapshot.past
        self._filter = snapshot.unanswered
        resources = question.selection.resources
        number = len(rows) + len(snapshot.past)
        budget.hold(rows.nbytes + number)
        columns = {need: _indexed(need, view.indexer, labelled, resources) for need in needed(question)}
        self._unknown = [need for need, column in columns.items() if column is None]
        is_read = bool(self._unknown or self._filter)
        if is_read:
            for need in (_CLUSTER, _TYPE):  # they say where something could not be read
                columns.setdefault(need, _indexed(need, view.indexer, labelled, resources))
        self._coders = {need: ValueCoder(budget, repeats=need.repeats) for need in columns}
        for need, column in columns.items():
            if column is not None:
                self._coders[need].take(column, rows)
        self._with_texts = {_CLUSTER, _TYPE, *map(Need, question.group_by)}
        self._with_texts.update(need_of(each, each.of) for each in question.measures if each.of and each.reads_texts)
        self._columns: dict[Need, ValueColumn] = {}
        self._revisions: Sequence[int] = ()
        if is_read:
            budget.hold(40 * len(rows))
            self._revisions = view.indexer.revisions(rows).tolist()
        self.seconds: NDArray[np.int64] | None = None
        if any(map(is_of_times, question.measures)):
            budget.hold(8 * number)
            created = [state.created for state in snapshot.past]
            self.seconds = np.concatenate([view.indexer.created(rows), np.array(created, np.int64)])
        self._is_selected = np.ones(number, np.bool_)
        self.damaged: list[int] = []

    async def finish(self, ledger: Ledger, revision: int) -> None:
        """Reads what the indexes do not have.

        Args:
            ledger: has the objects.
            revision: of the snapshot.

        Raises:
            QueryTooCostly: it takes more than it may.
            RevisionExpired: nobody has pinned the revision.
        """
        for need, coder in self._coders.items():
            await coder.settle(texts=bool(self._past) or need in self._with_texts)
        for position, (_, entry) in enumerate(ledger.entries(self._revisions)):
            if position % SLICE == 0:
                await self._budget.turn()
            self._budget.scan()
            state = self._state(ledger, entry, position, revision)
            if state is None or not self._filter.matches(state.field):
                self._is_selected[position] = False
                for need in self._unknown:
                    self._coders[need].add(())
            else:
                self._add(state, self._unknown)
        for number, state in enumerate(self._past):
            if number % SLICE == 0:
                await self._budget.turn()
            self._add(state, self._coders)
            state.settle()

    def column(self, need: Need) -> ValueColumn:
        """The values of a property."""
        column = self._columns.get(need)
        if column is None:
            column = self._columns[need] = self._coders[need].column()
        return column

    def positions(self) -> NDArray[Any]:
        """The objects that are selected and could be read."""
        positions = np.flatnonzero(self._is_selected)
        self._budget.hold(positions.nbytes)
        return positions

    def left_out(self) -> frozenset[tuple[ClusterID, GroupResource]]:
        """Of which clusters and types objects could not be read."""
        if not self.damaged:
            return frozenset()
        clusters, types = self.column(_CLUSTER), self.column(_TYPE)
        found = set()
        for position in self.damaged:
            resource, _, api_group = types.texts[types.codes[position]].partition(".")
            found.add((ClusterID(clusters.texts[clusters.codes[position]]), GroupResource(api_group, resource)))
        return frozenset(found)

    def _state(
        self, ledger: Ledger, entry: ObjectEntry | LedgerCorrupt | None, position: int, revision: int
    ) -> ObjectState | None:
        """What was read of a position; None where that is damaged."""
        if isinstance(entry, LedgerCorrupt):
            self.damaged.append(position)
            return None
        if entry is None:
            raise RevisionExpired(revision, ledger.oldest_revision)
        return ObjectState(entry, ledger.bodies, self._view.types)

    def _add(self, state: ObjectState, needs: Iterable[Need]) -> None:
        for need in needs:
            self._coders[need].add(_values(need.of, state, self._labelled))


def _indexed(
    need: Need, indexer: MergedIndexer, labelled: LabelledClusters, resources: Collection[GroupResource]
) -> Column | None:
    """What an index has of a property; None where none has all that is needed."""
    of = need.of
    match of.kind:
        case PropertyKind.CLUSTER_LABEL:
            codes, clusters, _ = indexer.column(Axis(AxisKind.CLUSTER))
            labels = [
                labelled.of(ClusterID(cluster_id)).get(of.name) if cluster_id else None for cluster_id in clusters
            ]
            by_cluster = np.array([0 if label is None else code for code, label in enumerate(labels)], np.uint32)
            return Column(by_cluster[codes], [label or "" for label in labels])
        case PropertyKind.NAME:
            return None
        case PropertyKind.LABEL:
            return indexer.column(Axis(AxisKind.LABEL, of.name))
        case PropertyKind.FIELD:
            # An index has each value of an object once.
            if need.repeats or indexer.fields.answers(of.path, resources) is None:
                return None
            return indexer.column(Axis(AxisKind.FIELD, format_field_path(of.path)))
        case _:
            return indexer.column(Axis(AxisKind(of.kind.value)))


def _values(of: Property, state: ObjectState, labelled: LabelledClusters) -> Sequence[str]:
    """The values of one object, read from its state as the indexes read them."""
    key = state.key
    match of.kind:
        case PropertyKind.CLUSTER:
            return (key.cluster_id,)
        case PropertyKind.TYPE:
            return (str(key.group_resource),)
        case PropertyKind.NAMESPACE:
            return (key.namespace,) if key.namespace else ()
        case PropertyKind.NAME:
            return (key.name,)
        case PropertyKind.NODE:
            node = state.field(NODE_NAME)
            return (node,) if isinstance(node, str) and node else ()
        case PropertyKind.OWNER_KIND:
            return (state.owner_kind,) if state.owner_kind else ()
        case PropertyKind.LABEL:
            return (state.labels[of.name],) if of.name in state.labels else ()
        case PropertyKind.CLUSTER_LABEL:
            label = labelled.of(key.cluster_id).get(of.name)
            return () if label is None else (label,)
        case PropertyKind.FIELD:
            return state.values(of.path)
