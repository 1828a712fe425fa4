"""Field indexes: equal to reading every object, whenever they are added, built and dropped."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federator.aggregator.ledger.records import Delete, Put
from federator.aggregator.merge import field_indexes
from federator.aggregator.merge.axis import Axis, AxisKind
from federator.aggregator.merge.field_indexes import MAX_INDEXES, FieldIndexes, IndexState, named_quarantined
from federator.aggregator.merge.selection import Selection
from federator.api.field_path import parse_field_path, read_comparable, read_values
from federator.api.selector import FieldSelector
from federator.errors import IndexNotFound, LimitReached
from federator.wire.body import decode_body
from tests.unit.aggregator.federation import DEPLOYMENTS, PODS, Federation, delete, put, raw_put

PATHS = ("status.phase", "spec.containers.*.image", "spec.containers.0.image", "status")
TYPES = {"pods": PODS, "deployments": DEPLOYMENTS}

_images = st.sampled_from(["a", "b", ""])
_specs = st.one_of(
    st.none(),
    st.just("text"),
    st.fixed_dictionaries({"containers": st.lists(st.fixed_dictionaries({"image": _images}), max_size=3)}),
)
_statuses = st.one_of(
    st.none(), st.just("up"), st.fixed_dictionaries({"phase": st.sampled_from(["R", "F", "", 7, None])})
)


def _put(name: str, spec: object, status: object) -> Put:
    return raw_put(name, msgspec.json.encode({"metadata": {"name": name}, "spec": spec, "status": status}))


_puts = st.builds(_put, st.sampled_from("xyz"), _specs, _statuses)
_changes = st.tuples(
    st.sampled_from("ab"), st.sampled_from(sorted(TYPES)), st.lists(_puts | st.builds(delete, st.sampled_from("xyz")))
)
_steps = st.one_of(
    _changes,
    _changes,
    st.tuples(st.just("add"), st.sampled_from(PATHS), st.sampled_from([None, frozenset({PODS.group_resource})])),
    st.tuples(st.just("drop"), st.sampled_from(PATHS)),
    st.tuples(st.just("build")),
)


@settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_steps, max_size=20))
async def test_an_index_equals_reading_every_object(steps: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(field_indexes, "BUILD_SLICE", 2)
        federation = Federation()
        for cluster in "ab":
            await federation.join(cluster)
        indexer = federation.view.indexer
        building = indexer.building_fields()
        for step in steps:
            match step:
                case ("add", path, resources):
                    indexer.fields.add(parse_field_path(path), resources)
                case ("drop", path):
                    if path in {index.name for index in indexer.fields}:
                        indexer.fields.drop(parse_field_path(path))
                case ("build",):
                    if next(building, building) is building:
                        building = indexer.building_fields()
                case (cluster, resource, changes):
                    await federation.commit(cluster, *changes, type=TYPES[resource])
            _check(federation)
        for _ in indexer.building_fields():
            pass
        assert all(index.state is IndexState.READY for index in indexer.fields)
        _check(federation)


def _check(federation: Federation) -> None:
    indexer = federation.view.indexer
    decoded = {}
    for entry in federation.ledger.present():
        row = indexer.find(entry.key)
        assert row is not None
        decoded[row] = entry.key.group_resource, msgspec.json.decode(decode_body(entry.body))
    for resources in ({"pods"}, {"pods", "deployments"}):
        asked = frozenset(TYPES[resource].group_resource for resource in resources)
        for path in PATHS:
            for text in (f"{path}=", f"{path}!=", f"{path}=a", f"{path}!=R", f"{path}=7"):
                selector = FieldSelector.parse(text)
                selection = Selection(asked, fields=selector)
                found = indexer.select(selection)
                unanswered = indexer.unanswered(selection)
                index = indexer.fields.find(path)
                assert bool(unanswered) is (index is None or not all(map(index.covers, asked)))
                if not unanswered:
                    assert set(found) == {
                        row
                        for row, (resource, obj) in decoded.items()
                        if resource in asked and selector.matches(lambda at, obj=obj: read_comparable(obj, at))  # type: ignore[misc]
                    }
    for index in indexer.fields:
        if index.state is IndexState.READY:
            codes, values, more = indexer.column(Axis(AxisKind.FIELD, index.name))
            for row, (resource, obj) in decoded.items():
                told = {values[codes[row]]} if codes[row] else set()
                if more is not None:
                    told |= {values[code] for at, code in zip(*more, strict=True) if at == row}
                assert told == (set(read_values(obj, index.path)) if index.covers(resource) else set())


async def test_what_is_dropped_while_it_is_built_is_not_built_on() -> None:
    federation = Federation()
    await federation.join("a")
    await federation.commit("a", *(put(f"p{number}") for number in range(200)))
    fields = federation.view.indexer.fields
    path = parse_field_path("spec.nodeName")
    assert fields.add(path)
    assert not fields.add(path)
    building = federation.view.indexer.building_fields()
    next(building)
    fields.drop(path)
    assert next(building, None) is None
    assert not fields
    with pytest.raises(IndexNotFound, match=r"spec\.nodeName"):
        fields.drop(path)


def test_there_are_so_many_indexes() -> None:
    fields = FieldIndexes()
    for number in range(MAX_INDEXES):
        fields.add(("spec", f"f{number}"))
    with pytest.raises(LimitReached, match="field indexes"):
        fields.add(("spec", "another"))
    assert not fields.add(("spec", "f0"))


async def test_an_index_that_grows_too_large_is_given_up_and_answers_nothing() -> None:
    federation = Federation()
    await federation.join("a")
    indexer = federation.view.indexer
    indexer.fields = FieldIndexes(max_bytes=200_000)
    indexer.fields.add(("data", "text"))
    for _ in indexer.building_fields():
        pass
    for number in range(100):
        await federation.commit("a", put(f"p{number}", data={"text": str(number) * 4000}))
    (index,) = indexer.fields
    assert index.state is IndexState.TOO_LARGE
    assert index.memory < 50_000
    selection = Selection(frozenset({PODS.group_resource}), fields=FieldSelector.parse("data.text=1"))
    assert indexer.unanswered(selection)
    assert len(indexer.select(selection)) == 100


async def test_what_cannot_be_read_is_named_until_it_can() -> None:
    federation = Federation()
    await federation.join("a")
    indexer = federation.view.indexer
    indexer.fields.add(("status", "phase"))
    for _ in indexer.building_fields():
        pass
    changes: list[Put | Delete] = [raw_put(f"bad-{number}", b"\x00") for number in range(12)]
    await federation.commit("a", *changes, put("good", status={"phase": "R"}))
    (index,) = indexer.fields
    assert index.statistics()["quarantined"] == 12
    named = named_quarantined(index, indexer.key)
    assert len(named) == 10
    assert str(named[0]) == "a//pods/shop/bad-0"
    await federation.commit("a", put("bad-0", status={"phase": "R"}), delete("bad-1"))
    assert index.statistics()["quarantined"] == 10
    selection = Selection(frozenset({PODS.group_resource}), fields=FieldSelector.parse("status.phase=R"))
    assert {indexer.key(row).name for row in indexer.select(selection)} == {"good", "bad-0"}


async def test_an_object_there_equals_no_value_until_it_is_none_any_more() -> None:
    federation = Federation()
    await federation.join("a")
    indexer = federation.view.indexer
    indexer.fields.add(("status",))
    for _ in indexer.building_fields():
        pass
    selection = Selection(frozenset({PODS.group_resource}), fields=FieldSelector.parse("status="))
    for status, is_found in (({"phase": "R"}, False), (None, True), ([], False), ("", True), ("up", False)):
        await federation.commit("a", put("p", status=status))
        assert bool(indexer.select(selection)) is is_found
