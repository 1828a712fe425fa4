"""SharedProcessor: brings an informer's notifications to all its handlers, each at its own pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

import structlog

from federator.api.delta import Tombstone
from federator.api.duration_histogram import DurationHistogram
from federator.api.object import KubeObject
from federator.cache.clock import loop_time
from federator.cache.handler import ResourceEventHandler
from federator.cache.notification import (
    AddNotification,
    CoalescingBuffer,
    DeleteNotification,
    Notification,
    UpdateNotification,
    Whole,
)
from federator.cache.resync import AdaptiveResync

log = structlog.get_logger(__name__)

BUFFER_SIZE = 1024
"""Notifications that wait for a handler before they are coalesced per key."""

FAILURE_PAUSE = 1.0
"""Seconds a handler rests after an exception, so that a broken one does not spin."""

_NOTIFICATIONS_PER_TURN = 256
"""Notifications a handler gets before other tasks get the loop: more than come in one turn, so that it keeps up."""


class ProcessorListener:
    """One handler with its buffer and its task.

    While the buffer is full, a notification is merged with the one that waits for the same key: states are skipped, the
    final one is exact. What it then holds is bounded by the keys the handler knows plus those that exist now.
    """

    def __init__(
        self,
        handler: ResourceEventHandler,
        *,
        name: str,
        resync_period: float,
        buffer_size: int,
        failed: Callable[[], None] = lambda: None,
        whole: Whole | None = None,
    ) -> None:
        self.name = name
        self.task: asyncio.Task[None] | None = None
        self.follows_informer = False
        self.requested_resync_period = resync_period
        self.resync_period = 0.0
        self.next_resync = 0.0
        self.due_for_resync = True
        self.failed = 0
        self._handler = handler
        self._buffer_size = buffer_size
        self._has_failed = failed
        self._whole = whole
        self._buffer = CoalescingBuffer()
        self._not_empty = asyncio.Event()
        self._initial_settled = asyncio.Event()
        self._initial_settled.set()
        self._closed = False
        self._delivered = 0
        self._latencies = DurationHistogram()
        self._durations = DurationHistogram()

    def put_nowait(self, notification: Notification, arrived_at: float | None = None) -> None:
        """Buffers a notification, merged with a waiting one if the buffer is full.

        Args:
            notification: what is to be told.
            arrived_at: loop time at which the informer got it; None for now.
        """
        if arrived_at is None:
            arrived_at = loop_time()
        self._buffer.put(notification, arrived_at, merge=len(self._buffer) >= self._buffer_size)
        self._note_initial()
        self._not_empty.set()

    async def run(self) -> None:
        """Delivers notifications, one after the other, until closed or cancelled."""
        turn = 0
        while not self._closed:
            if not self._buffer:
                self._not_empty.clear()
                await self._not_empty.wait()
                continue
            await self._deliver(*self._buffer.pop())
            turn += 1
            if turn % _NOTIFICATIONS_PER_TURN == 0:
                await asyncio.sleep(0)

    def close(self) -> None:
        """Takes and delivers nothing more; what is being delivered is finished. Idempotent."""
        self._closed = True
        self._buffer.clear()
        self._not_empty.set()
        self._initial_settled.set()

    @property
    def has_settled(self) -> bool:
        """Whether all initial adds so far have been delivered."""
        return self._buffer.initial_pending == 0

    async def wait_settled(self) -> bool:
        """Waits until all initial adds are delivered; False when the listener was closed before."""
        await self._initial_settled.wait()
        return self.has_settled

    def statistics(self) -> Mapping[str, object]:
        """Sizes and counts.

        `coalesced` notifications were merged away; `latencies` are from a change's arrival to the handler's return,
        `durations` of the handler alone.
        """
        return {
            "pending": len(self._buffer),
            "delivered": self._delivered,
            "failed": self.failed,
            "coalesced": self._buffer.coalesced,
            "resync_period": self.resync_period,
            "latencies": self._latencies,
            "durations": self._durations,
        }

    async def _deliver(self, notification: Notification, arrived_at: float) -> None:
        failure: BaseException | None = None
        began = loop_time()
        try:
            told = notification if self._whole is None else notification.restored(self._whole)
            result = told.deliver(self._handler)
            if result is not None:
                await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            failure = error  # nobody cancelled this task: the handler awaited something that was cancelled
        except Exception as error:  # noqa: BLE001 - foreign code; skipped, logged and counted
            failure = error
        finally:
            self._delivered += 1
            self._buffer.settle(notification)
            self._note_initial()
            ended = loop_time()
            self._latencies.observe(ended - arrived_at)
            self._durations.observe(ended - began)
        if failure is not None:
            self.failed += 1
            self._has_failed()
            log.error("event handler failed", handler=self.name, key=notification.key, exc_info=failure)
            await asyncio.sleep(FAILURE_PAUSE)

    def _note_initial(self) -> None:
        if self.has_settled or self._closed:
            self._initial_settled.set()
        else:
            self._initial_settled.clear()


class SharedProcessor:
    """The handlers of one informer.

    Distribution never waits: what a handler cannot take at once stays in its own buffer.
    """

    def __init__(
        self,
        *,
        name: str,
        resync_check_period: float,
        buffer_size: int,
        adaptive: AdaptiveResync | None = None,
        period_changed: Callable[[], None] = lambda: None,
        whole: Whole | None = None,
    ) -> None:
        """Prepares a processor without handlers.

        Args:
            name: names it in logs and tasks.
            resync_check_period: seconds between looks at whether somebody is due for a resync.
            buffer_size: notifications that wait for a handler before they are coalesced.
            adaptive: changes that period, and those of handlers that follow the informer's.
            period_changed: called when the next look is to come sooner than it was.
            whole: makes what is told of what is distributed, if that may be compressed: so little waits for handlers.
        """
        self._whole = whole
        self.resync_check_period = resync_check_period
        self._fixed_period = resync_check_period
        self._adaptive = adaptive
        self._period_changed = period_changed
        self._was_disturbed = False
        self._name = name
        self._buffer_size = buffer_size
        self._listeners: list[ProcessorListener] = []
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._registered = 0

    @property
    def resync_period(self) -> float:
        """The informer's own, seconds: of handlers that ask for nothing else."""
        return self._adaptive.period if self._adaptive else self._fixed_period

    @property
    def has_listeners(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._listeners)

    @property
    def has_due_for_resync(self) -> bool:
        """Whether anybody is to be told of what did not change."""
        return any(listener.due_for_resync for listener in self._listeners)

    def add_listener(
        self,
        handler: ResourceEventHandler,
        *,
        resync_period: float,
        follows_informer: bool = False,
        cached: Collection[KubeObject],
    ) -> ProcessorListener:
        """Adds a handler; it gets what is cached as initial adds ahead of all that is distributed later.

        Args:
            handler: the handler.
            resync_period: seconds, 0 for none.
            follows_informer: whether that changes with the informer's own.
            cached: what is stored.
        """
        self._registered += 1
        listener = ProcessorListener(
            handler,
            name=f"{self._name} handler {self._registered}",
            resync_period=resync_period,
            buffer_size=self._buffer_size,
            failed=self.disturbed,
            whole=self._whole,
        )
        listener.follows_informer = follows_informer
        self._set_resync_period(listener)
        for obj in cached:
            listener.put_nowait(AddNotification(obj.key, obj, True))
        self._listeners.append(listener)
        if self._group is not None:
            self._start(self._group, listener)
        return listener

    def remove_listener(self, listener: ProcessorListener) -> None:
        """Removes a handler; one that is not here is ignored."""
        if listener in self._listeners:
            self._listeners.remove(listener)
            listener.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the handlers' tasks while the body runs; leaving cancels them and leaves none."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for listener in self._listeners:
                self._start(group, listener)
            try:
                yield
            finally:
                self.close()
                for task in self._tasks:
                    task.cancel()

    def close(self) -> None:
        """Has the handlers told nothing more."""
        for listener in self._listeners:
            listener.close()

    def distribute_add(self, key: str, obj: KubeObject, *, is_initial: bool, arrived_at: float | None = None) -> None:
        """Tells all handlers that an object appeared."""
        notification = AddNotification(key, obj, is_initial)
        for listener in self._listeners:
            listener.put_nowait(notification, arrived_at)

    def distribute_update(
        self,
        key: str,
        old: KubeObject,
        new: KubeObject,
        *,
        arrived_at: float | None = None,
        is_sync: bool | None = None,
    ) -> None:
        """Tells all handlers of a change; of a state that they know only those that are due for a resync.

        Args:
            key: the object's.
            old: the state before.
            new: the state now.
            arrived_at: loop time at which the informer got it; None for now.
            is_sync: whether they are one state; None where UID and version tell.
        """
        notification = UpdateNotification(key, old, new)
        if is_sync is None:
            is_sync = old.is_state(new.uid, new.resource_version)
        for listener in self._listeners:
            if not is_sync or listener.due_for_resync:
                listener.put_nowait(notification, arrived_at)

    def distribute_delete(self, key: str, obj: KubeObject | Tombstone, *, arrived_at: float | None = None) -> None:
        """Tells all handlers that an object is gone."""
        notification = DeleteNotification(key, obj)
        for listener in self._listeners:
            listener.put_nowait(notification, arrived_at)

    def should_resync(self) -> bool:
        """Marks the handlers whose resync period has passed as due; whether there are any."""
        now = loop_time()
        for listener in self._listeners:
            listener.due_for_resync = listener.resync_period > 0 and now >= listener.next_resync
            if listener.due_for_resync:
                listener.next_resync = now + listener.resync_period
        if self._adaptive and any(
            listener.due_for_resync and listener.follows_informer for listener in self._listeners
        ):
            if not self._was_disturbed:
                self._adaptive.grow()
            self._was_disturbed = False
            self._adopt_period(self._adaptive.period, now)
        return self.has_due_for_resync

    def disturbed(self) -> None:
        """A handler raised, or found something otherwise than it was told: an adaptive period gets shorter."""
        if self._adaptive is None:
            return
        self._was_disturbed = True
        self._adaptive.shrink()
        if self._adaptive.period < self.resync_check_period:
            self._adopt_period(self._adaptive.period, loop_time())
            self._period_changed()

    def _adopt_period(self, period: float, now: float) -> None:
        others = [each.requested_resync_period for each in self._listeners if not each.follows_informer]
        self.resync_check_period = min([period, *filter(None, others)])
        for listener in self._listeners:
            if listener.follows_informer:
                listener.resync_period = listener.requested_resync_period = period
                listener.next_resync = now + period

    def lower_resync_check_period(self, period: float) -> None:
        """Looks more often from now on, which lets handlers that asked for less than they got have it."""
        self.resync_check_period = period
        for listener in self._listeners:
            self._set_resync_period(listener)

    def statistics(self) -> Mapping[str, Mapping[str, object]]:
        """Each handler's statistics by its name."""
        return {listener.name: listener.statistics() for listener in self._listeners}

    def _start(self, group: asyncio.TaskGroup, listener: ProcessorListener) -> None:
        listener.next_resync = loop_time() + listener.resync_period
        task = listener.task = group.create_task(listener.run(), name=listener.name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set_resync_period(self, listener: ProcessorListener) -> None:
        requested, check = listener.requested_resync_period, self.resync_check_period
        listener.resync_period = max(requested, check) if requested > 0 and check > 0 else 0.0
        listener.due_for_resync = listener.resync_period > 0
