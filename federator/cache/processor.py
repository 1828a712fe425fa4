"""SharedProcessor: brings an informer's notifications to all its handlers, each at its own pace."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

import structlog

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache.clock import loop_time
from federator.cache.handler import ResourceEventHandler
from federator.cache.notification import (
    AddNotification,
    DeleteNotification,
    Notification,
    UpdateNotification,
    coalesce,
)

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

    def __init__(self, handler: ResourceEventHandler, *, name: str, resync_period: float, buffer_size: int) -> None:
        self.name = name
        self.requested_resync_period = resync_period
        self.resync_period = 0.0
        self.next_resync = 0.0
        self.due_for_resync = True
        self.failed = 0
        self._handler = handler
        self._buffer_size = buffer_size
        self._buffer: OrderedDict[int, Notification] = OrderedDict()
        self._newest_of_key: dict[str, int] = {}
        self._next_position = 0
        self._not_empty = asyncio.Event()
        self._initial_pending = 0
        self._initial_settled = asyncio.Event()
        self._initial_settled.set()
        self._closed = False
        self._delivered = 0
        self._coalesced = 0

    def put_nowait(self, notification: Notification) -> None:
        """Buffers a notification, merged with a waiting one if the buffer is full."""
        self._expect(notification)
        if len(self._buffer) >= self._buffer_size:
            position = self._newest_of_key.get(notification.key)
            if position is not None and self._merge(position, notification):
                return
        self._buffer[self._next_position] = notification
        self._newest_of_key[notification.key] = self._next_position
        self._next_position += 1
        self._not_empty.set()

    async def run(self) -> None:
        """Delivers notifications, one after the other, until closed or cancelled."""
        turn = 0
        while not self._closed:
            if not self._buffer:
                self._not_empty.clear()
                await self._not_empty.wait()
                continue
            position, notification = self._buffer.popitem(last=False)
            if self._newest_of_key.get(notification.key) == position:
                del self._newest_of_key[notification.key]
            await self._deliver(notification)
            turn += 1
            if turn % _NOTIFICATIONS_PER_TURN == 0:
                await asyncio.sleep(0)

    def close(self) -> None:
        """Takes and delivers nothing more; what is being delivered is finished. Idempotent."""
        self._closed = True
        self._buffer.clear()
        self._newest_of_key.clear()
        self._not_empty.set()
        self._initial_settled.set()

    @property
    def has_settled(self) -> bool:
        """Whether all initial adds so far have been delivered."""
        return self._initial_pending == 0

    async def wait_settled(self) -> bool:
        """Waits until all initial adds are delivered; False when the listener was closed before."""
        await self._initial_settled.wait()
        return self.has_settled

    def statistics(self) -> Mapping[str, object]:
        """Sizes and counts; `coalesced` notifications were merged away."""
        return {
            "pending": len(self._buffer),
            "delivered": self._delivered,
            "failed": self.failed,
            "coalesced": self._coalesced,
            "resync_period": self.resync_period,
        }

    def _merge(self, position: int, coming: Notification) -> bool:
        pending = self._buffer[position]
        merged = coalesce(pending, coming)
        if len(merged) > 1:
            return False
        self._coalesced += 2 - len(merged)
        if merged:
            self._expect(merged[0])
            self._buffer[position] = merged[0]
        else:
            del self._buffer[position], self._newest_of_key[coming.key]
        self._settle(pending)
        self._settle(coming)
        return True

    async def _deliver(self, notification: Notification) -> None:
        failure: BaseException | None = None
        try:
            result = notification.deliver(self._handler)
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
            self._settle(notification)
        if failure is not None:
            self.failed += 1
            log.error("event handler failed", handler=self.name, key=notification.key, exc_info=failure)
            await asyncio.sleep(FAILURE_PAUSE)

    def _expect(self, notification: Notification) -> None:
        if isinstance(notification, AddNotification) and notification.is_initial:
            self._initial_pending += 1
            self._initial_settled.clear()

    def _settle(self, notification: Notification) -> None:
        if isinstance(notification, AddNotification) and notification.is_initial:
            self._initial_pending -= 1
            if self._initial_pending == 0:
                self._initial_settled.set()


class SharedProcessor:
    """The handlers of one informer.

    Distribution never waits: what a handler cannot take at once stays in its own buffer.
    """

    def __init__(self, *, name: str, resync_check_period: float, buffer_size: int) -> None:
        self.resync_check_period = resync_check_period
        self._name = name
        self._buffer_size = buffer_size
        self._listeners: list[ProcessorListener] = []
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._registered = 0

    @property
    def has_listeners(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self._listeners)

    def add_listener(
        self, handler: ResourceEventHandler, *, resync_period: float, cached: Iterable[KubeObject]
    ) -> ProcessorListener:
        """Adds a handler; it gets what is cached as initial adds ahead of all that is distributed later."""
        self._registered += 1
        name = f"{self._name} handler {self._registered}"
        listener = ProcessorListener(handler, name=name, resync_period=resync_period, buffer_size=self._buffer_size)
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
                for listener in self._listeners:
                    listener.close()
                for task in self._tasks:
                    task.cancel()

    def distribute_add(self, key: str, obj: KubeObject, *, is_initial: bool) -> None:
        """Tells all handlers that an object appeared."""
        notification = AddNotification(key, obj, is_initial)
        for listener in self._listeners:
            listener.put_nowait(notification)

    def distribute_update(self, key: str, old: KubeObject, new: KubeObject) -> None:
        """Tells all handlers of a change; with equal resourceVersions only those that are due for a resync."""
        notification = UpdateNotification(key, old, new)
        is_sync = old.resource_version == new.resource_version
        for listener in self._listeners:
            if not is_sync or listener.due_for_resync:
                listener.put_nowait(notification)

    def distribute_delete(self, key: str, obj: KubeObject | Tombstone) -> None:
        """Tells all handlers that an object is gone."""
        notification = DeleteNotification(key, obj)
        for listener in self._listeners:
            listener.put_nowait(notification)

    def should_resync(self) -> bool:
        """Marks the handlers whose resync period has passed as due; whether there are any."""
        now = loop_time()
        for listener in self._listeners:
            listener.due_for_resync = listener.resync_period > 0 and now >= listener.next_resync
            if listener.due_for_resync:
                listener.next_resync = now + listener.resync_period
        return any(listener.due_for_resync for listener in self._listeners)

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
        task = group.create_task(listener.run(), name=listener.name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set_resync_period(self, listener: ProcessorListener) -> None:
        requested, check = listener.requested_resync_period, self.resync_check_period
        listener.resync_period = max(requested, check) if requested > 0 and check > 0 else 0.0
        listener.due_for_resync = listener.resync_period > 0
