from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from federator.cache.retry_watcher import retry_watch
from federator.errors import InvalidInput, KubeStatusError
from tests.unit.cache.doubles import (
    FOREVER,
    ScriptedListWatch,
    Step,
    added,
    bookmark,
    deleted,
    expired,
    modified,
    pod,
    refused,
    settle,
    too_many_requests,
)

pytestmark = pytest.mark.looptime


async def versions(list_watch: ScriptedListWatch, count: int, *, since: str = "5") -> list[str]:
    """The versions of the first events."""
    seen: list[str] = []
    async with aclosing(retry_watch(list_watch, since)) as events, asyncio.timeout(600):
        async for event in events:
            seen.append(event.object.resource_version)
            if len(seen) == count:
                break
    return seen


@pytest.mark.parametrize("version", ["", "0"])
async def test_rw01_it_begins_only_where_it_can_resume(version: str) -> None:
    """RW01."""
    with pytest.raises(InvalidInput, match="resource_version"):
        await versions(ScriptedListWatch(), 1, since=version)


@pytest.mark.parametrize(
    "failure",
    [
        refused(),
        expired(),
        too_many_requests(),
        [KubeStatusError(504, "Timeout", "timed out", in_stream=True)],
        [KubeStatusError(500, "InternalError", "etcd", in_stream=True)],
        [KubeStatusError(999, "Odd", "never seen", in_stream=True)],
        [],
    ],
    ids=["unreachable", "dial 410", "dial 429", "timeout", "internal", "odd code", "empty"],
)
async def test_rw02_it_goes_on_unless_it_is_certain_that_it_cannot(failure: Sequence[Step] | Exception) -> None:
    """RW02."""
    list_watch = ScriptedListWatch([], [[added(pod("a", 6))], failure, [modified(pod("a", 7))]])
    assert await versions(list_watch, 2) == ["6", "7"]
    assert list_watch.watch_versions == ["5", "6", "6"]


@pytest.mark.parametrize("code", [410, 401, 403])
async def test_rw03_it_ends_where_the_open_watch_is_told_so(code: int) -> None:
    """RW03."""
    list_watch = ScriptedListWatch([], [[added(pod("a", 6)), KubeStatusError(code, "", "no", in_stream=True)]])
    with pytest.raises(KubeStatusError) as raised:
        await versions(list_watch, 2)
    assert raised.value.code == code
    assert len(list_watch.watches) == 1


@pytest.mark.parametrize("closes", [1, 2, 3, 4])
async def test_rw04_it_resumes_across_closes_without_loss_or_repeat(closes: int) -> None:
    """RW04: the versions have gaps."""
    steps: list[Step] = [added(pod("a", 7)), modified(pod("a", 12)), deleted(pod("a", 20)), added(pod("a", 31))]
    cut = [steps[n::closes] for n in range(closes)] if closes == 1 else [[step] for step in steps[: closes - 1]]
    rest = [] if closes == 1 else [steps[closes - 1 :]]
    list_watch = ScriptedListWatch([], [*cut, *rest])
    assert await versions(list_watch, 4) == ["7", "12", "20", "31"]
    assert list_watch.watch_versions == ["5", "7", "12", "20"][:closes]


async def test_rw05_it_can_be_left_with_events_unread() -> None:
    """RW05: the watch is closed, nothing is left running."""
    list_watch = ScriptedListWatch([], [[added(pod("a", 6)), added(pod("b", 7)), FOREVER]])
    before = asyncio.all_tasks()
    assert await versions(list_watch, 1) == ["6"]
    await settle()
    assert list_watch.open_watches == 0
    assert asyncio.all_tasks() == before


async def test_rw06_bookmarks_are_progress_and_not_given() -> None:
    """RW06."""
    list_watch = ScriptedListWatch([], [[bookmark(9)], [added(pod("a", 10))]])
    assert await versions(list_watch, 1) == ["10"]
    assert list_watch.watch_versions == ["5", "9"]


async def test_a_server_that_asks_for_more_time_gets_it() -> None:
    failures = [too_many_requests(retry_after=7.0), refused()]
    list_watch = ScriptedListWatch([], [*failures, [added(pod("a", 6))]])
    assert await versions(list_watch, 1) == ["6"]
    assert [time for time, _ in list_watch.asked] == pytest.approx([0.0, 7.0, 8.0])
