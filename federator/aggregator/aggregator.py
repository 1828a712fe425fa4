"""Aggregator: assembles ledger, merge, serve and ingest, and knows the order in which they start and stop."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack

import structlog
from prometheus_client.metrics_core import Metric

from federator._aio.task_group import task_group
from federator.aggregator.admin_servicer import AdminServicer
from federator.aggregator.dictionary_trainer import DictionaryTrainer
from federator.aggregator.grpc_listener import GrpcListener
from federator.aggregator.ingest.lifecycle import ClusterLifecycle
from federator.aggregator.ingest.servicer import IngestServicer
from federator.aggregator.ledger.keeper import LedgerKeeper
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import Commit
from federator.aggregator.ledger.room import BALLAST_BYTES
from federator.aggregator.ledger.store import Store
from federator.aggregator.ledger.tables import DATA_FILE, FOLDER
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.metrics import aggregator_metrics
from federator.aggregator.query.field_index_keeper import DeclaredIndex, FieldIndexKeeper, declared_indexes
from federator.aggregator.query.name_keeper import keep_names_in_order
from federator.aggregator.serve.inventory_servicer import InventoryServicer
from federator.aggregator.serve.registration import add_inventory_service
from federator.aggregator.serve.watch_hub import WatchHub
from federator.aggregator.settings import AggregatorSettings
from federator.api.cluster import ClusterID
from federator.errors import InvalidInput, LedgerError
from federator.observability.grpc_metrics import GrpcMetrics
from federator.observability.heap import give_back, give_back_pages, keep_large_blocks_apart
from federator.observability.http import ObservabilityServer
from federator.observability.metrics import LoopLag, StatisticsCollector, new_registry
from federator.v1 import admin_pb2, admin_pb2_grpc, ingest_pb2, ingest_pb2_grpc, inventory_pb2

log = structlog.get_logger(__name__)

_INVENTORY = inventory_pb2.DESCRIPTOR.services_by_name["InventoryService"].full_name
_INGEST = ingest_pb2.DESCRIPTOR.services_by_name["IngestService"].full_name
_ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name


SWITCH_INTERVAL = 0.0005
"""Seconds for which one thread may keep the interpreter from another, in the whole process; Python's own is ten times
as long. LMDB lets go of it at each call, and would wait so long each time while watches are served."""

LARGE_BLOCK = 1 << 20
"""Bytes of a block that goes back to the system when it is free: columns of a million rows, which each answer has some
of for some milliseconds."""

PROGRESS_INTERVAL = 5.0
"""Seconds between two lines in the log while the ledger is loaded."""

CROWDED = 0.8
"""Part of the ledger's room from which on the older half of the history is given up at each look, whatever its age."""


class Aggregator:
    """Takes what agents push, commits it in one order, and answers from one merged view.

    Order of start: health, ledger, merged view (loaded from it), reading side, pushing side, administrating side. Order
    of stop: the reverse, each with a deadline; the ledger closes last. Ready means able to answer: an aggregator does
    not wait for members, each answer names who is missing.

    Attributes:
        address: of the reading side, once `started` is set; a port that was asked for as 0 is resolved.
        ingest_address: of the pushing side, likewise.
        admin_address: of the administrating side; None where there is none.
        http_port: of metrics and health, likewise; 0 where there are none.
        started: set when all sides listen.
    """

    def __init__(
        self, settings: AggregatorSettings, *, more_metrics: Callable[[], Iterable[Metric]] = lambda: ()
    ) -> None:
        """Checks the settings; opens nothing.

        Args:
            settings: what it is told.
            more_metrics: families of what else runs in the process, shown beside its own.

        Raises:
            InvalidInput: an address that others could reach without TLS, or that is not private enough, settings of TLS
                that do not fit together, or no field index.
        """
        self._reading_tls = settings.reading_tls()
        self._ingest_tls = settings.ingest_tls()
        self.admin_address = settings.admin_address()
        self._field_indexes = declared_indexes(settings.field_indexes)
        self._settings = settings
        self._more_metrics = more_metrics
        self.address = settings.listen
        self.ingest_address = settings.ingest_listen
        self.http_port = 0
        self.started = asyncio.Event()
        self._loading: str | None = "opening"
        self._parts: _Parts | None = None
        self._store: Store | None = None

    async def run(self) -> None:
        """Runs until cancelled, and leaves no task and no listener.

        Raises:
            LedgerLocked: another process appends to the ledger.
            LedgerError: the ledger cannot be opened, or has failed while it served; only another start helps.
            LedgerCorrupt: it failed because it is damaged; the next start sets it aside.
            InvalidInput: an address cannot be listened on, or a file of TLS cannot be used.
        """
        settings = self._settings
        sys.setswitchinterval(SWITCH_INTERVAL)
        keep_large_blocks_apart(LARGE_BLOCK)
        async with AsyncExitStack() as stack:
            registry = new_registry("aggregator")
            registry.register(StatisticsCollector(self._more_metrics))
            lag = LoopLag(registry)
            if settings.http_listen:
                checks = {"ledger": self._ledger_trouble, "listeners": self._not_listening}
                http = await stack.enter_async_context(ObservabilityServer(settings.http_listen, registry, checks))
                self.http_port = http.port
            ledger = await self._open_ledger(stack)
            parts = _Parts(ledger, settings, self._field_indexes)
            await self._load(parts)
            await parts.keeper.mend()
            self._parts = parts
            registry.register(StatisticsCollector(parts.metrics))
            await parts.lifecycle.start()
            metrics = GrpcMetrics(registry)
            reading = GrpcListener(
                settings.listen, "listen", grace=settings.shutdown_grace, metrics=metrics, tls=self._reading_tls
            )
            add_inventory_service(parts.inventory, reading.server)
            self.address = await stack.enter_async_context(reading.open(_INVENTORY))
            stack.callback(parts.hub.close)
            stack.callback(parts.inventory.close)
            if self._store is not None:
                await asyncio.to_thread(self._store.serves)
            pushing = GrpcListener(
                settings.ingest_listen,
                "ingest-listen",
                grace=settings.shutdown_grace,
                metrics=metrics,
                tls=self._ingest_tls,
            )
            ingest_pb2_grpc.add_IngestServiceServicer_to_server(parts.ingest, pushing.server)
            self.ingest_address = await stack.enter_async_context(pushing.open(_INGEST))
            stack.callback(parts.ingest.close)
            if self.admin_address is not None:
                await self._open_admin(self.admin_address, parts, metrics, stack)
            self.started.set()
            log.info(
                "aggregator ready",
                address=self.address,
                ingest=self.ingest_address,
                admin=self.admin_address,
                http_port=self.http_port,
                revision=ledger.revision,
                members=len(ledger.clusters()),
            )
            async with task_group() as tasks:
                tasks.create_task(parts.lifecycle.run(), name="cluster lifecycle")
                tasks.create_task(parts.keeper.run(), name="ledger keeper")
                tasks.create_task(self._compact(parts), name="compaction")
                tasks.create_task(parts.dictionaries.run(), name="dictionaries")
                tasks.create_task(parts.field_indexes.run(), name="field indexes")
                tasks.create_task(keep_names_in_order(parts.view.indexer), name="order of names")
                tasks.create_task(lag.run(), name="event loop lag")

    def statistics(self) -> Mapping[str, Mapping[str, object]]:
        """Statistics of each part by name; empty before the start."""
        return self._parts.statistics() if self._parts else {}

    def _not_listening(self) -> str | None:
        return None if self.started.is_set() else "starting"

    async def _open_admin(self, address: str, parts: _Parts, metrics: GrpcMetrics, stack: AsyncExitStack) -> None:
        """Opens the administrating side; where nobody asked for it and the folder takes no socket, it is left out."""
        try:
            administrating = GrpcListener(
                address, "admin-listen", grace=self._settings.shutdown_grace, metrics=metrics, is_private=True
            )
            admin_pb2_grpc.add_AdminServiceServicer_to_server(parts.admin, administrating.server)
            await stack.enter_async_context(administrating.open(_ADMIN))
        except InvalidInput as error:
            if self._settings.admin_listen is not None:
                raise
            self.admin_address = None
            log.warning("no admin socket; --admin-listen names another place", cause=str(error))

    async def _load(self, parts: _Parts) -> None:
        """Rebuilds the merged view, telling the log and `/readyz` how far it is; nothing is served before its end."""
        total = parts.ledger.statistics()["objects"]
        started = told = time.monotonic()
        gc.disable()  # what is loaded stays: looking at it again and again takes longer than loading it
        try:
            for done in parts.view.loading(parts.ledger):
                self._loading = f"loaded {done} of {total} objects"
                if time.monotonic() - told > PROGRESS_INTERVAL:
                    told = time.monotonic()
                    log.info("loading", objects=done, of=total)
                await asyncio.sleep(0)
        finally:
            gc.enable()
        gc.freeze()
        parts.hub.load()
        await self._give_back()
        self._loading = None
        log.info("loaded", objects=len(parts.view.indexer), seconds=round(time.monotonic() - started, 1))

    async def _give_back(self) -> None:
        """Gives back what the process need not have: what loading held, a third of what stays, and the ledger's pages.

        Whoever reads all of the ledger maps all of it; it stays in the system's cache.
        """
        await asyncio.to_thread(give_back)
        if self._settings.state_directory is not None:
            file = (self._settings.state_directory / FOLDER / DATA_FILE).resolve()
            await asyncio.to_thread(give_back_pages, file)

    def _ledger_trouble(self) -> str | None:
        failure = self._parts.keeper.failure if self._parts else None
        return self._loading or (str(failure) if failure else None)

    async def _open_ledger(self, stack: AsyncExitStack) -> MemoryLedger | LmdbLedger:
        """Opens it, to be closed by the stack: also where this is cancelled while the thread is still opening."""
        opening = asyncio.ensure_future(asyncio.to_thread(self._open))

        async def close() -> None:
            try:
                ledger = await opening
            except LedgerError:
                return
            await ledger.close()
            if self._store is not None:
                await asyncio.to_thread(self._store.close)

        stack.push_async_callback(close)
        return await asyncio.shield(opening)

    def _open(self) -> MemoryLedger | LmdbLedger:
        directory = self._settings.state_directory
        if directory is None:
            return MemoryLedger()
        store = Store(directory)
        self._store = store
        return store.open(
            lambda: LmdbLedger.open(
                directory,
                max_bytes=self._settings.ledger_max_bytes,
                ballast_bytes=BALLAST_BYTES,
                thorough=store.ended_badly,
            )
        )

    async def _compact(self, parts: _Parts) -> None:
        """Forgets history that is older than it has to be kept, or that there is no room for; and free memory.

        Never beyond what somebody still reads. A ledger that cannot be written is tried again: reading goes on.
        """
        ledger = parts.ledger
        while True:
            is_full = await parts.keeper.wait_full(self._settings.compaction_interval)
            await self._give_back()
            wanted = ledger.revision_at(int((time.time() - self._settings.history) * 1000))
            statistics = ledger.statistics()
            used = statistics.get("used_bytes", statistics["bytes"]) / statistics["max_bytes"]
            if used > CROWDED or is_full:
                wanted = max(wanted, ledger.oldest_revision + (ledger.revision - ledger.oldest_revision) // 2)
                log.warning("history is shortened, the ledger is nearly full", used=round(used, 2))
            revision = min(wanted, parts.inventory.oldest_pinned_revision)
            if revision <= ledger.oldest_revision:
                continue
            try:
                dropped = await ledger.compact(revision)
            except LedgerError as error:
                log.error("compaction failed", cause=str(error))
            else:
                log.info("history compacted", revision=revision, entries=dropped)
                await parts.keeper.look_for_room()


class _Parts:
    """The parts of one run, joined: what the ledger commits is applied to the view, then published to watches."""

    def __init__(
        self,
        ledger: MemoryLedger | LmdbLedger,
        settings: AggregatorSettings,
        field_indexes: Iterable[DeclaredIndex],
    ) -> None:
        self.ledger = ledger
        self.view = MergedView()
        self.hub = WatchHub(ledger, self.view.types, max_watches=settings.max_watches)
        self.field_indexes = FieldIndexKeeper(self.view.indexer, field_indexes, settings.state_directory)
        self.inventory = InventoryServicer(self.view, ledger, self.hub, field_indexes=self.field_indexes)
        self.keeper = LedgerKeeper(ledger)
        self.lifecycle = ClusterLifecycle(
            ledger, self.view.freshness, settings.ingest, has_lost_states=self.keeper.has_lost_states
        )
        self.ingest = IngestServicer(
            ledger, self.lifecycle, self.view.freshness, settings.ingest, digests=self.view.digests
        )
        self.admin = AdminServicer(ledger, self.lifecycle, self._count_objects, self.field_indexes, self.view.types)
        self.keeper.on_lost_states(self.ingest.request_listing)
        self.dictionaries = DictionaryTrainer(ledger, self.view.indexer, self.ingest.offer)
        ledger.on_commit(self._committed)

    def _committed(self, commit: Commit) -> None:
        self.view.apply(commit)
        self.hub.publish(commit)

    def _count_objects(self, cluster_id: ClusterID) -> int:
        return sum(number for (member, _), number in self.view.indexer.objects().items() if member == cluster_id)

    def statistics(self) -> Mapping[str, Mapping[str, object]]:
        return {
            "ledger": {**self.ledger.statistics(), **self.dictionaries.statistics()},
            "merge": {
                **self.view.statistics(),
                **self.view.types.statistics(),
                **self.field_indexes.statistics(),
            },
            "serve": self.inventory.statistics(),
            "ingest": self.ingest.statistics(),
        }

    def metrics(self) -> Iterable[Metric]:
        """Families of all parts."""
        return aggregator_metrics(self.statistics(), self.ledger.clusters(), self.view, self.ledger.commit_durations)
