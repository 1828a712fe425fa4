"""Aggregates equal what plain dicts would give, now and at every revision before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from federator.aggregator.merge.recent_changes import RecentChanges
from federator.aggregator.query.pins import Pins
from federator.aggregator.query.values import NANOSECONDS, Kind, read_value, sort_key
from federator.aggregator.serve.aggregate_answers import AggregateAnswers
from federator.api.field_path import parse_field_path
from federator.v1 import inventory_pb2
from federator.v1.inventory_pb2 import AggregateFunction
from tests.unit.aggregator.federation import NODES, PODS, Federation, delete, raw_put
from tests.unit.aggregator.query.plain_aggregate import (
    CLUSTER_LABELS,
    ORDER,
    PlainMeasure,
    PlainObject,
    grouped,
    measured,
    values,
)

TYPES = {"pods": PODS, "nodes": NODES}
GROUPS = [
    "cluster",
    "type",
    "namespace",
    "node",
    "owner_kind",
    "label:app",
    "cluster_label:env",
    ".spec.value",
    ".spec.parts.*.image",
    ".spec.nodeName",
    ".metadata.labels.app",
    ".metadata.name",
    ".nowhere",
]
FIELDS = [
    "spec.value",
    "spec.parts.*.value",
    "spec.parts.*.image",
    "metadata.labels.app",
    "metadata.name",
    "spec.nodeName",
]
VALUED = ["spec.value", "spec.parts.*.value"]


def _body(name: str, namespace: str, drawn: Mapping[str, Any]) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": drawn["labels"]}
    if drawn["owner"]:
        metadata["ownerReferences"] = [
            {"uid": "u1", "kind": "Service", "controller": False},
            {"uid": "u2", "kind": drawn["owner"], "controller": True},
        ]
    spec: dict[str, Any] = {"parts": drawn["parts"]} if drawn["parts"] else {}
    if drawn["node"]:
        spec["nodeName"] = drawn["node"]
    if drawn["value"] is not None:
        spec["value"] = drawn["value"]
    return {"metadata": metadata, "spec": spec}


PARTS = st.lists(
    st.fixed_dictionaries(
        {}, optional={"value": st.sampled_from(ORDER), "image": st.sampled_from(["x:1", "x:2", "y"])}
    ),
    max_size=3,
)
STATES = st.fixed_dictionaries(
    {
        "labels": st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["", "web", "db"])),
        "owner": st.sampled_from(["", "ReplicaSet", "Job"]),
        "node": st.sampled_from(["", "n1", "n2"]),
        "value": st.none() | st.sampled_from(ORDER) | st.sampled_from([0, 1]) | st.just({"an": "object"}),
        "parts": PARTS,
    }
)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(sorted(CLUSTER_LABELS)),
        st.sampled_from(sorted(TYPES)),
        st.sampled_from(["p", "q", "r"]),
        st.none() | STATES,
    ),
    min_size=1,
    max_size=24,
)
MEASURES = st.lists(
    st.one_of(
        st.just(("COUNT", "")),
        st.tuples(st.sampled_from(["COUNT", "DISTINCT"]), st.sampled_from(FIELDS)),
        st.tuples(st.sampled_from(["SUM", "MIN", "MAX"]), st.sampled_from(VALUED)),
    ),
    max_size=4,
)


SELECTORS: dict[tuple[str, str], Callable[[PlainObject], bool]] = {
    ("", ""): lambda _: True,
    ("label_selector", "app"): lambda found: "app" in found.body["metadata"]["labels"],
    ("label_selector", "app!=web"): lambda found: found.body["metadata"]["labels"].get("app") != "web",
    ("field_selector", "spec.value=1"): lambda found: found.body["spec"].get("value") in ("1", 1),
    ("field_selector", "spec.value!=30s"): lambda found: found.body["spec"].get("value") != "30s",
    ("field_selector", "spec.nodeName=n1,spec.value!=b"): lambda found: (
        found.body["spec"].get("nodeName") == "n1" and found.body["spec"].get("value") != "b"
    ),
}
"""By a Selection's field and its text, what it means; indexes know some, for others the objects are read."""


class _World:
    """A federation and, beside it, what a dict would hold after each revision."""

    def __init__(self, remembered: int) -> None:
        self.federation = Federation()
        self.federation.view.recent = RecentChanges(remembered)
        self.federation.view.recent.load(self.federation.ledger)
        self.answers = AggregateAnswers(self.federation.view, self.federation.ledger, Pins())
        self.objects: dict[tuple[str, str, str], PlainObject] = {}
        self.past: dict[int, Sequence[PlainObject]] = {}

    async def join(self) -> None:
        for cluster, labels in CLUSTER_LABELS.items():
            await self.federation.join(cluster, labels=labels)

    async def change(self, cluster: str, resource: str, name: str, drawn: Mapping[str, Any] | None) -> None:
        namespace = "" if resource == "nodes" else "shop"
        if drawn is None:
            self.objects.pop((cluster, resource, name), None)
            await self.federation.commit(cluster, delete(name, namespace=namespace), type=TYPES[resource])
        else:
            body = _body(name, namespace, drawn)
            self.objects[cluster, resource, name] = PlainObject(cluster, resource, body)
            put = raw_put(name, msgspec.json.encode(body), namespace=namespace)
            await self.federation.commit(cluster, put, type=TYPES[resource])
        self.past[self.federation.ledger.revision] = tuple(self.objects.values())

    def build(self) -> None:
        for _ in self.federation.view.indexer.building_fields():
            pass


def _agrees(answer: inventory_pb2.MeasureValue, expected: PlainMeasure) -> bool:
    if expected.value is not None and answer.value != expected.value:
        return False
    if expected.number is None:
        return not answer.HasField("number") and answer.ignored == expected.ignored
    read = read_value(answer.value)
    exact = Fraction(read.amount) / (1 if read.kind is Kind.NUMBER else NANOSECONDS)
    return (exact, answer.number, answer.ignored) == (expected.number, float(expected.number), expected.ignored)


def _largest(
    answer: inventory_pb2.AggregateResponse, has_value: Callable[[inventory_pb2.Group], bool]
) -> list[inventory_pb2.Group]:
    """All groups by their first measure, largest first; what has none last, and of equals the first by key first."""
    with_value = sorted(
        filter(has_value, answer.groups), key=lambda group: sort_key(group.measures[0].value), reverse=True
    )
    return [*with_value, *(group for group in answer.groups if not has_value(group))]


def _key(group: inventory_pb2.Group) -> tuple[str | None, ...]:
    return tuple(key.value if key.HasField("value") else None for key in group.keys)


@settings(max_examples=settings().max_examples // 2)
@given(CHANGES, st.lists(st.sampled_from(GROUPS), max_size=3), MEASURES, st.sampled_from(sorted(SELECTORS)), st.data())
async def test_aggregates_equal_those_of_plain_dicts(
    changes: list[tuple[str, str, str, Mapping[str, Any] | None]],
    group_by: list[str],
    measures: list[tuple[str, str]],
    selector: tuple[str, str],
    data: st.DataObject,
) -> None:
    world = _World(remembered=data.draw(st.sampled_from([0, 4, 1000])))
    await world.join()
    indexed = data.draw(st.sets(st.sampled_from([group for group in GROUPS if group.startswith(".")])))
    for path in sorted(indexed):
        world.federation.view.indexer.fields.add(parse_field_path(path))
    built_after = data.draw(st.integers(0, len(changes)))
    for number, change in enumerate(changes):
        if number == built_after:
            world.build()
        await world.change(*change)
    revision = data.draw(st.sampled_from(sorted(world.past)))
    asked = data.draw(st.sampled_from([["pods"], ["nodes"], ["pods", "nodes"]]))
    request = inventory_pb2.AggregateRequest(
        selection=inventory_pb2.Selection(resources=asked, **dict([selector] if selector[0] else [])),
        group_by=group_by,
        measures=[
            inventory_pb2.Measure(function=AggregateFunction.Value(f"AGGREGATE_FUNCTION_{function}"), field=field)
            for function, field in measures
        ],
        at_revision=revision,
    )
    answer = inventory_pb2.AggregateResponse.FromString(await world.answers.answer(request))
    objects = [found for found in world.past[revision] if found.resource in asked and SELECTORS[selector](found)]
    expected = grouped(objects, group_by)
    found = {_key(each): each for each in answer.groups}
    assert found.keys() == expected.keys()
    assert len(answer.groups) == answer.total_groups == len(expected)
    assert answer.summary.total == len(objects)
    assert answer.summary.revision == revision
    in_order = sorted(expected, key=lambda key: [(text is None, sort_key(text or ""), text or "") for text in key])
    assert list(map(_key, answer.groups)) == in_order
    request.top = data.draw(st.integers(1, 4))
    top = inventory_pb2.AggregateResponse.FromString(await world.answers.answer(request))
    assert top.total_groups == answer.total_groups

    def has_value(group: inventory_pb2.Group) -> bool:
        function, field = (measures or [("COUNT", "")])[0]
        if function in {"MIN", "MAX"}:  # "" may be a value
            return any(values(f".{field}", member) for member in expected[_key(group)])
        return bool(group.measures[0].value)

    assert list(top.groups) == _largest(answer, has_value)[: request.top]
    for key, members in expected.items():
        for (function, field), value in zip(measures or [("COUNT", "")], found[key].measures, strict=True):
            wanted = measured(function, field, members)
            assert _agrees(value, wanted), (key, function, field, value, wanted)
