"""LedgerKeeper: looks after a ledger while it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.memory import MemoryLedger
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource
from federator.errors import LedgerError, LedgerFull

log = structlog.get_logger(__name__)

INTERVAL = 30.0
"""Seconds between two looks where nothing calls for one sooner. A listing that has not come by then is asked for
again."""

FULL_INTERVAL = 1.0
"""Seconds between two compactions because the ledger is full: agents that try again must not keep it busy with them."""

RequestListing = Callable[[ClusterID, GroupResource], None]
"""Asks the agent of a cluster, if it is there, to list a type anew."""


class LedgerKeeper:
    """Mends what is noticed to be damaged, and asks agents for what is lost.

    Where the ledger cannot go on it ends the process: only a start from what is durable guesses nothing. A ledger in
    memory has nothing of that and needs no keeping.
    """

    def __init__(self, ledger: LmdbLedger | MemoryLedger) -> None:
        """Does nothing yet."""
        self._ledger = ledger if isinstance(ledger, LmdbLedger) else None
        self._request_listing: RequestListing = lambda *_: None

    @property
    def failure(self) -> LedgerError | None:
        """Why the ledger takes nothing more; None while all is well."""
        return self._ledger.failure if self._ledger else None

    def on_lost_states(self, request_listing: RequestListing) -> None:
        """Sets how agents are asked; call it before `run`."""
        self._request_listing = request_listing

    def has_lost_states(self, cluster_id: ClusterID, resource: GroupResource) -> bool:
        """Whether the ledger lacks states of a type in a cluster that only a listing brings back."""
        return self._ledger is not None and self._ledger.damage.is_lost(cluster_id, resource)

    async def mend(self) -> None:
        """Mends what was noticed while the ledger was loaded; call it before anybody is served.

        Raises:
            LedgerError: the ledger has failed.
        """
        if self._ledger is not None:
            await self._mend(self._ledger)

    async def run(self) -> None:
        """Runs until cancelled.

        Raises:
            LedgerError: the ledger has failed and takes nothing more until it is opened again.
        """
        if self._ledger is None:
            return
        while True:
            await _wait(self._ledger.attention, INTERVAL)
            await self._mend(self._ledger)
            await self.look_for_room()
            for cluster_id, resource in self._ledger.wanted_listings():
                self._request_listing(cluster_id, resource)

    async def wait_full(self, seconds: float) -> bool:
        """Waits so many seconds, or until something is refused for want of room, which it then returns True for."""
        if self._ledger is None:
            await asyncio.sleep(seconds)
            return False
        await asyncio.sleep(min(FULL_INTERVAL, seconds))
        return await _wait(self._ledger.full, max(0.0, seconds - FULL_INTERVAL))

    async def look_for_room(self) -> None:
        """Sees whether a ledger that was full still is."""
        if self._ledger is not None:
            try:
                await self._ledger.look_for_room()
            except LedgerError as error:
                log.debug("ledger still has no room", cause=str(error))

    async def _mend(self, ledger: LmdbLedger) -> None:
        if ledger.failure is None:
            try:
                await ledger.mend()
            except LedgerFull as error:  # tried again once there is room
                log.error("ledger could not be mended", cause=str(error))
            except LedgerError as error:
                if ledger.failure is None:
                    log.error("ledger could not be mended", cause=str(error))
        if ledger.failure is not None:
            raise ledger.failure


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Waits for an event and clears it; returns whether it was set in time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
