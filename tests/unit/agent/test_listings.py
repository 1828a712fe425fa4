"""What of a listing is sent, plan by plan; what bookmarks say of it; and what is left out of both."""

from __future__ import annotations

import pytest

from federator.agent.frame import (
    Bookmark,
    Content,
    SnapshotBegin,
    SnapshotEnd,
    SnapshotItems,
    StateBuckets,
    StateItems,
)
from federator.agent.listing import HASHES_PER_SLICE, Plan
from federator.agent.type_queue import MAX_FETCHES
from federator.api.cluster import LISTING_ANEW, TypeState
from federator.api.object import KubeObject
from federator.wire.digest import MAX_LEFT_OUT, Digest, HashedState, digest_of, key_hash, state_hash
from tests.unit.agent.scripted_cluster import PODS
from tests.unit.agent.test_outbox import WINDOW, Box, pod, written

PODS_LISTED = [pod(f"pod-{number:04}", number + 2) for number in range(500)]


def hashed(obj: KubeObject) -> HashedState:
    return HashedState(key_hash(obj.namespace, obj.name), state_hash(obj.content_hash, "v1", obj.uid))


def begun(box: Box) -> SnapshotBegin:
    """Takes the begin of a snapshot, behind which nothing can be taken."""
    (begin,) = box.drain()
    assert isinstance(begin, SnapshotBegin)
    return begin


def bookmarked(box: Box, version: str = "900") -> Bookmark:
    box.sink.bookmark(version)
    (bookmark,) = box.drain()
    assert isinstance(bookmark, Bookmark)
    return bookmark


def stated(content: Bookmark | SnapshotBegin) -> tuple[Digest, tuple[str, ...]]:
    assert content.digest is not None
    return content.digest.digest, content.digest.left_out


def synced(*objects: KubeObject) -> Box:
    """A box whose objects are all sent."""
    box = Box(has_plans=True)
    box.sink.replaced_all("800", objects)
    begun(box)
    box.plan(Plan.ALL)
    box.drain()
    return box


class TestPlans:
    def test_a_listing_begins_with_what_it_adds_up_to_and_then_waits(self) -> None:
        box = Box(has_plans=True)
        box.sink.replaced_all("800", PODS_LISTED)
        box.sink.upserted(pod("later", 801))
        begin = begun(box)
        assert begin.resource_version == "800"
        assert stated(begin) == (digest_of(map(hashed, PODS_LISTED)), ())
        assert not box.outbox.is_drained, "a stopping agent does not say goodbye in the middle"

    def test_nothing_is_sent_of_what_is_there(self) -> None:
        box = Box(has_plans=True)
        box.sink.replaced_all("800", PODS_LISTED)
        begun(box)
        box.plan(Plan.NOTHING)
        assert box.drain() == [SnapshotEnd("800")]
        assert stated(bookmarked(box)) == (digest_of(map(hashed, PODS_LISTED)), ())

    def test_all_is_sent_where_nothing_is_there_and_what_followed_comes_behind(self) -> None:
        box = Box(has_plans=True)
        box.sink.replaced_all("800", PODS_LISTED)
        box.sink.upserted(pod("later", 801))
        begun(box)
        box.plan(Plan.ALL)
        contents = box.drain()
        assert [type(content).__name__ for content in contents] == [
            "SnapshotItems",
            "SnapshotItems",
            "SnapshotEnd",
            "Deltas",
        ]
        assert [name for part in written(contents[:2]) for name in part] == [  # type: ignore[attr-defined]
            f"{obj.name}@{obj.resource_version}" for obj in PODS_LISTED
        ]

    def test_of_what_differs_the_buckets_are_told_then_the_states_then_the_objects(self) -> None:
        box = Box(has_plans=True)
        box.sink.replaced_all("800", PODS_LISTED)
        begun(box)
        box.plan(Plan.DIFFERING)
        (buckets,) = box.drain()
        assert isinstance(buckets, StateBuckets)
        assert (len(buckets.sums), sum(buckets.sums) % 2**64) == (32, digest_of(map(hashed, PODS_LISTED)).sum)
        box.differ(3, 7)
        (items,) = box.drain()
        assert isinstance(items, StateItems)
        expected = [one for one in map(hashed, PODS_LISTED) if one.key >> 59 in {3, 7}]
        assert items.buckets == (3, 7)
        assert sorted(zip(items.keys, items.states, strict=True)) == sorted(expected)
        box.differ(0)
        sent, end = box.drain()
        assert isinstance(sent, SnapshotItems)
        assert [key_hash(change.namespace, change.name) for change in sent.changes] == [items.keys[0]]
        assert end == SnapshotEnd("800")
        assert stated(bookmarked(box)) == (digest_of(map(hashed, PODS_LISTED)), ())

    def test_where_the_buckets_agree_nothing_more_is_told(self) -> None:
        box = Box(has_plans=True)
        box.sink.replaced_all("800", PODS_LISTED)
        begun(box)
        box.plan(Plan.DIFFERING)
        box.drain()
        box.differ()
        assert box.drain() == [SnapshotEnd("800")]

    def test_buckets_of_which_this_side_has_nothing_are_told_too(self) -> None:
        box = Box(has_plans=True)
        box.sink.replaced_all("800", [])
        begun(box)
        box.plan(Plan.DIFFERING)
        box.drain()
        box.differ(0)
        assert box.drain() == [StateItems(0, (0,), (), ())]
        box.differ()
        assert box.drain() == [SnapshotEnd("800")]

    def test_many_states_take_several_frames_each_with_whole_buckets(self) -> None:
        box = Box(has_plans=True)
        objects = [pod(f"p{number}", 2) for number in range(20_000)]
        box.sink.replaced_all("800", objects)
        while box.outbox.prepare():
            pass
        begun(box)
        box.plan(Plan.DIFFERING)
        (buckets,) = box.drain()
        assert isinstance(buckets, StateBuckets)
        box.differ(*range(len(buckets.sums)))
        frames = box.take_all()
        assert len(frames) == 5
        for frame in frames:
            assert isinstance(frame.content, StateItems)
            assert {key >> (64 - frame.content.bits) for key in frame.content.keys} <= set(frame.content.buckets)
            assert frame.to_message().ByteSize() <= frame.size
        for frame in frames:
            box.outbox.differing(frame.sequence, [])
        assert box.drain() == [SnapshotEnd("800")]

    def test_a_large_listing_is_hashed_bit_by_bit(self) -> None:
        box = Box(has_plans=True)
        box.sink.replaced_all("800", [pod(f"p{number}", 2) for number in range(HASHES_PER_SLICE + 1)])
        assert box.outbox.take() is None
        assert [box.outbox.prepare(), box.outbox.prepare(), box.outbox.prepare()] == [True, True, False]
        begun(box)

    def test_an_answer_that_does_not_fit_is_refused(self) -> None:
        box = Box(has_plans=True)
        box.sink.replaced_all("800", [pod("a", 2)])
        begun(box)
        box.plan(Plan.DIFFERING)
        box.drain()
        box.differ(0)
        box.drain()
        with pytest.raises(IndexError):
            box.differ(1)

    def test_an_answer_to_another_listing_says_nothing(self) -> None:
        box = Box(has_plans=True)
        box.sink.replaced_all("800", [pod("a", 2)])
        begun(box)
        asked = box.outbox.statistics()["sequence"]
        box.sink.replaced_all("801", [pod("a", 2)])
        begun(box)
        box.outbox.planned(asked, Plan.NOTHING)
        box.outbox.planned(12345, Plan.NOTHING)
        assert box.drain() == []
        box.plan(Plan.NOTHING)
        assert box.drain() == [SnapshotEnd("801")]

    def test_a_restored_cluster_is_told_of_until_a_listing_of_it_is_durable(self) -> None:
        box = synced(pod("a", 2))
        box.sink.epoch = 1
        for _ in range(2):
            box.sink.replaced_all("5", [pod("a", 1)])
            assert begun(box).is_restored
        box.plan(Plan.ALL)
        box.drain()
        box.sink.replaced_all("6", [pod("a", 1)])
        assert not begun(box).is_restored


class TestLeftOut:
    def test_a_refused_object_is_in_no_digest_and_is_not_sent_again(self) -> None:
        box = synced(pod("a", 2))
        box.sink.upserted(pod("bad", 801))
        (frame,) = box.take_all()
        box.outbox.refused(frame.sequence, "ns/bad")
        box.drain()
        assert stated(bookmarked(box)) == (digest_of([hashed(pod("a", 2))]), ("ns/bad",))
        box.sink.replaced_all("900", [pod("a", 2), pod("bad", 801)])
        assert stated(begun(box)) == (digest_of([hashed(pod("a", 2))]), ("ns/bad",))
        box.plan(Plan.ALL)
        assert written(box.drain()) == [["a@2"], "SnapshotEnd"]
        assert stated(bookmarked(box)) == (digest_of([hashed(pod("a", 2))]), ("ns/bad",))

    def test_its_next_state_is(self) -> None:
        box = synced(pod("bad", 2))
        box.sink.upserted(pod("bad", 801))
        (frame,) = box.take_all()
        box.outbox.refused(frame.sequence, "ns/bad")
        box.sink.upserted(pod("bad", 802))
        box.drain()
        assert stated(bookmarked(box)) == (digest_of([hashed(pod("bad", 802))]), ())
        box.sink.deleted("ns/bad")
        box.drain()
        assert stated(bookmarked(box)) == (Digest(), ())

    def test_a_newer_state_that_is_on_its_way_is_not_meant(self) -> None:
        box = synced(pod("bad", 2))
        box.sink.upserted(pod("bad", 801))
        (frame,) = box.take_all()
        box.sink.upserted(pod("bad", 802))
        box.take_all()
        box.outbox.refused(frame.sequence, "ns/bad")
        box.drain()
        assert stated(bookmarked(box)) == (digest_of([hashed(pod("bad", 802))]), ())

    def test_an_object_that_cannot_be_sent_stays_what_it_was(self) -> None:
        box = synced(pod("odd", 2), pod("a", 2))
        box.sink.replaced_all("900", [pod("a", 2)], withheld=["ns/odd"])
        assert stated(begun(box)) == (digest_of([hashed(pod("a", 2))]), ("ns/odd",))
        box.plan(Plan.NOTHING)
        assert box.drain() == [SnapshotEnd("900", ("ns/odd",))]
        box.sink.upserted(pod("odd", 901))
        box.drain()
        assert stated(bookmarked(box)) == (digest_of([hashed(pod("a", 2)), hashed(pod("odd", 901))]), ())

    def test_with_too_many_there_is_no_digest_and_everything_is_sent(self) -> None:
        box = synced(pod("a", 2))
        box.sink.replaced_all("900", [pod("a", 2)], withheld=[f"ns/odd-{number}" for number in range(MAX_LEFT_OUT + 1)])
        begin, items, end = box.drain()
        assert isinstance(begin, SnapshotBegin)
        assert isinstance(items, SnapshotItems)
        assert isinstance(end, SnapshotEnd)
        assert (begin.digest, len(end.left_out)) == (None, MAX_LEFT_OUT + 1)
        assert bookmarked(box).digest is None


class TestRechecks:
    """What was sent does not add up to what is stored."""

    def start(self, *, waiting: KubeObject | None = None) -> Box:
        box = synced(pod("a", 2), pod("b", 3), pod("c", 4))
        if waiting is not None:
            box.sink.upserted(waiting)
        box.outbox.recheck(PODS.group_resource)
        return box

    def differing(self, box: Box) -> list[Content]:
        """Says that all differs."""
        begun(box)
        box.plan(Plan.DIFFERING)
        (buckets,) = box.drain()
        box.differ(*range(len(buckets.sums)))  # type: ignore[union-attr]
        (items,) = box.drain()
        box.differ(*range(len(items.keys)))  # type: ignore[union-attr]
        return box.drain()

    def test_what_differs_is_fetched_and_sent(self) -> None:
        box = self.start()
        assert self.differing(box) == []
        assert box.lists == 0
        (wanted,) = box.sink.fetches
        assert sorted(obj.name for obj in wanted) == ["a", "b", "c"]
        box.sink.fetched([pod("a", 2), pod("b", 3)])
        items, end = box.drain()
        assert sorted(change.name for change in items.changes) == ["a", "b"]  # type: ignore[union-attr]
        assert end == SnapshotEnd("800")

    def test_what_has_changed_meanwhile_is_left_to_the_watch(self) -> None:
        box = self.start()
        self.differing(box)
        box.sink.fetched([pod("a", 801), pod("b", 3, uid="another"), pod("unasked", 4)])
        assert box.drain() == [SnapshotEnd("800")]

    def test_what_waits_anyway_is_not_fetched(self) -> None:
        box = self.start(waiting=pod("a", 801))
        self.differing(box)
        (wanted,) = box.sink.fetches
        assert sorted(obj.name for obj in wanted) == ["b", "c"]
        box.sink.fetched([])
        assert written(box.drain()) == ["SnapshotEnd", ["a@801"]]

    def test_of_many_the_type_is_listed(self) -> None:
        box = synced(*PODS_LISTED[: MAX_FETCHES + 1])
        box.outbox.recheck(PODS.group_resource)
        contents = self.differing(box)
        assert (box.lists, box.sink.fetches) == (1, [])
        assert written(contents) == ["STALE"]
        assert contents[0].reason == LISTING_ANEW  # type: ignore[union-attr]

    def test_what_comes_too_late_is_not_taken_for_another_recheck(self) -> None:
        box = self.start()
        self.differing(box)
        (old,) = box.sink.fetches
        box.outbox.suspend()
        box.outbox.resume(box.outbox.statistics()["sequence"], snapshot_all=False, window_bytes=WINDOW, has_plans=True)
        assert box.lists == 1
        box.sink.fetches = [old]
        box.sink.fetched([pod("a", 2)])
        assert written(box.drain()) == ["STALE"]

    def test_a_state_other_than_live_is_said_again_behind_it(self) -> None:
        box = synced(pod("a", 2))
        box.outbox.report(PODS, TypeState.STALE, "refused")
        box.drain()
        box.outbox.recheck(PODS.group_resource)
        begun(box)
        box.plan(Plan.NOTHING)
        assert written(box.drain()) == ["SnapshotEnd", "STALE"]

    def test_while_a_list_is_on_its_way_there_is_none(self) -> None:
        box = Box(has_plans=True)
        box.sink.replaced_all("800", [pod("a", 2)])
        box.outbox.recheck(PODS.group_resource)
        assert begun(box).resource_version == "800"
        assert box.drain() == []
