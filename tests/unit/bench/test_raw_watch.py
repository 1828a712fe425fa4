from __future__ import annotations

import pytest

from federator.v1 import inventory_pb2
from tests.bench.raw_watch import scan

CHANGES = (
    inventory_pb2.WATCH_EVENT_TYPE_ADDED,
    inventory_pb2.WATCH_EVENT_TYPE_MODIFIED,
    inventory_pb2.WATCH_EVENT_TYPE_DELETED,
)
OTHERS = (
    inventory_pb2.WATCH_EVENT_TYPE_BOOKMARK,
    inventory_pb2.WATCH_EVENT_TYPE_INITIAL_END,
    inventory_pb2.WATCH_EVENT_TYPE_CLUSTER,
)


def event(
    event_type: inventory_pb2.WatchEventType.ValueType, revision: int, body: int = 10
) -> inventory_pb2.WatchEvent:
    inventory_object = inventory_pb2.InventoryObject(name="web", body=b"x" * body)
    return inventory_pb2.WatchEvent(type=event_type, revision=revision, object=inventory_object)


@pytest.mark.parametrize("body", [0, 1, 100, 150, 20_000, 2_100_000])
def test_changes_are_counted_whatever_their_size(body: int) -> None:
    events = [event(each, number, body) for number, each in enumerate((*CHANGES, *OTHERS))]
    scanned = scan(inventory_pb2.WatchResponse(events=events).SerializeToString())
    assert scanned.changes == len(CHANGES)
    assert inventory_pb2.WatchEvent.FromString(scanned.last) == events[len(CHANGES) - 1]


@pytest.mark.parametrize("event_type", OTHERS)
def test_a_message_without_changes_counts_none(event_type: inventory_pb2.WatchEventType.ValueType) -> None:
    assert scan(inventory_pb2.WatchResponse(events=[event(event_type, 1)]).SerializeToString()) == (0, b"")
    assert scan(b"") == (0, b"")


def test_fields_may_be_in_any_order() -> None:
    written = (
        inventory_pb2.WatchEvent(revision=9).SerializeToString()
        + inventory_pb2.WatchEvent(type=CHANGES[1]).SerializeToString()
    )
    assert scan(b"\x0a%c%b" % (len(written), written)) == (1, written)


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(ValueError, match="field tag"):
        scan(b"\x12\x00")
