from __future__ import annotations

import itertools

import pytest

from federator.aggregator.serve.messages import transition
from federator.api.cluster import ClusterState
from federator.v1 import inventory_pb2

J, Y, L, S, R, X = (
    ClusterState.JOINING,
    ClusterState.SYNCING,
    ClusterState.LIVE,
    ClusterState.STALE,
    ClusterState.RECOVERING,
    ClusterState.REMOVED,
)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([None, J, Y, L], ["JOINED", "UNSPECIFIED", "SYNCED"]),
        ([None, J, L], ["JOINED", "SYNCED"]),
        ([L, S, R, L], ["STALE", "UNSPECIFIED", "RECOVERED"]),
        ([L, S, L], ["STALE", "RECOVERED"]),
        ([J, S, R, S], ["STALE", "UNSPECIFIED", "STALE"]),
        ([L, R, L], ["UNSPECIFIED", "RECOVERED"]),
        ([S, X, J, Y, L], ["REMOVED", "JOINED", "UNSPECIFIED", "SYNCED"]),
    ],
)
def test_a_step_means_what_happened_to_the_cluster(steps: list[ClusterState | None], expected: list[str]) -> None:
    told = []
    for previous, state in itertools.pairwise(steps):
        assert state is not None
        name = inventory_pb2.ClusterTransition.Name(transition(previous, state))
        told.append(name.removeprefix("CLUSTER_TRANSITION_"))
    assert told == expected


def test_every_step_has_a_meaning() -> None:
    for state in ClusterState:
        for previous in (None, *ClusterState):
            assert transition(previous, state) in inventory_pb2.ClusterTransition.values()
