from __future__ import annotations

import pytest

from federator.aggregator.query.encoding import EVENTS, OBJECT, OBJECTS, PREVIOUS
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
