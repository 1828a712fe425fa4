"""The watch checks over random histories, selections and bounds; and single cases that bite."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federator.aggregator.ledger.records import Commit
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.listing import PAGE_BYTES, present_listing
from federator.aggregator.query.pins import Pins
from federator.aggregator.serve import replay, watch, watch_hub
from federator.aggregator.serve.watch_hub import MAX_BYTES, MAX_ENTRIES
from federator.api.cluster import ClusterID, ClusterState
from federator.api.selector import ClusterSelector, FieldSelector, LabelSelector
from federator.errors import AggregatorUnreachable, CursorExpired
from federator.v1 import inventory_pb2, types_pb2
from tests.unit.aggregator.federation import DEPLOYMENTS, PODS, Federation, delete, put
from tests.unit.aggregator.serve.recorder import (
    ADDED,
    BOOKMARK,
    CLUSTER,
    DELETED,
    INITIAL_END,
    MODIFIED,
    Recorder,
    Seen,
    check_atomic,
    check_bookmarkable,
    check_ordered_and_unique,
    expected,
    key_of,
    new_watch,
    responses,
)

ALL_PODS = Selection(frozenset({PODS.group_resource}))
TYPES = {"pods": PODS, "deployments": DEPLOYMENTS}


class Bounds(NamedTuple):
    """Bounds of the hub's ring."""

    max_entries: int = MAX_ENTRIES
    max_bytes: int = MAX_BYTES


NO_BOUNDS = Bounds()

_names = st.sampled_from(["x", "y"])
_changes = st.lists(
    st.one_of(
        st.builds(
            put,
            _names,
            uid=st.sampled_from(["u1", "u2"]),
            labels=st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["web", "db"])),
            node=st.sampled_from(["", "n1"]),
            status=st.fixed_dictionaries({"phase": st.sampled_from(["Running", "Failed"])}),
        ),
        st.builds(delete, _names),
    ),
    min_size=1,
    max_size=4,
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("ab"), st.sampled_from(sorted(TYPES)), _changes),
        st.tuples(st.sampled_from("abc"), st.sampled_from([ClusterState.LIVE, ClusterState.STALE])),
        st.just("tick"),
        st.just("compact"),
    ),
    min_size=4,
    max_size=20,
)
_selections = st.builds(
    lambda resources, clusters, name, labels, fields: Selection(
        frozenset(TYPES[resource].group_resource for resource in resources),
        ClusterSelector.parse(clusters),
        "",
        name,
        LabelSelector.parse(labels),
        FieldSelector.parse(fields),
    ),
    st.sets(st.sampled_from(sorted(TYPES)), min_size=1),
    st.sampled_from([[], ["a"], ["!a"], ["[bc]"]]),
    st.sampled_from(["", "", "x"]),
    st.sampled_from(["", "app=web", "app!=web", "tier", "!tier"]),
    st.sampled_from(["", "", "spec.nodeName=n1", "status.phase!=Failed", "metadata.name!=y,status.phase=Running"]),
)


def _set_slice(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Makes segments so short that commits go beyond them."""
    for module in (replay, watch, watch_hub):
        monkeypatch.setattr(f"{module.__name__}.SLICE", number)


class World:
    """A federation that lives through random steps, and everything that happened in it."""

    def __init__(self, bounds: Bounds) -> None:
        self.now = 1_000_000.0
        self.federation = Federation(clock=lambda: self.now, max_entries=bounds.max_entries, max_bytes=bounds.max_bytes)
        self.base = self.federation.ledger.revision
        self.commits: list[list[int]] = []
        self.history: list[object] = []
        apply = self.federation.view.apply

        def record(commit: object) -> None:
            apply(commit)  # type: ignore[arg-type]
            entries = commit.entries  # type: ignore[attr-defined]
            self.commits.append([entry.revision for entry in entries])
            self.history.extend(entries)

        self.federation.view.apply = record  # type: ignore[method-assign]

    async def begin(self) -> None:
        for cluster in "ab":
            await self.federation.join(cluster)

    async def step(self, step: object) -> None:
        match step:
            case "tick":
                self.now += 1
            case "compact":
                self.federation.hub.flush()
                await self.federation.ledger.compact(self.federation.servicer.oldest_pinned_revision)
            case (str(cluster), str(resource), list(changes)):
                await self.federation.commit(cluster, *changes, type=TYPES[resource])
            case (str(cluster), ClusterState() as state):
                if ClusterID(cluster) in self.federation.ledger.clusters():
                    await self.federation.ledger.set_cluster_state(ClusterID(cluster), state)
                else:
                    await self.federation.join(cluster)


@settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    _steps,
    _selections,
    st.sampled_from([NO_BOUNDS, Bounds(max_entries=3), Bounds(max_bytes=1)]),
    st.integers(0, 8),
    st.booleans(),
)
async def test_histories_pass_the_watch_checks(
    monkeypatch: pytest.MonkeyPatch,
    steps: list[object],
    selection: Selection,
    bounds: Bounds,
    joins_at: int,
    waits: bool,
) -> None:
    _set_slice(monkeypatch, 2)
    world = World(bounds)
    federation = world.federation
    early, joining = Recorder(), Recorder()
    end = 1 << 60
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(early.follow(new_watch(federation, selection, after=world.base), until=lambda: end))
        await world.begin()
        for number, step in enumerate(steps):
            if number == joins_at:
                watch = new_watch(federation, selection, after=None, pins=federation.servicer._pins)
                tasks.create_task(joining.follow(watch, until=lambda: end))
            await world.step(step)
            for _ in range(3 if waits else 0):
                await asyncio.sleep(0)
        end = federation.ledger.revision
    all_changes = list(expected(federation, selection, world.history))

    # Whoever saw it as it happened saw all of it, or was told that he could not.
    for recorder, base in ((early, world.base), (joining, _initial_end(joining))):
        seen = recorder.changes()
        wanted = [change for change in all_changes if change.revision > base]
        assert seen == (wanted[: len(seen)] if recorder.is_expired else wanted)
        assert not (recorder.is_expired and bounds == NO_BOUNDS)
        _check(recorder, world, wanted)

    # Whoever began with the present state, and applied the rest, has the state at the end, as a list has.
    present = _state_after(all_changes)
    assert await _listed(federation, selection) == present
    if joining.responses and not joining.is_expired:
        initial = {key_of(message): message.body for message in joining.initial()}
        assert _state_after(joining.changes(), initial) == present

    # Whoever asks afterwards from any cursor gets exactly the rest.
    for position in sorted(
        {world.base, *(federation.ledger.cursors.decode(e.cursor) for e in early.events if e.cursor)}
    ):
        resumed = Recorder()
        await resumed.follow(new_watch(federation, selection, after=position), until=lambda: end)
        assert resumed.is_expired == (position < min(federation.ledger.oldest_revision, federation.hub.floor))
        if not resumed.is_expired:
            rest = [change for change in all_changes if change.revision > position]
            assert resumed.changes() == rest
            _check(resumed, world, rest)


def _check(recorder: Recorder, world: World, wanted: list[Seen]) -> None:
    check_ordered_and_unique(recorder)
    check_atomic(recorder, world.commits)
    check_bookmarkable(recorder, world.federation, wanted)


def _initial_end(recorder: Recorder) -> int:
    return next((event.revision for event in recorder.events if event.type == INITIAL_END), 1 << 60)


async def _listed(federation: Federation, selection: Selection) -> dict[str, bytes]:
    listing = present_listing(federation.view, federation.ledger, selection)
    objects = [inventory_pb2.InventoryObject.FromString(encoded) async for part in listing.parts() for encoded in part]
    return {key_of(message): message.body for message in objects}


def _state_after(changes: list[Seen], initial: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
    state = dict(initial or {})
    for change in changes:
        if change.type == "DELETED":
            del state[change.key]
        elif change.type != "CLUSTER":
            state[change.key] = change.body
    return state


async def _follow(
    federation: Federation, selection: Selection = ALL_PODS, *, after: int | None = None, bookmark_interval: float = 0
) -> Recorder:
    recorder = Recorder()
    watch = new_watch(federation, selection, after=after, bookmark_interval=bookmark_interval)
    await recorder.follow(watch, until=lambda: federation.ledger.revision)
    return recorder


async def test_the_present_state_is_the_list_and_has_no_cursor_before_its_end() -> None:
    federation = Federation()
    for cluster in ("b", "a"):
        await federation.join(cluster)
        await federation.commit(cluster, put("y"), put("x"))
    recorder = await _follow(federation)
    initial = [event for event in recorder.events if not event.cursor]
    assert {event.type for event in initial} == {ADDED}
    assert [key_of(event.object) for event in initial] == [
        *("a//pods/shop/x", "a//pods/shop/y", "b//pods/shop/x", "b//pods/shop/y")
    ]
    assert {event.revision for event in initial} == {federation.ledger.revision}
    end = recorder.events[len(initial)]
    assert (end.type, federation.ledger.cursors.decode(end.cursor)) == (INITIAL_END, federation.ledger.revision)
    assert [fresh.cluster_id for fresh in end.freshness] == ["a", "b"]


async def test_the_world_moves_on_while_the_present_state_is_sent() -> None:
    """The list stays what it was when it began, compaction and all, and what happened meanwhile comes after it."""
    federation = Federation(max_entries=2)
    await federation.join("a")
    big = "x" * (PAGE_BYTES // 3)
    for number in range(12):
        await federation.commit("a", put(f"p{number:02}", data=big, labels={"v": "1"}))
    pins = federation.servicer._pins
    watch = new_watch(federation, ALL_PODS, after=None, pins=pins)
    async with aclosing(responses(watch)) as taken:
        first = await anext(taken)
        listed_at = first.events[0].revision
        for number in range(12):
            await federation.commit("a", put(f"p{number:02}", data=big, labels={"v": "2"}))
        await federation.commit("a", delete("p11"), put("new"))
        federation.hub.flush()
        assert federation.servicer.oldest_pinned_revision == listed_at
        await federation.ledger.compact(listed_at)
        recorder = Recorder()
        recorder.responses.append(first)
        async for response in taken:
            recorder.responses.append(response)
            last = response.events[-1]
            if last.type == BOOKMARK and last.revision == federation.ledger.revision:
                break
    initial = recorder.initial()
    assert [message.name for message in initial] == [f"p{number:02}" for number in range(12)]
    assert all(b'"v":"1"' in message.body for message in initial)
    assert [change.type for change in recorder.changes()] == ["MODIFIED"] * 12 + ["DELETED", "ADDED"]
    assert pins.readers == 0
    assert all(len(response.SerializeToString()) < PAGE_BYTES * 1.1 for response in recorder.responses)


async def test_a_watch_that_is_left_early_holds_no_pin() -> None:
    federation = Federation()
    await federation.join("a")
    await federation.commit("a", put("x"))
    pins = Pins()
    async with aclosing(new_watch(federation, ALL_PODS, after=None, pins=pins).messages()) as messages:
        await anext(messages)
        assert pins.readers == 1
    assert pins.readers == 0


async def test_a_watch_that_ended_is_forgotten_by_clock_and_audience() -> None:
    federation = Federation()
    await federation.join("a")
    watch = new_watch(federation, ALL_PODS, after=None, bookmark_interval=3600)
    following = asyncio.create_task(Recorder().follow(watch, until=lambda: 1 << 60))
    await asyncio.sleep(0.01)
    assert watch.is_waiting
    assert federation.hub.clock._slot_of.keys() == {watch}
    following.cancel()
    await asyncio.wait([following])
    assert not federation.hub.clock._slot_of
    assert federation.hub.statistics()["watch_audiences"] == 0


async def test_a_recreated_object_is_a_deletion_and_an_addition() -> None:
    federation = Federation()
    await federation.join("a")
    await federation.commit("a", put("x", uid="u1", labels={"v": "1"}))
    base = federation.ledger.revision
    await federation.commit("a", put("x", uid="u2", labels={"v": "2"}))
    recorder = await _follow(federation, after=base)
    assert [(event.type, event.object.uid) for event in recorder.events if event.type != BOOKMARK] == [
        (inventory_pb2.WATCH_EVENT_TYPE_DELETED, "u1"),
        (ADDED, "u2"),
    ]
    assert len(recorder.responses[0].events) == 2


async def test_an_object_that_leaves_the_selection_shows_its_last_selected_state() -> None:
    federation = Federation()
    await federation.join("a")
    await federation.commit("a", put("x", labels={"app": "web"}, secret="old"))
    first = federation.ledger.revision
    await federation.commit("a", put("x", labels={"app": "db"}, secret="new"))
    selection = Selection(frozenset({PODS.group_resource}), labels=LabelSelector.parse("app=web"))
    (left,) = (await _follow(federation, selection, after=first)).changes()
    assert left.type == "DELETED"
    assert b"old" in left.body
    assert b"new" not in left.body


@pytest.mark.looptime
@pytest.mark.parametrize("bounds", [NO_BOUNDS, Bounds(max_entries=1)])
async def test_a_commit_larger_than_a_message_is_spread_and_a_smaller_one_never(bounds: Bounds) -> None:
    times = itertools.count(1_000_000)
    federation = Federation(
        clock=lambda: float(next(times)), max_entries=bounds.max_entries, max_bytes=bounds.max_bytes
    )
    await federation.join("a")
    base = federation.ledger.revision
    large = "x" * (PAGE_BYTES // 4)
    small = await federation.commit("a", *(put(f"s{number}") for number in range(10)))
    medium = await federation.commit("a", *(put(f"m{number}", data=large) for number in range(3)))
    other = await federation.commit("a", *(put(f"o{number}", data=large) for number in range(3)))
    huge = await federation.commit("a", *(put(f"h{number}", data=large) for number in range(9)))
    recorder = await _follow(federation, after=base, bookmark_interval=1)
    by_message = [
        [event.revision for event in response.events if event.type != BOOKMARK] for response in recorder.responses
    ]
    by_message = [revisions for revisions in by_message if revisions]

    def of(commit: Commit) -> list[int]:
        return [entry.revision for entry in commit.entries]

    assert by_message[0] == of(small) + of(medium)
    assert by_message[1] == of(other)
    assert [revision for revisions in by_message[2:] for revision in revisions] == of(huge)
    assert [len(revisions) for revisions in by_message[2:]] == [3, 3, 3]


async def test_a_cluster_that_joins_later_is_seen_by_a_glob() -> None:
    federation = Federation()
    await federation.join("prod-1")
    selection = Selection(frozenset({PODS.group_resource}), ClusterSelector.parse(["prod-*"]))
    base = federation.ledger.revision
    for cluster in ("prod-2", "stage-1"):
        await federation.join(cluster)
        await federation.commit(cluster, put("x"))
    recorder = await _follow(federation, selection, after=base)
    assert [(change.type, change.key) for change in recorder.changes()] == [
        ("CLUSTER", "prod-2"),
        ("CLUSTER", "prod-2"),
        ("ADDED", "prod-2//pods/shop/x"),
    ]
    joined, live = (event.cluster for event in recorder.events if event.type == CLUSTER)
    assert (joined.state, joined.previous_state) == (types_pb2.CLUSTER_STATE_JOINING, 0)
    assert (live.state, live.previous_state) == (types_pb2.CLUSTER_STATE_LIVE, types_pb2.CLUSTER_STATE_JOINING)
    assert [fresh.cluster_id for fresh in recorder.events[-1].freshness] == ["prod-1", "prod-2"]


async def test_staleness_is_an_event_and_ends_no_watch() -> None:
    federation = Federation()
    await federation.join("a")
    base = federation.ledger.revision
    await federation.ledger.set_cluster_state(ClusterID("a"), ClusterState.STALE, "agent silent")
    await federation.commit("a", put("x"))
    recorder = await _follow(federation, after=base)
    assert [change.type for change in recorder.changes()] == ["CLUSTER", "ADDED"]
    assert recorder.events[0].cluster.reason == "agent silent"
    (fresh,) = recorder.events[-1].freshness
    assert fresh.state == types_pb2.CLUSTER_STATE_STALE
    assert [of_type.state for of_type in fresh.incomplete_types] == [types_pb2.TYPE_STATE_STALE]


async def test_a_watch_behind_compaction_is_told_the_oldest_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_slice(monkeypatch, 1)
    federation = Federation(max_entries=1)
    await federation.join("a")
    base = federation.ledger.revision
    for version in range(5):
        await federation.commit("a", put("x", labels={"v": str(version)}))
    federation.hub.flush()
    await federation.ledger.compact(federation.servicer.oldest_pinned_revision)
    with pytest.raises(CursorExpired) as raised:
        await anext(new_watch(federation, ALL_PODS, after=base).messages())
    assert (raised.value.revision, raised.value.oldest) == (base, federation.ledger.oldest_revision)


async def test_compaction_during_a_replay_is_told_and_never_a_gap() -> None:
    """A state that was compacted away between two looks ends the watch; nothing is left out in silence."""
    federation = Federation(max_entries=1)
    await federation.join("a")
    await federation.commit("a", put("x", labels={"app": "web"}))
    base = federation.ledger.revision
    await federation.commit("a", put("x", labels={"app": "db"}))
    await federation.commit("a", put("y"))
    selection = Selection(frozenset({PODS.group_resource}), labels=LabelSelector.parse("app=web"))
    federation.ledger.entry = lambda revision: None  # type: ignore[method-assign]
    with pytest.raises(CursorExpired):
        await anext(new_watch(federation, selection, after=base).messages())


@pytest.mark.looptime
async def test_bookmarks_come_at_their_interval_busy_or_idle() -> None:
    federation = Federation()
    await federation.join("a")
    base = federation.ledger.revision
    loop = asyncio.get_running_loop()
    times: list[float] = []
    watch = new_watch(federation, ALL_PODS, after=base, bookmark_interval=10)

    async def churn() -> None:
        for number in range(25):
            await federation.commit("a", put("x", labels={"n": str(number)}))
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(churn())
        async with aclosing(responses(watch)) as taken:
            async for response in taken:
                for event in response.events:
                    if event.type == BOOKMARK:
                        times.append(loop.time())
                        assert event.revision == federation.ledger.revision
                if len(times) == 5:
                    break
    assert times == [10, 20, 30, 40, 50]


@pytest.mark.looptime
async def test_a_closed_hub_ends_the_watch_with_a_reason_to_come_back() -> None:
    federation = Federation()
    await federation.join("a")
    watch = new_watch(federation, ALL_PODS, after=federation.ledger.revision, bookmark_interval=3600)
    taken: list[inventory_pb2.WatchEvent] = []

    async def last_commit_and_close() -> None:
        await asyncio.sleep(1)
        await federation.commit("a", put("x"))
        federation.hub.close()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(last_commit_and_close())
        with pytest.raises(AggregatorUnreachable), federation.hub.watching(watch):
            async for response in responses(watch):
                taken += response.events
    assert [event.type for event in taken] == [ADDED, BOOKMARK]
    assert taken[-1].revision == federation.ledger.revision
    assert federation.hub.statistics()["watch_ends_shutdown"] == 1


async def test_a_lagging_watch_of_a_closed_hub_ends_where_it_is_with_a_cursor_that_resumes() -> None:
    times = itertools.count(1_000_000)
    federation = Federation(clock=lambda: float(next(times)), max_entries=1)
    await federation.join("a")
    base = federation.ledger.revision
    for number in range(600):
        await federation.commit("a", put(f"p{number}"))
    federation.hub.flush()
    taken: list[inventory_pb2.WatchEvent] = []
    federation.hub.close()
    with pytest.raises(AggregatorUnreachable):
        async for response in responses(new_watch(federation, ALL_PODS, after=base, bookmark_interval=3600)):
            taken += response.events
    assert taken[-1].type == BOOKMARK
    assert taken[-1].revision == taken[-2].revision < federation.ledger.revision
    assert federation.ledger.cursors.decode(taken[-1].cursor) == taken[-1].revision


async def test_a_watch_that_is_still_listing_when_the_hub_closes_ends_without_a_cursor() -> None:
    federation = Federation()
    await federation.join("a")
    for number in range(3):
        await federation.commit("a", put(f"p{number}", data="x" * PAGE_BYTES))
    watch = new_watch(federation, ALL_PODS, after=None)
    async with aclosing(responses(watch)) as taken:
        await anext(taken)
        federation.hub.close()
        with pytest.raises(AggregatorUnreachable):
            await anext(taken)
    assert watch.cursor == b""


async def test_what_does_not_concern_a_watch_still_moves_its_bookmark() -> None:
    federation = Federation()
    await federation.join("a")
    base = federation.ledger.revision
    for number in range(200):
        await federation.commit("a", put(f"d{number}"), type=DEPLOYMENTS)
    recorder = await _follow(federation, after=base)
    assert recorder.changes() == []
    assert recorder.events[-1].revision == federation.ledger.revision


async def test_the_cursor_for_a_slow_client_is_that_of_the_last_message_it_took() -> None:
    federation = Federation()
    await federation.join("a")
    base = federation.ledger.revision
    await federation.commit("a", put("x"))
    watch = new_watch(federation, ALL_PODS, after=base)
    assert federation.ledger.cursors.decode(watch.cursor) == base
    async with aclosing(responses(watch)) as taken:
        first = await anext(taken)
        assert federation.ledger.cursors.decode(watch.cursor) == base
        await anext(taken)
        assert watch.cursor == first.events[-1].cursor


@pytest.mark.parametrize("before", [1, 2, 3])
async def test_the_step_from_the_ledger_to_the_ring_splits_no_commit(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _set_slice(monkeypatch, 2)
    federation = Federation(max_entries=1)
    await federation.join("a")
    federation.hub.flush()
    base = federation.ledger.revision
    for number in range(before):
        await federation.commit("a", put(f"b{number}"))
    commit = await federation.commit("a", put("x"), put("y"), put("z"))
    federation.hub.flush()
    assert base <= federation.hub.floor <= base + before
    recorder = await _follow(federation, after=base)
    check_atomic(recorder, [[entry.revision for entry in commit.entries], *([base + 1 + n] for n in range(before))])
    assert len(recorder.changes()) == before + 3


# ------------------------------------------------------------------------------------------------------ shared bytes


async def _first_messages(*watches: watch.Watch) -> list[bytes]:
    """Of watches that are open at the same time."""
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(aclosing(each.messages())) for each in watches]
        return [(await anext(stream)).encoded for stream in streams]


@pytest.mark.parametrize("bounds", [NO_BOUNDS, Bounds(max_entries=1)])
async def test_equal_watches_are_sent_the_same_bytes(bounds: Bounds) -> None:
    """Not equal ones only: the very same, live or lagging, so that a thousand cost no more than one."""
    federation = Federation(max_entries=bounds.max_entries)
    await federation.join("a")
    base = federation.ledger.revision
    for number in range(10):
        await federation.commit("a", put(f"p{number}"), put(f"q{number}"))
    federation.hub.flush()
    equal = [Selection(frozenset({PODS.group_resource}), labels=LabelSelector.parse("!x")) for _ in range(3)]
    watches = [new_watch(federation, each, after=base, bookmark_interval=9) for each in (*equal, ALL_PODS)]
    first, second, third, other = await _first_messages(*watches)
    assert first is second is third
    assert other == first
    assert len(inventory_pb2.WatchResponse.FromString(first).events) == 20


async def test_watches_with_different_options_share_no_message() -> None:
    federation = Federation()
    await federation.join("a")
    await federation.commit("a", put("x", labels={"v": "1"}))
    base = federation.ledger.revision
    await federation.commit("a", put("x", labels={"v": "2"}))
    plain, richer = await _first_messages(
        *(
            new_watch(federation, ALL_PODS, after=base, bookmark_interval=9, with_previous=asked)
            for asked in (False, True)
        )
    )
    (event,) = inventory_pb2.WatchResponse.FromString(plain).events
    assert not event.HasField("previous")
    (event,) = inventory_pb2.WatchResponse.FromString(richer).events
    assert b'"v":"1"' in event.previous.body


@pytest.mark.parametrize("bounds", [NO_BOUNDS, Bounds(max_entries=1)])
async def test_the_state_before_a_change_comes_where_it_is_asked_for(bounds: Bounds) -> None:
    federation = Federation(max_entries=bounds.max_entries)
    await federation.join("a")
    base = federation.ledger.revision
    await federation.commit("a", put("x", labels={"app": "db"}, n=1))
    await federation.commit("a", put("x", labels={"app": "web"}, n=2))
    await federation.commit("a", put("x", labels={"app": "web"}, n=3))
    await federation.commit("a", put("x", labels={"app": "db"}, n=4))
    await federation.commit("a", put("x", labels={"app": "web"}, n=5))
    await federation.commit("a", delete("x"))
    selection = Selection(frozenset({PODS.group_resource}), labels=LabelSelector.parse("app=web"))
    recorder = Recorder()
    richer = new_watch(federation, selection, after=base, with_previous=True)
    await recorder.follow(richer, until=lambda: federation.ledger.revision)

    def number(message: inventory_pb2.InventoryObject) -> str:
        return message.body.decode().partition('"n":')[2].rstrip("}")

    told = [
        (event.type, number(event.object), number(event.previous))
        for event in recorder.events
        if event.type != BOOKMARK
    ]
    assert told == [
        (ADDED, "2", ""),  # it was not selected before, so nothing is told of before
        (MODIFIED, "3", "2"),
        (DELETED, "3", "3"),
        (ADDED, "5", ""),
        (DELETED, "5", "5"),
    ]


async def test_a_watch_begun_inside_a_commit_gets_the_rest_of_it() -> None:
    federation = Federation()
    await federation.join("a")
    commit = await federation.commit("a", put("x"), put("y"), put("z"))
    federation.hub.flush()
    recorder = await _follow(federation, after=commit.entries[0].revision)
    assert [change.revision for change in recorder.changes()] == [entry.revision for entry in commit.entries[1:]]


async def test_a_watch_may_begin_at_what_is_not_published_yet() -> None:
    """A list is answered at once, its cursor may be newer than what watches were told."""
    federation = Federation()
    await federation.join("a")
    commit = await federation.commit("a", put("x"), put("y"))
    assert federation.hub.revision < commit.revision
    recorder = await _follow(federation, after=commit.entries[0].revision)
    assert [change.revision for change in recorder.changes()] == [commit.revision]


@pytest.mark.looptime
async def test_watches_of_everything_end_where_those_do_that_were_woken_late() -> None:
    """What does not concern a watch moves its position while it waits; nothing that does is skipped."""
    federation = Federation()
    await federation.join("a")
    base = federation.ledger.revision
    narrow = Selection(frozenset({PODS.group_resource}), name="x")
    recorder = Recorder()
    end = 1 << 60
    async with asyncio.TaskGroup() as tasks:
        following = new_watch(federation, narrow, after=base, bookmark_interval=0.3)
        tasks.create_task(recorder.follow(following, until=lambda: end))
        for number in range(40):
            await federation.commit("a", put("y", labels={"n": str(number)}))
            if number % 10 == 0:
                await federation.commit("a", put("x", labels={"n": str(number)}))
            await asyncio.sleep(0.005)
        end = federation.ledger.revision
    assert [change.type for change in recorder.changes()] == ["ADDED"] + ["MODIFIED"] * 3
    assert recorder.events[-1].revision == federation.ledger.revision
