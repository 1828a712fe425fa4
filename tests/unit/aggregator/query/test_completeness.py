from __future__ import annotations

import pytest

from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.completeness import asked_freshness
from federator.aggregator.serve.messages import selection_from_proto
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.selector import ClusterSelector, LabelSelector
from federator.errors import UnknownCluster
from federator.v1 import inventory_pb2
from tests.unit.aggregator.federation import DEPLOYMENTS, NODES, PODS, Federation

POD_TYPE = frozenset({PODS.group_resource})


def _complete(federation: Federation, selection: Selection) -> dict[str, bool]:
    fresh = asked_freshness(federation.view, federation.ledger.clusters(), selection)
    return {cluster.cluster_id: cluster.is_complete for cluster in fresh}


async def test_every_asked_cluster_is_told_of_and_no_other() -> None:
    federation = Federation()
    await federation.join("eu-1")
    await federation.join("eu-2", state=ClusterState.SYNCING)
    await federation.join("us-1", state=ClusterState.STALE)
    assert _complete(federation, Selection(POD_TYPE)) == {"eu-1": True, "eu-2": False, "us-1": False}
    assert _complete(federation, Selection(POD_TYPE, ClusterSelector.parse(["eu-*"]))) == {"eu-1": True, "eu-2": False}
    with pytest.raises(UnknownCluster):
        _complete(federation, Selection(POD_TYPE, ClusterSelector.parse(["eu-9"])))


async def test_clusters_that_their_labels_leave_out_are_not_asked() -> None:
    federation = Federation()
    await federation.join("eu-1", labels={"env": "prod"})
    await federation.join("eu-2", labels={"env": "test"}, state=ClusterState.STALE)
    await federation.join("us-1", labels={"env": "prod"}, state=ClusterState.STALE)
    in_prod = selection_from_proto(
        inventory_pb2.Selection(resources=["pods"], cluster_selector="env=prod"), federation.view
    )
    assert _complete(federation, in_prod) == {"eu-1": True, "us-1": False}


async def test_one_denied_type_spoils_only_questions_about_it() -> None:
    federation = Federation()
    await federation.join("a", [PODS])
    await federation.ledger.set_type_state(ClusterID("a"), NODES, TypeState.DENIED, "nodes is forbidden")
    assert _complete(federation, Selection(POD_TYPE)) == {"a": True}
    both = Selection(frozenset({PODS.group_resource, NODES.group_resource}))
    (fresh,) = asked_freshness(federation.view, federation.ledger.clusters(), both)
    assert [(str(of.group_resource), of.reason) for of in fresh.types if not of.is_complete] == [
        ("nodes", "nodes is forbidden")
    ]


async def test_a_removed_cluster_counts_only_where_it_is_named() -> None:
    federation = Federation()
    await federation.join("a")
    await federation.join("b")
    await federation.ledger.set_cluster_state(ClusterID("b"), ClusterState.REMOVED)
    assert _complete(federation, Selection(POD_TYPE)) == {"a": True}
    assert _complete(federation, Selection(POD_TYPE, ClusterSelector.parse(["b"]))) == {"b": False}


@pytest.mark.parametrize(
    ("narrowing", "asked", "expected"),
    [
        ({"namespace": "shop"}, Selection(POD_TYPE), False),
        ({"namespace": "shop"}, Selection(POD_TYPE, namespace="shop"), True),
        ({"namespace": "shop"}, Selection(POD_TYPE, namespace="other"), False),
        ({"namespace": "shop"}, Selection(frozenset({NODES.group_resource})), True),
        ({"namespace": "shop"}, Selection(frozenset({PODS.group_resource, NODES.group_resource})), False),
        ({"label_selector": "app=web"}, Selection(POD_TYPE), False),
        ({"label_selector": "app=web"}, Selection(POD_TYPE, labels=LabelSelector.parse("app=web,tier")), True),
        ({"label_selector": "app=web"}, Selection(POD_TYPE, labels=LabelSelector.parse("app=db")), False),
        ({"label_selector": "what ( is this"}, Selection(POD_TYPE), False),
        ({"namespace": "shop"}, Selection(frozenset({DEPLOYMENTS.group_resource})), True),
    ],
)
async def test_what_the_agent_does_not_collect_makes_the_answer_partial(
    narrowing: dict[str, str], asked: Selection, expected: bool
) -> None:
    federation = Federation()
    await federation.join(
        "a",
        [PODS, NODES],  # deployments are absent, whatever the narrowing
        namespace=narrowing.get("namespace", ""),
        label_selector=narrowing.get("label_selector", ""),
    )
    assert _complete(federation, asked) == {"a": expected}
    (fresh,) = asked_freshness(federation.view, federation.ledger.clusters(), asked)
    for of_type in fresh.types:
        if not of_type.is_complete:
            assert of_type.state is TypeState.NOT_COLLECTED
            assert of_type.reason.startswith("the agent collects only")
