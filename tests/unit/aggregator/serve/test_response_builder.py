from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.serve.change import Event
from federator.aggregator.serve.listing import PAGE_BYTES
from federator.aggregator.serve.response_builder import ENOUGH_BYTES, ResponseBuilder
from federator.v1 import inventory_pb2


class _Change:
    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.cursor = b"c%d" % revision

    def cluster_event(self) -> None:
        return None


class _State:
    def __init__(self, size: int) -> None:
        self.size = size
        self.message = inventory_pb2.InventoryObject(name="x")


def _event(revision: int, size: int) -> Event:
    change: Any = _Change(revision)
    state: Any = _State(size)
    return Event(inventory_pb2.WATCH_EVENT_TYPE_ADDED, change, state)


_sizes = st.sampled_from([300, ENOUGH_BYTES // 2, PAGE_BYTES // 3, PAGE_BYTES, PAGE_BYTES * 2])


@given(st.lists(st.lists(_sizes, min_size=1, max_size=5), max_size=6))
def test_groups_stay_together_in_order_and_messages_small(groups: list[list[int]]) -> None:
    counts: Counter[str] = Counter()
    builder = ResponseBuilder(counts)
    size_of: dict[int, int] = {}
    group_of: dict[int, int] = {}
    responses = []
    for number, sizes in enumerate(groups):
        for size in sizes:
            revision = len(size_of)
            size_of[revision], group_of[revision] = size, number
            responses += builder.add(_event(revision, size), number)
    responses += builder.take_all()
    sent = [[event.revision for event in response.events] for response in responses]
    assert [revision for message in sent for revision in message] == list(size_of)
    assert counts["ADDED"] == len(size_of)
    assert all(sent)
    for number, sizes in enumerate(groups):
        carrying = [message for message in sent if any(group_of[revision] == number for revision in message)]
        assert len(carrying) == 1 or sum(sizes) > PAGE_BYTES
    for message in sent:
        assert len(message) == 1 or sum(size_of[revision] for revision in message) <= PAGE_BYTES


def test_a_closed_group_can_be_taken_before_the_open_one() -> None:
    builder = ResponseBuilder(Counter())
    assert builder.add(_event(1, 300), 1) == []
    assert builder.take_closed() == []
    assert builder.add(_event(2, 300), 2) == []
    (closed,) = builder.take_closed()
    assert [event.revision for event in closed.events] == [1]
    (rest,) = builder.take_all()
    assert [(event.revision, event.cursor) for event in rest.events] == [(2, b"c2")]
    assert builder.take_all() == []
