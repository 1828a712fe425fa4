"""Departures: the objects of removed clusters on their way out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

import msgspec
import structlog
from aiolimiter import AsyncLimiter

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import MAX_CHANGES, Batch, ClusterRecord, Delete
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.errors import LedgerError

log = structlog.get_logger(__name__)

RETRY_SECONDS = 5.0
"""Seconds after which deletions go on that the ledger did not take: it may have room again."""

REASON = "cluster removed"
"""Reason of the types of a cluster that has left."""


class _Departure(msgspec.Struct, eq=False):
    """One cluster on its way out.

    Attributes:
        departed: done when nothing of the cluster is left.
        objects: deleted so far by this process.
    """

    departed: asyncio.Event
    objects: int = 0


class Departures:
    """Deletes what removed clusters leave behind: one cluster after the other, in batches, at a bounded rate.

    That a cluster is REMOVED is durable before its first object goes, and its types become ABSENT when its last one has
    gone. So the ledger tells who is still leaving, and what a process did not finish the next one does.
    """

    def __init__(self, ledger: Ledger, objects_per_second: int) -> None:
        """Deletes nothing before `run`.

        Args:
            ledger: tells who is leaving, and is appended to.
            objects_per_second: bound on deletions, over all clusters together; at least 1.
        """
        self._ledger = ledger
        self._batch_size = min(MAX_CHANGES, objects_per_second)
        self._limiter = AsyncLimiter(objects_per_second, 1)
        self._leaving: dict[ClusterID, _Departure] = {}  # at most one for each removed cluster
        self._begun = asyncio.Event()
        self._on_departed: Callable[[ClusterID], None] = lambda _: None

    def on_departed(self, listener: Callable[[ClusterID], None]) -> None:
        """Sets who is told, once, when nothing of a cluster is left; it must not raise or block."""
        self._on_departed = listener

    def recover(self) -> None:
        """Takes up what a former process has left undone. Call it once, before `run`."""
        for cluster_id, record in self._ledger.clusters().items():
            if self.is_leaving(record) or (record.state is ClusterState.REMOVED and self._has_objects(cluster_id)):
                self.begin(cluster_id)

    def is_leaving(self, record: ClusterRecord | None) -> bool:
        """Whether a cluster, as the ledger has it, is REMOVED and something of it may be left."""
        if record is None or record.state is not ClusterState.REMOVED:
            return False
        return record.cluster_id in self._leaving or any(
            known.state is not TypeState.ABSENT for known in self._ledger.types(record.cluster_id)
        )

    def begin(self, cluster_id: ClusterID) -> None:
        """Lets the objects of a cluster leave, whose REMOVED is durable; again does nothing."""
        if cluster_id not in self._leaving:
            self._leaving[cluster_id] = _Departure(asyncio.Event())
            self._begun.set()

    async def wait_departed(self, cluster_id: ClusterID) -> int:
        """Waits until nothing of a cluster is left, and returns how many objects this process has deleted of it.

        Cancelled, the departure goes on.
        """
        departure = self._leaving.get(cluster_id)
        if departure is None:
            return 0
        await departure.departed.wait()
        return departure.objects

    async def run(self) -> None:
        """Deletes until cancelled. What the ledger does not take is tried again, behind the other clusters."""
        while True:
            self._begun.clear()
            while self._leaving:
                cluster_id, departure = next(iter(self._leaving.items()))
                try:
                    await self._empty(cluster_id, departure)
                except LedgerError as error:
                    log.error("objects of a removed cluster could not be deleted", cluster=cluster_id, cause=str(error))
                    self._leaving[cluster_id] = self._leaving.pop(cluster_id)
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    del self._leaving[cluster_id]
                    log.info("cluster has left", cluster=cluster_id, objects=departure.objects)
                    self._on_departed(cluster_id)
                    departure.departed.set()
            await self._begun.wait()

    async def _empty(self, cluster_id: ClusterID, departure: _Departure) -> None:
        term = self._ledger.clusters()[cluster_id].term
        types = self._ledger.types(cluster_id)
        for known in types:
            held = self._ledger.keys(cluster_id, known.type.group_resource)  # of REMOVED clusters none are added
            while doomed := tuple(Delete(key.namespace, key.name) for key in islice(held, self._batch_size)):
                await self._limiter.acquire(len(doomed))
                await self._ledger.append(Batch(cluster_id, term, 0, known.type, doomed))
                departure.objects += len(doomed)
        for known in types:
            await self._ledger.set_type_state(cluster_id, known.type, TypeState.ABSENT, REASON)

    def _has_objects(self, cluster_id: ClusterID) -> bool:
        return any(
            next(self._ledger.keys(cluster_id, known.type.group_resource), None) is not None
            for known in self._ledger.types(cluster_id)
        )
