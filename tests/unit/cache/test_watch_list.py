"""Watch-lists: what exists as the first part of a watch, and what is done where a server does not finish them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.typing import EventDict

from federator.api.list_watch import ListPage
from federator.cache.reflector import Reflector
from federator.cache.reflector_status import ReflectorState
from federator.cache.stream_guard import INITIAL_LENGTH, INITIAL_SILENCE
from federator.errors import KubeStatusError
from tests.unit.cache.doubles import (
    FOREVER,
    ScriptedListWatch,
    Step,
    added,
    bookmark,
    deleted,
    expired,
    initial_events_end,
    modified,
    page,
    pod,
    refused,
    settle,
    too_many_requests,
)
from tests.unit.cache.test_reflector import RecordingStore, reflector_of, running

pytestmark = pytest.mark.looptime


def too_large() -> KubeStatusError:
    return KubeStatusError(504, "Timeout", "too large", causes=("ResourceVersionTooLarge",))


async def run_script(
    watches: Sequence[Sequence[Step] | Exception], lists: Sequence[ListPage | Exception] = ()
) -> tuple[ScriptedListWatch, RecordingStore, Reflector]:
    """Runs a reflector through a script."""
    list_watch, store = ScriptedListWatch(lists, watches), RecordingStore()
    reflector = reflector_of(list_watch, store, use_watch_list=True)
    async with running(reflector):
        await list_watch.exhausted.wait()
    return list_watch, store, reflector


INITIAL = (added(pod("b", 9)), added(pod("a", 3)), initial_events_end(12))


async def test_rf10_the_options_of_a_watch_list_and_of_the_watch_after_it() -> None:
    """RF10 ListAndWatch, W1 and W3: the stream goes on as the watch; what follows it resumes plainly."""
    list_watch, store, reflector = await run_script([[*INITIAL, modified(pod("a", 13))], [FOREVER]])
    first, second = list_watch.watches[:2]
    assert first.send_initial_events
    assert first.allow_bookmarks
    assert (first.resource_version, first.resource_version_match) == ("", "NotOlderThan")
    assert first.timeout_seconds == 300
    assert (second.resource_version, second.resource_version_match) == ("13", "")
    assert not second.send_initial_events
    assert store.calls == ["replace b a@12", "update a@13"]
    assert reflector.statistics()["watch_lists"] == 1


async def test_wl03_before_the_bookmark_nothing_is_told_and_no_version_known() -> None:
    """WL03, R4: the initial events come in no order."""
    list_watch, store = ScriptedListWatch([], [[*INITIAL[:2], 10.0, *INITIAL, FOREVER]]), RecordingStore()
    reflector = reflector_of(list_watch, store, use_watch_list=True)
    async with running(reflector):
        await asyncio.sleep(5.0)
        assert (store.calls, reflector.last_sync_resource_version) == ([], "")
        status = reflector.status()
        assert (status.state, status.last_proof) == (ReflectorState.LISTING, None)
        assert status.waiting_for == "the bookmark that ends a watch-list, for 5 s; last event 5 s ago"
        await asyncio.sleep(6.0)
        assert reflector.last_sync_resource_version == "12"
        assert (reflector.status().state, reflector.status().waiting_for) == (ReflectorState.WATCHING, "")


async def test_wl04_changes_amid_the_initial_events_are_honoured() -> None:
    """WL04: a MODIFIED replaces, a DELETED takes away."""
    steps = [added(pod("a", 3)), added(pod("b", 4)), modified(pod("a", 5)), deleted(pod("b", 6)), initial_events_end(6)]
    _, store, _ = await run_script([[*steps, bookmark(7)]])
    assert store.calls == ["replace a@6", "bookmark @7"]
    assert store.objects["default/a"].resource_version == "5"


async def test_wl04_a_stream_that_ends_early_is_tried_again_from_nothing() -> None:
    """WL04 "stream stopped before sync": a new watch-list, and nothing twice."""
    list_watch, store, _ = await run_script([[added(pod("gone", 1)), added(pod("a", 2))], [*INITIAL, 5.0]])
    assert [options.send_initial_events for options in list_watch.watches] == [True, True, False]
    assert list_watch.times[1] == list_watch.times[0], "at once"
    assert store.calls == ["replace b a@12"]


@pytest.mark.parametrize("first", [too_many_requests(), refused()])
async def test_wl04_when_it_may_not_be_dialled_now_it_is_dialled_later(first: Exception) -> None:
    """WL04: 429 twice, then it works; three watches and no list."""
    list_watch, store, _ = await run_script([first, first, [*INITIAL, 5.0]])
    assert [options.send_initial_events for options in list_watch.watches[:3]] == [True] * 3
    assert list_watch.list_versions == []
    assert [list_watch.times[n] - list_watch.times[0] for n in (1, 2)] == pytest.approx([0.8, 2.4])
    assert store.calls == ["replace b a@12"]


@pytest.mark.parametrize(
    "failure",
    [
        KubeStatusError(422, "Invalid", "sendInitialEvents is forbidden for watch unless the feature is enabled"),
        KubeStatusError(500, "InternalError", "etcd does not support progress requests", in_stream=True),
        KubeStatusError(403, "Forbidden", "cannot watch"),
    ],
    ids=["invalid", "in-stream", "forbidden"],
)
async def test_wl04_any_other_failure_is_followed_by_a_list_this_time(failure: Exception) -> None:
    """WL04 "any error falls back"; the next round tries a watch-list again."""
    watches: list[Sequence[Step] | Exception] = [
        failure,
        [added(pod("c", 11)), expired(in_stream=True)],
        [*INITIAL, 5.0],
    ]
    list_watch, store, _ = await run_script(watches, [page(10, pod("a", 3))])
    assert list_watch.list_versions == ["0"]
    assert [options.send_initial_events for options in list_watch.watches[:3]] == [True, False, True]
    assert store.calls == ["replace a@10", "add c@11", "replace b a@12"]


async def test_a_very_short_watch_list_is_followed_by_a_list() -> None:
    list_watch, _, _ = await run_script([[], [5.0]], [page(10)])
    assert list_watch.list_versions == ["0"]


async def test_w2_a_round_that_follows_asks_for_nothing_older_than_what_is_known() -> None:
    list_watch, _, reflector = await run_script([[*INITIAL, expired(in_stream=True)], [*INITIAL, 5.0]])
    assert list_watch.watch_versions[:2] == ["", "12"]
    assert reflector.epoch == 0


@pytest.mark.parametrize("failure", [too_large(), expired()])
async def test_a_version_that_cannot_be_had_is_left_at_once(failure: Exception) -> None:
    """Expired or too large: the next watch-list asks for the newest, without a delay."""
    list_watch, _, _ = await run_script([[*INITIAL, expired(in_stream=True)], failure, [*INITIAL, 5.0]])
    assert list_watch.watch_versions[:3] == ["", "12", ""]
    assert list_watch.times[2] == list_watch.times[1]
    assert list_watch.list_versions == []


async def test_deviate3_a_restored_cluster_is_told_by_its_bookmark() -> None:
    _, store, reflector = await run_script(
        [[*INITIAL, expired(in_stream=True)], too_large(), [added(pod("a", 2)), initial_events_end(5), 5.0]]
    )
    assert (reflector.epoch, reflector.last_sync_resource_version) == (1, "5")
    assert store.calls == ["replace b a@12", "replace a@5"]


ENDLESS: list[Step] = [step for n in range(99) for step in (added(pod("a", n + 1)), 5.0)]
UNFINISHED: dict[str, tuple[list[list[Step]], float]] = {
    "it closes": ([[added(pod("a", 3)), bookmark(5), 5.0]] * 2, 10.0),
    "it says no more": ([[added(pod("a", 3)), FOREVER]], INITIAL_SILENCE),
    "it goes on and on": ([ENDLESS], INITIAL_LENGTH),
}


@pytest.mark.parametrize(("watches", "seconds"), UNFINISHED.values(), ids=UNFINISHED)
async def test_bug27_a_server_that_never_ends_the_initial_events_is_listed_from_then_on(
    watches: list[list[Step]], seconds: float, logs: list[EventDict]
) -> None:
    """Bug 27, DEVIATE-1: upstream tries for ever, and never syncs."""
    later: list[Sequence[Step] | Exception] = [[added(pod("b", 11)), expired(in_stream=True)], [5.0]]
    list_watch, store, _ = await run_script([*watches, *later], [page(10), page(20)])
    assert list_watch.list_versions == ["0", "11"]
    first_list = next(time for time, options in list_watch.asked if not options.timeout_seconds)
    assert first_list == pytest.approx(seconds, abs=6)
    assert [options.send_initial_events for options in list_watch.watches[len(watches) :]] == [False] * 3
    assert store.calls == ["replace @10", "add b@11", "replace @20"]
    assert [log["informer"] for log in logs if "not finished" in log["event"]] == ["pods"]


async def test_a_server_that_has_finished_one_is_listed_this_time_only() -> None:
    """It ends streams that are not read fast enough; that does not make it one that never finishes any."""
    unfinished: list[Step] = [added(pod("a", 3)), 5.0]
    end = expired(in_stream=True)
    list_watch, store, _ = await run_script(
        [[*INITIAL, end], unfinished, unfinished, [added(pod("c", 21)), end], [*INITIAL, 5.0]], [page(20)]
    )
    assert list_watch.list_versions == ["12"]
    assert [options.send_initial_events for options in list_watch.watches[:5]] == [True, True, True, False, True]
    assert store.calls == ["replace b a@12", "replace @20", "add c@21", "replace b a@12"]


async def test_a_watch_list_that_works_forgives_the_one_before() -> None:
    unfinished: list[Step] = [added(pod("a", 3)), 5.0]
    list_watch, _, _ = await run_script(
        [
            unfinished,
            [*INITIAL, expired(in_stream=True)],
            unfinished,
            [*INITIAL, expired(in_stream=True)],
            [*INITIAL, 5.0],
        ]
    )
    assert list_watch.list_versions == []


async def test_wl01_opted_out_it_lists() -> None:
    """WL01."""
    list_watch = ScriptedListWatch([page(10)], [[FOREVER]])
    async with running(reflector_of(list_watch, use_watch_list=False)):
        await settle()
    assert list_watch.list_versions == ["0"]
    assert not list_watch.watches[0].send_initial_events


async def test_a_list_asked_for_during_a_watch_list_is_that_watch_list() -> None:
    list_watch = ScriptedListWatch([], [[*INITIAL[:2], 5.0, *INITIAL, FOREVER], [*INITIAL, FOREVER]])
    store = RecordingStore()
    reflector = reflector_of(list_watch, store, use_watch_list=True)
    async with running(reflector):
        await asyncio.sleep(1.0)
        reflector.request_relist()
        await asyncio.sleep(9.0)
        assert (len(list_watch.watches), store.calls) == (1, ["replace b a@12"])
        reflector.request_relist()
        await settle()
        assert (list_watch.watch_versions, store.calls) == (["", "12"], ["replace b a@12"] * 2)


async def test_what_is_known_is_not_kept_twice() -> None:
    held = pod("a", 3)
    list_watch, store = (
        ScriptedListWatch([], [[*INITIAL, expired(in_stream=True)], [*INITIAL, FOREVER]]),
        RecordingStore(),
    )
    reflector = reflector_of(
        list_watch, store, use_watch_list=True, known=lambda _, name: held if name == "a" else pod("b", 1)
    )
    async with running(reflector):
        await settle()
        assert store.objects["default/a"] is not held, "from the newest there is nothing is trusted"
        await asyncio.sleep(2.0)
        assert store.objects["default/a"] is held
        assert store.objects["default/b"].resource_version == "9"


async def test_an_error_of_the_stores_resync_ends_the_stream_of_a_watch_list_too() -> None:
    list_watch, store = ScriptedListWatch([], [[*INITIAL, FOREVER], [*INITIAL, FOREVER]]), RecordingStore()
    store.resync_error = ValueError("cannot")
    reflector = reflector_of(list_watch, store, use_watch_list=True, resync_period=lambda: 10.0)
    failures: list[Exception] = []
    reflector.on_error = failures.append
    async with running(reflector):
        await asyncio.sleep(15.0)
    assert failures == [store.resync_error]
    assert list_watch.watch_versions == ["", "12"]
