"""Reflector: keeps a store in step with one resource type of one cluster."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from http import HTTPStatus
from typing import Protocol

import structlog

from federator.api import resource_version as versions
from federator.api.duration_histogram import LONG_BOUNDS, DurationHistogram
from federator.api.list_watch import Keeping, Known, ListOptions, WatchEvent, WatchEventType, nothing_known
from federator.api.object import KubeObject
from federator.cache.backoff import Backoff
from federator.cache.clock import loop_time
from federator.cache.internal_errors import InternalErrorWindow
from federator.cache.list_watch import ListWatch
from federator.cache.pager import PagedList, list_all
from federator.cache.rate_limited import REQUESTS_PER_SECOND, RateLimitedListWatch
from federator.cache.reflector_status import ReflectorState, ReflectorStatus, StatusRecorder
from federator.cache.stream_guard import SilentWatch, StreamGuard
from federator.cache.watch_list import MAX_ATTEMPTS, InitialEvents, UnfinishedWatchList
from federator.errors import CredentialsError, KubeStatusError, MemberUnreachable

log = structlog.get_logger(__name__)

DEFAULT_PAGE_SIZE = 500

MIN_WATCH_TIMEOUT = 300
"""Least seconds asked of a watch; each asks for 1 to 2 times as much, so that many reflectors don't redial together."""

ANY_VERSION = "0"
"""What the server has at hand, however old."""

CONSISTENT = ""
"""The newest there is; costs the server a quorum read."""

PROBE_AFTER = 120.0
"""Seconds, two of the usual gaps between bookmarks, without a word about a type before a look whether its cluster was
restored: an apiserver that is asked to watch from a version of the future waits for it, and says nothing."""

_NAMED_SKIPPED = 10


class VeryShortWatch(Exception):
    """A watch ended within a second and without an event: something between us and the server does not work."""


class UnresumableWatch(Exception):
    """A watch ended that had no resourceVersion to resume from."""


class RelistCause(StrEnum):
    """Why it was asked what exists."""

    INITIAL = "initial"
    EXPIRED = "expired"
    SHORT_WATCH = "short_watch"
    UNRESUMABLE = "unresumable"
    RESTORED = "restored"
    REQUESTED = "requested"
    ERROR = "error"


def _cause_of(error: Exception) -> RelistCause:
    """Why the round after a failed one begins with what exists."""
    match error:
        case KubeStatusError() if error.is_expired:
            return RelistCause.EXPIRED
        case VeryShortWatch():
            return RelistCause.SHORT_WATCH
        case UnresumableWatch():
            return RelistCause.UNRESUMABLE
        case _:
            return RelistCause.ERROR


DIAL_SPREAD = 2.0
"""Seconds over which reflectors that are told at once spread their next attempts: 60 of them make 30 requests a second,
below the 50 that one cluster's agent allows itself."""


class ReflectorStore(Protocol):
    """What a Reflector fills.

    The awaited functions may wait for room. Cancelled while waiting, they have done nothing.
    """

    async def add(self, obj: KubeObject) -> None:
        """An object appeared."""
        ...

    async def update(self, obj: KubeObject) -> None:
        """An object changed."""
        ...

    async def delete(self, obj: KubeObject) -> None:
        """An object is gone; this was its last state."""
        ...

    async def replace(self, objects: Sequence[KubeObject], resource_version: str) -> None:
        """Exactly these objects exist, as of a version."""
        ...

    async def bookmark(self, resource_version: str) -> None:
        """Everything up to a version was told."""
        ...

    def resync(self) -> None:
        """Everything stored is to be told again. An exception ends the round."""
        ...


class Reflector:
    """Learns what exists, then watches, and never stops trying.

    What exists is asked for by a watch-list, which costs a server the least and whose stream goes on as the watch, or
    by a list where the server does not know watch-lists or does not finish them.

    Promises:
        * The store is told states of each object in the order the server had them; some may be skipped.
        * A stream that ends is resumed where it ended; a list is made only where a resumption may have missed
          something, and then it asks for data not older than what is known before it asks for the newest.
        * One shared schedule of delays stands between failures of all kinds; a server's Retry-After is honoured.
        * What was stored stays stored while the server cannot be reached or refuses.
        * A cluster restored from a backup is noticed, by its versions going back: `epoch` grows and everything is read
          anew. (Not when the versions have grown past ours by then; only comparing the objects would show that.)
    """

    def __init__(
        self,
        list_watch: ListWatch,
        store: ReflectorStore,
        *,
        name: str,
        page_size: int = 0,
        min_watch_timeout: int = MIN_WATCH_TIMEOUT,
        use_watch_list: bool = True,
        start_from: str = "",
        requests_per_second: float = REQUESTS_PER_SECOND,
        max_internal_error_retry: float = 0.0,
        resync_period: Callable[[], float] | None = None,
        should_resync: Callable[[], bool] | None = None,
        known: Known = nothing_known,
        backoff: Backoff | None = None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """Prepares a reflector; nothing is asked before it runs.

        Args:
            list_watch: the server's side.
            store: what is kept in step.
            name: names it in logs and tasks.
            page_size: objects per page of every list. 0 leaves it to the rules: 500 where the list may come from etcd,
                no pages where the server answers from its cache.
            min_watch_timeout: seconds; less than 300 is taken as 300.
            use_watch_list: try a watch-list before a list.
            start_from: a version that this server is known to have reached, or "". The first list asks for nothing
                older; a server that has nothing as new was restored, and `epoch` is 1 then.
            requests_per_second: of this reflector, after a burst of as many.
            max_internal_error_retry: seconds for which a watch that the server ends with an internal error is resumed,
                counted from the first of a run; 0: not at all, it is listed anew.
            resync_period: returns the seconds between looks at `should_resync`, 0 for none; asked before each look.
            should_resync: whether anybody wants the store resynced.
            known: what the store has; a list of what did not change then takes no memory.
            backoff: the schedule of delays.
            uniform: draws from [0, 1) for the lengths of watches.
        """
        self.name = name
        self.on_error: Callable[[Exception], None] = self._log_failure
        """Called with what ended each failed round; must not block. The default logs it."""
        self._list_watch = RateLimitedListWatch(list_watch, requests_per_second)
        self._store = store
        self._page_size = page_size
        self._min_watch_timeout = max(min_watch_timeout, MIN_WATCH_TIMEOUT)
        self._resync_period = resync_period or (lambda: 0.0)
        self._should_resync = should_resync or (lambda: True)
        self._use_watch_list = use_watch_list
        self._internal_errors = InternalErrorWindow(max_internal_error_retry)
        self._known = known
        self._backoff = backoff or Backoff()
        self._uniform = uniform
        self._status = StatusRecorder()
        self._guard = StreamGuard()
        self._resource_version = start_from
        self._version_unavailable = False
        self._watch_cache_disabled = False
        self._initial: InitialEvents | None = None  # while a watch-list is sending them
        self._unfinished_watch_lists = 0
        self._has_finished_watch_list = False
        self._in_synthetic_prefix = False
        self._heard_at = 0.0  # loop time of the last event or list
        self._is_probe_due = False
        self._epoch = 0
        self._relist_requested = False
        self._resync_timer: asyncio.TimerHandle | None = None
        self._resync_error: Exception | None = None
        self._redial: asyncio.Event | None = None  # while a delay runs that `dial_soon` may cut short
        self._counts = dict.fromkeys(
            ("lists", "watches", "events", "bookmarks_ignored", "failures", "resyncs", "probes", "watch_lists"), 0
        )
        self._relists: Counter[str] = Counter()
        self._cause = RelistCause.INITIAL  # of the next list
        self._list_durations = DurationHistogram(LONG_BOUNDS)
        self._asked_at = 0.0  # loop time at which it was begun to learn what exists
        self._skipped: tuple[str, ...] = ()

    @property
    def last_sync_resource_version(self) -> str:
        """The version a watch would resume from; empty before the first list."""
        return self._resource_version

    @property
    def epoch(self) -> int:
        """How often the server's versions have gone back, as they do when a cluster is restored from a backup."""
        return self._epoch

    def status(self) -> ReflectorStatus:
        """How well the server is followed. Call it on the loop that runs the reflector."""
        return self._status.status(loop_time())

    def statistics(self) -> Mapping[str, object]:
        """Counts since the start.

        `requests` are all pages and dials; `relists` are by cause, lists and watch-lists alike that were taken over;
        `list_durations` are what they took. `items_skipped` are names or reasons from the last list, the first ten of
        them.
        """
        return {
            **self._counts,
            "requests": self._list_watch.requests,
            "relists": dict(self._relists),
            "list_durations": self._list_durations,
            "resource_version": self._resource_version,
            "epoch": self._epoch,
            "items_skipped": len(self._skipped),
            "items_skipped_names": self._skipped[:_NAMED_SKIPPED],
        }

    def request_relist(self) -> None:
        """Asks for a list. The store is given a whole list after this call; one that is under way counts.

        An open watch is left at once; a delay that is running is waited for.
        """
        self._relist_requested = True
        if self._initial is None:
            self._guard.interrupt()

    def resync_within(self, seconds: float) -> None:
        """Has the next look at whether a resync is wanted come no later than this, if one is to come at all."""
        timer = self._resync_timer
        if timer is not None and timer.when() > loop_time() + seconds:
            timer.cancel()
            self._resync_timer = asyncio.get_running_loop().call_later(seconds, self._resync)

    def dial_soon(self) -> None:
        """Cuts short the delay after an unreachable server, for one who knows that it answers again.

        The next attempt comes within `DIAL_SPREAD` seconds, at random, so that all reflectors of a cluster may be told
        at once. A delay for another reason, such as one the server asked for, is left alone.
        """
        if self._redial is not None:
            self._redial.set()

    async def run(self) -> None:
        """Runs rounds until cancelled. No failure ends it, not even one that nobody foresaw."""
        try:
            while True:
                try:
                    await self.list_and_watch()
                    self._cause = RelistCause.RESTORED if self._version_unavailable else RelistCause.REQUESTED
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    # Nobody cancelled this task: a cancellation leaked out of the transport.
                    await self._end_failed_round(RuntimeError(f"cancelled from inside: {error!r}"))
                except Exception as error:  # noqa: BLE001 - the supervisor: recorded, logged, backed off
                    await self._end_failed_round(error)
        finally:
            self._status.state = ReflectorState.STOPPED

    async def list_and_watch(self) -> None:
        """Runs one round: learns what exists, then watches for as long as a stream can be resumed.

        Returns when a list was requested. Cancelled, it closes the response it reads; the store keeps what it was told.

        Raises:
            Exception: what ended the round; the next one begins with what exists.
        """
        self._asked_at = loop_time()
        try:
            if not self._use_watch_list:
                await self._list()
            elif not await self._watch_list():
                return
            await self._watch()
        finally:
            self._initial = None
            self._disarm_resync()

    async def _list(self) -> None:
        self._status.state = ReflectorState.LISTING
        asked = CONSISTENT if self._version_unavailable else self._resource_version or ANY_VERSION
        limit = self._limit(asked)
        self._counts["lists"] += 1
        try:
            listed = await self._list_pages(asked, limit)
        except KubeStatusError as error:
            if not (error.is_expired or error.is_too_large_resource_version):
                raise
            # Remembered until a list succeeds, so that a failing second attempt does not lead back to this version.
            self._version_unavailable = True
            asked = CONSISTENT
            listed = await self._list_pages(asked, limit)
        if asked == ANY_VERSION and listed.paginated:
            # The watch cache would have ignored the limit. Without it every list is read from etcd: keep it in pages.
            self._watch_cache_disabled = True
        self._skipped = listed.page.skipped
        await self._adopt(listed.page.objects, listed.page.resource_version, asked)

    def _limit(self, asked: str) -> int:
        if self._page_size:
            return self._page_size
        if self._watch_cache_disabled or asked in (CONSISTENT, ANY_VERSION):
            return DEFAULT_PAGE_SIZE
        # With a limit the server would take this for "exactly this version" and might not have it any more.
        return 0

    async def _list_pages(self, asked: str, limit: int) -> PagedList:
        options = ListOptions(resource_version=asked, limit=limit)
        return await list_all(self._list_watch, options, known=self._known_since(asked))

    def _known_since(self, asked: str) -> Known:
        """What is held is trusted unless the server may have been restored: then one version may name two states."""
        if asked != CONSISTENT:
            return self._known
        return self._known.distrusting() if isinstance(self._known, Keeping) else nothing_known

    async def _adopt(self, objects: Sequence[KubeObject], resource_version: str, asked: str) -> None:
        """Takes over what exists, however it was learnt."""
        if asked == CONSISTENT and versions.is_older(resource_version, self._resource_version):
            self._epoch += 1
            log.warning(
                "resourceVersions went back, the cluster was restored",
                informer=self.name,
                before=self._resource_version,
                now=resource_version,
                epoch=self._epoch,
            )
        self._is_probe_due = False
        self._heard_at = loop_time()
        self._status.proved(self._heard_at)
        await self._store.replace(objects, resource_version)
        self._list_durations.observe(self._heard_at - self._asked_at)
        self._relists[self._cause] += 1
        self._resource_version = resource_version
        self._version_unavailable = False
        self._relist_requested = False
        self._arm_resync()

    async def _watch_list(self) -> bool:
        """Learns what exists by a watch-list and reads its stream to the end, or lists where that does not work.

        Returns whether a watch is to follow; else a list was requested meanwhile.
        """
        while True:
            asked = CONSISTENT if self._version_unavailable else self._resource_version
            self._initial = initial = InitialEvents(asked, self._known_since(asked))
            self._status.state = ReflectorState.LISTING
            self._counts["watch_lists"] += 1
            try:
                await self._watch_once()
            except Exception as error:
                if self._initial is not initial:  # it was whole already: this is the end of a watch
                    if not await self._may_resume(error):
                        raise
                    break
                if await self._may_watch_list_again(error, asked):
                    continue
                self._initial = None
                log.debug("no watch-list, will list", informer=self.name, cause=str(error))
                await self._list()
            break
        self._check_resumable()
        return not self._relist_requested

    async def _may_watch_list_again(self, error: Exception, asked: str) -> bool:
        """Whether a watch-list that failed is to be tried once more, after the delay that is due; else it is listed."""
        match error:
            case UnfinishedWatchList() | SilentWatch():
                self._record_failure(error)
                self._unfinished_watch_lists += 1
                if isinstance(error, UnfinishedWatchList) and self._unfinished_watch_lists < MAX_ATTEMPTS:
                    return True
                self._unfinished_watch_lists = 0
                if not self._has_finished_watch_list:
                    # A server that has finished one is only slow now: it ends streams that are not read fast enough.
                    self._use_watch_list = False
                    log.warning("watch-lists are not finished here, listing from now on", informer=self.name)
                return False
            case KubeStatusError() if error.is_expired or error.is_too_large_resource_version:
                self._version_unavailable = True
                return asked != CONSISTENT
            case MemberUnreachable() | KubeStatusError(code=HTTPStatus.TOO_MANY_REQUESTS):
                await self._pause_before_rewatch(error)
                return True
            case _:
                return False

    async def _watch(self) -> None:
        """Watches, resuming streams that end, until a list is needed."""
        while not self._relist_requested:
            try:
                if self._is_probe_due:
                    await self._probe()
                else:
                    await self._watch_once()
            except Exception as error:
                if not await self._may_resume(error):
                    raise
            self._check_resumable()

    def _check_resumable(self) -> None:
        """Raises what stands against another watch after the one that has ended."""
        if self._resync_error is not None:
            raise self._resync_error
        if self._resource_version in (CONSISTENT, ANY_VERSION):
            # Such a stream starts with whatever exists; deletions between two of them would go unnoticed.
            raise UnresumableWatch(f"{self.name}: the server gives no resourceVersion to resume a watch from")

    async def _may_resume(self, error: Exception) -> bool:
        """Whether a watch that failed is to be resumed where it ended, after the delay that is due."""
        match error:
            case SilentWatch():
                self._record_failure(error)
                log.info("watch was silent, dialling again", informer=self.name, cause=str(error))
            case MemberUnreachable() | KubeStatusError(code=HTTPStatus.TOO_MANY_REQUESTS):
                await self._pause_before_rewatch(error)
            case KubeStatusError(code=HTTPStatus.INTERNAL_SERVER_ERROR, in_stream=True):
                return self._internal_errors.failed()
            case _:
                return False
        return True

    async def _probe(self) -> None:
        """Looks whether the server is behind what it once sent: then a watch waits for a version that never comes."""
        self._counts["probes"] += 1
        try:
            page = await self._list_watch.list(ListOptions(resource_version=CONSISTENT, limit=1))
        except KubeStatusError as error:
            if error.code != HTTPStatus.FORBIDDEN:
                raise
            # Whoever may only watch can be synced by watch-lists, and is not to be called broken for this.
            log.debug("no look whether the cluster was restored", informer=self.name, cause=str(error))
            page = None
        self._is_probe_due = False
        self._heard_at = loop_time()
        if page is not None and versions.is_older(page.resource_version, self._resource_version):
            self._version_unavailable = True
            self._relist_requested = True

    async def _watch_once(self) -> None:
        length = int(self._min_watch_timeout * (1 + self._uniform()))
        initial = self._initial
        asked = self._resource_version if initial is None else initial.asked
        options = ListOptions(
            resource_version=asked,
            resource_version_match="" if initial is None else "NotOlderThan",
            timeout_seconds=length,
            allow_bookmarks=True,
            send_initial_events=initial is not None,
        )
        self._in_synthetic_prefix = initial is None and asked in (CONSISTENT, ANY_VERSION)
        self._counts["watches"] += 1
        status, guard = self._status, self._guard
        async with guard.guarding(length), self._list_watch.watch(options) as events, self._noting_silence():
            opened_at = loop_time()
            status.opened(opened_at, is_initial=initial is not None)
            guard.opened(opened_at, is_initial=initial is not None)
            self._backoff.healthy()
            async for event in events:
                if self._initial is not None:
                    await self._take_initial(event)
                    continue
                await self._apply(event)
                now = self._heard_at = loop_time()
                status.event(now)
                guard.event(now, is_bookmark=event.type is WatchEventType.BOOKMARK)
        if guard.interrupted:
            return
        now = loop_time()
        if not status.is_stream_healthy(now):
            raise VeryShortWatch(f"{self.name}: the watch ended within a second and without an event")
        if self._initial is not None:
            raise UnfinishedWatchList(f"{self.name}: the watch-list ended before its bookmark")
        status.proved(now)
        log.debug("watch ended", informer=self.name, events=status.stream_events, seconds=round(now - opened_at, 3))

    @asynccontextmanager
    async def _noting_silence(self) -> AsyncIterator[None]:
        """Has the server probed when an open stream has ended, in whatever way, and brought nothing for long."""
        try:
            yield
        finally:
            self._is_probe_due = loop_time() - self._heard_at > PROBE_AFTER

    async def _take_initial(self, event: WatchEvent) -> None:
        initial, now = self._initial, loop_time()
        assert initial is not None
        self._status.initial_event(now)
        self._guard.event(now, is_bookmark=False)
        if not initial.take(event):
            return
        self._skipped = ()
        await self._adopt(initial.objects, event.object.resource_version, initial.asked)
        self._initial = None
        self._unfinished_watch_lists = 0
        self._has_finished_watch_list = True
        now = loop_time()
        self._status.initial_events_ended(now)
        self._guard.initial_events_ended(now)

    async def _apply(self, event: WatchEvent) -> None:
        """Tells the store, then advances: cancelled in between, the event is watched again, never lost."""
        obj, event_type = event.object, event.type
        if event_type is WatchEventType.MODIFIED:
            await self._store.update(obj)
        elif event_type is WatchEventType.ADDED:
            await self._store.add(obj)
        elif event_type is WatchEventType.DELETED:
            await self._store.delete(obj)
        elif self._is_usable_bookmark(obj.resource_version):
            await self._store.bookmark(obj.resource_version)
        else:
            self._counts["bookmarks_ignored"] += 1
            return
        self._counts["events"] += 1
        if self._in_synthetic_prefix:
            # The initial events of an unversioned stream come in no order: resuming from one would miss others.
            if event_type is WatchEventType.ADDED:
                return
            self._in_synthetic_prefix = False
        if obj.resource_version:
            self._resource_version = obj.resource_version

    def _is_usable_bookmark(self, bookmark: str) -> bool:
        """Some servers send bookmarks without a version, or from before what they already sent."""
        return bookmark not in (CONSISTENT, ANY_VERSION) and not versions.is_older(bookmark, self._resource_version)

    def _arm_resync(self) -> None:
        self._resync_error = None
        period = self._resync_period()
        if period > 0:
            self._resync_timer = asyncio.get_running_loop().call_later(period, self._resync)

    def _disarm_resync(self) -> None:
        if self._resync_timer is not None:
            self._resync_timer.cancel()
            self._resync_timer = None

    def _resync(self) -> None:
        try:
            if self._should_resync():
                self._counts["resyncs"] += 1
                self._store.resync()
        except Exception as error:  # noqa: BLE001 - raised again by the round, which it ends
            self._resync_error = error
            self._guard.interrupt()
        else:
            self._arm_resync()

    async def _pause_before_rewatch(self, error: MemberUnreachable | KubeStatusError) -> None:
        """Waits; the version to resume from is still good, so that no list is needed."""
        log.debug("watch failed, will dial again", informer=self.name, cause=str(error))
        await self._pause(error)

    async def _end_failed_round(self, error: Exception) -> None:
        if self._resource_version:  # else it is still the first list that is wanted
            self._cause = _cause_of(error)
        try:
            self.on_error(error)
        except Exception:
            log.exception("error handler failed", informer=self.name)
        await self._pause(error)

    async def _pause(self, error: Exception) -> None:
        if isinstance(error, KubeStatusError) and error.is_expired and self._status.is_unreachable:
            # A restarted apiserver has no history: it is there again, and what it asks for is a list, not patience.
            # client-go goes on with the delay that has grown while nobody answered.
            self._backoff.start_over()
        self._record_failure(error)
        self._status.state = ReflectorState.BACKING_OFF
        retry_after = error.retry_after if isinstance(error, KubeStatusError) else None
        delay = self._backoff.next_delay(retry_after)
        if not isinstance(error, MemberUnreachable):
            await asyncio.sleep(delay)
            return
        self._redial = asyncio.Event()
        try:
            async with asyncio.timeout(delay) as deadline:
                await self._redial.wait()
                soon = loop_time() + DIAL_SPREAD * self._uniform()
                deadline.reschedule(min(soon, deadline.when() or soon))
                await asyncio.Event().wait()
        except TimeoutError:
            return
        finally:
            self._redial = None

    def _record_failure(self, error: Exception) -> None:
        self._counts["failures"] += 1
        self._status.failed(error, loop_time())

    def _log_failure(self, error: Exception) -> None:
        if isinstance(error, KubeStatusError) and error.is_expired:
            log.debug("watch expired, will list", informer=self.name, cause=str(error))
        elif isinstance(
            error, KubeStatusError | MemberUnreachable | CredentialsError | VeryShortWatch | UnresumableWatch
        ):
            log.warning("list and watch failed", informer=self.name, cause=str(error))
        else:
            log.error("list and watch failed unexpectedly", informer=self.name, exc_info=error)
