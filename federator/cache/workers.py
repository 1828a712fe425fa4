"""Workers: take items from a work queue and have each reconciled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

import structlog

from federator.cache.work_queue import QueueShutDown, RateLimitingQueue
from federator.errors import InvalidInput

log = structlog.get_logger(__name__)

T = TypeVar("T", bound=Hashable)


class RequeueAfter(NamedTuple):
    """Says that an item was reconciled, and is to be looked at again after a time even if nothing changes.

    Attributes:
        seconds: until then, at most: a change brings it sooner.
    """

    seconds: float


Reconcile = Callable[[T], Awaitable[RequeueAfter | None]]
"""Brings the world to what an item asks for. It reads the state of the moment and does nothing where nothing is to be
done, as it is called again after failures, restarts and changes of anything. Raising has it called again later."""


class WorkerPool(Generic[T]):
    """Some workers on one queue.

    Promises:
        - No item is reconciled twice at once, as the queue gives it.
        - An item whose reconcile raised comes again, later each time; it is logged and counted, and the others go on.
        - An item whose reconcile was cancelled together with the workers is in the queue again, unless that is shut
          down.
    """

    def __init__(self, queue: RateLimitingQueue[T], reconcile: Reconcile[T], *, workers: int = 1) -> None:
        """Prepares workers; `run` runs them.

        Args:
            queue: where the items come from.
            reconcile: is awaited for each item.
            workers: how many items are reconciled at once.

        Raises:
            InvalidInput: fewer than one worker.
        """
        if workers < 1:
            raise InvalidInput("workers", workers, "1 or more")
        self._queue = queue
        self._reconcile = reconcile
        self._workers = workers
        self._active = 0
        self._results: Counter[str] = Counter()

    async def run(self) -> None:
        """Works until the queue is shut down and empty. Cancelled, it cancels what is in process and leaves no task."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self._queue.name} worker {number}")

    def statistics(self) -> Mapping[str, object]:
        """What controller-runtime's metrics tell.

        `max_concurrent_reconciles`, `active_workers`, and `reconciles`: how many ended in `success`, `requeue_after`
        and `error`.
        """
        return {
            "max_concurrent_reconciles": self._workers,
            "active_workers": self._active,
            "reconciles": dict(self._results),
        }

    async def _work(self) -> None:
        while True:
            try:
                item = await self._queue.get()
            except QueueShutDown:
                return
            self._active += 1
            try:
                await self._process(item)
            finally:
                self._active -= 1
                self._queue.done(item)
            # A reconcile that has nothing to do may never wait, and others want the loop too.
            await asyncio.sleep(0)

    async def _process(self, item: T) -> None:
        try:
            result = await self._reconcile(item)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._queue.add(item)  # what was begun is still to be done
                raise
            self._failed(item, error)  # nobody cancelled the worker: reconcile awaited something that was cancelled
        except Exception as error:  # noqa: BLE001 - foreign code; tried again, logged and counted
            self._failed(item, error)
        else:
            self._queue.forget(item)
            self._results["success" if result is None else "requeue_after"] += 1
            if result is not None:
                self._queue.add_after(item, result.seconds)

    def _failed(self, item: T, error: BaseException) -> None:
        self._results["error"] += 1
        self._queue.add_rate_limited(item)
        log.error(
            "reconcile failed",
            queue=self._queue.name,
            item=item,
            requeues=self._queue.num_requeues(item),
            exc_info=error,
        )


async def run_workers(queue: RateLimitingQueue[T], reconcile: Reconcile[T], *, workers: int = 1) -> None:
    """Reconciles the items of a queue until it is shut down and empty: a WorkerPool of which nobody asks statistics.

    Raises:
        InvalidInput: fewer than one worker.
    """
    await WorkerPool(queue, reconcile, workers=workers).run()
