"""The Reflector against apiservers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest

from federator.api.list_watch import Known, ListOptions, ListPage, nothing_known
from federator.api.object import KubeObject
from federator.cache.backoff import Backoff
from federator.cache.reflector import DIAL_SPREAD, Reflector, UnresumableWatch, VeryShortWatch
from federator.cache.reflector_status import ReflectorState
from federator.cache.stream_guard import GRACE, SilentWatch
from federator.errors import CredentialsError, KubeStatusError, MemberUnreachable
from tests.unit.cache.doubles import (
    FOREVER,
    FakeSource,
    ScriptedListWatch,
    Step,
    added,
    bookmark,
    deleted,
    expired,
    modified,
    page,
    pod,
    refused,
    settle,
    too_many_requests,
)

pytestmark = pytest.mark.looptime


class RecordingStore:
    """Remembers what it is told; raises what it is asked to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.objects: dict[str, KubeObject] = {}
        self.resync_error: Exception | None = None
        self.resync_times: list[float] = []

    async def add(self, obj: KubeObject) -> None:
        self._put("add", obj)

    async def update(self, obj: KubeObject) -> None:
        self._put("update", obj)

    async def delete(self, obj: KubeObject) -> None:
        self.calls.append(f"delete {obj.name}@{obj.resource_version}")
        self.objects.pop(obj.key, None)

    async def replace(self, objects: Sequence[KubeObject], resource_version: str) -> None:
        self.calls.append(f"replace {' '.join(obj.name for obj in objects)}@{resource_version}")
        self.objects = {obj.key: obj for obj in objects}

    async def bookmark(self, resource_version: str) -> None:
        self.calls.append(f"bookmark @{resource_version}")

    def resync(self) -> None:
        self.resync_times.append(asyncio.get_running_loop().time())
        if self.resync_error is not None:
            raise self.resync_error

    def _put(self, verb: str, obj: KubeObject) -> None:
        self.calls.append(f"{verb} {obj.name}@{obj.resource_version}")
        self.objects[obj.key] = obj


def reflector_of(
    list_watch: ScriptedListWatch | FakeSource, store: RecordingStore | None = None, **options: Any
) -> Reflector:
    """A reflector that lists, and whose delays and watch lengths have no jitter."""
    return Reflector(
        list_watch,
        store or RecordingStore(),
        name="pods",
        use_watch_list=options.pop("use_watch_list", False),
        backoff=Backoff(uniform=lambda: 0.0),
        uniform=lambda: 0.0,
        **options,
    )


@asynccontextmanager
async def running(reflector: Reflector) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(reflector.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def run_script(
    lists: Sequence[ListPage | Exception],
    watches: Sequence[Sequence[Step] | Exception] = (),
    *,
    until: float | None = None,
) -> tuple[ScriptedListWatch, RecordingStore, Reflector]:
    """Runs a reflector through a script, or for some seconds."""
    list_watch, store = ScriptedListWatch(lists, watches), RecordingStore()
    reflector = reflector_of(list_watch, store)
    async with running(reflector):
        await (list_watch.exhausted.wait() if until is None else asyncio.sleep(until))
    return list_watch, store, reflector


def now() -> float:
    return asyncio.get_running_loop().time()


# ---------------------------------------------------------------- starting and stopping


async def test_rf02_stop_ends_the_run_and_closes_the_watch() -> None:
    """RF02 RunUntil, RF09 StopWatch."""
    list_watch = ScriptedListWatch([page(1)])
    reflector = reflector_of(list_watch)
    async with running(reflector):
        await list_watch.exhausted.wait()
        assert list_watch.open_watches == 1
    assert list_watch.open_watches == 0
    assert reflector.status().state is ReflectorState.STOPPED
    assert reflector.status().error is None


async def test_rf04_stopped_before_it_ran_it_asks_nothing() -> None:
    """RF04 WatchStoppedBefore."""
    list_watch = ScriptedListWatch([page(1)])
    async with running(reflector_of(list_watch)):
        pass
    assert not list_watch.lists
    assert not list_watch.watches


@pytest.mark.parametrize("steps", [[], [added(pod("a", 2))], [KubeStatusError(500, "InternalError", "x")], [expired()]])
async def test_rf05_the_watch_is_always_closed(steps: list[Step]) -> None:
    """RF05 WatchStoppedAfter, RF01: whatever ends it."""
    list_watch = ScriptedListWatch([page(1)], [steps])
    reflector = reflector_of(list_watch)
    async with running(reflector):
        await settle()
        assert list_watch.open_watches == (1 if len(list_watch.watches) == 2 else 0)


@pytest.mark.parametrize("where", ["list", "dial", "stream", "pause"])
async def test_rf06_stop_is_prompt_and_no_failure_wherever_it_comes(where: str) -> None:
    """RF06 HandleWatchStoppedBefore/After."""
    script: dict[str, tuple[list[ListPage | Exception], list[Sequence[Step] | Exception]]] = {
        "list": ([], []),
        "dial": ([page(1)], []),
        "stream": ([page(1)], [[added(pod("a", 2)), FOREVER]]),
        "pause": ([refused()], []),
    }
    reflector = reflector_of(ScriptedListWatch(*script[where]))
    failures: list[Exception] = []
    reflector.on_error = failures.append
    async with running(reflector) as task:
        await settle()
        before = now()
    assert task.cancelled()
    assert now() == before
    assert len(failures) == (1 if where == "pause" else 0)


async def test_a_delay_after_an_unreachable_server_can_be_cut_short_once_it_answers_others() -> None:
    list_watch = ScriptedListWatch([page(10)], [refused()] * 8)
    reflector = reflector_of(list_watch)
    async with running(reflector):
        await asyncio.sleep(0.8 + 1.6 + 3.2 + 6.4 + 12.8 + 25.6 + 1)
        assert len(list_watch.watches) == 7
        assert reflector.status().state is ReflectorState.BACKING_OFF
        asked = now()
        reflector.dial_soon()
        await asyncio.sleep(DIAL_SPREAD + 0.1)
        assert len(list_watch.watches) == 8, "the delay was 30 s or more"
        assert asked <= list_watch.times[-1] <= asked + DIAL_SPREAD
        await asyncio.sleep(20)
        assert len(list_watch.watches) == 8, "the next delay is whole again"


async def test_an_apiserver_that_comes_back_without_history_is_listed_after_a_first_delay() -> None:
    """The delay that grew while nobody answered is none of its doing."""
    list_watch = ScriptedListWatch([page(10), page(20)], [*([refused()] * 7), expired(in_stream=True), [FOREVER]])
    reflector = reflector_of(list_watch)
    async with running(reflector):
        await list_watch.exhausted.wait()
    dials = list_watch.times[1:9]
    assert dials[7] - dials[6] == pytest.approx(30)
    assert list_watch.times[9] - dials[7] == pytest.approx(0.8), "from the 410 to the list"
    assert list_watch.list_versions[:2] == ["0", "10"]


async def test_an_apiserver_that_keeps_expiring_is_asked_less_and_less_often() -> None:
    list_watch = ScriptedListWatch([page(10)] * 4, [expired(in_stream=True)] * 4)
    reflector = reflector_of(list_watch)
    async with running(reflector):
        await list_watch.exhausted.wait()
    lists = list_watch.times[::2]
    assert [round(later - earlier, 1) for earlier, later in pairwise(lists)] == [0.8, 1.6, 3.2, 6.4]


async def test_a_delay_that_the_server_asked_for_is_not_cut_short() -> None:
    list_watch = ScriptedListWatch([page(10)], [too_many_requests(retry_after=60)])
    reflector = reflector_of(list_watch)
    async with running(reflector):
        await asyncio.sleep(1)
        reflector.dial_soon()
        await asyncio.sleep(50)
        assert len(list_watch.watches) == 1


# ---------------------------------------------------------------- lists


async def test_rf10_the_options_of_the_classic_list_and_watch() -> None:
    """RF10 ListAndWatch, classic; W3: bookmarks, no match, no initial events."""
    list_watch, _, _ = await run_script([page(42)])
    assert list_watch.lists == [ListOptions(resource_version="0", limit=500)]
    assert list_watch.watches == [ListOptions(resource_version="42", timeout_seconds=300, allow_bookmarks=True)]


async def test_rf11_state_survives_list_and_watch_errors() -> None:
    """RF11 ListAndWatchWithErrors: after each the store equals the next list."""
    failure = KubeStatusError(500, "InternalError", "no")
    _, store, _ = await run_script(
        [page(1, pod("a", 1)), failure, page(3, pod("a", 3), pod("b", 2)), page(4, pod("b", 2))],
        [[failure], failure, [FOREVER]],
    )
    assert store.calls == ["replace a@1", "replace a b@3", "replace b@4"]


async def test_rf18_an_explicit_page_size_holds_for_every_list() -> None:
    """RF18 WatchListPageSize: limit 4 over three pages, even from a known version."""
    store = RecordingStore()
    pages = [
        page(10, *(pod(f"a{n}", n) for n in range(1, 5)), continue_token="C1"),
        page(10, *(pod(f"b{n}", n) for n in range(1, 5)), continue_token="C2"),
        page(10, pod("c1", 1), pod("c2", 2)),
        page(20),
    ]
    list_watch = ScriptedListWatch(pages, [expired()])
    reflector = reflector_of(list_watch, store, page_size=4)
    async with running(reflector):
        await list_watch.exhausted.wait()
    assert [(o.limit, o.continue_token) for o in list_watch.lists] == [(4, ""), (4, "C1"), (4, "C2"), (4, "")]
    assert store.calls[0].count(" ") == 10


async def test_rf19_lists_from_a_known_version_have_no_limit() -> None:
    """RF19 NotPaginatingNotConsistentReads."""
    list_watch, _, _ = await run_script([page(10), page(20)], [expired()])
    assert [(o.resource_version, o.limit) for o in list_watch.lists] == [("0", 500), ("10", 0)]


async def test_rf20_a_server_without_watch_cache_keeps_being_asked_in_pages() -> None:
    """RF20 PaginatingNonConsistentReadsIfWatchCacheDisabled."""
    list_watch, _, _ = await run_script([page(10, continue_token="C1"), page(10), page(20)], [expired()])
    assert [(o.resource_version, o.limit) for o in list_watch.lists] == [("0", 500), ("", 500), ("10", 500)]


async def test_rf21_the_next_list_asks_for_not_older_than_the_last() -> None:
    """RF21 ResyncWithResourceVersion."""
    list_watch, _, _ = await run_script([page(10), page(20)], [expired(in_stream=True)])
    assert list_watch.list_versions == ["0", "10"]


async def test_rf22_an_expired_version_is_followed_at_once_by_a_consistent_list() -> None:
    """RF22 ExpiredExactResourceVersion, L3: same attempt, no delay, and the limit it had."""
    list_watch, _, reflector = await run_script([page(10), expired(), page(20)], [expired()])
    assert list_watch.list_versions == ["0", "10", ""]
    assert list_watch.lists[2].limit == 0
    assert list_watch.times[-1] == list_watch.times[-2]
    assert reflector.last_sync_resource_version == "20"


async def test_rf23_expiry_amid_pages_leads_to_a_full_list_of_the_same_version() -> None:
    """RF23 FullListIfExpired."""
    store = RecordingStore()
    list_watch = ScriptedListWatch([page(10), page(11, continue_token="C1"), expired(), page(12)], [expired()])
    async with running(reflector_of(list_watch, store, page_size=4)):
        await list_watch.exhausted.wait()
    assert list_watch.list_versions == ["0", "10", "", "10"]
    assert [o.limit for o in list_watch.lists] == [4, 4, 4, 0]


async def test_rf24_a_version_the_server_has_not_seen_leads_to_a_consistent_list_in_all_dialects() -> None:
    """RF24 FullListIfTooLarge."""
    dialects = [
        KubeStatusError(504, "Timeout", "Too large resource version: 20, current: 15", retry_after=1),
        KubeStatusError(504, "Timeout", "x", causes=("ResourceVersionTooLarge",)),
        KubeStatusError(504, "", "Too large resource version"),
    ]
    list_watch, _, _ = await run_script(
        [page(20), dialects[0], page(30), dialects[1], page(40), dialects[2], page(50)],
        [expired(), expired(), expired()],
    )
    assert list_watch.list_versions == ["0", "20", "", "30", "", "40", ""]


async def test_an_unavailable_version_is_not_tried_again_until_a_list_succeeds() -> None:
    list_watch, _, _ = await run_script([page(10), expired(), refused(), page(20), page(30)], [expired(), expired()])
    assert list_watch.list_versions == ["0", "10", "", "", "20"]


@pytest.mark.parametrize(
    "failure",
    [
        KubeStatusError(401, "Unauthorized", "who"),
        KubeStatusError(403, "Forbidden", "no"),
        KubeStatusError(404, "NotFound", "what"),
        KubeStatusError(500, "InternalError", "oops"),
        CredentialsError("prod", "plugin failed"),
        refused(),
        ZeroDivisionError("nobody foresaw this"),
    ],
)
async def test_failing_lists_keep_the_data_show_the_error_and_back_off(failure: Exception) -> None:
    """DEVIATE-4, bug 3: it never gives up, whatever it is that fails."""
    list_watch = ScriptedListWatch([page(1, pod("a", 1)), *[failure] * 3], [expired()])
    store = RecordingStore()
    reflector = reflector_of(list_watch, store)
    async with running(reflector) as task:
        await asyncio.sleep(1.6 + 3.2)
        assert not task.done()
        assert list(store.objects) == ["default/a"]
        status = reflector.status()
        assert status.state is ReflectorState.BACKING_OFF
        assert status.error is failure
        assert status.attempts == 3
        assert reflector.statistics()["failures"] == 3
        assert status.failing_since == 0.0
        await list_watch.exhausted.wait()


async def test_items_that_were_skipped_are_counted_and_named() -> None:
    listed = ListPage("5", [pod("a", 1)], skipped=("item 3 has no name",))
    _, _, reflector = await run_script([listed])
    statistics = reflector.statistics()
    assert (statistics["items_skipped"], statistics["items_skipped_names"]) == (1, ("item 3 has no name",))


# ---------------------------------------------------------------- watches


@pytest.mark.parametrize("seconds", [0.0, 0.9])
async def test_rf07_a_watch_of_less_than_a_second_without_events_is_a_failure(seconds: float) -> None:
    """RF07 HandleWatchResultChanClosedBefore/After: delay, then a list."""
    list_watch, _, _ = await run_script([page(1), page(2)], [[seconds] if seconds else []])
    assert list_watch.list_versions == ["0", "1"]
    assert list_watch.times[2] == pytest.approx(seconds + 0.8)
    with pytest.raises(VeryShortWatch):
        await reflector_of(ScriptedListWatch([page(1)], [[]])).list_and_watch()


@pytest.mark.parametrize("steps", [[1.0], [added(pod("a", 2))], [bookmark(2)]])
async def test_a_clean_end_is_resumed_at_once_without_a_list(steps: list[Step]) -> None:
    list_watch, _, reflector = await run_script([page(1)], [steps])
    assert len(list_watch.lists) == 1
    assert list_watch.times[2] == sum(step for step in steps if isinstance(step, float))
    assert list_watch.watch_versions[1] == reflector.last_sync_resource_version
    assert reflector.status().attempts == 0


async def test_rf08_events_are_applied_and_the_last_one_gives_the_version_not_the_highest() -> None:
    """RF08 WatchHandler: 55, then 32."""
    _, store, reflector = await run_script(
        [page(1, pod("bar", 1), pod("foo", 1))],
        [[deleted(pod("foo", 10)), modified(pod("bar", 55)), added(pod("baz", 32))]],
    )
    assert store.calls[1:] == ["delete foo@10", "update bar@55", "add baz@32"]
    statistics = reflector.statistics()
    assert [statistics[name] for name in ("lists", "watches", "events", "failures")] == [1, 2, 3, 0]
    assert reflector.last_sync_resource_version == "32"


async def test_rf27_the_version_follows_list_events_and_bookmarks() -> None:
    """RF27 ResourceVersionUpdate, R3, bug 15: a bookmark's version is used to resume; the store is told of it."""
    list_watch, store, _ = await run_script([page(10)], [[modified(pod("a", 20)), bookmark(30), deleted(pod("a", 40))]])
    assert store.calls == ["replace @10", "update a@20", "bookmark @30", "delete a@40"]
    assert list_watch.watch_versions == ["10", "40"]
    list_watch, store, _ = await run_script([page(10)], [[bookmark(11), bookmark(12), bookmark(13)]])
    assert list_watch.watch_versions == ["10", "13"]


@pytest.mark.parametrize("version", ["", "0", "9"])
async def test_r5_bookmarks_without_a_version_or_from_the_past_are_ignored_and_counted(version: str) -> None:
    list_watch, store, reflector = await run_script([page(10)], [[bookmark(version)]])
    assert store.calls == ["replace @10"]
    assert list_watch.watch_versions == ["10", "10"]
    assert reflector.statistics()["bookmarks_ignored"] == 1


async def test_bug19_an_error_frame_leaves_the_last_good_version() -> None:
    """Bug 19: nothing but what the server gave is ever sent back."""
    list_watch, _, _ = await run_script(
        [page(10)], [[modified(pod("a", 20)), too_many_requests(in_stream=True)], [bookmark("")]]
    )
    assert list_watch.watch_versions == ["10", "20", "20"]


async def test_r4_bug21_the_unordered_initial_events_of_an_unversioned_stream_give_no_version() -> None:
    """R4, bug 21: such a stream is not resumed either, as deletions in between would go unnoticed."""
    list_watch, store, _ = await run_script(
        [page(""), page(5)], [[added(pod("a", 9)), added(pod("b", 1))], [added(pod("c", 7))]]
    )
    assert list_watch.list_versions == ["0", "0"]
    assert list_watch.watch_versions == ["", "5", "7"]
    assert "add b@1" in store.calls
    with pytest.raises(UnresumableWatch):
        await reflector_of(ScriptedListWatch([page("")], [[added(pod("a", 9))]])).list_and_watch()


async def test_r4_the_first_event_that_is_no_add_ends_the_initial_events() -> None:
    list_watch, _, _ = await run_script([page("")], [[added(pod("a", 9)), bookmark(12), added(pod("b", 13))]])
    assert list_watch.watch_versions == ["", "13"]


@pytest.mark.parametrize(
    ("asked", "expected"), [(300, (300, 599)), (1, (300, 599)), (1800, (1800, 3599))], ids=["default", "1 s", "30 min"]
)
async def test_rf26_the_length_of_a_watch(asked: int, expected: tuple[int, int]) -> None:
    """RF26 WatchTimeout: evenly from [min, 2 * min); below 300 s is ignored."""
    lengths = []
    draws = [0.0, 0.999999]
    for _ in range(2):
        list_watch = ScriptedListWatch([page(1)])
        reflector = Reflector(
            list_watch, RecordingStore(), name="pods", min_watch_timeout=asked, uniform=lambda: draws.pop(0)
        )
        async with running(reflector):
            await list_watch.exhausted.wait()
        lengths.append(list_watch.watches[0].timeout_seconds)
    assert tuple(lengths) == expected


async def test_rf12_refused_dials_back_off_and_never_list() -> None:
    """RF12 InitConnBackoff, bug 3: each wait as the schedule says; afterwards the stream is resumed."""
    list_watch, _, _ = await run_script([page(10)], [refused()] * 9)
    waits = [b - a for a, b in zip(list_watch.times[1:], list_watch.times[2:], strict=False)]
    assert waits == pytest.approx([0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30])
    assert len(list_watch.lists) == 1
    assert set(list_watch.watch_versions) == {"10"}


@pytest.mark.parametrize("in_stream", [False, True])
async def test_rf14_too_many_requests_draws_one_delay(in_stream: bool) -> None:
    """RF14 BackoffOnTooManyRequests."""
    failure = too_many_requests(in_stream=in_stream)
    list_watch, _, _ = await run_script([page(10)], [[failure] if in_stream else failure])
    assert list_watch.times[-1] == pytest.approx(0.8)


async def test_rf15_bug9_too_many_requests_never_leads_to_a_list() -> None:
    """RF15 NoRelistOnTooManyRequests: one list, five watches. Bug 9: Retry-After is honoured."""
    list_watch, _, _ = await run_script(
        [page(10)],
        [too_many_requests(retry_after=5), [too_many_requests(in_stream=True)], too_many_requests(), [bookmark(11)]],
    )
    assert len(list_watch.lists) == 1
    assert len(list_watch.watches) == 5
    assert list_watch.times[2] - list_watch.times[1] == pytest.approx(5.0)


async def test_a_stream_that_breaks_off_is_resumed_after_a_delay_without_a_list() -> None:
    """Bug 7: what came before the break is kept."""
    list_watch, _, _ = await run_script([page(10)], [[modified(pod("a", 20)), MemberUnreachable("x", "reset")]])
    assert len(list_watch.lists) == 1
    assert list_watch.watch_versions == ["10", "20"]
    assert list_watch.times[-1] == pytest.approx(0.8)


@pytest.mark.parametrize("in_stream", [False, True])
async def test_bug20_an_expired_watch_leads_to_a_list_of_what_is_known(in_stream: bool) -> None:
    """Bugs 9, 20: after a delay, and with the last version, not with "", to spare etcd."""
    failure = expired(in_stream=in_stream)
    list_watch, _, _ = await run_script([page(10), page(20)], [[bookmark(15), failure] if in_stream else failure])
    assert list_watch.list_versions == ["0", "15" if in_stream else "10"]
    assert list_watch.times[2] == pytest.approx(0.8)


async def test_other_errors_of_a_stream_lead_to_a_list() -> None:
    list_watch, _, _ = await run_script([page(10), page(20)], [[KubeStatusError(500, "InternalError", "x")]])
    assert list_watch.list_versions == ["0", "10"]


async def test_bug1_a_stream_that_falls_silent_is_dialled_again_without_a_list() -> None:
    """Bugs 1 and 2, DEVIATE-2: 90 s, or one and a half times the widest gap between bookmarks."""
    list_watch, _, reflector = await run_script(
        [page(10), page(12)],
        [[60.0, bookmark(11), 60.0, bookmark(12), FOREVER], [100.0, bookmark(13), 80.0, bookmark(14)], [FOREVER]],
    )
    assert list_watch.watch_versions[:3] == ["10", "12", "12"]
    assert list_watch.times[2] == pytest.approx(120 + 90)
    assert list_watch.times[3:5] == pytest.approx([120 + 90 + 90] * 2), "after a look whether it was restored"
    assert isinstance(reflector.status().error, SilentWatch)


async def test_a_gap_between_bookmarks_wider_than_usual_is_borne() -> None:
    list_watch, _, _ = await run_script([page(10)], [[100.0, bookmark(11), FOREVER]])
    assert list_watch.times[2] == pytest.approx(100 + 150)


async def test_a_server_that_sends_no_bookmarks_may_be_silent_for_the_whole_length() -> None:
    """The server ends the stream at its length; 15 s later it is dead."""
    list_watch, _, _ = await run_script([page(10), page(10), page(10)], [[299.0], [FOREVER], [FOREVER]])
    dials = [time for time, options in list_watch.asked if options.timeout_seconds]
    assert dials == pytest.approx([0, 299.0, 299.0 + 300 + GRACE])


async def test_deviate3_a_type_long_silent_is_probed_and_a_restored_cluster_read_anew() -> None:
    """Bug 24: a watch from a version of the future says nothing, for ever."""
    list_watch, store, reflector = await run_script(
        [page(1200, pod("a", 1199)), page(1010), page(1010, pod("b", 1008))],
        [[60.0, bookmark(1200), FOREVER], [FOREVER], [FOREVER]],
        until=400.0,
    )
    probe = list_watch.lists[1]
    assert (probe.resource_version, probe.limit) == ("", 1)
    assert list_watch.list_versions[2] == ""
    assert store.calls == ["replace a@1200", "bookmark @1200", "replace b@1010"]
    assert list_watch.watch_versions[-1] == "1010"
    assert (reflector.epoch, reflector.statistics()["epoch"]) == (1, 1)


async def test_who_may_not_list_is_watched_on_without_probes() -> None:
    list_watch, _, reflector = await run_script(
        [page(10), KubeStatusError(403, "Forbidden", "cannot list")], [[299.0], [FOREVER]], until=320.0
    )
    assert list_watch.watch_versions == ["10", "10"]
    assert reflector.status().error is None


async def test_an_outage_alone_is_no_reason_for_a_probe() -> None:
    list_watch, _, reflector = await run_script([page(10)], [[100.0], *([refused()] * 8), [FOREVER]], until=300.0)
    assert list_watch.list_versions == ["0"]
    assert reflector.epoch == 0


async def test_what_is_held_is_not_trusted_after_a_restore() -> None:
    """One version may then name two states."""
    trusted: list[bool] = []

    class Listing(ScriptedListWatch):
        async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
            trusted.append(known is not nothing_known)
            return await super().list(options)

    list_watch = Listing([page(10), expired(), page(9), page(9)], [expired(), expired(), [FOREVER]])
    reflector = reflector_of(list_watch, known=lambda namespace, name: None)
    async with running(reflector):
        await list_watch.exhausted.wait()
    assert list_watch.list_versions[:4] == ["0", "10", "", "9"]
    assert trusted[:4] == [True, True, False, True]
    assert reflector.epoch == 1


@pytest.mark.parametrize(("window", "watches"), [(0.0, 1), (30.0, 5)])
async def test_rf16_rd01_internal_errors_are_resumed_within_their_window_only(window: float, watches: int) -> None:
    """RF16 RetryInternalError: they come every 10 s, and the window begins with the first."""
    internal = KubeStatusError(500, "InternalError", "etcd", in_stream=True)
    list_watch = ScriptedListWatch([page(10), page(20)], [[10.0, internal]] * 5)
    async with running(reflector_of(list_watch, max_internal_error_retry=window)):
        await list_watch.exhausted.wait()
    assert list_watch.requests.index(list_watch.lists[1]) == 1 + watches


async def test_a_server_that_ends_every_watch_at_once_is_asked_at_a_bounded_rate() -> None:
    list_watch = ScriptedListWatch([page(10)], [[bookmark(10)]] * 1000)
    # A power of two: with other rates the limiter waits for steps too small for a clock that jumps from timer to timer.
    async with running(reflector_of(list_watch, requests_per_second=4.0)):
        await asyncio.sleep(10.0)
    assert 40 <= len(list_watch.watches) <= 45


async def test_events_keep_a_stream_alive_only_until_its_length() -> None:
    steps: list[Step] = [bookmark(11)]
    for version in range(12, 60):
        steps += [10.0, modified(pod("a", version))]
    list_watch, _, _ = await run_script([page(10)], [steps])
    assert list_watch.times[2] == pytest.approx(300 + GRACE)


# ---------------------------------------------------------------- resync


async def test_rf03_resync_comes_after_its_period_while_watching() -> None:
    """RF03 ResyncChan fires."""
    list_watch, store = ScriptedListWatch([page(1)]), RecordingStore()
    wanted = [True, False, True]
    reflector = reflector_of(list_watch, store, resync_period=lambda: 10.0, should_resync=lambda: wanted.pop(0))
    async with running(reflector):
        await asyncio.sleep(35.0)
    assert store.resync_times == [10.0, 30.0]


async def test_rf17_an_error_of_the_stores_resync_ends_the_round_but_not_the_run() -> None:
    """RF17 Resync."""
    list_watch, store = ScriptedListWatch([page(1), page(2)], [[FOREVER]]), RecordingStore()
    store.resync_error = ValueError("cannot")
    reflector = reflector_of(list_watch, store, resync_period=lambda: 10.0)
    failures: list[Exception] = []
    reflector.on_error = failures.append
    async with running(reflector):
        await asyncio.sleep(10.9)
        assert failures == [store.resync_error]
        assert list_watch.list_versions == ["0", "1"]
        await asyncio.sleep(10.0)
        assert len(failures) == 2
        assert reflector.statistics()["resyncs"] == 2


# ---------------------------------------------------------------- relist on request


async def test_a_requested_relist_leaves_the_watch_and_lists_at_once() -> None:
    list_watch, store = ScriptedListWatch([page(10), page(20)], [[FOREVER]]), RecordingStore()
    reflector = reflector_of(list_watch, store)
    async with running(reflector):
        await asyncio.sleep(100.0)
        reflector.request_relist()
        reflector.request_relist()
        await settle()
        assert list_watch.list_versions == ["0", "10"]
        assert list_watch.times[2] == pytest.approx(100.0)
        assert list_watch.watch_versions == ["10", "20"]
        assert reflector.status().error is None
        assert list_watch.open_watches == 1


async def test_a_relist_requested_while_events_rush_in_is_not_forgotten() -> None:
    """The guard moves its deadline with each event; that must not undo the interrupt."""
    source = FakeSource()
    reflector = reflector_of(source)
    async with running(reflector):
        await settle()
        source.put("a")
        source.bookmark()
        await asyncio.sleep(5.0)
        for _ in range(50):
            source.put("a")
        reflector.request_relist()
        await settle()
        assert source.lists == 2


async def test_a_relist_requested_during_a_list_is_answered_by_that_list() -> None:
    source = FakeSource()
    reflector = reflector_of(source)
    async with running(reflector):
        await asyncio.sleep(0)
        reflector.request_relist()
        await settle()
        assert (source.lists, source.watches) == (1, 1)


async def test_a_relist_requested_during_a_delay_follows_it_in_place_of_the_watch() -> None:
    list_watch = ScriptedListWatch([page(10), page(20)], [refused()])
    reflector = reflector_of(list_watch)
    async with running(reflector):
        await settle()
        reflector.request_relist()
        await settle()
        assert len(list_watch.lists) == 1
        await asyncio.sleep(0.8)
        assert len(list_watch.lists) == 2


# ---------------------------------------------------------------- status, supervision


async def test_status_through_failure_and_recovery() -> None:
    list_watch = ScriptedListWatch([refused(), page(10)], [refused(), [FOREVER]])
    reflector = reflector_of(list_watch)
    assert reflector.status().state is ReflectorState.STARTING
    async with running(reflector):
        await settle()
        assert reflector.status().state is ReflectorState.BACKING_OFF
        assert reflector.status().last_proof is None
        await asyncio.sleep(1.0)  # the list came at 0.8 s, but the watch was refused: still failing
        status = reflector.status()
        assert (status.attempts, status.failing_since) == (2, 0.0)
        assert status.last_proof == pytest.approx(0.8)
        await asyncio.sleep(1.5)  # the watch opened at 2.4 s; it proves healthy by standing for a second
        assert reflector.status().state is ReflectorState.WATCHING
        assert reflector.status().attempts == 2
        await asyncio.sleep(1.0)
        status = reflector.status()
        assert (status.attempts, status.failing_since, status.error) == (0, None, None)


async def test_bookmarks_and_clean_ends_prove_freshness() -> None:
    list_watch = ScriptedListWatch([page(10)], [[60.0, bookmark(11), 30.0], [FOREVER]])
    reflector = reflector_of(list_watch)
    async with running(reflector):
        await asyncio.sleep(70.0)
        assert reflector.status().last_proof == pytest.approx(60.0)
        await asyncio.sleep(30.0)
        assert reflector.status().last_proof == pytest.approx(90.0)


async def test_a_cancellation_that_leaks_out_of_the_transport_does_not_end_the_reflector() -> None:
    """Bug 3: a task nobody cancelled must not vanish."""
    list_watch = ScriptedListWatch([page(10)])
    real_list = list_watch.list
    leaks = [asyncio.CancelledError("from a connection pool")]

    async def leaking_list(options: ListOptions, **_: object) -> ListPage:
        if leaks:
            raise leaks.pop()
        return await real_list(options)

    list_watch.list = leaking_list  # type: ignore[method-assign]
    reflector = reflector_of(list_watch)
    async with running(reflector) as task:
        await asyncio.sleep(2.0)
        assert not task.done()
        assert reflector.last_sync_resource_version == "10"


async def test_a_failing_error_handler_does_not_end_the_reflector() -> None:
    list_watch = ScriptedListWatch([refused(), page(10)])
    reflector = reflector_of(list_watch)

    def on_error(error: Exception) -> None:
        raise ZeroDivisionError

    reflector.on_error = on_error
    async with running(reflector):
        await list_watch.exhausted.wait()
    assert reflector.last_sync_resource_version == "10"


async def test_time_outs_of_others_are_not_taken_for_the_guards() -> None:
    list_watch = ScriptedListWatch([page(10), page(20)], [TimeoutError("from a library")])
    reflector = reflector_of(list_watch)
    failures: list[Exception] = []
    reflector.on_error = failures.append
    async with running(reflector):
        await list_watch.exhausted.wait()
    assert [str(failure) for failure in failures] == ["from a library"]
    assert len(list_watch.lists) == 2
