"""RateLimitingQueue: what is to be done, each thing once at a time (client-go: `util/workqueue`)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from federator.api.duration_histogram import LONG_BOUNDS, DurationHistogram
from federator.cache.clock import loop_time
from federator.cache.rate_limiter import RateLimiter, default_controller_rate_limiter

T = TypeVar("T", bound=Hashable)


class QueueShutDown(RuntimeError):
    """The queue is shut down and nothing waits to be taken."""


class RateLimitingQueue(Generic[T]):
    """Items that wait to be processed, in the order in which they came.

    An item is what is to be looked at, such as an object's key, and not what happened to it: added ten times it is
    processed once, and whoever processes it reads the state of that moment.

    Promises:
        - An item that is added while it waits is there once, at its first place.
        - An item that is added while it is processed comes again after its `done`; it is never taken twice at once.
        - Nothing that was added before the shutdown is lost, except what is delayed: that is dropped by the shutdown.
        - Those who wait in `get` are served in their order, and cancelling one takes no item with it.

    It holds each distinct item at most once as waiting, once as in process and once as delayed, and what the rate
    limiter keeps of items that fail: the number of distinct items bounds it, as the informers' keys bound those.
    A delayed item costs a timer of the event loop, no task. Belongs to one event loop; a call from a thread raises
    RuntimeError.
    """

    def __init__(
        self,
        *,
        name: str = "",
        rate_limiter: RateLimiter[T] | None = None,
        clock: Callable[[], float] = loop_time,
    ) -> None:
        """An empty queue.

        Args:
            name: names it in logs, and as the label `name` of its metrics.
            rate_limiter: for `add_rate_limited`; None for `default_controller_rate_limiter()`.
            clock: seconds, for the durations in the statistics.
        """
        self.name = name
        self._rate_limiter = rate_limiter if rate_limiter is not None else default_controller_rate_limiter()
        self._clock = clock
        self._queue: deque[T] = deque()
        self._dirty: dict[T, float] = {}
        """What is to be processed, with the time it was added: all of the queue, and what is to come back to it."""
        self._processing: dict[T, float] = {}
        """What was taken and is not done, with the time it was taken. Nothing of it is in the queue."""
        self._delayed: dict[T, asyncio.TimerHandle] = {}
        self._takeable = asyncio.Semaphore(0)
        """As many permits as there are items in the queue; one more after the shutdown, which everyone hands on."""
        self._shutting_down = False
        self._drain_over = asyncio.Event()
        self._adds = 0
        self._retries = 0
        self._queue_duration = DurationHistogram(LONG_BOUNDS)
        self._work_duration = DurationHistogram(LONG_BOUNDS)

    def __len__(self) -> int:
        """Items that can be taken now."""
        return len(self._queue)

    @property
    def shutting_down(self) -> bool:
        """Whether it takes no more items."""
        return self._shutting_down

    def add(self, item: T) -> None:
        """Has the item processed. Ignored where it is to be processed already, and after the shutdown."""
        now = self._clock()
        if self._shutting_down or item in self._dirty:
            return
        self._adds += 1
        self._dirty[item] = now
        if item not in self._processing:
            self._push(item)

    def add_after(self, item: T, seconds: float) -> None:
        """Adds the item after a time; of several delays of one item the one that ends first counts.

        That it is added by itself meanwhile changes nothing about it. Ignored after the shutdown.
        """
        if self._shutting_down:
            return
        self._retries += 1
        if seconds <= 0:
            self.add(item)
            return
        loop = asyncio.get_running_loop()
        ready_at = loop.time() + seconds
        delayed = self._delayed.get(item)
        if delayed is not None:
            if delayed.when() <= ready_at:
                return
            delayed.cancel()
        self._delayed[item] = loop.call_at(ready_at, self._delay_over, item)

    def add_rate_limited(self, item: T) -> None:
        """Adds an item that has failed, after the time its rate limiter gives it."""
        self.add_after(item, self._rate_limiter.when(item))

    def forget(self, item: T) -> None:
        """The item has succeeded, or is given up: the rate limiter forgets its failures. `done` is still to be called.

        Without it the rate limiter knows the item for ever.
        """
        self._rate_limiter.forget(item)

    def num_requeues(self, item: T) -> int:
        """Failures of the item since it was forgotten."""
        return self._rate_limiter.num_requeues(item)

    async def get(self) -> T:
        """Takes the next item, when there is one; `done` is to be called when it is processed.

        Raises:
            QueueShutDown: the queue is shut down and nothing waits to be taken. What is still in process may come back
                by its `done`; whoever calls that takes it next.
        """
        await self._takeable.acquire()
        if not self._queue:
            self._takeable.release()
            raise QueueShutDown(f"the work queue {self.name!r} is shut down")
        now = self._clock()
        item = self._queue.popleft()
        self._queue_duration.observe(now - self._dirty.pop(item))
        self._processing[item] = now
        return item

    def done(self, item: T) -> None:
        """The item is processed, well or not. It comes again if it was added meanwhile.

        Raises:
            ValueError: the item is not in process.
        """
        taken_at = self._processing.pop(item, None)
        if taken_at is None:
            raise ValueError(f"{item!r} is not in process")
        self._work_duration.observe(self._clock() - taken_at)
        if item in self._dirty:
            self._push(item)
        elif self._shutting_down and self._is_empty:
            self._drain_over.set()

    def shut_down(self) -> None:
        """Takes no more items, and drops what is delayed. What waits can still be taken. Idempotent.

        Ends the waiting of `shut_down_with_drain`.
        """
        self._close()
        self._drain_over.set()

    async def shut_down_with_drain(self) -> None:
        """As `shut_down`; waits until everything that was added has been processed, or `shut_down` is called.

        Without somebody who goes on taking it waits for ever. Cancelled, the queue is shut down all the same.
        """
        self._close()
        if not self._is_empty:
            self._drain_over.clear()
            await self._drain_over.wait()

    def statistics(self) -> Mapping[str, object]:
        """What client-go's metrics of a work queue tell, `workqueue_<name>` each, and sizes.

        `depth` (items to be processed, those included that will come back), `adds_total` (those that were ignored not
        counted), `retries_total` (delayed and rate-limited adds), `queue_duration_seconds` and `work_duration_seconds`
        (DurationHistograms: from the add until it is taken, and from there until it is done), `unfinished_work_seconds`
        (how long what is in process has been, summed up), `longest_running_processor_seconds` (the longest of them);
        `processing` and `delayed` (numbers of items).
        """
        now = self._clock()
        running = [now - taken_at for taken_at in self._processing.values()]
        return {
            "depth": len(self._dirty),
            "adds_total": self._adds,
            "retries_total": self._retries,
            "queue_duration_seconds": self._queue_duration,
            "work_duration_seconds": self._work_duration,
            "unfinished_work_seconds": sum(running),
            "longest_running_processor_seconds": max(running, default=0.0),
            "processing": len(self._processing),
            "delayed": len(self._delayed),
        }

    @property
    def _is_empty(self) -> bool:
        return not self._queue and not self._processing

    def _push(self, item: T) -> None:
        self._queue.append(item)
        self._takeable.release()

    def _delay_over(self, item: T) -> None:
        del self._delayed[item]
        self.add(item)

    def _close(self) -> None:
        if self._shutting_down:
            return
        self._shutting_down = True
        for delayed in self._delayed.values():
            delayed.cancel()
        self._delayed.clear()
        self._takeable.release()
