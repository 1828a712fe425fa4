"""SharedInformer: one list and watch, one store, any number of handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from copy import copy

import structlog

from federator.api.key import local_key
from federator.api.list_watch import Keeping, Known, nothing_known
from federator.api.object import KubeObject
from federator.cache.backoff import Backoff
from federator.cache.clock import loop_time
from federator.cache.controller import Controller
from federator.cache.delta_fifo import MAX_BACKLOG, DeltaFIFO, FIFOClosed, Transform
from federator.cache.delta_sink import DeltaSink
from federator.cache.handler import ResourceEventHandler
from federator.cache.indexer import Indexer, IndexFunc
from federator.cache.list_watch import ListWatch
from federator.cache.processor import BUFFER_SIZE, ProcessorListener, SharedProcessor
from federator.cache.reflector import Reflector
from federator.cache.reflector_status import ReflectorStatus
from federator.cache.resync import AdaptiveResync

log = structlog.get_logger(__name__)

MIN_RESYNC_PERIOD = 1.0
"""Seconds; shorter resync periods of handlers are raised to this."""


class InformerStopped(RuntimeError):
    """The informer has stopped, or the handler was removed: what was asked for or awaited cannot happen any more."""


class HandlerRegistration:
    """A handler's place in an informer."""

    def __init__(self, informer: SharedInformer, listener: ProcessorListener) -> None:
        self.name = listener.name
        self._informer = informer
        self._listener = listener

    @property
    def failed(self) -> int:
        """Notifications the handler raised for."""
        return self._listener.failed

    def report_drift(self) -> None:
        """Says that something was found otherwise than the handler was told.

        Where the informer's resync period is adaptive, everything is told again sooner, and more often for a while.
        """
        self._informer._processor.disturbed()

    async def shut_down(self) -> None:
        """Removes the handler and waits until it has finished what it is being told. Idempotent.

        A pause after a failure is sat out, too. Two handlers that wait for each other wait for ever. Cancelled, it is
        removed all the same.

        Raises:
            RuntimeError: the handler itself asked, and would wait for itself.
        """
        task = self._listener.task
        if task is not None and task is asyncio.current_task():
            raise RuntimeError(f"{self.name} cannot wait for itself; use remove_event_handler")
        self._informer.remove_event_handler(self)
        if task is not None:
            await asyncio.wait([task])

    def has_synced(self) -> bool:
        """Whether the informer has synced and the handler is through with everything that existed by then.

        Notifications it raised for count as done; see `failed`.
        """
        return self._informer.has_synced() and self._listener.has_settled

    async def wait_synced(self) -> None:
        """Waits for `has_synced`.

        Raises:
            InformerStopped: the informer stopped or the handler was removed before.
        """
        await self._informer.wait_synced()
        if not await self._listener.wait_settled():
            raise InformerStopped(f"{self.name} was removed, or stopped, before it had synced")

    def statistics(self) -> Mapping[str, object]:
        """Sizes and counts of the handler's buffer."""
        return self._listener.statistics()


class SharedInformer:
    """Keeps an Indexer in step with one resource type of one cluster and tells handlers of the changes.

    Promises:
        * A handler sees, per object, a subsequence of its real states, in order. Between objects there is no order.
        * When a handler is told of a change, the Indexer already has it, and perhaps later ones.
        * A relist replaces the Indexer in one step; what is gone is told as a delete with a tombstone.
        * A cluster that cannot be reached, or refuses, changes nothing of what is held; `status` tells.
        * A slow handler delays nobody; it is told fewer states, see `ProcessorListener`.

    Belongs to one event loop.
    """

    def __init__(
        self,
        list_watch: ListWatch,
        *,
        name: str,
        transform: Transform | None = None,
        retain: Callable[[KubeObject], KubeObject] | None = None,
        sink: DeltaSink | None = None,
        resync_period: float | AdaptiveResync = 0.0,
        indexers: Mapping[str, IndexFunc] | None = None,
        compress: bool = False,
        page_size: int = 0,
        use_watch_list: bool = True,
        start_from: str = "",
        max_backlog: int = MAX_BACKLOG,
        handler_buffer_size: int = BUFFER_SIZE,
        backoff: Backoff | None = None,
    ) -> None:
        """Prepares an informer; nothing is asked of the server before `run`.

        Args:
            list_watch: the server's side.
            name: names the informer in logs, tasks and errors.
            transform: changes each object once, before anything else sees it. An object it raises for is withheld.
            retain: makes what the Indexer keeps of an object, e.g. `KubeObject.without_raw`. Handlers get new states
                whole, but old ones, resynced ones and those that a late handler is told of as retained. Index functions
                see retained objects.
            sink: hears every change between Indexer and handlers.
            resync_period: seconds between resyncs of handlers that ask for nothing else, fixed or adaptive; 0 for none,
                and then no handler can have any.
            indexers: index functions by name.
            compress: as of `Indexer`.
            page_size: objects per page of every list; 0 leaves it to the rules of `Reflector`.
            use_watch_list: as of `Reflector`.
            start_from: as of `Reflector`.
            max_backlog: queued deltas at which reading stops.
            handler_buffer_size: notifications that wait for a handler before they are coalesced.
            backoff: the schedule of delays after failures.
        """
        self.name = name
        self.indexer = Indexer(indexers, compress=compress)
        adaptive = copy(resync_period) if isinstance(resync_period, AdaptiveResync) else None
        period = resync_period.period if isinstance(resync_period, AdaptiveResync) else resync_period
        self._is_adaptive = adaptive is not None
        self._fifo = DeltaFIFO(self.indexer, name=name, transform=transform, max_backlog=max_backlog)
        self._processor = SharedProcessor(
            name=name,
            resync_check_period=period,
            buffer_size=handler_buffer_size,
            adaptive=adaptive,
            period_changed=lambda: self._reflector.resync_within(self._processor.resync_check_period),
            whole=self.indexer.whole if compress else None,
        )
        self._controller = Controller(self._fifo, self.indexer, self._processor, retain=retain, sink=sink)
        known: Known = self._known
        if retain or (compress and sink):
            known = nothing_known  # what is held is not whole, and the sink wants it so
        elif compress and not transform:
            known = Keeping(self._known, self.indexer.keep)
        self._reflector = Reflector(
            list_watch,
            self._fifo,
            name=name,
            page_size=page_size,
            use_watch_list=use_watch_list,
            start_from=start_from,
            resync_period=lambda: self._processor.resync_check_period,
            should_resync=self._processor.should_resync,
            known=known,
            backoff=backoff,
        )
        self._started = False
        self._stopped = False

    def _known(self, namespace: str, name: str) -> KubeObject | None:
        return self.indexer.kept(local_key(namespace, name))

    @property
    def epoch(self) -> int:
        """How often the server was found to have been restored; see `Reflector.epoch`."""
        return self._reflector.epoch

    @property
    def last_sync_resource_version(self) -> str:
        """The version up to which the server has been read; the Indexer's own is `indexer.last_resource_version`."""
        return self._reflector.last_sync_resource_version

    @property
    def is_stopped(self) -> bool:
        """Whether it has run and will not run again."""
        return self._stopped

    async def run(self) -> None:
        """Runs until cancelled, then leaves no task. A second run is refused with a warning.

        Cancelled, it first stops reading, then the handlers, which are cancelled where they wait; what still waited for
        them is dropped, and the Indexer keeps what it has.

        Raises:
            BaseExceptionGroup: the sink raised.
        """
        if self._started:
            log.warning("informer was started before, not running it again", informer=self.name)
            return
        self._started = True
        async with self._processor.running():
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._reflector.run(), name=f"{self.name} reflector")
                    tasks.create_task(self._controller.run(), name=f"{self.name} controller")
            finally:
                # Before the handlers end, so that none of them can add another one that nobody would run.
                self._stopped = True
                self._fifo.close()

    def close(self) -> None:
        """Says that it will not run, unless it has: who waits for it gets InformerStopped. Idempotent.

        Of no effect once it runs: cancelling `run` ends that.
        """
        if not self._started:
            self._started = self._stopped = True
            self._fifo.close()
            self._processor.close()

    def add_event_handler(
        self, handler: ResourceEventHandler, *, resync_period: float | None = None
    ) -> HandlerRegistration:
        """Adds a handler, at any time. It is first told of everything stored, as initial adds.

        The same handler may be added twice and is then told twice.

        Args:
            handler: is told of changes.
            resync_period: seconds between resyncs, 0 for none, None for the informer's, which may be adaptive. The time
                between two is never shorter than asked. Once the informer runs, periods below its own are raised to
                that.

        Raises:
            InformerStopped: it will tell nobody anything any more.
        """
        self._refuse_if_stopped()
        return HandlerRegistration(
            self,
            self._processor.add_listener(
                handler,
                resync_period=self._agree_resync_period(
                    self._processor.resync_period if resync_period is None else resync_period
                ),
                follows_informer=self._is_adaptive and resync_period is None,
                cached=self.indexer.list_kept() if self._started else (),
            ),
        )

    def remove_event_handler(self, registration: HandlerRegistration) -> None:
        """Removes a handler. It is told nothing more, but finishes what it is being told.

        Ignored for handlers of other informers and for those removed before.
        """
        self._processor.remove_listener(registration._listener)

    def add_indexers(self, indexers: Mapping[str, IndexFunc]) -> None:
        """Adds indexes, complete at once over what is stored.

        Raises:
            InvalidInput: a name is taken.
            InformerStopped: the informer has stopped.
        """
        self._refuse_if_stopped()
        self.indexer.add_indexers(indexers)

    def set_watch_error_handler(self, handler: Callable[[Exception], None]) -> None:
        """Sets what is called, instead of logging, with what ended each failed round. Must not block.

        Raises:
            RuntimeError: the informer was started.
        """
        if self._started:
            raise RuntimeError(f"{self.name}: the watch error handler must be set before the informer runs")
        self._reflector.on_error = handler

    def has_synced(self) -> bool:
        """Whether the first list is in the Indexer."""
        return self._fifo.has_synced()

    async def wait_synced(self) -> None:
        """Waits for `has_synced`.

        Raises:
            InformerStopped: the informer stopped before.
        """
        try:
            await self._fifo.wait_synced()
        except FIFOClosed:
            raise InformerStopped(f"{self.name} stopped before it had synced") from None

    def withheld(self) -> Collection[str]:
        """Keys of the objects that are not held in their newest state, since their transform failed."""
        return self._fifo.withheld

    def request_relist(self) -> None:
        """Asks for a list, which replaces everything in one step; see `Reflector.request_relist`."""
        self._reflector.request_relist()

    def dial_soon(self) -> None:
        """Cuts short the delay after an unreachable server; see `Reflector.dial_soon`."""
        self._reflector.dial_soon()

    def status(self) -> ReflectorStatus:
        """How well the server is followed. Call it on the loop that runs the informer."""
        return self._reflector.status()

    def statistics(self) -> Mapping[str, object]:
        """What each part counts, and the status as ages. Call it on the loop that runs the informer."""
        return {
            "status": self.status().ages(loop_time()),
            "reflector": self._reflector.statistics(),
            "queue": self._fifo.statistics(),
            "controller": self._controller.statistics(),
            "indexer": self.indexer.statistics(),
            "handlers": self._processor.statistics(),
        }

    def _agree_resync_period(self, period: float) -> float:
        if 0 < period < MIN_RESYNC_PERIOD:
            log.warning("resync period raised to the minimum", informer=self.name, asked=period)
            period = MIN_RESYNC_PERIOD
        if 0 < period < self._processor.resync_check_period:
            if self._started:
                log.warning("resync period raised to the running informer's", informer=self.name, asked=period)
                return self._processor.resync_check_period
            self._processor.lower_resync_check_period(period)
        return period

    def _refuse_if_stopped(self) -> None:
        if self._stopped:
            raise InformerStopped(f"{self.name} has stopped")
