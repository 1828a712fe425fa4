"""What a person should know of how fresh an answer is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from federator.api.cluster import ClusterID, ClusterState
from federator.cli.age import human_duration
from federator.client import ClusterFreshness, ClusterTransition

_NAMED = 5


def united(answers: Iterable[Iterable[ClusterFreshness]]) -> list[ClusterFreshness]:
    """The freshness of each cluster over several answers: its latest state, and every type that any of them lacked."""
    clusters: dict[ClusterID, ClusterFreshness] = {}
    for answer in answers:
        for cluster in answer:
            earlier = clusters.get(cluster.cluster_id)
            lacking = {lack.group_resource: lack for lack in earlier.incomplete_types} if earlier else {}
            lacking |= {lack.group_resource: lack for lack in cluster.incomplete_types}
            clusters[cluster.cluster_id] = msgspec.structs.replace(cluster, incomplete_types=tuple(lacking.values()))
    return list(clusters.values())


def freshness_warnings(clusters: Sequence[ClusterFreshness], *, complete: bool) -> list[str]:
    """What may be missing or out of date in an answer, in sentences; empty where nothing is."""
    not_live = [cluster for cluster in clusters if cluster.state is not ClusterState.LIVE]
    warnings = []
    if not_live:
        named = _shortened([_state(cluster) for cluster in not_live], "; ")
        warnings.append(f"{named}. {len(not_live)} of {len(clusters)} clusters not live.")
    lacking: dict[str, list[str]] = defaultdict(list)
    for cluster in clusters:
        if cluster.state is ClusterState.LIVE:
            for freshness in cluster.incomplete_types:
                lacking[f"{freshness.group_resource} {freshness.state}"].append(cluster.cluster_id)
    warnings.extend(f"{what} in {_shortened(where, ', ')}." for what, where in lacking.items())
    if not complete and not warnings:
        warnings.append("objects may be missing: an agent collects only part of what was asked for.")
    return warnings


def transition_text(transition: ClusterTransition) -> str:
    """A cluster's change of state, as a sentence."""
    before = f" (was {transition.previous_state})" if transition.previous_state else ""
    reason = f": {transition.reason}" if transition.reason else ""
    return f"{transition.cluster_id} is {transition.state}{before}{reason}"


def _state(cluster: ClusterFreshness) -> str:
    proved = "" if cluster.proved_age is None else f", proved up to {human_duration(cluster.proved_age)} ago"
    return f"{cluster.cluster_id} {cluster.state}{proved}"


def _shortened(names: Sequence[str], separator: str) -> str:
    hidden = len(names) - _NAMED
    shown = separator.join(names[:_NAMED])
    return f"{shown} and {hidden} more" if hidden > 0 else shown
