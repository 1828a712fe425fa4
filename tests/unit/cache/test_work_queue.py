"""The work queue; the cases of client-go's queue_test, delaying_queue_test and rate_limiting_queue_test."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federator.api.duration_histogram import DurationHistogram
from federator.cache.rate_limiter import ItemExponentialFailureRateLimiter
from federator.cache.work_queue import QueueShutDown, RateLimitingQueue

pytestmark = pytest.mark.looptime

ShutDown = Callable[[RateLimitingQueue[int]], Awaitable[None]]


async def shut_down(queue: RateLimitingQueue[int]) -> None:
    queue.shut_down()


async def shut_down_with_drain(queue: RateLimitingQueue[int]) -> None:
    await queue.shut_down_with_drain()


def queue_of(*items: str) -> RateLimitingQueue[str]:
    queue = RateLimitingQueue[str](name="test")
    for item in items:
        queue.add(item)
    return queue


async def take_all(queue: RateLimitingQueue[str]) -> list[str]:
    """Takes and finishes what can be taken now."""
    taken = []
    while len(queue):
        taken.append(await queue.get())
        queue.done(taken[-1])
    return taken


async def passes(seconds: float) -> None:
    """Lets this time pass, and what is due by then happen."""
    await asyncio.sleep(seconds)
    await asyncio.sleep(0)


@pytest.mark.parametrize("shut_down", [shut_down, shut_down_with_drain])
async def test_many_producers_and_consumers(shut_down: ShutDown) -> None:
    """TestBasic: nobody gets what was added after the shutdown, and nothing is left."""
    queue = RateLimitingQueue[int]()
    processed: Counter[int] = Counter()
    in_process: set[int] = set()

    async def produce(item: int) -> None:
        for _ in range(50):
            queue.add(item)
            await asyncio.sleep(0.001)

    async def consume() -> None:
        while True:
            try:
                item = await queue.get()
            except QueueShutDown:
                return
            assert item not in in_process, "one item is never taken twice at once"
            in_process.add(item)
            await asyncio.sleep(0.003)
            in_process.remove(item)
            processed[item] += 1
            queue.done(item)

    async with asyncio.TaskGroup() as consumers:
        for _ in range(10):
            consumers.create_task(consume())
        await asyncio.gather(*(produce(item) for item in range(50)))
        ending = asyncio.ensure_future(shut_down(queue))
        await asyncio.sleep(0)
        queue.add(-1)
        queue.add_after(-1, 0.001)
        queue.add_rate_limited(-1)
    assert ending.done()
    assert set(processed) == set(range(50))
    assert len(queue) == 0


@pytest.mark.parametrize("shut_down", [shut_down, shut_down_with_drain])
async def test_items_that_are_added_while_they_are_processed_come_again(shut_down: ShutDown) -> None:
    """TestAddWhileProcessing: each consumer adds each item once more when it gets it first, also after the shutdown."""
    queue = RateLimitingQueue[int]()
    taken: Counter[int] = Counter()

    async def consume() -> None:
        seen: set[int] = set()
        while True:
            try:
                item = await queue.get()
            except QueueShutDown:
                return
            taken[item] += 1
            if item not in seen:
                seen.add(item)
                queue.add(item)
            await asyncio.sleep(0.001)
            queue.done(item)

    for item in range(50):
        queue.add(item)
    async with asyncio.TaskGroup() as consumers:
        for _ in range(10):
            consumers.create_task(consume())
        await asyncio.sleep(0.0025)
        await shut_down(queue)
    assert len(queue) == 0
    assert all(taken[item] == 2 for item in range(20)), "what came back before the shutdown is processed"
    assert set(taken) == set(range(50))


async def test_an_item_that_waits_is_there_once() -> None:
    """TestLen."""
    queue = queue_of("foo")
    assert len(queue) == 1
    queue.add("bar")
    assert len(queue) == 2
    queue.add("foo")
    assert len(queue) == 2


async def test_items_come_in_the_order_of_their_first_add() -> None:
    queue = queue_of("c", "a", "b", "a", "c")
    assert await take_all(queue) == ["c", "a", "b"]


async def test_an_item_added_while_it_is_processed_comes_again_after_it_is_done() -> None:
    """TestReinsert."""
    queue = queue_of("foo")
    assert await queue.get() == "foo"
    queue.add("foo")
    assert len(queue) == 0, "not while it is in process"
    queue.done("foo")
    assert await take_all(queue) == ["foo"]
    assert len(queue) == 0


async def test_adds_of_one_item_collapse() -> None:
    """TestCollapse."""
    queue = queue_of("bar", "bar")
    assert await take_all(queue) == ["bar"]


async def test_adds_of_an_item_in_process_collapse() -> None:
    """TestCollapseWhileProcessing: another consumer waits until it is done, and gets it once."""
    queue = queue_of("foo")
    await queue.get()
    queue.add("foo")
    queue.add("foo")
    other = asyncio.create_task(queue.get())
    await passes(1.0)
    assert not other.done()
    queue.done("foo")
    assert await other == "foo"
    queue.done("foo")
    assert len(queue) == 0


async def test_an_item_that_comes_back_stands_behind_those_that_waited() -> None:
    queue = queue_of("a", "b")
    await queue.get()
    queue.add("a")
    queue.add("c")
    queue.done("a")
    assert await take_all(queue) == ["b", "c", "a"]


async def test_those_who_wait_are_served_in_their_order() -> None:
    queue = queue_of()
    consumers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await passes(0)
    for item in "abc":
        queue.add(item)
    assert await asyncio.gather(*consumers) == ["a", "b", "c"]


@pytest.mark.parametrize("when", ["before", "with", "after"])
async def test_cancelling_a_get_takes_no_item_with_it(when: str) -> None:
    queue = queue_of()
    cancelled, other = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await passes(0)
    if when == "before":
        cancelled.cancel()
    queue.add("a")
    if when == "with":  # it has been told of the item and has not run yet
        cancelled.cancel()
    if when == "after":
        assert await cancelled == "a"
        queue.add("b")
    assert await other == ("b" if when == "after" else "a")
    assert cancelled.cancelled() == (when != "after")


async def test_a_drain_waits_for_what_is_in_process() -> None:
    """TestQueueDrainageUsingShutDownWithDrain."""
    queue = queue_of("foo", "bar")
    first, second = await queue.get(), await queue.get()
    draining = asyncio.create_task(queue.shut_down_with_drain())
    with pytest.raises(QueueShutDown):
        await asyncio.gather(queue.get(), passes(0))
    queue.done(first)
    await passes(1.0)
    assert not draining.done()
    queue.done(second)
    await draining


async def test_a_drain_waits_for_what_waits() -> None:
    """Also where nothing happens to be in process: client-go's ends then, against its documentation."""
    queue = queue_of("foo")
    draining = asyncio.create_task(queue.shut_down_with_drain())
    await passes(1.0)
    assert not draining.done()
    assert await take_all(queue) == ["foo"]
    await draining


async def test_a_shutdown_waits_for_nothing() -> None:
    """TestNoQueueDrainageUsingShutDown."""
    queue = queue_of("foo", "bar")
    await queue.get()
    await queue.get()
    queue.shut_down()
    assert queue.shutting_down
    with pytest.raises(QueueShutDown, match="'test' is shut down"):
        await queue.get()


async def test_a_shutdown_ends_a_drain() -> None:
    """TestForceQueueShutdownUsingShutDown: as a second Ctrl-C does."""
    queue = queue_of("foo", "bar")
    await queue.get()
    draining = asyncio.create_task(queue.shut_down_with_drain())
    await passes(1.0)
    assert not draining.done()
    queue.shut_down()
    await draining


async def test_a_drain_after_a_shutdown_waits_too() -> None:
    queue = queue_of("foo")
    await queue.get()
    queue.shut_down()
    draining = asyncio.create_task(queue.shut_down_with_drain())
    await passes(1.0)
    assert not draining.done()
    queue.done("foo")
    await draining
    await queue.shut_down_with_drain()


async def test_a_drain_waits_for_an_item_that_comes_back() -> None:
    """TestQueueDrainageUsingShutDownWithDrainWithDirtyItem."""
    queue = queue_of("foo")
    await queue.get()
    queue.add("foo")
    draining = asyncio.create_task(queue.shut_down_with_drain())
    await passes(0)
    with pytest.raises(QueueShutDown):
        await queue.get()
    queue.done("foo")
    await passes(0)
    assert not draining.done()
    assert await queue.get() == "foo"
    queue.done("foo")
    with pytest.raises(QueueShutDown):
        await queue.get()
    await draining


async def test_a_cancelled_drain_leaves_the_queue_shut_down() -> None:
    queue = queue_of("foo")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.shut_down_with_drain(), 1.0)
    assert queue.shutting_down
    assert await take_all(queue) == ["foo"]


async def test_a_shutdown_wakes_all_who_wait() -> None:
    queue = queue_of()
    consumers = [asyncio.create_task(queue.get()) for _ in range(10)]
    await passes(0)
    queue.shut_down()
    queue.shut_down()
    outcomes = await asyncio.gather(*consumers, return_exceptions=True)
    assert all(isinstance(outcome, QueueShutDown) for outcome in outcomes)


async def test_after_a_shutdown_what_waits_can_still_be_taken_and_nothing_be_added() -> None:
    queue = queue_of("a", "b")
    queue.shut_down()
    queue.add("c")
    assert await take_all(queue) == ["a", "b"]


async def test_what_was_processed_is_let_go() -> None:
    """TestGarbageCollection."""

    class Item:
        pass

    queue = RateLimitingQueue[Item]()
    item = Item()
    gone = weakref.ref(item)
    queue.add(item)
    queue.add_after(item, 1.0)
    queue.add_rate_limited(item)
    await passes(2.0)
    queue.done(await queue.get())
    queue.forget(item)
    del item
    gc.collect()
    assert gone() is None


async def test_done_without_get_is_refused() -> None:
    queue = queue_of("foo")
    with pytest.raises(ValueError, match="'foo' is not in process"):
        queue.done("foo")
    assert await take_all(queue) == ["foo"]
    with pytest.raises(ValueError, match="not in process"):
        queue.done("foo")
    assert len(queue) == 0


async def test_a_delayed_item_comes_once_after_its_time() -> None:
    """TestSimpleQueue."""
    queue = queue_of()
    queue.add_after("foo", 0.05)
    await passes(0.04)
    assert len(queue) == 0
    await passes(0.02)
    assert await take_all(queue) == ["foo"]
    await passes(10.0)
    assert len(queue) == 0


async def test_of_several_delays_the_one_that_ends_first_counts() -> None:
    """TestDeduping, both ways round."""
    queue = queue_of()
    queue.add_after("foo", 0.05)
    queue.add_after("foo", 0.07)
    assert len(queue) == 0
    await passes(0.06)
    assert await take_all(queue) == ["foo"]
    await passes(0.02)
    assert len(queue) == 0

    queue.add_after("foo", 0.05)
    queue.add_after("foo", 0.03)
    assert len(queue) == 0
    await passes(0.04)
    assert await take_all(queue) == ["foo"]
    await passes(0.02)
    assert len(queue) == 0
    assert queue.statistics()["delayed"] == 0


async def test_a_short_delay_overtakes_a_long_one() -> None:
    """TestAddTwoFireEarly."""
    queue = queue_of()
    queue.add_after("foo", 1.0)
    queue.add_after("bar", 0.05)
    assert len(queue) == 0
    await passes(0.06)
    assert await take_all(queue) == ["bar"]
    queue.add_after("baz", 2.0)
    await passes(1.0)
    assert await take_all(queue) == ["foo"]
    await passes(2.0)
    assert await take_all(queue) == ["baz"]


async def test_delayed_items_come_in_the_order_of_their_times() -> None:
    """TestCopyShifting."""
    queue = queue_of()
    queue.add_after("foo", 1.0)
    queue.add_after("bar", 0.5)
    queue.add_after("baz", 0.25)
    assert len(queue) == 0
    await passes(2.0)
    assert await take_all(queue) == ["baz", "bar", "foo"]


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_no_delay_is_an_add(seconds: float) -> None:
    queue = queue_of()
    queue.add_after("foo", seconds)
    assert await take_all(queue) == ["foo"]


async def test_an_add_of_a_delayed_item_comes_at_once_and_the_delayed_one_later() -> None:
    queue = queue_of()
    queue.add_after("foo", 1.0)
    queue.add("foo")
    assert await take_all(queue) == ["foo"]
    await passes(2.0)
    assert await take_all(queue) == ["foo"]


async def test_a_delay_that_ends_while_its_item_is_processed() -> None:
    queue = queue_of("foo")
    await queue.get()
    queue.add_after("foo", 1.0)
    await passes(2.0)
    assert len(queue) == 0
    queue.done("foo")
    assert await take_all(queue) == ["foo"]


async def test_a_shutdown_drops_what_is_delayed_and_takes_no_more_of_it() -> None:
    queue = queue_of()
    queue.add_after("foo", 1.0)
    queue.shut_down()
    queue.add_after("bar", 1.0)
    assert queue.statistics()["delayed"] == 0
    assert queue.statistics()["retries_total"] == 1
    await queue.shut_down_with_drain()
    await passes(2.0)
    assert len(queue) == 0


async def test_delays_cost_no_task() -> None:
    queue = queue_of()
    for number in range(1000):
        queue.add_after(str(number), 1.0 + number)
    assert len(asyncio.all_tasks()) == 1
    assert queue.statistics()["delayed"] == 1000
    queue.shut_down()


async def test_failures_delay_an_item_longer_each_time_until_it_is_forgotten() -> None:
    """TestRateLimitingQueue."""
    queue = RateLimitingQueue[str](rate_limiter=ItemExponentialFailureRateLimiter(0.25, 100.0))

    async def delay_of(item: str) -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        queue.add_rate_limited(item)
        assert await queue.get() == item
        queue.done(item)
        return loop.time() - start

    assert [await delay_of("one") for _ in range(2)] == pytest.approx([0.25, 0.5])
    assert queue.num_requeues("one") == 2
    assert [await delay_of("two") for _ in range(2)] == pytest.approx([0.25, 0.5])
    queue.forget("one")
    assert queue.num_requeues("one") == 0
    assert await delay_of("one") == pytest.approx(0.25)
    assert queue.num_requeues("two") == 2


async def test_statistics_tell_what_client_gos_metrics_tell() -> None:
    queue = queue_of("a", "a", "b")
    await passes(2.0)
    await queue.get()
    queue.add("a")
    queue.add("a")
    await passes(4.0)
    await queue.get()
    await passes(1.0)
    queue.add_after("c", 30.0)
    queue.add_after("d", 0.0)
    statistics = dict(queue.statistics())
    queued, worked = statistics.pop("queue_duration_seconds"), statistics.pop("work_duration_seconds")
    assert statistics == {
        "depth": 2,
        "adds_total": 4,
        "retries_total": 2,
        "unfinished_work_seconds": pytest.approx(5.0 + 1.0),
        "longest_running_processor_seconds": pytest.approx(5.0),
        "processing": 2,
        "delayed": 1,
    }
    assert isinstance(queued, DurationHistogram)
    assert isinstance(worked, DurationHistogram)
    assert queued.count == 2
    assert queued.sum == pytest.approx(2.0 + 6.0)
    assert worked.count == 0
    queue.done("b")
    assert worked.count == 1
    assert worked.last == pytest.approx(1.0)
    queue.done("a")
    await queue.get()
    await queue.get()
    assert queued.sum == pytest.approx(8.0 + 0.0 + 5.0)
    assert queued.last == pytest.approx(5.0), "the time of an item that comes back counts from its add"
    queue.shut_down()
    assert queue.statistics()["delayed"] == 0


async def test_a_call_from_a_thread_is_refused_and_changes_nothing() -> None:
    queue = queue_of()
    for call in (lambda: queue.add("foo"), lambda: queue.add_after("foo", 1.0)):
        with pytest.raises(RuntimeError, match="no running event loop"):
            await asyncio.to_thread(call)
    assert (len(queue), queue.statistics()["depth"], queue.statistics()["delayed"]) == (0, 0, 0)


STEPS = st.lists(st.tuples(st.sampled_from(["add", "get", "done", "after", "pass"]), st.integers(0, 3)), max_size=60)


@given(STEPS)
@settings(deadline=None)
def test_any_order_of_calls_is_as_in_a_model(steps: list[tuple[str, int]]) -> None:
    """The model: a list of what waits, and sets of what is in process and of what is to come back."""
    asyncio.run(_follow(steps))


async def _follow(steps: list[tuple[str, int]]) -> None:
    now = 0.0
    queue = RateLimitingQueue[int](clock=lambda: now)
    waiting: list[int] = []
    processing: list[int] = []
    back: set[int] = set()

    def added(item: int) -> None:
        if item in processing:
            back.add(item)
        elif item not in waiting:
            waiting.append(item)

    for step, item in steps:
        now += 1.0
        if step == "add":
            queue.add(item)
            added(item)
        elif step == "after":
            queue.add_after(item, 0.0)
            added(item)
        elif step == "get" and waiting:
            taken = await queue.get()
            assert taken == waiting.pop(0)
            processing.append(taken)
        elif step == "done" and processing:
            finished = processing.pop(item % len(processing))
            queue.done(finished)
            if finished in back:
                back.remove(finished)
                waiting.append(finished)
        statistics = queue.statistics()
        assert len(queue) == len(waiting)
        assert statistics["depth"] == len(waiting) + len(back)
        assert statistics["processing"] == len(processing)
        if not waiting:
            nobody = asyncio.create_task(queue.get())
            await asyncio.sleep(0)
            assert not nobody.done()
            nobody.cancel()
            await asyncio.wait([nobody])
