from __future__ import annotations

import pytest

from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import GroupResource
from federator.cli.freshness import freshness_warnings, transition_text, united
from federator.client import ClusterFreshness, ClusterTransition, TypeFreshness

PODS = TypeFreshness(GroupResource("", "pods"), TypeState.DENIED)
DEPLOYMENTS = TypeFreshness(GroupResource("apps", "deployments"), TypeState.NOT_COLLECTED)


def cluster(
    name: str, *lacking: TypeFreshness, state: ClusterState = ClusterState.LIVE, proved_age: float | None = 1.0
) -> ClusterFreshness:
    return ClusterFreshness(ClusterID(name), state, 1.0, proved_age, lacking)


def test_nothing_to_say_of_a_complete_answer() -> None:
    assert freshness_warnings([cluster("eu-1"), cluster("us-2")], complete=True) == []


def test_clusters_that_are_not_live_are_named_and_counted() -> None:
    stale = cluster("ap-1", PODS, state=ClusterState.STALE, proved_age=151)
    assert freshness_warnings([cluster("eu-1"), stale], complete=False) == [
        "ap-1 STALE, proved up to 2m31s ago. 1 of 2 clusters not live."
    ]


def test_of_many_only_some_are_named() -> None:
    joining = [cluster(f"c-{n}", state=ClusterState.JOINING, proved_age=None) for n in range(7)]
    (warning,) = freshness_warnings(joining, complete=False)
    assert warning == (
        "c-0 JOINING; c-1 JOINING; c-2 JOINING; c-3 JOINING; c-4 JOINING and 2 more. 7 of 7 clusters not live."
    )


def test_types_that_live_clusters_lack() -> None:
    clusters = [cluster("eu-1", PODS, DEPLOYMENTS), cluster("us-2", PODS)]
    assert freshness_warnings(clusters, complete=False) == [
        "pods DENIED in eu-1, us-2.",
        "deployments.apps NOT_COLLECTED in eu-1.",
    ]


def test_several_answers_are_one() -> None:
    stale = cluster("eu-1", DEPLOYMENTS, state=ClusterState.STALE)
    (both,) = united([[cluster("eu-1", PODS)], [stale]])
    assert (both.state, both.incomplete_types) == (ClusterState.STALE, (PODS, DEPLOYMENTS))


@pytest.mark.parametrize(
    ("previous", "reason", "text"),
    [
        (ClusterState.LIVE, "agent silent", "ap-1 is STALE (was LIVE): agent silent"),
        (None, "", "ap-1 is STALE"),
    ],
)
def test_transitions(previous: ClusterState | None, reason: str, text: str) -> None:
    assert transition_text(ClusterTransition(ClusterID("ap-1"), ClusterState.STALE, previous, reason)) == text
