"""Workers on a work queue."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from structlog.typing import EventDict

from federator.cache.rate_limiter import ItemExponentialFailureRateLimiter
from federator.cache.work_queue import RateLimitingQueue
from federator.cache.workers import RequeueAfter, WorkerPool, run_workers
from federator.errors import InvalidInput

pytestmark = pytest.mark.looptime


def queue_of(*items: str) -> RateLimitingQueue[str]:
    queue = RateLimitingQueue[str](name="test", rate_limiter=ItemExponentialFailureRateLimiter(0.25, 100.0))
    for item in items:
        queue.add(item)
    return queue


async def test_all_items_are_reconciled_and_a_shutdown_ends_the_workers() -> None:
    queue, seen = queue_of("a", "b", "c"), []

    async def reconcile(item: str) -> None:
        seen.append(item)

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run_workers(queue, reconcile, workers=2))
        await asyncio.sleep(1.0)
        queue.add("d")
        await asyncio.sleep(1.0)
        assert not running.done()
        queue.shut_down()
    assert seen == ["a", "b", "c", "d"]


async def test_as_many_at_once_as_there_are_workers_and_no_item_twice_at_once() -> None:
    queue = queue_of(*"abcdef")
    active: Counter[str] = Counter()
    most_at_once, most_of_one = 0, 0
    runs: Counter[str] = Counter()

    async def reconcile(item: str) -> None:
        nonlocal most_at_once, most_of_one
        active[item] += 1
        runs[item] += 1
        most_at_once, most_of_one = max(most_at_once, active.total()), max(most_of_one, active[item])
        queue.add("a")
        if item == "a" and runs["a"] < 5:
            queue.add("a")
        await asyncio.sleep(1.0)
        active[item] -= 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_workers(queue, reconcile, workers=3))
        await asyncio.sleep(10.0)
        queue.shut_down()
    assert (most_at_once, most_of_one) == (3, 1)
    assert runs["a"] > 2
    assert set(runs) == set("abcdef")


async def test_a_failed_item_comes_again_later_each_time_and_the_others_go_on(logs: list[EventDict]) -> None:
    queue, times = queue_of("bad", "good"), []

    async def reconcile(item: str) -> None:
        if item == "bad":
            times.append(asyncio.get_running_loop().time())
            if len(times) < 4:
                raise ValueError("not yet")

    pool = WorkerPool(queue, reconcile)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.run())
        await asyncio.sleep(0.1)
        assert pool.statistics()["reconciles"] == {"success": 1, "error": 1}
        await asyncio.sleep(10.0)
        queue.shut_down()
    assert [later - times[0] for later in times] == pytest.approx([0.0, 0.25, 0.75, 1.75])
    assert queue.num_requeues("bad") == 0, "it has succeeded in the end and is forgotten"
    assert pool.statistics() == {
        "max_concurrent_reconciles": 1,
        "active_workers": 0,
        "reconciles": {"success": 2, "error": 3},
    }
    said = [(entry["event"], entry["queue"], entry["item"], entry["requeues"]) for entry in logs]
    assert said == [("reconcile failed", "test", "bad", number) for number in (1, 2, 3)]
    assert isinstance(logs[0]["exc_info"], ValueError)


async def test_an_item_can_ask_to_be_looked_at_again() -> None:
    queue, times = queue_of("a"), []

    async def reconcile(item: str) -> RequeueAfter | None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            raise ValueError("not yet")
        return RequeueAfter(30.0) if len(times) < 4 else None

    pool = WorkerPool(queue, reconcile)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(pool.run())
        await asyncio.sleep(1.0)
        assert queue.num_requeues("a") == 0, "asking is no failure"
        await asyncio.sleep(1000.0)
        queue.shut_down()
    assert [later - times[0] for later in times] == pytest.approx([0.0, 0.25, 30.25, 60.25])
    assert pool.statistics()["reconciles"] == {"error": 1, "requeue_after": 2, "success": 1}


async def test_an_item_that_changes_while_it_is_reconciled_is_reconciled_again() -> None:
    queue, seen = queue_of("a"), []

    async def reconcile(item: str) -> None:
        seen.append(item)
        await asyncio.sleep(1.0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_workers(queue, reconcile, workers=4))
        await asyncio.sleep(0.5)
        queue.add("a")
        queue.add("a")
        await asyncio.sleep(10.0)
        queue.shut_down()
    assert seen == ["a", "a"]


async def test_cancelled_it_cancels_what_is_in_process_and_leaves_no_task() -> None:
    queue, begun, cancelled = queue_of("a", "b", "c"), [], []

    async def reconcile(item: str) -> None:
        begun.append(item)
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    pool = WorkerPool(queue, reconcile, workers=2)
    running = asyncio.create_task(pool.run())
    await asyncio.sleep(1.0)
    assert pool.statistics()["active_workers"] == 2
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert begun == sorted(cancelled) == ["a", "b"]  # a task group cancels in no order
    assert len(asyncio.all_tasks()) == 1
    assert pool.statistics() == {"max_concurrent_reconciles": 2, "active_workers": 0, "reconciles": {}}
    assert queue.statistics()["processing"] == 0
    waiting, *begun_again = [await queue.get() for _ in range(3)]
    assert (waiting, sorted(begun_again)) == ("c", ["a", "b"]), "what was begun is still to be done"
    assert queue.num_requeues("a") == 0


async def test_cancelled_while_it_waits_it_ends() -> None:
    queue = queue_of()

    async def reconcile(item: str) -> None:
        raise AssertionError("there is nothing to do")

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run_workers(queue, reconcile, workers=3), 1.0)
    assert len(asyncio.all_tasks()) == 1


async def test_a_reconcile_that_awaits_what_is_cancelled_has_failed(logs: list[EventDict]) -> None:
    """It is not the worker that was cancelled; it must not end."""
    queue, runs = queue_of("a"), 0

    async def reconcile(item: str) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            foreign = asyncio.get_running_loop().create_future()
            foreign.cancel()
            await foreign

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_workers(queue, reconcile))
        await asyncio.sleep(10.0)
        queue.shut_down()
    assert runs == 2
    assert [entry["event"] for entry in logs] == ["reconcile failed"]


async def test_a_drain_waits_for_the_workers() -> None:
    queue, finished = queue_of("a", "b", "c"), []

    async def reconcile(item: str) -> None:
        await asyncio.sleep(1.0)
        finished.append(item)

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run_workers(queue, reconcile))
        await asyncio.sleep(0.5)
        await queue.shut_down_with_drain()
        assert finished == ["a", "b", "c"]
        await asyncio.sleep(0.1)
        assert running.done()


async def test_a_reconcile_that_never_waits_lets_others_run() -> None:
    queue, others = queue_of("a"), 0

    async def reconcile(item: str) -> None:
        queue.add("a")

    async def count() -> None:
        nonlocal others
        for _ in range(10):
            await asyncio.sleep(0)
            others += 1
        queue.shut_down()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_workers(queue, reconcile))
        tasks.create_task(count())
    assert others == 10


async def test_what_is_no_failure_of_an_item_ends_all_workers() -> None:
    class Fatal(BaseException):
        pass

    queue = queue_of("a")

    async def reconcile(item: str) -> None:
        raise Fatal

    with pytest.raises(BaseExceptionGroup) as raised:
        await run_workers(queue, reconcile, workers=2)
    assert raised.group_contains(Fatal)
    assert queue.statistics()["processing"] == 0
    assert len(asyncio.all_tasks()) == 1


async def test_no_workers_are_refused() -> None:
    async def reconcile(item: str) -> None:
        pass

    with pytest.raises(InvalidInput, match="workers"):
        await run_workers(queue_of("a"), reconcile, workers=0)
