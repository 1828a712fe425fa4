"""The one thread that writes to an LMDB ledger, and its bounded queue."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import structlog

from federator.aggregator.ledger.tables import Tables
from federator.aggregator.ledger.writer import Writer, writing
from federator.api.duration_histogram import DurationHistogram
from federator.errors import FederatorError, LedgerError, LedgerFull

log = structlog.get_logger(__name__)

T = TypeVar("T")

MAX_QUEUED_REQUESTS = 1024
"""Requests in the queue; the next one waits."""

MAX_QUEUED_BYTES = 32 << 20
"""Bytes in the queue, about half a second of writing; the next request waits, unless the queue is empty."""

MAX_GROUP_REQUESTS = 256
"""Requests that share one fsync. More gain nothing: their own work then takes longer than the fsync."""

MAX_GROUP_BYTES = 4 << 20
"""Bytes that share one fsync: about four full batches, 50 ms of work."""

APART = 0.01
"""Seconds from one commit's begin to the next, for which patient requests wait for company, so that these make at most
a hundred commits a second. A commit takes some 1.2 ms of CPU and 3 ms of the disk, whatever is in it. One that comes
later than that after the last goes at once, and so do all where a commit takes longer: then enough comes meanwhile."""


class _Request(Generic[T]):
    """One piece of work on its way through the thread and back."""

    def __init__(
        self,
        work: Callable[[Writer], T],
        tell: Callable[[T], None],
        cost: int,
        future: asyncio.Future[T],
        *,
        is_patient: bool,
    ) -> None:
        self.cost = cost
        self.is_patient = is_patient
        self._work = work
        self._tell = tell
        self.future = future
        self._outcome: Callable[[], None] = lambda: None

    def run(self, writer: Writer) -> None:
        """On the thread: does the work, or notes why it was refused; a refusal comes before anything is written."""
        before = writer.writes
        try:
            result = self._work(writer)
        except FederatorError as refusal:
            if writer.writes != before:  # it came too late: what others wrote must not be committed with a half
                raise
            self.fail(refusal)
        else:
            self._outcome = partial(self._succeed, result)

    def fail(self, error: FederatorError) -> None:
        """On the thread: notes that the work has no effect."""
        self._outcome = partial(self._refuse, error)

    def settle(self) -> None:
        """On the loop: tells what became durable, then lets the caller go on."""
        self._outcome()

    def _succeed(self, result: T) -> None:
        try:
            self._tell(result)
        finally:  # a listener that raises breaks its promise, but the commit is durable all the same
            if not self.future.done():
                self.future.set_result(result)

    def _refuse(self, error: FederatorError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class CommitThread:
    """Runs pieces of work in the order they were submitted, many in one transaction with one fsync.

    What one piece refuses concerns it alone. Where the transaction fails, every piece in it fails and nothing of it is
    durable; after any failure but a full disk, nothing more is taken until the ledger is opened again, because the
    kernel may have dropped what it could not write and reports that only once.

    A commit begins as soon as there is something to commit; where all of that is patient, not sooner than `APART` after
    the one before.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        before: Callable[[], None] = lambda: None,
        after: Callable[[Writer], None] = lambda _: None,
        failed: Callable[[LedgerError], None] = lambda _: None,
    ) -> None:
        """Starts the thread.

        Args:
            tables: of the ledger.
            before: called on the thread before each transaction.
            after: called on the thread once a transaction is durable, before anybody is told.
            failed: called on the loop, once, when nothing more is taken.
        """
        self._tables = tables
        self._before = before
        self._after = after
        self._failed = failed
        self._queue: queue.SimpleQueue[_Request[Any] | None] = queue.SimpleQueue()
        self._waiting: deque[_Request[Any]] = deque()
        self._queued = 0
        self._queued_bytes = 0
        self._is_closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._durations = DurationHistogram()
        self._failure: LedgerError | None = None
        self._is_failure_told = False
        self._is_at_work = False  # set on the thread, looked at on the loop
        self._is_turn_awaited = False  # the other way round
        self._turn = asyncio.Event()
        self._hurry = threading.Event()  # the thread has waited long enough for company
        self._begun_at = -math.inf  # when the newest commit began, monotonic; of the thread alone
        # A daemon, so that a program that ends without closing the ledger ends; nothing acknowledged is lost by it.
        self._thread = threading.Thread(target=self._run, name="ledger-commit", daemon=True)
        self._thread.start()

    @property
    def durations(self) -> DurationHistogram:
        """How long commits took, from the first piece of work to the end of the fsync."""
        return self._durations

    @property
    def queued(self) -> int:
        """Requests that are queued, at work or waiting for the queue."""
        return self._queued + len(self._waiting)

    async def submit(
        self, work: Callable[[Writer], T], tell: Callable[[T], None], *, cost: int, is_patient: bool = False
    ) -> T:
        """Runs a piece of work on the thread; returns its result when that is durable and told.

        Cancelling the caller leaves the work where it is: it will be done and told.

        Args:
            work: called on the thread; what it raises before it has written anything is raised here.
            tell: called on the loop with the result, in the order of submission; must not raise.
            cost: bytes it is about to write.
            is_patient: it may wait for company, for `APART` at most.

        Raises:
            LedgerFull: no room on the disk; nothing was changed.
            LedgerError: the ledger is closed, or a write failed now or earlier.
        """
        if self._is_closing:
            raise LedgerError(f"the ledger in {self._tables.path} is closed")
        self._loop = asyncio.get_running_loop()
        request = _Request(work, tell, cost, self._loop.create_future(), is_patient=is_patient)
        if self._waiting or not self._has_room(request):
            self._waiting.append(request)
        else:
            self._enqueue(request)
        result: T = await request.future
        return result

    async def turn(self) -> None:
        """Returns when it is the loop's turn to work for long: not while the thread works on records.

        Both need the interpreter. LMDB lets it go at each call, and each time wakes whoever waits for it, mostly in
        vain: two that are at work at once take twice the CPU of two that take turns. What is brief need not wait.
        """
        await asyncio.sleep(0)
        while True:
            self._turn.clear()
            self._is_turn_awaited = True  # before the look: the thread looks at this after it has set that
            if not self._is_at_work:
                break
            await self._turn.wait()

    async def close(self) -> None:
        """Takes nothing more, lets everything submitted become durable, and ends the thread.

        Where the caller is cancelled the thread goes on; calling again waits for it again.
        """
        self._is_closing = True
        self._hurry.set()
        await self._idle.wait()
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _has_room(self, request: _Request[Any]) -> bool:
        if self._queued == 0:
            return True
        return self._queued < MAX_QUEUED_REQUESTS and self._queued_bytes + request.cost <= MAX_QUEUED_BYTES

    def _enqueue(self, request: _Request[Any]) -> None:
        self._queued += 1
        self._queued_bytes += request.cost
        self._idle.clear()
        self._queue.put(request)
        if (
            not request.is_patient
            or self._is_closing
            or self._queued >= MAX_GROUP_REQUESTS
            or self._queued_bytes >= MAX_GROUP_BYTES
        ):
            self._hurry.set()

    def _settle(self, group: Sequence[_Request[Any]], seconds: float) -> None:
        self._durations.observe(seconds)
        self._queued -= len(group)
        self._queued_bytes -= sum(request.cost for request in group)
        while self._waiting and self._has_room(self._waiting[0]):
            self._enqueue(self._waiting.popleft())
        loop = asyncio.get_running_loop()
        for request in group:  # each by itself, so that what a listener raises is reported and stops nobody else
            loop.call_soon(request.settle)
        if self._failure is not None and not self._is_failure_told:
            self._is_failure_told = True
            self._failed(self._failure)
        if self._queued == 0:
            self._idle.set()

    def _run(self) -> None:
        while group := self._next_group():
            started = time.perf_counter()
            self._commit(group)
            assert self._loop is not None, "the loop submitted the group"
            self._loop.call_soon_threadsafe(self._settle, group, time.perf_counter() - started)

    def _rest(self) -> None:
        """Lets the loop work: what follows is the fsync, which needs no interpreter."""
        self._is_at_work = False
        if self._is_turn_awaited:
            self._is_turn_awaited = False
            assert self._loop is not None, "the loop submitted the group"
            self._loop.call_soon_threadsafe(self._turn.set)

    def _next_group(self) -> list[_Request[Any]]:
        request = self._queue.get()
        if request is None:
            return []
        group = [request]
        self._hurry.clear()  # before anything is looked at that calls for haste
        is_full = self._fill(group)
        spare = self._begun_at + APART - time.monotonic()
        if spare > 0 and not (is_full or self._is_closing) and all(request.is_patient for request in group):
            self._hurry.wait(spare)
            self._fill(group)
        self._begun_at = time.monotonic()
        return group

    def _fill(self, group: list[_Request[Any]]) -> bool:
        """Takes what is queued into a group; returns whether it is full."""
        cost = sum(request.cost for request in group)
        while len(group) < MAX_GROUP_REQUESTS and cost < MAX_GROUP_BYTES:
            if self._queue.empty():
                return False
            request = self._queue.get()
            assert request is not None, "the thread is ended when nothing is queued"
            group.append(request)
            cost += request.cost
        return True

    def _commit(self, group: Sequence[_Request[Any]]) -> None:
        if self._failure is not None:
            closed = f"the ledger in {self._tables.path} takes nothing more until reopened, after: {self._failure}"
            _fail(group, LedgerError(closed))
            return
        try:
            self._before()
            with writing(self._tables) as writer:
                self._is_at_work = True
                try:
                    for request in group:
                        request.run(writer)
                finally:
                    self._rest()
            self._after(writer)
        except LedgerFull as error:
            _fail(group, error)
        except LedgerError as error:
            self._failure = error
            log.error("ledger stopped taking commits", path=str(self._tables.path), cause=str(error))
            _fail(group, error)
        except Exception as error:  # others' commits depend on this thread; the transaction is undone
            log.exception("commit undone", path=str(self._tables.path))
            _fail(group, LedgerError(f"the commit was undone after {type(error).__name__}: {error}"))


def _fail(group: Sequence[_Request[Any]], error: LedgerError) -> None:
    for request in group:
        request.fail(error)
