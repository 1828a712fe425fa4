"""Waiting until informers and handlers have synced."""

from __future__ import annotations

import asyncio
from typing import Protocol

from federator._aio.task_group import task_group
from federator.cache.shared_informer import InformerStopped


class Syncable(Protocol):
    """An informer, a handler's registration, or anything else that syncs once."""

    @property
    def name(self) -> str:
        """Names it in errors."""
        ...

    def has_synced(self) -> bool:
        """Whether it has synced."""
        ...

    async def wait_synced(self) -> None:
        """Waits for that; raises InformerStopped when it cannot come any more."""
        ...


class CacheNotSynced(TimeoutError):
    """Not everything synced: the time was up, or something stopped before.

    Attributes:
        unsynced: names of what has not synced.
    """

    def __init__(self, unsynced: tuple[str, ...]) -> None:
        self.unsynced = unsynced
        super().__init__(f"not synced: {', '.join(unsynced)}")


async def wait_for_cache_sync(*syncables: Syncable, timeout: float | None = None) -> None:
    """Waits until all have synced; returns at once for none.

    Cancelled, it leaves no task and everything else as it is.

    Args:
        syncables: informers, handlers' registrations.
        timeout: seconds; None waits for as long as it takes.

    Raises:
        CacheNotSynced: the time was up, or something stopped that had not synced; names all that have not by then.
    """
    try:
        async with asyncio.timeout(timeout):
            async with task_group() as tasks:  # so that one that stops is noticed, whatever the others do
                for syncable in syncables:
                    if not syncable.has_synced():
                        tasks.create_task(syncable.wait_synced(), name=f"wait for {syncable.name}")
    except (TimeoutError, InformerStopped):
        if unsynced := tuple(syncable.name for syncable in syncables if not syncable.has_synced()):
            raise CacheNotSynced(unsynced) from None
