"""The processor: many handlers, each at its own pace, in bounded memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from structlog.typing import EventDict

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache.handler import ResourceEventHandler
from federator.cache.processor import FAILURE_PAUSE, ProcessorListener, SharedProcessor
from tests.unit.cache.doubles import RecordingHandler, pod, settle

pytestmark = pytest.mark.looptime


class SlowHandler(RecordingHandler):
    """Takes a second for each notification."""

    async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
        super().on_add(obj, is_initial)
        await asyncio.sleep(1.0)

    async def on_update(self, old: KubeObject, new: KubeObject) -> None:  # type: ignore[override]
        super().on_update(old, new)
        await asyncio.sleep(1.0)

    async def on_delete(self, obj: KubeObject | Tombstone) -> None:  # type: ignore[override]
        super().on_delete(obj)
        await asyncio.sleep(1.0)


def processor_of(*, check: float = 0.0, buffer_size: int = 1024) -> SharedProcessor:
    return SharedProcessor(name="pods", resync_check_period=check, buffer_size=buffer_size)


def listen(processor: SharedProcessor, handler: ResourceEventHandler, *cached: KubeObject) -> ProcessorListener:
    return processor.add_listener(handler, resync_period=0.0, cached=cached)


@asynccontextmanager
async def running(processor: SharedProcessor) -> AsyncIterator[None]:
    """Runs the processor as an informer does: until its task is cancelled."""
    started = asyncio.Event()

    async def run() -> None:
        async with processor.running():
            started.set()
            await asyncio.sleep(1e9)

    task = asyncio.create_task(run())
    await started.wait()
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_h1_one_slow_handler_delays_nobody() -> None:
    processor, slow, quick = processor_of(), SlowHandler(), RecordingHandler()
    listen(processor, slow)
    listen(processor, quick)
    async with running(processor):
        for version in range(1, 11):
            processor.distribute_add(f"default/p{version}", pod(f"p{version}", version), is_initial=False)
        await settle()
        assert len(quick.events) == 10
        assert len(slow.events) == 1
        await asyncio.sleep(10.0)
        assert slow.events == quick.events


async def test_bug35_a_slow_handler_is_told_less_but_ends_up_right_in_bounded_memory() -> None:
    """Bug 35, H1: 3,000 updates over 100 keys; the other handler sees every one."""
    keys, updates, bound = 100, 3_000, 20
    processor, slow = processor_of(buffer_size=bound), SlowHandler()
    seen = 0

    class Quick(RecordingHandler):
        def on_update(self, old: KubeObject, new: KubeObject) -> None:
            nonlocal seen
            seen += 1

    slow_listener = listen(processor, slow)
    listen(processor, Quick())
    states = [KubeObject("default", f"p{n}", "", "1") for n in range(keys)]
    async with running(processor):
        for version in range(2, updates + 2):
            n = version * 7 % keys
            new = KubeObject("default", f"p{n}", "", str(version))
            processor.distribute_update(new.key, states[n], new)
            states[n] = new
            if version % 10 == 0:
                await asyncio.sleep(0)
                pending = slow_listener.statistics()["pending"]
                assert isinstance(pending, int)
                assert pending <= keys + bound
        await settle()
        assert seen == updates
        await asyncio.sleep(2.0 * keys)
        assert len(slow.events) < 2 * keys
        final = {key: new for _, key, _, new in slow.events}
        assert final == {obj.key: obj.resource_version for obj in states}
        coalesced = slow_listener.statistics()["coalesced"]
        assert coalesced == updates - len(slow.events)


async def test_objects_that_come_and_go_while_a_handler_is_stuck_leave_nothing_behind() -> None:
    processor, slow = processor_of(buffer_size=10), SlowHandler()
    listener = listen(processor, slow)
    async with running(processor):
        for n in range(1000):
            obj = pod(f"job-{n}", n + 1)
            processor.distribute_add(obj.key, obj, is_initial=False)
            processor.distribute_delete(obj.key, obj)
        assert listener.statistics()["pending"] == 10
        await asyncio.sleep(20.0)
        assert slow.events[-1][0] == "delete"


async def test_a_merged_notification_keeps_the_place_of_the_first() -> None:
    processor, handler = processor_of(buffer_size=2), RecordingHandler()
    listen(processor, handler)
    processor.distribute_update("default/a", pod("a", 1), pod("a", 2))
    processor.distribute_update("default/b", pod("b", 1), pod("b", 3))
    processor.distribute_update("default/a", pod("a", 2), pod("a", 4))
    async with running(processor):
        await settle()
    assert handler.events == [("update", "default/a", "1", "4"), ("update", "default/b", "1", "3")]


async def test_h9_what_is_distributed_before_the_start_waits() -> None:
    """H9, SI03: and never blocks."""
    processor, handler = processor_of(), RecordingHandler()
    listen(processor, handler)
    processor.distribute_add("default/a", pod("a", 1), is_initial=True)
    async with running(processor):
        await settle()
    assert handler.events == [("initial", "default/a", "1")]


async def test_h4_a_failing_handler_skips_that_one_pauses_and_settles(logs: list[EventDict]) -> None:
    """H4, SI21 EventPanics: one and many handlers, at least (n - 1) pauses."""
    times: list[float] = []

    class Failing(RecordingHandler):
        def on_add(self, obj: KubeObject, is_initial: bool) -> None:
            times.append(asyncio.get_running_loop().time())
            raise ValueError("no")

    processor, fine = processor_of(), RecordingHandler()
    objects = [pod(f"p{n}", n + 1) for n in range(5)]
    failing = listen(processor, Failing(), *objects)
    listen(processor, fine, *objects)
    async with running(processor):
        await settle()
        assert len(fine.events) == 5
        assert not failing.has_settled
        assert await failing.wait_settled()
        await settle()
    assert [b - a for a, b in itertools.pairwise(times)] == pytest.approx([FAILURE_PAUSE] * 4)
    assert failing.failed == failing.statistics()["delivered"] == 5
    assert {(entry["event"], entry["key"]) for entry in logs} == {("event handler failed", obj.key) for obj in objects}


async def test_a_handler_that_awaits_something_cancelled_does_not_lose_its_task() -> None:
    class Unlucky(RecordingHandler):
        async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
            other = asyncio.create_task(asyncio.sleep(1e9))
            other.cancel()
            await other

    processor = processor_of()
    listener = listen(processor, Unlucky(), pod("a", 1), pod("b", 2))
    async with running(processor):
        assert await listener.wait_settled()
    assert listener.failed == 2


@pytest.mark.parametrize("ending", ["delete", "delete, add", "update"])
async def test_initial_adds_settle_also_when_they_are_merged_away(ending: str) -> None:
    processor, handler = processor_of(buffer_size=1), RecordingHandler()
    listener = listen(processor, handler, pod("a", 1))
    if ending == "update":
        processor.distribute_update("default/a", pod("a", 1), pod("a", 2))
        assert not listener.has_settled
    else:
        processor.distribute_delete("default/a", pod("a", 1))
        assert listener.has_settled
    if ending == "delete, add":
        processor.distribute_add("default/a", pod("a", 3), is_initial=True)
        assert not listener.has_settled
    async with running(processor):
        assert await listener.wait_settled()


async def test_an_initial_add_that_merges_into_an_update_settles() -> None:
    processor, handler = processor_of(buffer_size=1), RecordingHandler()
    listener = listen(processor, handler)
    processor.distribute_delete("default/a", pod("a", 1))
    processor.distribute_add("default/a", pod("a", 3), is_initial=True)
    async with running(processor):
        await settle()
    assert handler.events == [("update", "default/a", "1", "3")]
    assert listener.has_settled


async def test_a_plain_handler_with_much_to_do_lets_others_have_the_loop() -> None:
    processor, handler = processor_of(), RecordingHandler()
    listen(processor, handler, *(pod(f"p{n}", n + 1) for n in range(1000)))
    async with running(processor):
        await asyncio.sleep(0)
        assert 0 < len(handler.events) < 1000
        await settle()
        assert len(handler.events) == 1000


async def test_leaving_cancels_a_handler_that_waits_even_one_that_came_late_or_was_removed() -> None:
    class Stuck(RecordingHandler):
        async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
            await asyncio.sleep(1e9)

    processor = processor_of()
    listen(processor, Stuck(), pod("a", 1))
    async with running(processor):
        listen(processor, Stuck(), pod("a", 1))
        removed = listen(processor, Stuck(), pod("a", 1))
        await settle()
        processor.remove_listener(removed)


@pytest.mark.parametrize(
    ("requested", "check", "expected"), [(0, 0, 0), (5, 0, 0), (0, 5, 0), (2, 5, 5), (5, 5, 5), (7, 5, 7)]
)
async def test_h6_the_resync_period_a_handler_gets(requested: float, check: float, expected: float) -> None:
    """H6, `determineResyncPeriod`: never more often than asked, never more often than looked."""
    listener = processor_of(check=check).add_listener(RecordingHandler(), resync_period=requested, cached=())
    assert listener.resync_period == expected


async def test_h5_equal_versions_are_told_only_to_handlers_due_for_resync() -> None:
    processor, without, due = processor_of(check=1.0), RecordingHandler(), RecordingHandler()
    listen(processor, without)
    processor.add_listener(due, resync_period=1.0, cached=())
    async with running(processor):
        processor.distribute_update("default/a", pod("a", 1), pod("a", 1))
        await settle()
        assert (without.events, len(due.events)) == ([], 1)
        assert not processor.should_resync()
        processor.distribute_update("default/a", pod("a", 1), pod("a", 1))
        await settle()
        assert len(due.events) == 1
        await asyncio.sleep(1.0)
        assert processor.should_resync()
