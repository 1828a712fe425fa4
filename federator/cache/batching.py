"""BatchingEventHandler: many notifications in one call, for what is cheaper done for many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

import structlog

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache.handler import HandlerResult
from federator.cache.notification import (
    AddNotification,
    CoalescingBuffer,
    DeleteNotification,
    Notification,
    UpdateNotification,
)
from federator.cache.processor import FAILURE_PAUSE
from federator.cache.shared_informer import InformerStopped
from federator.cache.wait import Syncable
from federator.errors import InvalidInput

log = structlog.get_logger(__name__)

WINDOW = 0.2
"""Seconds between the first notification of a batch and its delivery, at most: 5 calls a second where changes never
stop, and a delay that nobody who reads a screen notices."""

MAX_ITEMS = 1000
"""Notifications in a batch: about as many as wait in front of a handler (`BUFFER_SIZE`) before they are coalesced."""

_KEYS_IN_LOG = 10


class BatchingEventHandler:
    """Collects the notifications of one informer and delivers them in batches.

    Works inside its `async with`, and owns a task meanwhile:

        async with BatchingEventHandler(write_rows, name="rows") as rows, factory:
            registration = pods.add_event_handler(rows)
            await rows.synced(registration).wait_synced()  # everything that existed is written

    Promises:
        * A batch is delivered when `window` has passed since its first notification, or when it has `max_items`. One
          call of `deliver` at a time; no batch is empty.
        * Per object, notifications stay in order and final states are exact. Those of one batch are merged to what has
          their effect, usually one or none, see `coalesce`; with `keep_all` each is delivered. Between objects there is
          no order.
        * No more than one batch is held. While one is full or being delivered, the handler's functions wait, and what
          comes meanwhile waits in the informer's buffer for this handler, which coalesces.
        * When `deliver` raises, its batch is skipped, logged and counted in `failed`, and the next one comes no sooner
          than a second later: what the informer does for single notifications.
        * Leaving delivers what it was told before and ends; that takes as long as `deliver` does. Leaving by an
          exception, or cancelled, cancels the delivery and drops what is pending. Either way no task is left.

    A notification counts for the informer as handled when it has been collected. Hence the registration's own
    `wait_synced` says that all that existed has been collected; `synced` gives what says that it has been delivered.
    The registration's `failed` and the time it takes to handle do not cover deliveries either: see `failed` here.

    Serves one informer, since notifications name no type: objects of two would be mixed up.
    """

    def __init__(
        self,
        deliver: Callable[[list[Notification]], HandlerResult],
        *,
        name: str = "batching handler",
        window: float = WINDOW,
        max_items: int = MAX_ITEMS,
        keep_all: bool = False,
    ) -> None:
        """Prepares a handler.

        Args:
            deliver: is called with each batch, which becomes its own; plain and quick, or `async`.
            name: names the handler in logs, its task and errors.
            window: seconds a batch waits for more; with 0 it takes what comes in one turn of the loop.
            max_items: notifications in a batch, at least 1.
            keep_all: delivers every notification instead of merging those of one object.

        Raises:
            InvalidInput: `window` is negative or `max_items` less than 1.
        """
        if not window >= 0:
            raise InvalidInput("window", window, "seconds, at least 0")
        if max_items < 1:
            raise InvalidInput("max_items", max_items, "at least 1")
        self.name = name
        self.failed = 0
        """Notifications in batches that `deliver` raised for."""
        self._deliver = deliver
        self._window = window
        self._max_items = max_items
        self._keep_all = keep_all
        self._tasks = asyncio.TaskGroup()
        self._task: asyncio.Task[None] | None = None
        self._accepts = False
        self._has_ended = False
        self._was_cut_off = False
        self._batch = CoalescingBuffer()
        self._waiting = 0  # notifications that wait for room
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_due = asyncio.Event()  # the batch goes before its window has passed
        self._wake = asyncio.Event()
        self._is_settled = asyncio.Event()  # all that was collected was delivered, or failed
        self._is_settled.set()
        self._batches = 0
        self._delivered = 0
        self._largest_batch = 0

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RuntimeError(f"{self.name} was entered before; it cannot be entered again")
        await self._tasks.__aenter__()
        self._task = self._tasks.create_task(self._run(), name=self.name)
        self._accepts = True
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._task is not None, "it was entered"
        self._accepts = False
        if exc_type is not None:
            self._task.cancel()
        self._is_due.set()
        self._wake.set()
        await self._tasks.__aexit__(None, None, None)  # the body's exception goes its own way, not into a group

    def on_add(self, obj: KubeObject, is_initial: bool) -> HandlerResult:
        """Collects an add, at once or when there is room.

        Raises:
            RuntimeError: outside its `async with`.
        """
        return self._collect(AddNotification(obj.key, obj, is_initial))

    def on_update(self, old: KubeObject, new: KubeObject) -> HandlerResult:
        """Collects an update or resync, at once or when there is room.

        Raises:
            RuntimeError: outside its `async with`.
        """
        return self._collect(UpdateNotification(new.key, old, new))

    def on_delete(self, obj: KubeObject | Tombstone) -> HandlerResult:
        """Collects a delete, at once or when there is room.

        Raises:
            RuntimeError: outside its `async with`.
        """
        return self._collect(DeleteNotification(obj.key, obj))

    @property
    def has_settled(self) -> bool:
        """Whether all initial adds collected so far have been delivered; failed ones count."""
        return self._batch.initial_pending == 0

    async def flush(self) -> None:
        """Delivers what has been collected without waiting for more; returns when that has been delivered, or failed.

        Cancelled, it leaves the delivery to go on. Must not be awaited in `deliver`, which it waits for.

        Raises:
            InformerStopped: it was dropped, as the handler was left by an exception.
        """
        if not self._is_settled.is_set():
            self._is_due.set()
            await self._is_settled.wait()
        if self._was_cut_off:
            raise InformerStopped(f"{self.name} was cut off before it had delivered")

    def synced(self, registration: Syncable) -> BatchesSynced:
        """What syncs when all that existed has been delivered; `registration` is of this handler.

        `wait_for_cache_sync` takes it. Where others stand in front of this handler, the first of them is registered.
        """
        return BatchesSynced(self, registration)

    def statistics(self) -> Mapping[str, object]:
        """Sizes and counts since the start.

        `delivered` counts notifications in batches that were delivered, those that failed among them; `coalesced` ones
        were merged away.
        """
        return {
            "pending": len(self._batch),
            "waiting": self._waiting,
            "batches": self._batches,
            "delivered": self._delivered,
            "failed": self.failed,
            "coalesced": self._batch.coalesced,
            "largest_batch": self._largest_batch,
        }

    def _collect(self, notification: Notification) -> HandlerResult:
        if not self._accepts:
            raise RuntimeError(f"{self.name} takes notifications only inside its `async with`")
        if self._has_room.is_set():
            self._put(notification)
            return None
        return self._collect_later(notification)

    async def _collect_later(self, notification: Notification) -> None:
        self._waiting += 1
        try:
            while not self._has_room.is_set():
                await self._has_room.wait()
        finally:
            self._waiting -= 1
            self._wake.set()
        if self._has_ended:
            raise RuntimeError(f"{self.name} was left before it could take a notification")
        self._put(notification)

    def _put(self, notification: Notification) -> None:
        self._is_settled.clear()
        self._batch.put(notification, merge=not self._keep_all)
        if len(self._batch) >= self._max_items:
            self._has_room.clear()
            self._is_due.set()
        self._wake.set()

    async def _run(self) -> None:
        try:
            while await self._has_begun():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._window):
                        await self._is_due.wait()
                await self._deliver_batch()
        finally:
            # After a clean end nobody waits any more; after another one those that do are let go.
            self._has_ended = True
            self._was_cut_off = not self._is_settled.is_set()
            self._has_room.set()
            self._is_settled.set()

    async def _has_begun(self) -> bool:
        """Waits for a batch's first notification; False when the handler was left and none is to come."""
        while not self._batch:
            self._is_settled.set()
            if self._accepts:
                self._is_due.clear()
            elif not self._waiting:
                return False
            self._wake.clear()
            await self._wake.wait()
        return True

    async def _deliver_batch(self) -> None:
        """Delivers what has been collected; there is room again when that is done."""
        batch = tuple(self._batch)
        if not batch:
            return  # its notifications cancelled out
        self._has_room.clear()
        failure: BaseException | None = None
        try:
            result = self._deliver(list(batch))
            if result is not None:
                await result
        except asyncio.CancelledError as error:
            if self._task is None or self._task.cancelling():
                raise
            failure = error  # nobody cancelled this task: `deliver` awaited something that was cancelled
        except Exception as error:  # noqa: BLE001 - foreign code; skipped, logged and counted
            failure = error
        self._batch.clear()
        self._batches += 1
        self._delivered += len(batch)
        self._largest_batch = max(self._largest_batch, len(batch))
        for notification in batch:
            self._batch.settle(notification)
        self._is_settled.set()
        if failure is not None:
            self.failed += len(batch)
            keys = [notification.key for notification in batch[:_KEYS_IN_LOG]]
            log.error(
                "batch delivery failed", handler=self.name, notifications=len(batch), first_keys=keys, exc_info=failure
            )
            await asyncio.sleep(FAILURE_PAUSE)
        self._has_room.set()


class BatchesSynced:
    """A handler's registration, synced when what existed has not only been collected but delivered."""

    def __init__(self, handler: BatchingEventHandler, registration: Syncable) -> None:
        """Joins a registration with the handler that batches what it is told."""
        self._handler = handler
        self._registration = registration

    @property
    def name(self) -> str:
        """The registration's."""
        return self._registration.name

    def has_synced(self) -> bool:
        """Whether all that existed has been delivered; failed batches count, see `BatchingEventHandler.failed`."""
        return self._registration.has_synced() and self._handler.has_settled

    async def wait_synced(self) -> None:
        """Waits for `has_synced`; the last batch does not wait for more.

        Raises:
            InformerStopped: the informer stopped, the handler was removed, or left by an exception, before.
        """
        await self._registration.wait_synced()
        await self._handler.flush()
