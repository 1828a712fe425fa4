from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.query.mask import MAX_PATHS, ReadMask
from federator.api.field_path import read_field
from federator.errors import InvalidInput
from federator.v1 import inventory_pb2

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "labels": {"app.kubernetes.io/name": "web", "b": "1"}},
    "spec": {"containers": [{"name": "c", "image": "i:1"}, {"name": "d"}, {"image": "i:2"}], "nodeName": "n1"},
    "status": {"phase": "Running", "conditions": []},
}
KEPT: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "shop"}}


@pytest.mark.parametrize(
    ("paths", "more"),
    [
        (["status.phase"], {"status": {"phase": "Running"}}),
        ([".spec.nodeName", "spec.containers.*.image"], {"spec": POD["spec"] | {
            "containers": [{"image": "i:1"}, {}, {"image": "i:2"}]}}),
        (["spec.containers.0.name"], {"spec": {"containers": [{"name": "c"}]}}),
        (["spec.containers.*.image", "spec.containers.1.name"], {"spec": {
            "containers": [{"image": "i:1"}, {"name": "d"}, {"image": "i:2"}]}}),
        (["spec.containers.0"], {"spec": {"containers": [{"name": "c", "image": "i:1"}]}}),
        (["status", "status.phase"], {"status": POD["status"]}),
        (["status.phase", "status"], {"status": POD["status"]}),
        (["metadata"], {"metadata": POD["metadata"]}),
        ([r"metadata.labels.app\.kubernetes\.io/name"], {"metadata": KEPT["metadata"] | {
            "labels": {"app.kubernetes.io/name": "web"}}}),
        (["spec.nothing", "status.phase.deeper", "spec.containers.9.name", "nothing"], {}),
    ],
)  # fmt: skip
def test_what_is_wanted_is_kept_and_nothing_else(paths: list[str], more: dict[str, object]) -> None:
    mask = ReadMask.parse(paths)
    assert mask is not None
    assert msgspec.json.decode(mask.apply(msgspec.json.encode(POD))) == KEPT | more


def test_values_stay_as_they_are_written() -> None:
    mask = ReadMask.parse(["a", "b.c"])
    assert mask is not None
    assert mask.apply(b'{"x":1,"a":1.50e3,"b":{"c":[12345678901234567890, 0.10],"d":1}}') == (
        b'{"a":1.50e3,"b":{"c":[12345678901234567890, 0.10]}}'
    )


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b'"a"', b"\xff", b'{"a":1', b"[" * 100_000])
def test_what_is_no_object_has_nothing(body: bytes) -> None:
    mask = ReadMask.parse(["a"])
    assert mask is not None
    assert mask.apply(body) == b"{}"


def test_no_mask() -> None:
    assert ReadMask.parse([]) is None


@pytest.mark.parametrize("paths", [["a..b"], [""], ["a b"], [f"a{number}" for number in range(MAX_PATHS + 1)]])
def test_refusals_name_the_field(paths: list[str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        ReadMask.parse(paths)
    assert refused.value.field == "read_mask"


def test_of_a_message_only_the_body_is_masked() -> None:
    message = inventory_pb2.InventoryObject(name="web", revision=7, body=msgspec.json.encode(POD))
    mask = ReadMask.parse(["status.phase"])
    assert mask is not None
    masked = inventory_pb2.InventoryObject.FromString(mask.masked(message.SerializeToString()))
    assert (masked.name, masked.revision) == ("web", 7)
    assert msgspec.json.decode(masked.body) == KEPT | {"status": {"phase": "Running"}}


_names = st.sampled_from(["a", "b", "c"])
_trees = st.recursive(
    st.integers(0, 3), lambda inner: st.dictionaries(_names, inner) | st.lists(inner, max_size=3), max_leaves=12
)
_paths = st.lists(
    st.lists(_names | st.sampled_from(["0", "1"]), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4
)


@given(st.dictionaries(_names, _trees), _paths)
def test_a_wanted_field_reads_as_before(body: dict[str, object], paths: list[tuple[str, ...]]) -> None:
    masked = msgspec.json.decode(ReadMask(paths).apply(msgspec.json.encode(body)))
    for path in paths:
        if not any(part.isdecimal() for part in path):  # places in arrays move as others are left out
            assert read_field(masked, path) == read_field(body, path)
