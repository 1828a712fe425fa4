"""Aggregates: what the selected objects come to, by groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.cluster_labels import LabelledClusters
from federator.aggregator.merge.merged_indexer import MergedIndexer
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.query.aggregate_question import AggregateQuestion, PropertyKind
from federator.aggregator.query.budget import Budget
from federator.aggregator.query.grouping import MAX_GROUPS, group
from federator.aggregator.query.measures import Measured, counted, measure, measure_times
from federator.aggregator.query.reading import Need, Reading, is_of_times, need_of
from federator.aggregator.query.snapshot import Snapshot
from federator.aggregator.query.values import sort_key
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource
from federator.errors import QueryTooCostly

MAX_PARTITIONS = 4096
"""Types in clusters that are counted one by one: 1 µs each. Of more, the rows are counted."""


class Group(NamedTuple):
    """One group.

    Attributes:
        keys: its values, one for each property it was grouped by; None where its objects have none.
        measures: what came out, in the order of the measures.
    """

    keys: tuple[str | None, ...]
    measures: tuple[Measured, ...]


class Aggregate(NamedTuple):
    """An answer.

    Attributes:
        groups: in their order.
        total_groups: how many there are, of which `groups` may be the first.
        total: objects that are selected.
        left_out: clusters and types of which objects are missing, because the ledger's record of them is damaged.
    """

    groups: list[Group]
    total_groups: int
    total: int
    left_out: frozenset[tuple[ClusterID, GroupResource]] = frozenset()


async def aggregate(
    question: AggregateQuestion, snapshot: Snapshot, view: MergedView, ledger: Ledger, budget: Budget
) -> Aggregate:
    """Answers a question.

    What the indexes know of present objects comes out of them in the step of the call; whatever else is asked for is
    read from the objects of the snapshot, one by one.

    Args:
        question: what is asked for.
        snapshot: the selected objects, taken in the step of this call. Its revision is to be pinned until the answer
            is there.
        view: the merged view.
        ledger: has the objects.
        budget: pays for it.

    Raises:
        QueryTooCostly: it takes more than it may, or there are more than `MAX_GROUPS` groups.
        RevisionExpired: nobody has pinned the revision.
    """
    labelled = view.cluster_labels.at(snapshot.revision) or view.cluster_labels.now
    if not snapshot.unanswered and all(each.of is None for each in question.measures):
        counts = _counted_by_partition(question, snapshot, view.indexer, labelled)
        if counts is not None:
            total = len(snapshot.rows) + len(snapshot.past)
            measured = counted(np.array(list(counts.values()), np.int64))
            return await _answer(question, list(counts), [measured] * len(question.measures), total, budget)
    reading = Reading(question, snapshot, view, labelled, budget)
    await reading.finish(ledger, snapshot.revision)
    positions = reading.positions()
    grouping = await group([reading.column(Need(each)) for each in question.group_by], positions, budget)
    measures = []
    for each in question.measures:
        if reading.seconds is not None and is_of_times(each):
            measures.append(await measure_times(each.function, reading.seconds, grouping, budget))
        else:
            column = reading.column(need_of(each, each.of)) if each.of else None
            measures.append(await measure(each.function, column, grouping, budget))
    texts = [reading.column(Need(each)).texts for each in question.group_by]
    keys = [
        tuple([text[code] if code else None for text, code in zip(texts, codes, strict=True)])
        for codes in grouping.codes.tolist()
    ]
    answer = await _answer(question, keys, measures, len(positions), budget)
    return answer._replace(left_out=reading.left_out())


# ------------------------------------------------------------------------------------------- counted by partition

_OF_PARTITIONS = {PropertyKind.CLUSTER, PropertyKind.TYPE, PropertyKind.CLUSTER_LABEL}

_Key = tuple[str | None, ...]


def _counted_by_partition(
    question: AggregateQuestion, snapshot: Snapshot, indexer: MergedIndexer, labelled: LabelledClusters
) -> Mapping[_Key, int] | None:
    """Counts objects by what all of one type in one cluster have in common; None where that does not do."""
    if not question.group_by:
        return {(): len(snapshot.rows) + len(snapshot.past)}
    if not {each.kind for each in question.group_by} <= _OF_PARTITIONS:
        return None
    is_asked = cache(question.selection.has_cluster)
    partitions = [
        (cluster_id, resource)
        for cluster_id, resource in indexer.objects()
        if resource in question.selection.resources and is_asked(cluster_id)
    ]
    if len(partitions) > MAX_PARTITIONS:
        return None
    counts: Counter[_Key] = Counter()
    for cluster_id, resource in partitions:
        number = snapshot.rows.intersection_cardinality(indexer.rows_in(cluster_id, resource))
        if number:
            counts[_partition_key(question, cluster_id, resource, labelled)] += number
    for state in snapshot.past:
        counts[_partition_key(question, state.key.cluster_id, state.key.group_resource, labelled)] += 1
    if len(counts) > MAX_GROUPS:
        raise QueryTooCostly("groups", MAX_GROUPS)
    return counts


def _partition_key(
    question: AggregateQuestion, cluster_id: ClusterID, resource: GroupResource, labelled: LabelledClusters
) -> _Key:
    key: list[str | None] = []
    for each in question.group_by:
        match each.kind:
            case PropertyKind.CLUSTER:
                key.append(cluster_id)
            case PropertyKind.TYPE:
                key.append(str(resource))
            case _:
                key.append(labelled.of(cluster_id).get(each.name))
    return tuple(key)


# -------------------------------------------------------------------------------------------------------- answering


async def _answer(
    question: AggregateQuestion,
    keys: Sequence[_Key],
    measures: Sequence[Sequence[Measured]],
    total: int,
    budget: Budget,
) -> Aggregate:
    """Puts the groups into their order, and leaves out those that are too many."""
    order = await _by_keys(keys, budget)
    if question.top:
        first = measures[0]
        with_value = [number for number in order if first[number].sort_key is not None]
        with_value.sort(key=lambda number: first[number].sort_key or _LEAST, reverse=True)  # keeps the order of equals
        order = [*with_value, *(number for number in order if first[number].sort_key is None)][: question.top]
    groups = [Group(keys[number], tuple([each[number] for each in measures])) for number in order]
    return Aggregate(groups, len(keys), total)


_LEAST = sort_key("")


async def _by_keys(keys: Sequence[_Key], budget: Budget) -> list[int]:
    """The numbers of keys, sorted as values are, what has none last; of equal values, such as 1 and 1.0, by text."""
    ranks: list[tuple[int, ...]] = [()] * len(keys)
    for place in range(len(keys[0]) if keys else 0):
        await budget.turn()
        texts = {key[place] for key in keys}
        known = sorted((text for text in texts if text is not None), key=lambda text: (sort_key(text), text))
        rank: dict[str | None, int] = {text: number for number, text in enumerate(known)}
        rank[None] = len(known)
        ranks = [(*before, rank[key[place]]) for before, key in zip(ranks, keys, strict=True)]
    await budget.turn()
    return sorted(range(len(keys)), key=ranks.__getitem__)
