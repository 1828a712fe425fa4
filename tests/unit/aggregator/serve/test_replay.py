from __future__ import annotations

import itertools

import pytest

from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.merge.selection import Selection
from federator.aggregator.serve.question import Question
from federator.aggregator.serve.replay import Replay
from federator.aggregator.serve.segment import SLICE, Segment, portion_of
from federator.errors import CursorExpired
from tests.unit.aggregator.federation import PODS, Federation, put


async def _federation(commits: int, *, size: int = 1, together: int = 1) -> Federation:
    """So many commits, of which so many have the same time."""
    times = itertools.count()
    federation = Federation(clock=lambda: 1_000_000.0 + next(times) // together)
    await federation.join("a")
    for number in range(commits):
        await federation.commit("a", *(put(f"p{number}-{index}") for index in range(size)))
    return federation


def _all(replay: Replay, position: int, until: int) -> list[Segment]:
    segments = []
    while (segment := replay.segment_after(position, until)) is not None:
        segments.append(segment)
        position = segment.revision
    return segments


@pytest.mark.parametrize(("size", "together"), [(1, 1), (3, 1), (200, 1), (1, 7)])
async def test_every_entry_comes_once_and_no_commit_ends_inside(size: int, together: int) -> None:
    federation = await _federation(600 // size, size=size, together=together)
    ledger = federation.ledger
    everything = ledger.read(ledger.oldest_revision, 10_000)
    replay = Replay(ledger, federation.view.types)
    for start in (0, 1, 5, 77, len(everything) - 1):
        position = everything[start].revision
        segments = _all(replay, position, ledger.revision)
        changes = [change for segment in segments for change in segment.changes]
        assert [change.revision for change in changes] == [entry.revision for entry in everything[start + 1 :]]
        assert all(0 < len(segment.changes) <= 2 * SLICE for segment in segments)
        assert all(segment.ends_commit for segment in segments) or size > SLICE
        for segment, following in itertools.pairwise(segments):
            is_same = segment.changes[-1].entry.time_ms == following.changes[0].entry.time_ms
            assert segment.ends_commit == (not is_same)


async def test_readers_from_anywhere_soon_share_what_is_read() -> None:
    federation = await _federation(600)
    ledger = federation.ledger
    replay = Replay(ledger, federation.view.types)
    start = ledger.revision - 500
    first = _all(replay, start, ledger.revision)
    reads = replay.statistics()["replay_reads"]
    for ahead in range(1, 60):
        segments = _all(replay, start + ahead, ledger.revision)
        assert segments[2:] == first[-len(segments[2:]) :]
        assert replay.statistics()["replay_reads"] <= reads + 3 * ahead


async def test_nothing_after_the_ring_begins_is_read() -> None:
    federation = await _federation(300)
    ledger = federation.ledger
    replay = Replay(ledger, federation.view.types)
    until = ledger.revision - 33
    segments = _all(replay, ledger.revision - 290, until)
    assert segments[-1].revision == until
    assert segments[-1].ends_commit
    assert replay.segment_after(until, until) is None
    later = _all(replay, segments[-1].after, ledger.revision)
    assert later[0] is segments[-1]  # a commit ended there then, so it does now
    assert later[1].after == until


async def test_what_is_kept_is_bounded_with_all_that_is_decoded_of_it() -> None:
    federation = await _federation(600)
    ledger = federation.ledger
    replay = Replay(ledger, federation.view.types, max_bytes=200_000)
    question = Question(Selection(frozenset({PODS.group_resource})))
    position = ledger.revision - 550
    while (segment := replay.segment_after(position, ledger.revision)) is not None:
        assert portion_of(segment, position, question).events
        assert replay.statistics()["replay_bytes"] <= 200_000 + segment.bytes
        position = segment.revision
    kept = list(replay._kept.values())
    assert 1 <= len(kept) < 9
    assert replay.statistics()["replay_bytes"] == sum(segment.bytes for segment in kept)


async def test_what_is_kept_of_compacted_history_is_expired_too() -> None:
    """Whether a cursor is good does not depend on what somebody else has read before."""
    federation = await _federation(300)
    ledger = federation.ledger
    replay = Replay(ledger, federation.view.types)
    position = ledger.revision - 250
    assert replay.segment_after(position, ledger.revision) is not None
    await ledger.compact(ledger.revision - 100)
    with pytest.raises(CursorExpired) as raised:
        replay.segment_after(position, ledger.revision)
    assert (raised.value.revision, raised.value.oldest) == (position, ledger.oldest_revision)
    assert all(isinstance(entry, ObjectEntry) for entry in ledger.read(ledger.oldest_revision, 10))
