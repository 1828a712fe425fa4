from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.query.encoding import EVENTS
from federator.aggregator.query.listing import PAGE_BYTES
from federator.aggregator.serve.change import Event
from federator.aggregator.serve.message_builder import ENOUGH_BYTES, Message, MessageBuilder
from federator.aggregator.serve.segment import Portion
from federator.v1 import inventory_pb2

ADDED = inventory_pb2.WATCH_EVENT_TYPE_ADDED


def _event(revision: int, size: int, commit: int) -> Event:
    cursor = b"c%d" % revision
    object_ = inventory_pb2.InventoryObject(body=b"x" * size)
    encoded = inventory_pb2.WatchEvent(type=ADDED, revision=revision, cursor=cursor, object=object_).SerializeToString()
    parts = (EVENTS.prefix(len(encoded)), encoded)
    return Event(ADDED, commit, cursor, parts, sum(map(len, parts)))


def _revisions(message: Message) -> list[int]:
    events = inventory_pb2.WatchResponse.FromString(message.encoded).events
    assert message.cursor == events[-1].cursor
    return [event.revision for event in events]


_sizes = st.sampled_from([300, ENOUGH_BYTES // 2, PAGE_BYTES // 3, PAGE_BYTES - 200, PAGE_BYTES * 2])


@given(st.lists(st.lists(_sizes, min_size=1, max_size=3), min_size=1, max_size=8), st.data())
def test_commits_stay_together_in_order_and_messages_small(commits: list[list[int]], data: st.DataObject) -> None:
    """However the events are cut into portions, and wherever somebody takes what is whole."""
    events: list[Event] = []
    for commit, sizes in enumerate(commits):
        events += [_event(len(events) + number, size, commit) for number, size in enumerate(sizes)]
    counts: Counter[str] = Counter()
    builder = MessageBuilder(counts)

    def messages() -> Iterator[Message]:
        at = 0
        while at < len(events):
            number = data.draw(st.integers(1, len(events) - at))
            taken, at = events[at : at + number], at + number
            can_end = at == len(events) or events[at].commit != taken[-1].commit
            ends = can_end and data.draw(st.booleans())
            yield from builder.add(Portion(taken), ends_commit=ends)
            if data.draw(st.booleans()):  # nothing of a segment was selected: a commit may end in it, or not
                yield from builder.add(Portion([]), ends_commit=can_end and not ends)
        yield from builder.take_all()

    sent = [(message, _revisions(message)) for message in messages()]
    assert [revision for _, revisions in sent for revision in revisions] == list(range(len(events)))
    assert counts["ADDED"] == len(events)
    commit_of = [event.commit for event in events]
    for commit in range(len(commits)):
        carrying = [revisions for _, revisions in sent if any(commit_of[revision] == commit for revision in revisions)]
        size = sum(event.size for event in events if event.commit == commit)
        assert len(carrying) == 1 or size > PAGE_BYTES
    for message, revisions in sent:
        assert len(revisions) == 1 or len(message.encoded) <= PAGE_BYTES


def test_what_is_whole_can_be_taken_before_a_commit_that_goes_on() -> None:
    builder = MessageBuilder(Counter())
    assert list(builder.add(Portion([_event(1, 300, 1), _event(2, 300, 2)]), ends_commit=False)) == []
    (closed,) = builder.take_closed()
    assert _revisions(closed) == [1]
    assert list(builder.take_closed()) == []
    assert list(builder.add(Portion([_event(3, 300, 2)]), ends_commit=True)) == []
    (rest,) = builder.take_all()
    assert _revisions(rest) == [2, 3]
    assert list(builder.take_all()) == []


def test_a_portion_alone_in_a_message_is_not_copied() -> None:
    builder = MessageBuilder(Counter())
    portion = Portion([_event(1, 300, 1)])
    assert list(builder.add(portion, ends_commit=True)) == []
    (message,) = builder.take_all()
    assert message.encoded is portion.encoded


def test_small_commits_share_a_message_until_it_is_worth_one() -> None:
    builder = MessageBuilder(Counter())
    sent = []
    for number in range(20):
        sent += list(builder.add(Portion([_event(number, ENOUGH_BYTES // 4, number)]), ends_commit=True))
    assert [_revisions(message) for message in sent] == [list(range(at, at + 4)) for at in range(0, 20, 4)]


def test_a_large_portion_does_not_make_a_message_too_large() -> None:
    builder = MessageBuilder(Counter())
    assert list(builder.add(Portion([_event(0, ENOUGH_BYTES // 2, 0)]), ends_commit=True)) == []
    first, second = builder.add(Portion([_event(1, PAGE_BYTES - 200, 1)]), ends_commit=True)
    assert (_revisions(first), _revisions(second)) == ([0], [1])
