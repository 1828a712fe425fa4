from __future__ import annotations

import pytest

from federator.aggregator.query.encoding import EVENTS, OBJECT, OBJECTS, PREVIOUS, encode_identity
from federator.v1 import inventory_pb2


@pytest.mark.parametrize("size", [0, 1, 100, 127, 128, 16_383, 16_384, 3_000_000])
def test_a_message_put_together_is_the_message(size: int) -> None:
    inner = inventory_pb2.InventoryObject(body=b"x" * size)
    encoded = inner.SerializeToString()
    head = inventory_pb2.WatchEvent(revision=7).SerializeToString()
    parts = head + OBJECT.prefix(len(encoded)) + encoded + PREVIOUS.prefix(len(encoded)) + encoded
    event = inventory_pb2.WatchEvent(revision=7, object=inner, previous=inner)
    assert inventory_pb2.WatchEvent.FromString(parts) == event
    response = inventory_pb2.WatchResponse.FromString((EVENTS.prefix(len(parts)) + parts) * 2)
    assert list(response.events) == [event, event]
    assert list(inventory_pb2.ListResponse.FromString(OBJECTS.encode([encoded] * 3)).objects) == [inner] * 3


@pytest.mark.parametrize("name", ["", "web-0", "x" * 127, "x" * 128, "x" * 253, "x" * 300, "é", "é" * 64, "\x7f"])
@pytest.mark.parametrize("namespace", ["", "shop", "ü" * 100])
def test_an_identity_is_that_of_the_message(namespace: str, name: str) -> None:
    message = inventory_pb2.InventoryObject.FromString(encode_identity(namespace, name, "uid-1", "17"))
    assert message == inventory_pb2.InventoryObject(namespace=namespace, name=name, uid="uid-1", resource_version="17")
