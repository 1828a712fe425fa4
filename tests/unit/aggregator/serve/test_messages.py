from __future__ import annotations

import itertools

import pytest

from federator.aggregator.merge.cluster_labels import UNLABELLED
from federator.aggregator.serve.messages import MAX_UID, cluster_to_proto, selection_from_proto, transition
from federator.api.cluster import ClusterID, ClusterState
from federator.api.selector import LabelSelector
from federator.errors import InvalidInput, MalformedSelector
from federator.v1 import inventory_pb2
from tests.unit.aggregator.federation import DEPLOYMENTS, PODS, Federation

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


async def test_every_field_of_a_selection_is_taken() -> None:
    federation = Federation()
    await federation.join("eu-1", labels={"env": "prod"})
    message = inventory_pb2.Selection(
        resources=["po", "deployments.apps,po"],
        clusters=["eu-*"],
        namespace="shop",
        name="web",
        label_selector="app=web",
        field_selector="spec.nodeName=n1",
        cluster_selector="env in (prod, test)",
        uid="u-1",
        owner_uid="u-2",
    )
    selection = selection_from_proto(message, federation.view)
    assert selection.resources == {PODS.group_resource, DEPLOYMENTS.group_resource}
    assert (str(selection.clusters), selection.namespace, selection.name) == ("eu-*", "shop", "web")
    assert (str(selection.labels), str(selection.fields)) == ("app=web", "spec.nodeName=n1")
    assert selection.cluster_labels == LabelSelector.parse("env in (prod,test)")
    assert selection.labelled is federation.view.cluster_labels.now
    assert (selection.uid, selection.owner_uid) == ("u-1", "u-2")
    assert selection.has_cluster(ClusterID("eu-1"))


async def test_without_a_cluster_selector_labels_do_not_tell_equal_questions_apart() -> None:
    federation = Federation()
    await federation.join("eu-1")
    message = inventory_pb2.Selection(resources=["pods"])
    before = selection_from_proto(message, federation.view)
    await federation.join("eu-1", labels={"env": "prod"})
    assert before.labelled is UNLABELLED
    assert selection_from_proto(message, federation.view) == before


@pytest.mark.parametrize(
    ("field", "value", "error", "position"),
    [
        ("label_selector", "app==", None, None),
        ("label_selector", "app=a=b", MalformedSelector, 5),
        ("field_selector", "spec..x=1", MalformedSelector, 5),
        ("cluster_selector", "env in prod", MalformedSelector, 7),
        ("uid", "u-1 u-2", InvalidInput, None),
        ("uid", "u" * (MAX_UID + 1), InvalidInput, None),
        ("owner_uid", "u\n", InvalidInput, None),
        ("owner_uid", "u" * MAX_UID, None, None),
    ],
)
async def test_what_is_not_allowed_is_refused_by_its_field(
    field: str, value: str, error: type[InvalidInput] | None, position: int | None
) -> None:
    federation = Federation()
    await federation.join("eu-1")
    message = inventory_pb2.Selection(resources=["pods"], **{field: value})
    if error is None:
        selection_from_proto(message, federation.view)
        return
    with pytest.raises(error) as refused:
        selection_from_proto(message, federation.view)
    assert refused.value.field == f"selection.{field}"
    if isinstance(refused.value, MalformedSelector):
        assert refused.value.position == position


async def test_a_cluster_is_told_with_its_labels() -> None:
    federation = Federation()
    await federation.join("eu-1", labels={"env": "prod", "region": "eu"})
    cluster_id = ClusterID("eu-1")
    record = federation.ledger.clusters()[cluster_id]
    message = cluster_to_proto(record, federation.view.freshness.of(cluster_id), 0)
    assert dict(message.labels) == {"env": "prod", "region": "eu"}
