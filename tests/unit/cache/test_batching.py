"""Batching: fewer calls, the same effect, in bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import looptime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.typing import EventDict

from federator.api.delta import Tombstone
from federator.cache.batching import BatchingEventHandler
from federator.cache.clock import loop_time
from federator.cache.handler import FilteringResourceEventHandler, HandlerResult
from federator.cache.notification import AddNotification, DeleteNotification, Notification, UpdateNotification
from federator.cache.processor import FAILURE_PAUSE
from federator.cache.shared_informer import InformerStopped, SharedInformer
from federator.cache.wait import CacheNotSynced, wait_for_cache_sync
from federator.errors import InvalidInput
from tests.unit.cache.doubles import FakeSource, pod, running, settle

pytestmark = pytest.mark.looptime


def told(notification: Notification) -> str:
    """A notification in short: `+a1`, `a1>2`, `-a`."""
    match notification:
        case AddNotification(obj=obj):
            return f"+{obj.name}{obj.resource_version}"
        case UpdateNotification(old=old, new=new):
            return f"{new.name}{old.resource_version}>{new.resource_version}"
        case DeleteNotification(key=key):
            return f"-{key.rpartition('/')[2]}"


class Target:
    """Remembers the batches and the loop time each came at, counted from its creation; takes `seconds` for each."""

    def __init__(self, *, seconds: float = 0.0) -> None:
        self.batches: list[list[str]] = []
        self.times: list[float] = []
        self.finished = 0
        self.running = 0
        self._seconds = seconds
        self._start = loop_time()

    async def deliver(self, batch: list[Notification]) -> None:
        assert self.running == 0, "one call at a time"
        self.running += 1
        try:
            self.batches.append([told(notification) for notification in batch])
            self.times.append(self.age())
            await asyncio.sleep(self._seconds)
            self.finished += 1
        finally:
            self.running -= 1

    def age(self) -> float:
        return loop_time() - self._start


async def done(result: HandlerResult) -> None:
    """Waits as an informer does."""
    if result is not None:
        await result


async def test_a_batch_goes_when_the_window_has_passed_since_its_first_notification() -> None:
    target = Target()
    async with BatchingEventHandler(target.deliver, window=0.25) as handler:
        assert handler.on_add(pod("a", 1), False) is None
        await asyncio.sleep(0.125)
        assert handler.on_update(pod("b", 1), pod("b", 2)) is None
        await asyncio.sleep(0.125)
        await settle()
        assert handler.on_delete(pod("c", 1)) is None
        await asyncio.sleep(1.0)
    assert target.batches == [["+a1", "b1>2"], ["-c"]]
    assert target.times == pytest.approx([0.25, 0.51])


async def test_a_batch_goes_at_once_when_it_is_full() -> None:
    target = Target()
    async with BatchingEventHandler(target.deliver, window=1e6, max_items=2) as handler:
        for n in range(4):
            await done(handler.on_add(pod(f"p{n}", 1), False))
        await settle()
        assert target.batches == [["+p01", "+p11"], ["+p21", "+p31"]]
        assert target.times == pytest.approx([0.0, 0.0])
        await done(handler.on_add(pod("p4", 1), False))
        await settle()
        assert len(target.batches) == 2
        assert handler.statistics() == {
            "pending": 1,
            "waiting": 0,
            "batches": 2,
            "delivered": 4,
            "failed": 0,
            "coalesced": 0,
            "largest_batch": 2,
        }


async def test_after_a_full_batch_the_next_one_has_its_window() -> None:
    target = Target()
    async with BatchingEventHandler(target.deliver, window=0.25, max_items=2) as handler:
        await done(handler.on_add(pod("a", 1), False))
        await done(handler.on_add(pod("b", 1), False))
        await settle()
        await done(handler.on_add(pod("c", 1), False))
        await asyncio.sleep(1.0)
    assert target.times == pytest.approx([0.0, 0.26])


async def test_without_a_window_a_batch_has_what_came_in_one_turn() -> None:
    target = Target()
    async with BatchingEventHandler(target.deliver, window=0) as handler:
        await done(handler.on_add(pod("a", 1), False))
        await done(handler.on_add(pod("b", 1), False))
        await settle()
        assert target.batches == [["+a1", "+b1"]]


@pytest.mark.parametrize(("keep_all", "expected"), [(False, ["a1>3", "+b1"]), (True, ["a1>2", "+b1", "a2>3"])])
async def test_notifications_of_one_object_are_merged_in_the_first_ones_place_unless_all_are_wanted(
    keep_all: bool, expected: list[str]
) -> None:
    target = Target()
    async with BatchingEventHandler(target.deliver, keep_all=keep_all) as handler:
        await done(handler.on_update(pod("a", 1), pod("a", 2)))
        await done(handler.on_add(pod("b", 1), False))
        await done(handler.on_update(pod("a", 2), pod("a", 3)))
    assert target.batches == [expected]
    assert handler.statistics()["coalesced"] == 3 - len(expected)


async def test_what_cannot_be_merged_stays_in_order() -> None:
    target = Target()
    async with BatchingEventHandler(target.deliver) as handler:
        await done(handler.on_delete(Tombstone("default/a", None)))
        await done(handler.on_add(pod("a", 2), False))
        await done(handler.on_update(pod("a", 2), pod("a", 3)))
    assert target.batches == [["-a", "+a3"]]


async def test_what_cancels_out_is_not_delivered() -> None:
    target = Target()
    async with BatchingEventHandler(target.deliver) as handler:
        await done(handler.on_add(pod("a", 1), True))
        await done(handler.on_delete(pod("a", 1)))
        await handler.flush()
        assert handler.has_settled
        await done(handler.on_add(pod("a", 2), False))
        await settle()
        await done(handler.on_delete(pod("a", 2)))
        await asyncio.sleep(1.0)
        assert target.batches == []
        await done(handler.on_add(pod("a", 3), False))
        await asyncio.sleep(1.0)
    assert target.batches == [["+a3"]]
    assert target.times == pytest.approx([1.21])


async def test_h3_an_initial_add_that_merges_into_an_update_settles() -> None:
    target = Target()
    async with BatchingEventHandler(target.deliver) as handler:
        await done(handler.on_delete(pod("a", 1)))
        await done(handler.on_add(pod("a", 2), True))
        await handler.flush()
        assert handler.has_settled
    assert target.batches == [["a1>2"]]


async def test_a_batch_is_the_receivers_own() -> None:
    batches: list[list[Notification]] = []

    def take(batch: list[Notification]) -> None:
        batches.append(batch.copy())
        batch.clear()

    async with BatchingEventHandler(take) as handler:
        await done(handler.on_add(pod("a", 1), True))
        await handler.flush()
        assert handler.has_settled
        assert handler.statistics()["delivered"] == 1
    assert len(batches) == 1


async def test_h1_while_a_batch_is_delivered_the_handlers_functions_wait() -> None:
    target = Target(seconds=10.0)
    async with BatchingEventHandler(target.deliver) as handler:
        await done(handler.on_add(pod("a", 1), False))
        await asyncio.sleep(1.0)
        assert target.running == 1
        result = handler.on_add(pod("b", 1), False)
        assert result is not None
        waiting = asyncio.ensure_future(result)
        await asyncio.sleep(9.0)
        assert not waiting.done()
        assert (handler.statistics()["pending"], handler.statistics()["waiting"]) == (1, 1)
        await asyncio.sleep(0.25)
        assert waiting.done()
        assert handler.on_add(pod("c", 1), False) is None
        await asyncio.sleep(20.0)
    assert target.batches == [["+a1"], ["+b1", "+c1"]]


async def test_h1_many_that_wait_get_in_as_there_is_room() -> None:
    target = Target(seconds=1.0)
    async with BatchingEventHandler(target.deliver, max_items=2) as handler:
        results = [handler.on_add(pod(f"p{n}", 1), False) for n in range(5)]
        assert [result is None for result in results] == [True, True, False, False, False]
        await asyncio.gather(*filter(None, results))
    assert [len(batch) for batch in target.batches] == [2, 2, 1]


async def test_bug35_behind_an_informer_a_slow_receiver_is_told_less_but_ends_up_right() -> None:
    """Bug 35, H1: a storm over 20 keys while a batch takes 30 seconds; nothing grows beyond the keys."""
    target = Target(seconds=30.0)
    source = FakeSource(*(pod(f"p{n}", n + 1) for n in range(20)))
    informer = SharedInformer(source, name="pods", handler_buffer_size=10)
    final: dict[str, str] = {}

    async def deliver(batch: list[Notification]) -> None:
        for notification in batch:
            assert not isinstance(notification, DeleteNotification)
            obj = notification.new if isinstance(notification, UpdateNotification) else notification.obj
            final[obj.name] = obj.resource_version
        await target.deliver(batch)

    async with BatchingEventHandler(deliver, max_items=50) as handler, running(informer):
        registration = informer.add_event_handler(handler)
        await handler.synced(registration).wait_synced()
        for step in range(1000):
            source.put(f"p{step * 7 % 20}")
            if step % 10 == 0:
                await asyncio.sleep(0.05)
                pending = registration.statistics()["pending"]
                assert isinstance(pending, int)
                assert pending <= 20 + 10
        await asyncio.sleep(100.0)
    assert final == {obj.name: obj.resource_version for obj in source.objects.values()}
    assert sum(map(len, target.batches)) < 100
    largest = handler.statistics()["largest_batch"]
    assert isinstance(largest, int)
    assert largest <= 20


async def test_h4_a_batch_that_fails_is_skipped_logged_and_counted_and_the_next_comes_after_a_pause(
    logs: list[EventDict],
) -> None:
    target = Target()

    async def deliver(batch: list[Notification]) -> None:
        await target.deliver(batch)
        if len(target.batches) == 1:
            raise ValueError("no")

    async with BatchingEventHandler(deliver, name="rows", max_items=20) as handler:
        for n in range(20):
            await done(handler.on_add(pod(f"p{n}", 1), True))
        await handler.flush()
        assert target.age() == 0.0, "the pause is not waited for"
        assert handler.has_settled
        await done(handler.on_add(pod("later", 1), False))
        await handler.flush()
        assert handler.statistics()["largest_batch"] == 20
    assert [len(batch) for batch in target.batches] == [20, 1]
    assert target.times == pytest.approx([0.0, FAILURE_PAUSE])
    assert handler.failed == handler.statistics()["failed"] == 20
    assert handler.statistics()["delivered"] == 21
    [entry] = logs
    assert (entry["event"], entry["handler"], entry["notifications"]) == ("batch delivery failed", "rows", 20)
    assert entry["first_keys"] == [f"default/p{n}" for n in range(10)]
    assert isinstance(entry["exc_info"], ValueError)


async def awaits_something_cancelled() -> None:
    other = asyncio.create_task(asyncio.sleep(1e9))
    other.cancel()
    await other


def raises() -> None:
    raise ValueError("no")


@pytest.mark.parametrize("failing", [awaits_something_cancelled, raises])
async def test_h4_whatever_a_delivery_fails_of_the_next_one_comes(failing: Callable[[], HandlerResult]) -> None:
    calls = 0

    def deliver(batch: list[Notification]) -> HandlerResult:
        nonlocal calls
        calls += 1
        return failing()

    async with BatchingEventHandler(deliver, max_items=1) as handler:
        await done(handler.on_add(pod("a", 1), False))
        await done(handler.on_add(pod("b", 1), False))
    assert calls == handler.failed == 2


async def test_flush_does_not_wait_for_more_but_for_the_delivery() -> None:
    target = Target(seconds=5.0)
    async with BatchingEventHandler(target.deliver, window=1e6) as handler:
        await handler.flush()
        await done(handler.on_add(pod("a", 1), False))
        await handler.flush()
        assert target.finished == 1
        assert target.age() == pytest.approx(5.0)
        await done(handler.on_add(pod("b", 1), False))
        await asyncio.sleep(100.0)
        assert target.batches == [["+a1"]], "the next batch has its window again"


async def test_a_flush_that_is_cancelled_leaves_the_delivery_to_go_on() -> None:
    target = Target(seconds=5.0)
    async with BatchingEventHandler(target.deliver) as handler:
        await done(handler.on_add(pod("a", 1), False))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await handler.flush()
        await asyncio.sleep(10.0)
        assert target.finished == 1


async def test_h3_synced_is_when_all_that_existed_has_been_delivered() -> None:
    """H3: the registration syncs when all has been collected; what `synced` gives, when the last batch is through."""
    target = Target(seconds=5.0)
    informer = SharedInformer(FakeSource(*(pod(f"p{n}", n + 1) for n in range(25))), name="pods")
    async with BatchingEventHandler(target.deliver, window=1e6, max_items=10) as handler, running(informer):
        registration = informer.add_event_handler(handler)
        synced = handler.synced(registration)
        assert synced.name == registration.name
        assert not synced.has_synced()
        await registration.wait_synced()
        assert target.finished == 2
        assert not synced.has_synced()
        with pytest.raises(CacheNotSynced, match=registration.name):
            await wait_for_cache_sync(synced, timeout=1.0)
        await wait_for_cache_sync(informer, synced)
        assert synced.has_synced()
        assert target.finished == 3
    assert [len(batch) for batch in target.batches] == [10, 10, 5]


async def test_h3_initial_adds_of_batches_that_fail_or_that_are_merged_away_count() -> None:
    source = FakeSource(pod("a", 1), pod("b", 2), pod("c", 3))
    informer = SharedInformer(source, name="pods")

    async def deliver(batch: list[Notification]) -> None:
        raise ValueError("no")

    async with BatchingEventHandler(deliver, window=1e6) as handler, running(informer):
        synced = handler.synced(informer.add_event_handler(handler))
        await settle()
        source.put("a")
        source.remove("b")
        await settle()
        assert not handler.has_settled
        await synced.wait_synced()
        assert synced.has_synced()
    assert handler.failed == 2


async def test_behind_a_filter_it_syncs_too() -> None:
    target = Target()
    informer = SharedInformer(FakeSource(pod("a", 1), pod("b", 2)), name="pods")
    async with BatchingEventHandler(target.deliver) as handler, running(informer):
        filtering = FilteringResourceEventHandler(lambda obj: obj.name == "a", handler)
        await handler.synced(informer.add_event_handler(filtering)).wait_synced()
    assert target.batches == [["+a1"]]


async def test_a_registration_that_is_removed_never_syncs() -> None:
    informer = SharedInformer(FakeSource(*(pod(f"p{n}", n + 1) for n in range(3))), name="pods")
    async with BatchingEventHandler(Target(seconds=1e3).deliver, max_items=1) as handler, running(informer):
        registration = informer.add_event_handler(handler)
        await settle()
        informer.remove_event_handler(registration)
        with pytest.raises(InformerStopped):
            await handler.synced(registration).wait_synced()


async def test_leaving_delivers_what_was_told_before() -> None:
    target = Target(seconds=2.0)
    async with BatchingEventHandler(target.deliver, window=1e6, max_items=2) as handler:
        await done(handler.on_add(pod("a", 1), False))
        await done(handler.on_add(pod("b", 1), False))
        result = handler.on_add(pod("c", 1), False)
        assert result is not None
        waiting = asyncio.ensure_future(result)
        await settle()
    assert target.batches == [["+a1", "+b1"], ["+c1"]]
    assert target.finished == 2
    assert target.age() == pytest.approx(4.0)
    assert waiting.done()
    await waiting
    await handler.flush()


async def test_leaving_does_not_wait_for_more() -> None:
    target = Target()
    async with BatchingEventHandler(target.deliver, window=1e6) as handler:
        await done(handler.on_add(pod("a", 1), False))
        await settle()
    assert target.times == pytest.approx([0.01])


async def test_leaving_does_not_wait_for_a_notification_that_was_given_up() -> None:
    """Given up at the very moment it could be taken."""
    target = Target(seconds=2.0)

    async def deliver(batch: list[Notification]) -> None:
        await target.deliver(batch)
        waiting.cancel()

    async with BatchingEventHandler(deliver, max_items=1) as handler:
        await done(handler.on_add(pod("a", 1), False))
        result = handler.on_add(pod("b", 1), False)
        assert result is not None
        waiting = asyncio.ensure_future(result)
        await settle()
    assert waiting.cancelled()
    assert target.batches == [["+a1"]]


async def test_a_notification_that_nobody_awaited_until_the_handler_was_left_is_refused() -> None:
    async with BatchingEventHandler(Target().deliver, max_items=1) as handler:
        await done(handler.on_add(pod("a", 1), False))
        result = handler.on_add(pod("b", 1), False)
    assert result is not None
    with pytest.raises(RuntimeError, match="was left before"):
        await result


async def test_leaving_by_an_exception_cancels_the_delivery_and_drops_the_rest() -> None:
    target = Target(seconds=1e6)
    handler = BatchingEventHandler(target.deliver, max_items=2, name="rows")
    with pytest.raises(ValueError, match="the body's") as raised:
        async with handler:
            await done(handler.on_add(pod("a", 1), True))
            await done(handler.on_add(pod("b", 1), True))
            result = handler.on_add(pod("c", 1), False)
            assert result is not None
            waiting = asyncio.ensure_future(result)
            flushing = asyncio.ensure_future(handler.flush())
            await settle()
            raise ValueError("the body's") from KeyError("its cause")
    assert isinstance(raised.value.__cause__, KeyError)
    assert (target.batches, target.finished, target.running) == ([["+a1", "+b1"]], 0, 0)
    with pytest.raises(RuntimeError, match="rows was left before"):
        await waiting
    with pytest.raises(InformerStopped, match="rows was cut off"):
        await flushing
    with pytest.raises(InformerStopped):
        await handler.flush()
    assert not handler.has_settled


async def test_leaving_cancelled_while_the_rest_is_delivered_ends() -> None:
    target = Target(seconds=1e6)

    async def use() -> None:
        async with BatchingEventHandler(target.deliver) as handler:
            await done(handler.on_add(pod("a", 1), False))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10.0):
            await use()
    assert (len(target.batches), target.finished, target.running) == (1, 0, 0)


async def test_leaving_cancelled_with_nothing_pending_drops_nothing() -> None:
    handler = BatchingEventHandler(Target().deliver)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10.0), handler:
            await done(handler.on_add(pod("a", 1), False))
            await asyncio.sleep(1e9)
    await handler.flush()


async def test_outside_its_context_it_takes_nothing() -> None:
    handler = BatchingEventHandler(Target().deliver, name="rows")
    with pytest.raises(RuntimeError, match="rows takes notifications only inside"):
        handler.on_add(pod("a", 1), False)
    async with handler:
        pass
    with pytest.raises(RuntimeError, match="rows takes notifications only inside"):
        handler.on_delete(pod("a", 1))
    with pytest.raises(RuntimeError, match="rows was entered before"):
        async with handler:
            pass


@pytest.mark.parametrize("settings", [{"window": -0.1}, {"window": float("nan")}, {"max_items": 0}])
async def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        BatchingEventHandler(Target().deliver, **settings)


class World:
    """Objects that come, change and go, and what a handler is told of each step."""

    def __init__(self) -> None:
        self.state: dict[str, int] = {}
        self._version = 0

    def step(self, name: str, what: str) -> Notification:
        self._version += 1
        key, old, new = f"default/{name}", self.state.get(name), pod(name, self._version)
        if old is None:
            self.state[name] = self._version
            return AddNotification(key, new, what == "initial")
        if what in ("delete", "lost"):
            del self.state[name]
            return DeleteNotification(key, pod(name, old) if what == "delete" else Tombstone(key, None))
        self.state[name] = self._version
        return UpdateNotification(key, pod(name, old), new)


class Picture:
    """What a receiver of batches makes of them; refuses what contradicts what it was told before."""

    def __init__(self) -> None:
        self.state: dict[str, int] = {}

    def apply(self, notification: Notification) -> None:
        name = notification.key.rpartition("/")[2]
        match notification:
            case AddNotification(obj=obj):
                assert name not in self.state
                self.state[name] = int(obj.resource_version)
            case UpdateNotification(old=old, new=new):
                assert self.state[name] == int(old.resource_version)
                assert int(new.resource_version) > self.state[name]
                self.state[name] = int(new.resource_version)
            case DeleteNotification(last_state=last_state):
                known = self.state.pop(name)
                assert last_state is None or known == int(last_state.resource_version)


step = st.tuples(
    st.sampled_from("abcd"),
    st.sampled_from(["initial", "change", "change", "delete", "lost"]),
    st.sampled_from([0.0, 0.0, 0.0, 0.0625, 0.25, 1.0]),
)


@given(
    steps=st.lists(step, max_size=60),
    seconds=st.lists(st.sampled_from([0.0, 0.0625, 0.5, 2.0]), min_size=1, max_size=8),
    window=st.sampled_from([0.0, 0.125, 1.0]),
    max_items=st.integers(1, 6),
    keep_all=st.booleans(),
)
def test_whatever_comes_whenever_the_batches_tell_the_same(
    steps: list[tuple[str, str, float]], seconds: list[float], window: float, max_items: int, keep_all: bool
) -> None:
    """Per key a history without contradictions, in the end the same state, and no batch that is empty or too large."""
    world, picture = World(), Picture()
    sent: list[Notification] = []
    received: list[Notification] = []
    batches: list[int] = []

    async def deliver(batch: list[Notification]) -> None:
        batches.append(len(batch))
        await asyncio.sleep(seconds[len(batches) % len(seconds)])
        received.extend(batch)

    async def run() -> BatchingEventHandler:
        async with BatchingEventHandler(deliver, window=window, max_items=max_items, keep_all=keep_all) as handler:
            for name, what, pause in steps:
                notification = world.step(name, what)
                sent.append(notification)
                await done(notification.deliver(handler))
                if pause:
                    await asyncio.sleep(pause)
        return handler

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        handler = runner.run(run())
    for notification in received:
        picture.apply(notification)
    assert picture.state == world.state
    assert all(1 <= size <= max_items for size in batches)
    assert handler.has_settled
    if keep_all:
        assert received == sent
    statistics = handler.statistics()
    assert (statistics["delivered"], statistics["batches"]) == (len(received), len(batches))
    assert statistics["coalesced"] == len(sent) - len(received)
