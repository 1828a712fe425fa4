"""Completeness: whether an answer may lack something, and what."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from federator.aggregator.ledger.records import ClusterRecord
from federator.aggregator.merge.freshness import ClusterFreshness, TypeFreshness
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.selection import Selection
from federator.api.cluster import ClusterID, TypeState
from federator.api.selector import LabelSelector
from federator.errors import MalformedSelector


def require_known_clusters(view: MergedView, selection: Selection) -> None:
    """Checks that every cluster that is named was a member.

    Raises:
        UnknownCluster: one never was.
    """
    selection.resolve_clusters(view.freshness.members(), view.freshness.former_members())


def asked_freshness(
    view: MergedView, members: Mapping[ClusterID, ClusterRecord], selection: Selection
) -> tuple[ClusterFreshness, ...]:
    """Returns the freshness of every asked cluster, sorted by ID.

    An answer is complete where all of them are. Where an agent was told to collect only part of its cluster, and the
    question goes beyond that part, the type counts as NOT_COLLECTED.

    Args:
        view: the merged view.
        members: the ledger's records, which tell of each agent's narrowing.
        selection: the question.

    Raises:
        UnknownCluster: a cluster is named that never was a member.
    """
    clusters = selection.resolve_clusters(view.freshness.members(), view.freshness.former_members())
    return tuple(cluster_freshness(view, members.get(cluster_id), cluster_id, selection) for cluster_id in clusters)


def cluster_freshness(
    view: MergedView, member: ClusterRecord | None, cluster_id: ClusterID, selection: Selection
) -> ClusterFreshness:
    """Returns the freshness of one cluster for a question; arguments as in `asked_freshness`."""
    fresh = view.freshness.of(cluster_id, selection.resources)
    if member is None or not (member.namespace or member.label_selector):
        return fresh
    types = tuple(_narrowed(of_type, view, member, selection) for of_type in fresh.types)
    return msgspec.structs.replace(fresh, types=types)


def _narrowed(of_type: TypeFreshness, view: MergedView, member: ClusterRecord, selection: Selection) -> TypeFreshness:
    if not of_type.is_complete or of_type.state is TypeState.ABSENT:
        return of_type
    left_out = _beyond_narrowing(member, selection, is_namespaced=view.types.is_namespaced(of_type.group_resource))
    if not left_out:
        return of_type
    return msgspec.structs.replace(of_type, state=TypeState.NOT_COLLECTED, reason=left_out)


def _beyond_narrowing(member: ClusterRecord, selection: Selection, *, is_namespaced: bool) -> str:
    """Why the agent does not collect everything that is asked for, or ""."""
    if member.namespace and is_namespaced and selection.namespace != member.namespace:
        return f"the agent collects only namespace {member.namespace}"
    if member.label_selector and not _implies(selection.labels, member.label_selector):
        return f"the agent collects only objects with {member.label_selector}"
    return ""


def _implies(asked: LabelSelector, collected: str) -> bool:
    try:
        return asked.implies(LabelSelector.parse(collected))
    except MalformedSelector:  # the agent's apiserver understands more than we do
        return False
