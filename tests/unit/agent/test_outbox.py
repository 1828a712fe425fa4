"""Outbox: coalescing, order, bounds, and that nothing is lost whatever breaks when."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from federator.agent.frame import (
    Bookmark,
    Change,
    Content,
    Deltas,
    Frame,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotItems,
    StateBuckets,
    StateItems,
    TypeStatus,
)
from federator.agent.listing import Plan
from federator.agent.outbox import Outbox
from federator.api.cluster import LISTING_ANEW, TypeState
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.wire.body import dictionary_of
from federator.wire.digest import Buckets, Digest, HashedState, bucket, digest_of, key_hash, state_hash
from tests.unit.agent.scripted_cluster import DEPLOYMENTS, NODES, PODS
from tests.unit.agent.scripted_informer import ScriptedInformer
from tests.unit.wire.test_body import DICTIONARY

WINDOW = 1 << 20


def pod(name: str, version: int = 1, *, uid: str = "u", size: int = 10) -> KubeObject:
    return KubeObject("ns", name, uid, str(version), b"x" * size, version)


class Box:
    """An outbox with one synced type, and what it asked for."""

    def __init__(self, *, has_plans: bool = False, **settings: Any) -> None:
        self.outbox = Outbox(**settings)
        self.sink = self.informer(PODS)
        self.outbox.resume(0, snapshot_all=True, window_bytes=WINDOW, has_plans=has_plans)
        self.sink.replaced_all("1", [])
        self.drain()
        if has_plans:
            self.plan(Plan.NOTHING)
            self.drain()

    @property
    def lists(self) -> int:
        return self.sink.lists

    def informer(self, resource_type: ResourceType) -> ScriptedInformer:
        return ScriptedInformer(self.outbox, resource_type)

    def plan(self, plan: Plan) -> None:
        """Answers the frame taken last."""
        self.outbox.planned(self.outbox.statistics()["sequence"], plan)

    def differ(self, *positions: int) -> None:
        """Answers the frame taken last."""
        self.outbox.differing(self.outbox.statistics()["sequence"], positions)

    def drain(self) -> list[Content]:
        """Takes everything, and acknowledges it."""
        frames = self.take_all()
        self.outbox.acknowledge(self.outbox.statistics()["sequence"])
        return [frame.content for frame in frames]

    def take_all(self) -> list[Frame]:
        frames = []
        while (frame := self.outbox.take()) is not None:
            frames.append(frame)
        return frames


def written(contents: list[Content]) -> list[object]:
    """Contents in short: names with versions, a minus for deletions, the type's name for markers."""
    short: list[object] = []
    for content in contents:
        match content:
            case Deltas(changes) | SnapshotItems(changes):
                short.append(
                    [f"{c.name}@{c.resource_version}" if c.body is not None else f"-{c.name}" for c in changes]
                )
            case Bookmark(version):
                short.append(f"bookmark {version}")
            case TypeStatus(state):
                short.append(str(state))
            case other:
                short.append(type(other).__name__)
    return short


def _changes(content: Content) -> tuple[Change, ...]:
    assert isinstance(content, Deltas)
    return content.changes


class TestLowWater:
    """A frame that leaves nothing behind says so, with the version up to which everything was sent."""

    @staticmethod
    def told(contents: list[Content]) -> list[str]:
        return [content.low_water for content in contents if isinstance(content, Deltas)]

    def test_the_last_frame_of_what_waited_tells_it(self) -> None:
        box = Box(frame_bytes=100)
        for version in range(2, 9):
            box.sink.upserted(pod(f"pod-{version}", version))
        *before, last = self.told(box.drain())
        assert len(before) > 1
        assert (set(before), last) == ({""}, "8")

    def test_a_change_that_overtook_older_ones_of_others_does_not_move_it(self) -> None:
        """The informer tells all changes of an object together: b@7 still waits behind a@9."""
        box = Box()
        box.sink.upserted(pod("a", 9), low_water="5")
        assert self.told(box.drain()) == ["5"]
        box.sink.upserted(pod("b", 7), low_water="9")
        assert self.told(box.drain()) == ["9"]

    def test_an_object_in_an_older_place_does_not_hold_it_back(self) -> None:
        box = Box()
        for name, version in (("a", 2), ("b", 3), ("a", 4)):
            box.sink.upserted(pod(name, version))
        assert self.told(box.drain()) == ["4"]

    def test_a_deletion_that_was_seen_has_a_version_and_one_that_was_missed_has_none(self) -> None:
        box = Box()
        box.sink.upserted(pod("a", 5))
        box.sink.deleted("ns/a", pod("a", 7))
        assert self.told(box.drain()) == ["7"]
        box.sink.deleted("ns/b", pod("b", 3))
        box.sink.deleted("ns/c", None)
        assert self.told(box.drain()) == ["7"]

    def test_what_waits_behind_a_bookmark_is_not_told_of_before_it(self) -> None:
        box = Box()
        box.sink.upserted(pod("a", 2))
        box.sink.bookmark("3")
        assert self.told(box.drain()) == [""]

    def test_after_a_session_broke_it_is_told_again(self) -> None:
        box = Box()
        box.sink.upserted(pod("a", 2))
        box.take_all()
        box.outbox.suspend()
        sequence = box.outbox.statistics()["sequence"]
        box.outbox.resume(sequence - 1, snapshot_all=False, window_bytes=WINDOW)
        (deltas, *_) = box.drain()
        assert isinstance(deltas, Deltas)
        assert [change.name for change in deltas.changes] == ["a"]


class TestDictionaries:
    """What waits can be read by whoever it is sent to."""

    SMALL = KubeObject(
        "ns", "web-7", "u", "2", b'{"metadata":{"name":"web-7","labels":{"app":"web","n":"7"}},"n":7}', 2
    )

    @staticmethod
    def resume(box: Box, dictionary_ids: set[int]) -> None:
        sequence = box.outbox.statistics()["sequence"]
        box.outbox.resume(sequence, snapshot_all=False, window_bytes=WINDOW, dictionary_ids=dictionary_ids)

    def test_changes_and_snapshots_are_compressed_with_the_dictionary_of_their_type(self) -> None:
        box = Box()
        box.outbox.bodies.add(DICTIONARY)
        box.sink.upserted(self.SMALL)
        contents = box.drain()
        box.sink.replaced_all("3", [self.SMALL])
        contents += box.drain()
        bodies = [
            change.body or b""
            for content in contents
            if isinstance(content, Deltas | SnapshotItems)
            for change in content.changes
        ]
        assert [dictionary_of(body) for body in bodies] == [DICTIONARY.dictionary_id] * 2

    def test_another_ledger_gets_what_it_can_read(self) -> None:
        box = Box()
        box.outbox.bodies.add(DICTIONARY)
        box.sink.upserted(self.SMALL)
        box.outbox.suspend()
        self.resume(box, {7})
        (change,) = _changes(box.drain()[0])
        assert change.body == self.SMALL.raw
        assert not list(box.outbox.bodies)

    def test_the_same_ledger_gets_it_as_it_is(self) -> None:
        box = Box()
        box.outbox.bodies.add(DICTIONARY)
        box.sink.upserted(self.SMALL)
        box.outbox.suspend()
        self.resume(box, {DICTIONARY.dictionary_id})
        (change,) = _changes(box.drain()[0])
        assert dictionary_of(change.body or b"") == DICTIONARY.dictionary_id


class TestCoalescing:
    def test_the_latest_state_takes_the_first_place(self) -> None:
        box = Box()
        box.sink.upserted(pod("a", 2))
        box.sink.upserted(pod("b", 3))
        box.sink.upserted(pod("a", 4))
        assert written(box.drain()) == [["a@4", "b@3"]]
        assert box.outbox.statistics()["coalesced"] == 1

    def test_no_bookmark_overtakes_a_change(self) -> None:
        box = Box()
        box.sink.upserted(pod("a", 2))
        box.sink.bookmark("3")
        box.sink.upserted(pod("a", 4))
        box.sink.upserted(pod("b", 5))
        box.sink.bookmark("6")
        assert written(box.drain()) == [["a@4"], "bookmark 3", ["b@5"], "bookmark 6"]

    def test_a_bookmark_at_the_tail_gives_way_to_the_next(self) -> None:
        box = Box()
        for version in range(2, 1000):
            box.sink.bookmark(str(version))
        assert box.outbox.statistics()["queued_entries"] == 1
        assert written(box.drain()) == ["bookmark 999"]

    def test_bookmarks_in_a_storm_on_one_object_stay_few(self) -> None:
        box = Box()
        for version in range(2, 1000):
            box.sink.upserted(pod("a", version))
            box.sink.bookmark(str(version))
        assert written(box.drain()) == [["a@999"], "bookmark 999"]

    def test_a_deletion_and_a_new_object_of_the_name_become_the_new_object(self) -> None:
        box = Box()
        box.sink.upserted(pod("a", 2, uid="one"))
        box.sink.deleted("ns/a", None)
        assert written(box.drain()) == [["-a"]]
        box.sink.deleted("ns/a", None)
        box.sink.upserted(pod("a", 4, uid="two"))
        (deltas,) = box.drain()
        assert isinstance(deltas, Deltas)
        assert [change.uid for change in deltas.changes] == ["two"]

    def test_keys_of_cluster_scoped_objects(self) -> None:
        box = Box()
        nodes = box.informer(NODES)
        nodes.replaced_all("1", [KubeObject("", "n", "u", "1", b"{}")])
        box.drain()
        nodes.deleted("n", None)
        (deltas,) = box.drain()
        assert deltas == Deltas((Change.delete("n", state_hash(0, "v1", "u")),), "1")


class TestSnapshots:
    def test_a_snapshot_supersedes_what_was_queued_and_precedes_what_follows(self) -> None:
        box = Box()
        box.sink.upserted(pod("gone", 2))
        box.sink.replaced_all("5", [pod("a", 3), pod("b", 4)])
        box.sink.upserted(pod("a", 6))
        box.sink.bookmark("7")
        assert written(box.drain()) == ["SnapshotBegin", ["a@3", "b@4"], "SnapshotEnd", ["a@6"], "bookmark 7"]

    def test_a_second_list_restarts_the_snapshot(self) -> None:
        box = Box()
        box.sink.replaced_all("5", [pod("a", 3)])
        assert written([box.outbox.take().content]) == ["SnapshotBegin"]  # type: ignore[union-attr]
        box.sink.replaced_all("6", [pod("b", 4)])
        assert written(box.drain()) == ["SnapshotBegin", ["b@4"], "SnapshotEnd"]

    def test_types_take_turns(self) -> None:
        box = Box()
        other = box.informer(DEPLOYMENTS)
        box.sink.replaced_all("5", [pod(f"p{number}", 3) for number in range(1000)])
        other.replaced_all("5", [])
        other.upserted(pod("d", 6))
        order = [(frame.type.kind, type(frame.content).__name__) for frame in box.take_all()]
        assert order.index(("Deployment", "Deltas")) <= 5

    def test_without_a_session_a_list_is_not_kept_and_listed_again_later(self) -> None:
        box = Box()
        box.outbox.suspend()
        box.sink.replaced_all("5", [pod("a", 3)])
        box.sink.upserted(pod("b", 6))
        assert box.outbox.statistics()["queued_bytes"] == 0
        assert box.lists == 0
        box.outbox.resume(3, snapshot_all=False, window_bytes=WINDOW)
        assert box.lists == 1
        assert written(box.drain()) == ["STALE"], "it is behind, and nothing is sent that a list would repeat"
        box.sink.replaced_all("7", [pod("a", 3), pod("b", 6)])
        assert written(box.drain()) == ["SnapshotBegin", ["a@3", "b@6"], "SnapshotEnd"]

    def test_the_first_list_needs_no_asking(self) -> None:
        box = Box()
        other = box.informer(DEPLOYMENTS)
        box.outbox.suspend()
        box.outbox.resume(3, snapshot_all=True, window_bytes=WINDOW)
        assert box.lists == 1, "the synced type's"
        other.replaced_all("5", [])
        assert "SnapshotEnd" in written(box.drain())

    def test_a_snapshot_that_is_not_acknowledged_is_made_anew(self) -> None:
        box = Box()
        box.sink.replaced_all("5", [pod("a", 3)])
        frames = box.take_all()
        box.outbox.suspend()
        box.outbox.resume(frames[1].sequence, snapshot_all=False, window_bytes=WINDOW)
        assert box.lists == 1
        assert written(box.drain()) == ["STALE"]

    def test_one_whose_end_turns_out_durable_is_not(self) -> None:
        box = Box()
        box.sink.replaced_all("5", [pod("a", 3)])
        frames = box.take_all()
        box.outbox.suspend()
        box.outbox.resume(frames[-1].sequence, snapshot_all=False, window_bytes=WINDOW)
        assert box.lists == 0
        assert written(box.drain()) == ["LIVE"]

    def test_the_end_of_an_older_snapshot_settles_nothing(self) -> None:
        box = Box()
        box.sink.replaced_all("5", [])
        old = box.take_all()
        box.sink.replaced_all("6", [])
        box.take_all()
        box.outbox.acknowledge(old[-1].sequence)
        box.outbox.suspend()
        box.outbox.resume(old[-1].sequence, snapshot_all=False, window_bytes=WINDOW)
        assert box.lists == 1


class TestResuming:
    def test_what_is_not_durable_comes_again_first_with_fresh_numbers_and_newest_states(self) -> None:
        box = Box()
        box.sink.upserted(pod("a", 2))
        first = box.take_all()
        box.sink.upserted(pod("b", 3))
        box.sink.bookmark("4")
        box.take_all()
        box.sink.upserted(pod("c", 5))
        box.sink.upserted(pod("b", 6))
        box.outbox.suspend()
        box.outbox.resume(first[-1].sequence, snapshot_all=False, window_bytes=WINDOW)
        frames = box.take_all()
        assert [frame.sequence for frame in frames] == list(range(first[-1].sequence + 1, first[-1].sequence + 5))
        assert written([frame.content for frame in frames]) == [["b@6"], "bookmark 4", ["c@5"], "LIVE"]
        assert box.outbox.statistics()["resent_frames"] == 2

    def test_an_aggregator_that_knows_nothing_gets_lists(self) -> None:
        box = Box()
        box.sink.upserted(pod("a", 2))
        box.take_all()
        box.outbox.suspend()
        box.outbox.resume(0, snapshot_all=True, window_bytes=WINDOW)
        assert box.lists == 1
        assert written(box.drain()) == [], "it says itself that it is behind"
        box.sink.replaced_all("9", [])
        assert [frame.sequence for frame in box.take_all()] == [1, 2]

    def test_an_aggregator_that_lost_what_it_had_acknowledged_gets_lists(self) -> None:
        """A ledger restored from a backup knows this instance, but less of it than it once said."""
        box = Box()
        before = box.outbox.statistics()["sequence"]
        box.sink.upserted(pod("a", 2))
        box.drain()
        box.outbox.suspend()
        box.outbox.resume(before, snapshot_all=False, window_bytes=WINDOW)
        assert box.lists == 1
        box.sink.replaced_all("9", [pod("a", 2)])
        assert written(box.drain()) == ["SnapshotBegin", ["a@2"], "SnapshotEnd"]

    def test_a_state_that_was_in_flight_is_told_again(self) -> None:
        box = Box()
        box.outbox.report(PODS, TypeState.DENIED, "forbidden")
        before = box.outbox.statistics()["sequence"]
        box.take_all()
        box.outbox.suspend()
        box.outbox.resume(before, snapshot_all=False, window_bytes=WINDOW)
        assert box.drain() == [TypeStatus(TypeState.DENIED, "forbidden")]


class TestStates:
    def test_who_is_denied_to_watch_stays_denied_when_a_list_came(self) -> None:
        box = Box()
        denied = TypeStatus(TypeState.DENIED, "cannot watch")
        box.outbox.report(PODS, denied.state, denied.reason)
        box.drain()
        box.sink.replaced_all("9", [pod("a", 2)])
        assert box.drain()[-1] == denied
        box.outbox.report(PODS, TypeState.LIVE)
        assert box.drain() == [TypeStatus(TypeState.LIVE)]

    def test_an_unchanged_state_is_told_once(self) -> None:
        box = Box()
        for _ in range(3):
            box.outbox.report(PODS, TypeState.STALE, "refused")
        assert box.drain() == [TypeStatus(TypeState.STALE, "refused")]
        box.outbox.report(PODS, TypeState.STALE, "refused")
        assert box.drain() == []

    def test_states_and_bookmarks_that_alternate_stay_few(self) -> None:
        """An agent that finds no aggregator for days, beside an apiserver that comes and goes."""
        box = Box()
        box.sink.upserted(pod("a", 2))
        for number in range(3, 1000):
            box.outbox.report(PODS, TypeState.STALE if number % 2 else TypeState.LIVE, "refused" if number % 2 else "")
            box.sink.bookmark(str(number))
        assert written(box.drain()) == [["a@2"], "STALE", "bookmark 999"]

    def test_a_type_told_not_collected_is_retired(self) -> None:
        box = Box()
        assert not box.outbox.is_retired(PODS.group_resource)
        box.outbox.report(PODS, TypeState.NOT_COLLECTED, "not asked for")
        assert box.outbox.is_retired(PODS.group_resource)

    def test_live_says_nothing_while_a_list_is_awaited(self) -> None:
        box = Box()
        assert box.outbox.list_anew(PODS.group_resource)
        box.outbox.report(PODS, TypeState.LIVE)
        assert box.drain() == [TypeStatus(TypeState.STALE, LISTING_ANEW)]

    def test_a_list_supersedes_an_earlier_failure(self) -> None:
        box = Box()
        box.outbox.report(PODS, TypeState.STALE, "refused")
        box.sink.replaced_all("5", [])
        assert written(box.drain()) == ["SnapshotBegin", "SnapshotEnd"]

    def test_a_type_that_is_gone_takes_its_queue_along_and_may_come_back(self) -> None:
        box = Box()
        box.sink.upserted(pod("a", 2))
        box.outbox.report(PODS, TypeState.ABSENT, "not served")
        box.sink.upserted(pod("a", 3))
        assert written(box.drain()) == ["ABSENT"]
        assert not box.outbox.list_anew(PODS.group_resource)
        again = box.informer(PODS)
        again.replaced_all("9", [pod("a", 8)])
        assert written(box.drain()) == ["SnapshotBegin", ["a@8"], "SnapshotEnd"]

    def test_a_type_that_was_never_collected_can_be_accounted_for(self) -> None:
        box = Box()
        box.outbox.report(NODES, TypeState.NOT_COLLECTED, "not asked for")
        assert box.drain() == [TypeStatus(TypeState.NOT_COLLECTED, "not asked for")]
        assert not box.outbox.list_anew(NODES.group_resource)


class TestBounds:
    def test_above_the_bound_the_heaviest_type_is_listed_anew(self) -> None:
        box = Box(max_bytes=10_000)
        small = box.informer(DEPLOYMENTS)
        small.replaced_all("1", [])
        box.drain()
        small.upserted(pod("d", 2))
        for number in range(100):
            box.sink.upserted(pod(f"p{number}", 2, size=100))
        statistics = box.outbox.statistics()
        assert statistics["queued_bytes"] <= 10_000
        assert (statistics["overflows"], box.lists) == (1, 1)
        assert sorted(map(str, written(box.drain()))) == ["STALE", "['d@2']"]

    def test_without_a_session_it_overflows_once_and_asks_later(self) -> None:
        box = Box(max_bytes=1000)
        box.outbox.suspend()
        for number in range(1000):
            box.sink.upserted(pod(f"p{number}", 2))
        assert (box.outbox.statistics()["overflows"], box.lists) == (1, 0)
        box.outbox.resume(3, snapshot_all=False, window_bytes=WINDOW)
        assert box.lists == 1

    def test_a_snapshot_does_not_count(self) -> None:
        box = Box(max_bytes=1000)
        box.sink.replaced_all("5", [pod(f"p{number}", size=1000) for number in range(100)])
        assert box.outbox.statistics()["overflows"] == 0

    def test_frames_are_cut_by_bytes_and_by_number(self) -> None:
        box = Box(frame_bytes=10_000)
        for number in range(3000):
            box.sink.upserted(pod(f"p{number:04}", 2))
        contents = box.drain()
        assert all(isinstance(content, Deltas) for content in contents)
        assert max(sum(change.size for change in _changes(content)) for content in contents) < 10_200
        box = Box()
        for number in range(3000):
            box.sink.upserted(pod(f"p{number:04}", 2))
        assert [len(_changes(content)) for content in box.drain()] == [1024, 1024, 952]

    def test_no_more_than_the_window_is_in_flight_except_one_large_object(self) -> None:
        box = Box(frame_bytes=1000)
        box.outbox.resume(3, snapshot_all=False, window_bytes=4000)
        box.drain()
        for number in range(200):
            box.sink.upserted(pod(f"p{number:04}", 2))
        box.take_all()
        assert 3000 <= box.outbox.statistics()["in_flight_bytes"] <= 5000
        while box.outbox.statistics()["queued_entries"]:
            box.drain()
        box.sink.upserted(KubeObject("ns", "large", "u", "3", bytes(range(256)) * 100, 1))
        assert len(box.take_all()) == 1

    def test_the_sizes_it_counts_are_no_less_than_the_real_ones(self) -> None:
        box = Box()
        box.sink.replaced_all("5", [pod("é" * 5 + "p" * 200, 3, uid="u" * 36, size=5000), pod("a", 4)])
        box.sink.upserted(pod("a", 6))
        box.sink.deleted("ns/b", None)
        box.sink.bookmark("7")
        box.outbox.report(PODS, TypeState.STALE, "r" * 50)
        for frame in box.take_all():
            assert frame.to_message().ByteSize() <= frame.size


class TestWaitChanged:
    """Whoever sends is woken for what it may do then, and not for what it has done itself: each wake-up costs CPU."""

    async def is_woken(self, box: Box) -> bool:
        waiting = asyncio.create_task(box.outbox.wait_changed())
        await asyncio.sleep(0)
        is_woken = waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        return is_woken

    async def test_a_change_ends_it_and_its_frame_and_acknowledgement_do_not(self) -> None:
        box = Box()
        await self.is_woken(box)
        box.sink.upserted(pod("a", 2))
        assert await self.is_woken(box)
        (frame,) = box.take_all()
        assert not await self.is_woken(box)
        box.outbox.acknowledge(frame.sequence)
        assert not await self.is_woken(box)

    async def test_an_acknowledgement_ends_it_where_something_waits_for_room(self) -> None:
        box = Box(frame_bytes=1000)
        box.outbox.resume(3, snapshot_all=False, window_bytes=2000)
        box.drain()
        for number in range(100):
            box.sink.upserted(pod(f"p{number:04}", 2))
        await self.is_woken(box)
        frames = box.take_all()
        assert box.outbox.waiting
        assert not await self.is_woken(box)
        box.outbox.acknowledge(frames[-1].sequence)
        assert await self.is_woken(box)

    async def test_a_listing_that_is_dropped_unsent_ends_it_since_everything_is_taken_then(self) -> None:
        box = Box(has_plans=True)
        box.sink.replaced_all("5", [pod("a", 4)])
        box.take_all()
        await self.is_woken(box)
        assert not box.outbox.is_drained, "the plan is awaited"
        box.outbox.list_anew(PODS.group_resource)
        assert await self.is_woken(box)

    async def test_a_state_ends_it_only_when_it_is_another_one(self) -> None:
        box = Box()
        box.outbox.report(PODS, TypeState.STALE, "slow")
        assert await self.is_woken(box)
        box.outbox.report(PODS, TypeState.STALE, "slow")
        assert not await self.is_woken(box)
        assert box.outbox.waiting


class Receiver:
    """What an aggregator makes of the frames: it answers the begin of a snapshot, and compares every digest."""

    def __init__(self) -> None:
        self.durable = 0
        self.held: dict[str, int] = {}
        self.named: set[str] | None = None
        self.missing: set[str] = set()
        self.plan = Plan.ALL
        self.low_water = 0
        self.is_live = False
        self.answers: list[partial[None]] = []
        self.refuses: str = ""
        self.refused: set[str] = set()
        self.lost_refusals: set[str] = set()
        self.compared = 0
        self.mismatches = 0

    def hashed(self, name: str) -> HashedState:
        return HashedState(key_hash("ns", name), state_hash(self.held[name], "v1", "u"))

    def digest(self, left_out: Collection[str]) -> Digest:
        return digest_of(self.hashed(name) for name in self.held if f"ns/{name}" not in left_out)

    def take(self, frame: Frame) -> None:
        assert frame.sequence == self.durable + 1, "without gaps"
        sequence = self.durable = frame.sequence
        match frame.content:
            case SnapshotBegin(_, digest):
                self.named, self.missing = set(), set()
                self.plan = Plan.ALL
                if digest is not None:
                    is_equal = self.digest(digest.left_out) == digest.digest
                    self.plan = Plan.NOTHING if is_equal else Plan.DIFFERING if self.held else Plan.ALL
                    self.answers.append(partial(Outbox.planned, sequence=sequence, plan=self.plan))
            case StateBuckets(bits, sums):
                own = Buckets(bits)
                for name in self.held:
                    own.add(*self.hashed(name))
                self.answers.append(partial(Outbox.differing, sequence=sequence, positions=list(own.differing(sums))))
            case StateItems(bits, buckets, keys, states):
                hashed = {self.hashed(name): name for name in self.held}
                told = set(map(HashedState, keys, states))
                self.missing |= {
                    name for one, name in hashed.items() if bucket(one.key, bits) in buckets and one.key not in keys
                }
                wanted = [place for place, one in enumerate(map(HashedState, keys, states)) if one not in hashed]
                assert len(told) == len(keys)
                self.answers.append(partial(Outbox.differing, sequence=sequence, positions=wanted))
            case SnapshotItems(changes):
                assert self.named is not None
                for change in changes:
                    self.named.add(change.name)
                    self.put(frame, change)
            case SnapshotEnd(version, left_out):
                assert self.named is not None
                gone = self.held.keys() - self.named if self.plan is Plan.ALL else self.missing
                for name in gone:
                    if f"ns/{name}" not in left_out:
                        del self.held[name]
                self.named, self.is_live = None, True
                self.low_water = max(self.low_water, int(version))
            case Deltas(changes):
                for change in changes:
                    if change.body is None:
                        self.held.pop(change.name, None)
                        self.forgive(change.name)
                    else:
                        self.put(frame, change)
            case Bookmark(version, digest):
                self.low_water = int(version)
                # The agent cannot leave out what it does not know to be refused.
                named = {key[3:] for key in digest.left_out} if digest else set()
                if digest is not None and (self.refused | self.lost_refusals) <= named:
                    self.compared += 1
                    if self.digest(digest.left_out) != digest.digest:
                        self.mismatches += 1
            case TypeStatus(state):
                self.is_live = state is TypeState.LIVE

    def put(self, frame: Frame, change: Change) -> None:
        if change.name == self.refuses:
            self.answers.append(partial(Outbox.refused, sequence=frame.sequence, key=change.key))
            self.refused.add(change.name)
        else:
            self.held[change.name] = int(change.resource_version)
            self.forgive(change.name)

    def forgive(self, name: str) -> None:
        self.refused.discard(name)
        self.lost_refusals.discard(name)

    def cut(self) -> None:
        """The session breaks: what was to be answered is not."""
        self.lost_refusals |= {key[3:] for answer in self.answers if (key := answer.keywords.get("key"))}
        self.refused.clear()
        self.answers.clear()

    def answer(self, outbox: Outbox) -> None:
        answers, self.answers = self.answers, []
        for answer in answers:
            answer(outbox)


class AnyFailures(RuleBasedStateMachine):
    """Changes, bookmarks, lists, lost frames, lost acknowledgements, refusals, reconnects, lost ledgers: in any order.

    No digest is ever wrong, but where the receiver itself lost or changed something; and then it is mended.
    """

    has_plans = True

    @initialize()
    def start(self) -> None:
        self.version = 1
        self.truth: dict[str, int] = {}
        self.history: list[tuple[int, str, int | None]] = []  # (version, name, new state or None)
        self.lists_made = 0
        self.is_open = False
        self.wire: list[Frame] = []
        self.receiver = Receiver()
        self.refused: set[str] = set()
        self.outbox = Outbox(max_bytes=1500, frame_bytes=400)
        self.sink = ScriptedInformer(self.outbox, PODS)
        self.sink.lists = 1

    @rule(name=st.sampled_from("abcdefgh"))
    def put(self, name: str) -> None:
        self.version += 1
        self.truth[name] = self.version
        self.history.append((self.version, name, self.version))
        self.sink.upserted(pod(name, self.version))

    @rule(name=st.sampled_from("abcdefgh"))
    def delete(self, name: str) -> None:
        if self.truth.pop(name, None) is not None:
            self.version += 1
            self.history.append((self.version, name, None))
            self.sink.deleted(f"ns/{name}")

    @rule()
    def bookmark(self) -> None:
        self.sink.bookmark(str(self.version))

    @rule()
    def list_(self) -> None:
        """The informer lists when asked, and sometimes by itself."""
        self.lists_made = self.sink.lists
        self.sink.replaced_all(str(self.version), [pod(name, version) for name, version in self.truth.items()])

    @rule(is_away=st.booleans())
    def fetch(self, is_away: bool) -> None:
        """The informer fetches what it was asked for, as it is by now, if the apiserver lets it."""
        if self.sink.fetches:
            asked = {obj.name for obj in self.sink.fetches[-1]}
            found = [] if is_away else [pod(name, version) for name, version in self.truth.items() if name in asked]
            self.sink.fetched(found)

    @rule(name=st.sampled_from("abcdefgh"))
    def refuse(self, name: str) -> None:
        """From now on one object is refused, and no other."""
        self.receiver.refuses = name
        self.refused.add(name)

    @rule(number=st.integers(1, 5))
    def send(self, number: int) -> None:
        if self.is_open:
            self.wire += [frame for frame in (self.outbox.take() for _ in range(number)) if frame is not None]

    @rule(number=st.integers(1, 5), acknowledges=st.booleans())
    def arrive(self, number: int, acknowledges: bool) -> None:
        for frame in self.wire[:number]:
            self.receiver.take(frame)
        del self.wire[:number]
        if not self.is_open:
            self.receiver.cut()
        self.receiver.answer(self.outbox)
        if acknowledges and self.is_open:
            self.outbox.acknowledge(self.receiver.durable)

    @rule(loses_ledger=st.booleans())
    def reconnect(self, loses_ledger: bool) -> None:
        self.wire.clear()
        self.receiver.cut()
        self.outbox.suspend()
        if loses_ledger and self.version % 4 == 0:
            self.receiver = Receiver()
        self.receiver.named = None
        self.is_open = True
        is_unknown = self.receiver.durable == 0
        self.outbox.resume(self.receiver.durable, snapshot_all=is_unknown, window_bytes=2000, has_plans=self.has_plans)

    @rule()
    def disconnect(self) -> None:
        self.wire.clear()
        self.outbox.suspend()
        self.is_open = False

    @invariant()
    def what_is_below_the_low_water_mark_is_there(self) -> None:
        if not hasattr(self, "receiver") or not self.receiver.low_water:
            return
        low_water = self.receiver.low_water
        latest = {name: (version, state) for version, name, state in self.history if version <= low_water}
        for name, (since, state) in latest.items():
            if name in self.refused:
                continue
            later = {new for version, changed, new in self.history if changed == name and version > since}
            assert self.receiver.held.get(name) in {state, *later}, (name, state)

    @invariant()
    def changes_are_bounded(self) -> None:
        if hasattr(self, "outbox"):
            assert self.outbox.statistics()["queued_bytes"] <= 1500

    @invariant()
    def no_digest_is_wrong(self) -> None:
        if hasattr(self, "receiver"):
            assert self.receiver.mismatches == 0

    def catch_up(self) -> None:
        """Lets everything happen that is due."""
        for _ in range(200):
            if self.sink.lists > self.lists_made:
                self.list_()
            self.fetch(is_away=False)
            self.send(5)
            self.arrive(5, acknowledges=True)
            if self.outbox.is_drained and not self.wire:
                return

    def teardown(self) -> None:
        if not hasattr(self, "outbox"):
            return
        self.reconnect(loses_ledger=False)
        self.catch_up()
        self.check_held()
        assert self.receiver.is_live
        compared = self.receiver.compared
        self.bookmark()
        self.catch_up()
        assert (self.receiver.mismatches, self.receiver.compared) == (0, compared + (not self.receiver.lost_refusals))
        self.swap()

    def check_held(self) -> None:
        for held, real in ((self.receiver.held, self.truth), (self.truth, self.receiver.held)):
            assert {name: real.get(name) for name in held.keys() - self.refused} == {
                name: held[name] for name in held.keys() - self.refused
            }

    def swap(self) -> None:
        """Of what is stored, one object is swapped for another; the next bookmark tells, and the recheck mends it."""
        swapped = next((name for name in self.receiver.held if name not in self.refused), None)
        if swapped is None or not self.has_plans or self.receiver.lost_refusals:
            return
        del self.receiver.held[swapped]
        self.receiver.held["other"] = 1
        self.bookmark()
        self.catch_up()
        assert self.receiver.mismatches == 1
        self.outbox.recheck(PODS.group_resource)
        self.catch_up()
        self.bookmark()
        self.catch_up()
        assert self.receiver.mismatches == 1
        self.check_held()


class AnyFailuresWithoutPlans(AnyFailures):
    """The same with an aggregator that answers no snapshot with a plan."""

    has_plans = False


TestAnyFailures = AnyFailures.TestCase
TestAnyFailures.settings = settings(stateful_step_count=40)
TestAnyFailuresWithoutPlans = AnyFailuresWithoutPlans.TestCase
TestAnyFailuresWithoutPlans.settings = settings(stateful_step_count=40)
