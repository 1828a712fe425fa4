"""Aggregates as a request asks for them: what is told, in which order, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pyroaring import BitMap

from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.merge.recent_changes import RecentChanges
from federator.aggregator.merge.scope import EVERYTHING, Located, Scope
from federator.aggregator.query import aggregate, grouping
from federator.aggregator.query.budget import QueryLimits
from federator.aggregator.query.pins import Pins
from federator.aggregator.serve.aggregate_answers import AggregateAnswers
from federator.api.cluster import ClusterID, ClusterState
from federator.api.key import ObjectKey
from federator.errors import (
    InvalidInput,
    LedgerCorrupt,
    MalformedSelector,
    QueryTooCostly,
    RevisionExpired,
    UnknownCluster,
    UnknownResourceType,
)
from federator.v1 import inventory_pb2
from federator.v1.inventory_pb2 import AggregateFunction
from tests.unit.aggregator.federation import DEPLOYMENTS, NODES, PODS, Federation, delete, put

Keys = tuple[str | None, ...]


def answers(federation: Federation, limits: QueryLimits | None = None) -> AggregateAnswers:
    return AggregateAnswers(federation.view, federation.ledger, Pins(), limits)


async def ask(
    federation: Federation, request: inventory_pb2.AggregateRequest, scope: Scope = EVERYTHING
) -> inventory_pb2.AggregateResponse:
    return inventory_pb2.AggregateResponse.FromString(await answers(federation).answer(request, scope))


def request(*group_by: str, measures: Sequence[tuple[str, str]] = (), **fields: Any) -> inventory_pb2.AggregateRequest:
    """A request; fields are the request's, or else the selection's."""
    of_request = {name: fields.pop(name) for name in ("top", "at_revision", "at_time_ms", "limits") if name in fields}
    return inventory_pb2.AggregateRequest(
        selection=inventory_pb2.Selection(**({"resources": ["pods"]} | fields)),
        group_by=group_by,
        measures=[
            inventory_pb2.Measure(function=AggregateFunction.Value(f"AGGREGATE_FUNCTION_{function}"), field=field)
            for function, field in measures
        ],
        **of_request,
    )


def table(response: inventory_pb2.AggregateResponse) -> list[tuple[Keys, tuple[str, ...]]]:
    """Groups in their order: keys, and measures as people write them."""
    return [
        (
            tuple(key.value if key.HasField("value") else None for key in group.keys),
            tuple(measure.value for measure in group.measures),
        )
        for group in response.groups
    ]


def pod(name: str, *containers: Mapping[str, Any], **fields: Any) -> Any:
    """A pod with its containers; `cpu` and `memory` of each are requests."""
    spec: dict[str, Any] = {"containers": [_container(**container) for container in containers]}
    if node := fields.pop("node", ""):
        spec["nodeName"] = node
    return put(name, **({"spec": spec} | fields))


def _container(image: str = "web:1", **requests: str) -> dict[str, Any]:
    return {"image": image, "resources": {"requests": requests} if requests else {}}


@pytest.fixture
async def federation() -> Federation:
    """Two clusters with pods, one with nodes and a deployment."""
    federation = Federation()
    await federation.join("eu-1", labels={"env": "prod"})
    await federation.join("us-1", labels={})
    await federation.commit(
        "eu-1",
        pod("a", {"image": "web:1", "cpu": "250m", "memory": "1Gi"}, {"image": "log:1", "cpu": "250m"}, node="n1"),
        pod("b", {"image": "web:1", "cpu": "1", "memory": "512Mi"}, {"image": "web:1"}, node="n2", labels={"app": "x"}),
        pod("c", {"image": "web:2", "cpu": "many"}, labels={"app": ""}, owner="u", owner_kind="Job", created=1000),
    )
    await federation.commit("us-1", pod("a", labels={"app": "x"}, created=2000), pod("z", created=1500))
    await federation.commit("eu-1", put("n1", namespace=""), put("n2", namespace=""), type=NODES)
    await federation.commit("eu-1", put("web"), type=DEPLOYMENTS)
    return federation


@pytest.mark.parametrize(
    ("group_by", "expected"),
    [
        ([], [((), "5")]),
        (["cluster"], [(("eu-1",), "3"), (("us-1",), "2")]),
        (["namespace"], [(("shop",), "5")]),
        (["node"], [(("n1",), "1"), (("n2",), "1"), ((None,), "3")]),
        (["owner_kind"], [(("Job",), "1"), ((None,), "4")]),
        (["label:app"], [(("",), "1"), (("x",), "2"), ((None,), "2")]),
        (["cluster_label:env"], [(("prod",), "3"), ((None,), "2")]),
        (["cluster", "label:app"], [
            (("eu-1", ""), "1"), (("eu-1", "x"), "1"), (("eu-1", None), "1"),
            (("us-1", "x"), "1"), (("us-1", None), "1"),
        ]),
        ([".spec.containers.*.image"], [
            (("log:1",), "1"), (("web:1",), "2"), (("web:2",), "1"), ((None,), "2"),
        ]),
        ([".metadata.name"], [(("a",), "2"), (("b",), "1"), (("c",), "1"), (("z",), "1")]),
    ],
)  # fmt: skip
async def test_groups_by(federation: Federation, group_by: list[str], expected: list[tuple[Keys, str]]) -> None:
    response = await ask(federation, request(*group_by))
    assert table(response) == [(keys, (count,)) for keys, count in expected]
    assert response.total_groups == len(expected)
    assert response.summary.total == 5


async def test_by_cluster_and_type(federation: Federation) -> None:
    response = await ask(federation, request("type", "cluster", resources=["*"]))
    assert table(response) == [
        (("deployments.apps", "eu-1"), ("1",)),
        (("nodes", "eu-1"), ("2",)),
        (("pods", "eu-1"), ("3",)),
        (("pods", "us-1"), ("2",)),
    ]
    assert not response.summary.HasField("scan")


@pytest.mark.parametrize(
    ("function", "field", "value", "number", "ignored"),
    [
        ("COUNT", "", "5", 5.0, 0),
        ("COUNT", "spec.containers.*.resources.requests.cpu", "3", 3.0, 0),
        ("SUM", "spec.containers.*.resources.requests.cpu", "1500m", 1.5, 1),
        ("SUM", ".spec.containers.*.resources.requests.memory", "1536Mi", 1536.0 * 2**20, 0),
        ("SUM", "spec.containers.*.image", "", None, 5),
        ("SUM", "spec.nothing", "", None, 0),
        ("MIN", "spec.containers.*.resources.requests.cpu", "250m", 0.25, 0),
        ("MAX", "spec.containers.*.resources.requests.cpu", "many", None, 0),
        ("MIN", "metadata.creationTimestamp", "1970-01-01T00:16:40Z", 1000.0, 0),
        ("MAX", "metadata.creationTimestamp", "1970-01-01T00:33:20Z", 2000.0, 0),
        ("DISTINCT", "metadata.creationTimestamp", "3", 3.0, 0),
        ("DISTINCT", "spec.containers.*.image", "3", 3.0, 0),
        ("DISTINCT", "spec.nodeName", "2", 2.0, 0),
        ("DISTINCT", "metadata.name", "4", 4.0, 0),
        ("COUNT", "metadata.labels.app", "3", 3.0, 0),
    ],
)
async def test_measures(
    federation: Federation, function: str, field: str, value: str, number: float | None, ignored: int
) -> None:
    response = await ask(federation, request(measures=[(function, field)]))
    ((measured,),) = (group.measures for group in response.groups)
    assert (measured.value, measured.number if measured.HasField("number") else None) == (value, number)
    assert measured.ignored == ignored


async def test_minutes_are_told_from_thousandths_by_what_else_the_field_has() -> None:
    federation = Federation()
    await federation.join("eu-1")
    await federation.commit("eu-1", put("a", interval="5m"), put("b", interval="30s"), put("c", interval="0"))
    response = await ask(federation, request(measures=[("SUM", "interval"), ("MAX", "interval"), ("MIN", "interval")]))
    assert table(response) == [((), ("5m30s", "5m", "0"))]
    await federation.commit("eu-1", put("d", interval="1"))
    response = await ask(federation, request(measures=[("SUM", "interval"), ("MAX", "interval")]))
    assert table(response) == [((), ("1005m", "30s"))]
    assert response.groups[0].measures[0].ignored == 1


@pytest.mark.parametrize(
    ("top", "measures", "expected"),
    [
        (1, [], ["x"]),
        (2, [], ["x", "y"]),
        (3, [], ["x", "y", None]),
        (9, [], ["x", "y", None, "w"]),
        (2, [("SUM", "v")], ["w", "y"]),
        (4, [("SUM", "v"), ("COUNT", "")], ["w", "y", None, "x"]),
        (4, [("MAX", "t")], ["x", "w", "y", None]),
    ],
)
async def test_top_is_by_the_first_measure_and_ties_by_key(
    top: int, measures: list[tuple[str, str]], expected: list[str | None]
) -> None:
    federation = Federation()
    await federation.join("eu-1")
    changes: list[tuple[str | None, dict[str, Any]]] = [
        ("x", {"t": "b"}),
        ("x", {}),
        ("x", {}),
        ("y", {"v": "1Ki"}),
        ("y", {}),
        (None, {"v": "1000"}),
        (None, {}),
        ("w", {"v": "2k"}),
    ]
    for number, (label, fields) in enumerate(changes):
        await federation.commit("eu-1", put(f"p{number}", labels={} if label is None else {"app": label}, **fields))
    response = await ask(federation, request("label:app", measures=measures, top=top))
    assert [keys[0] for keys, _ in table(response)] == expected
    assert response.total_groups == 4


async def test_keys_are_sorted_as_values_are() -> None:
    federation = Federation()
    await federation.join("eu-1")
    texts = ["b", "10", "9", "1Ki", "1.0", "1", "30s", ""]
    await federation.commit("eu-1", *(put(f"p{number}", key=text) for number, text in enumerate(texts)), put("none"))
    response = await ask(federation, request(".key"))
    assert [keys[0] for keys, _ in table(response)] == ["1", "1.0", "9", "10", "1Ki", "30s", "", "b", None]


async def test_nothing_selected_is_one_group_or_none(federation: Federation) -> None:
    asked: dict[str, Any] = {
        "label_selector": "app=nobody",
        "measures": [("COUNT", ""), ("SUM", "spec.x"), ("DISTINCT", "spec.x")],
    }
    assert table(await ask(federation, request(**asked))) == [((), ("0", "", "0"))]
    assert table(await ask(federation, request("label:app", **asked))) == []
    assert table(await ask(federation, request("cluster", label_selector="app=nobody"))) == []
    assert table(await ask(federation, request(label_selector="app=nobody"))) == [((), ("0",))]


async def test_a_field_without_an_index_is_read_and_the_answer_says_so(federation: Federation) -> None:
    response = await ask(federation, request(measures=[("COUNT", "spec.containers.*.image")]))
    assert response.summary.scan.objects == 5
    assert not response.summary.scan.history
    response = await ask(federation, request(field_selector="spec.containers.0.image=web:2"))
    assert table(response) == [((), ("1",))]
    assert (response.summary.total, response.summary.scan.objects) == (1, 5)
    response = await ask(federation, request("cluster", "label:app", measures=[("DISTINCT", "spec.nodeName")]))
    assert not response.summary.HasField("scan")


@pytest.mark.parametrize("remembered", [1, 1000])
async def test_the_past_is_as_it_was(federation: Federation, remembered: int) -> None:
    federation.view.recent = RecentChanges(remembered)
    federation.view.recent.load(federation.ledger)
    before = federation.ledger.revision
    expected = table(await ask(federation, request("label:app", "node", ".spec.containers.*.image")))
    await federation.commit(
        "eu-1", delete("a"), pod("b", labels={"app": "y"}, node="n3"), pod("new", labels={"app": "x"}, owner="o")
    )
    await federation.commit("eu-1", delete("new"), pod("b"))
    await federation.commit("us-1", pod("z", labels={"app": "x"}, created=3))
    asked = request("label:app", "node", ".spec.containers.*.image", at_revision=before)
    response = await ask(federation, asked)
    assert table(response) == expected
    assert response.summary.revision == before
    assert response.summary.scan.history is (remembered == 1)
    times = request(measures=[("MIN", "metadata.creationTimestamp")], clusters=["us-1"])
    assert table(await ask(federation, times)) == [((), ("1970-01-01T00:00:03Z",))]
    times.at_revision = before
    assert table(await ask(federation, times)) == [((), ("1970-01-01T00:25:00Z",))]
    counts = request("cluster", at_revision=before)
    assert table(await ask(federation, counts)) == [(("eu-1",), ("3",)), (("us-1",), ("2",))]


class _OnlyCluster:
    """A scope of one cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = ClusterID(cluster)

    def rows(self, located: Located) -> BitMap | None:
        return located.rows_in(self._cluster, PODS.group_resource)

    def allows(self, key: ObjectKey) -> bool:
        return key.cluster_id == self._cluster


@pytest.mark.parametrize("group_by", [(), ("cluster",), ("cluster", "label:app"), ("cluster", ".metadata.name")])
async def test_nothing_outside_the_scope_is_counted(federation: Federation, group_by: tuple[str, ...]) -> None:
    before = federation.ledger.revision
    inside = await ask(federation, request(*group_by, clusters=["us-1"]))
    await federation.commit("eu-1", delete("a"), pod("b"))
    for asked in (request(*group_by), request(*group_by, at_revision=before)):
        response = await ask(federation, asked, _OnlyCluster("us-1"))
        assert table(response) == table(inside)
        assert response.summary.total == 2


async def test_the_summary_says_what_is_not_live(federation: Federation) -> None:
    response = await ask(federation, request("cluster"))
    assert response.summary.complete
    assert [cluster.cluster_id for cluster in response.summary.clusters] == ["eu-1", "us-1"]
    assert response.summary.revision == federation.ledger.revision
    assert not response.summary.cursor
    await federation.ledger.set_cluster_state(ClusterID("us-1"), ClusterState.STALE, "agent silent")
    response = await ask(federation, request("cluster"))
    assert not response.summary.complete


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (request("Cluster"), "group_by"),
        (request(""), "group_by"),
        (request("label:"), "group_by"),
        (request("cluster_label:"), "group_by"),
        (request("spec.nodeName"), "group_by"),
        (request("."), "group_by"),
        (request(".a..b"), "group_by"),
        (request(*["cluster"] * 9), "group_by"),
        (request(measures=[("SUM", "")]), "measures.field"),
        (request(measures=[("DISTINCT", "a..b")]), "measures.field"),
        (request(measures=[("COUNT", "")] * 17), "measures"),
        (request(measures=[("UNSPECIFIED", "a")]), "measures.function"),
        (request(limits=inventory_pb2.Limits(time_ms=2**31)), "limits.time_ms"),
        (request(at_revision=2**60), "at_revision"),
    ],
)
async def test_refuses_by_name(federation: Federation, asked: inventory_pb2.AggregateRequest, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await ask(federation, asked)
    assert refused.value.field == field
    assert refused.value.allowed


async def test_refuses_as_a_list_does(federation: Federation) -> None:
    for asked, error in (
        (request(resources=["widgets"]), UnknownResourceType),
        (request(clusters=["eu-9"]), UnknownCluster),
        (request(label_selector="=a"), MalformedSelector),
        (request(at_revision=1), RevisionExpired),
    ):
        with pytest.raises(error):
            await ask(federation, asked)


async def test_an_object_that_cannot_be_read_is_left_out_and_the_answer_not_complete(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = await federation.commit("us-1", pod("damaged", {"image": "web:9"}, labels={"app": "x"}))
    read = federation.ledger.entry

    def entry(revision: int) -> ObjectEntry | None:
        if revision == commit.revision:
            raise LedgerCorrupt("here", f"history {revision}")
        return read(revision)

    monkeypatch.setattr(federation.ledger, "entry", entry)
    response = await ask(federation, request("label:app", measures=[("COUNT", "spec.containers.*.image")]))
    assert table(response) == [(("",), ("1",)), (("x",), ("1",)), ((None,), ("1",))]
    assert (response.summary.total, response.summary.complete) == (5, False)
    by_indexes = await ask(federation, request("label:app"))
    assert (by_indexes.summary.total, by_indexes.summary.complete) == (6, True)


async def test_groups_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (grouping, aggregate):
        monkeypatch.setattr(module, "MAX_GROUPS", 100)
    federation = Federation()
    await federation.join("eu-1")
    names = range(100)
    await federation.commit("eu-1", *(put(f"p{name}", labels={"app": f"{name % 50}"}, key=name) for name in names))
    assert (await ask(federation, request(".key", top=1))).total_groups == 100
    assert (await ask(federation, request("label:app", top=1))).total_groups == 50
    await federation.commit("eu-1", put("one-more", labels={"app": "-1"}, key="one-more"))
    for group_by in ((".key",), ("label:app", ".key")):
        with pytest.raises(QueryTooCostly) as refused:
            await ask(federation, request(*group_by, top=1))
        assert refused.value.limit == "groups"


@pytest.mark.parametrize(
    ("limit", "group_by"),
    [("scanned_objects", ".key"), ("memory_bytes", ".key"), ("memory_bytes", "label:app"), ("time_ms", ".key")],
)
async def test_limits_are_kept(limit: str, group_by: str) -> None:
    federation = Federation()
    await federation.join("eu-1")
    await federation.commit("eu-1", *(put(f"p{name}", labels={"app": "a"}, key=name) for name in range(900)))
    asked = request(group_by, limits=inventory_pb2.Limits(**{limit: 1}))
    with pytest.raises(QueryTooCostly) as refused:
        await ask(federation, asked)
    assert refused.value.limit == limit
