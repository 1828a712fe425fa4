from __future__ import annotations

import asyncio
import gc

import pytest

from federator.aggregator.serve.bookmark_clock import AT_ONCE, RESOLUTION, BookmarkClock

pytestmark = pytest.mark.looptime


class Told:
    """Who was told when."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    def __call__(self, who: str) -> None:
        assert who not in self.times
        self.times[who] = asyncio.get_running_loop().time()


async def test_everybody_is_told_once_never_early_and_little_late() -> None:
    clock, told = BookmarkClock(), Told()
    wanted = {"a": 10.0, "b": 10.1, "c": 3.3, "d": 0.0}
    for who, when in wanted.items():
        clock.schedule(who, when, lambda who=who: told(who))  # type: ignore[misc]
    await asyncio.sleep(20)
    assert told.times.keys() == wanted.keys()
    assert all(wanted[who] <= when < wanted[who] + RESOLUTION for who, when in told.times.items())


async def test_a_later_time_takes_the_place_of_the_former_and_who_is_forgotten_is_not_told() -> None:
    clock, told = BookmarkClock(), Told()
    clock.schedule("a", 2.0, lambda: told("a"))
    clock.schedule("a", 5.0, lambda: told("a"))
    clock.schedule("b", 2.0, lambda: told("b"))
    clock.forget("b")
    clock.forget("b")
    await asyncio.sleep(20)
    assert told.times == {"a": 5.0}
    gc.collect()
    assert not clock._slots
    assert not clock._slot_of


async def test_many_at_once_leave_the_loop_its_turns() -> None:
    clock, told = BookmarkClock(), Told()
    for number in range(AT_ONCE * 3):
        clock.schedule(number, 1.0, lambda number=number: told(str(number)))  # type: ignore[misc]
    seen = []
    await asyncio.sleep(1.0)
    while len(told.times) < AT_ONCE * 3:
        seen.append(len(told.times))
        await asyncio.sleep(0)
    assert seen
    assert {number % AT_ONCE for number in seen} == {0}
