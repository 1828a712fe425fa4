from __future__ import annotations

from typing import Any

import msgspec
import pytest

from federator.aggregator.ledger.records import Commit, ObjectEntry, Put
from federator.aggregator.query.object_state import ObjectState
from federator.v1 import inventory_pb2
from tests.unit.aggregator.federation import DEPLOYMENTS, PODS, Federation, put, raw_put


def _entry(commit: Commit) -> ObjectEntry:
    (entry,) = commit.entries
    assert isinstance(entry, ObjectEntry)
    return entry


async def test_an_entry_becomes_the_object_that_clients_get() -> None:
    federation = Federation()
    await federation.join("a")
    commit = await federation.commit(
        "a", put("web", uid="u1", resource_version="77", data="x" * 1000), type=DEPLOYMENTS
    )
    state = ObjectState(_entry(commit), federation.ledger.bodies, federation.view.types)
    message = state.message
    body = message.body
    assert msgspec.json.decode(body)["data"] == "x" * 1000
    assert message == inventory_pb2.InventoryObject(
        cluster_id="a",
        group="apps",
        version="v1",
        resource="deployments",
        kind="Deployment",
        namespace="shop",
        name="web",
        uid="u1",
        resource_version="77",
        revision=commit.revision,
        body=body,
    )
    assert state.encoded is state.encoded
    assert state.size == len(state.encoded) == message.ByteSize()


async def test_fields_and_labels_are_read_once_and_counted() -> None:
    federation = Federation()
    await federation.join("a")
    change = put("x", labels={"app": "web"}, node="n1", status={"phase": "Running", "list": [1]})
    counted: list[int] = []
    state = ObjectState(
        _entry(await federation.commit("a", change)), federation.ledger.bodies, federation.view.types, counted.append
    )
    assert state.labels == {"app": "web"}
    assert state.field(("metadata", "name")) == "x"
    assert state.field(("metadata", "namespace")) == "shop"
    assert state.field(("spec", "nodeName")) == "n1"
    assert counted == []  # the ledger has them beside the body
    for _ in range(2):
        assert state.field(("status", "phase")) == "Running"
        assert state.field(("status", "list")) is None
        assert state.field(("status", "missing")) == ""
        state.settle()
    assert len(counted) == 4  # the object, and each field
    assert all(number > 250 for number in counted)


@pytest.mark.parametrize("raw", [b"no json", b'{"deep":' + b"[" * 100_000 + b"]" * 100_000 + b"}"])
async def test_what_is_no_object_has_no_fields(raw: bytes) -> None:
    federation = Federation()
    await federation.join("a")
    state = ObjectState(
        _entry(await federation.commit("a", raw_put("x", raw))), federation.ledger.bodies, federation.view.types
    )
    assert state.field(("status", "phase")) == ""
    assert state.labels == {}
    assert state.message.body == raw


async def test_a_damaged_body_is_an_empty_one() -> None:
    federation = Federation()
    await federation.join("a")
    damaged: Any = Put("shop", "x", "u", "1", 1, b"\x28\xb5\x2f\xfd damaged")
    state = ObjectState(
        _entry(await federation.commit("a", damaged, type=PODS)), federation.ledger.bodies, federation.view.types
    )
    assert state.message.body == b""
