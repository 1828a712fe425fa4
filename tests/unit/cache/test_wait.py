"""Waiting for caches to sync."""

from __future__ import annotations

import asyncio

import pytest

from federator.cache.shared_informer import InformerStopped
from federator.cache.wait import CacheNotSynced, wait_for_cache_sync

pytestmark = pytest.mark.looptime


class Cache:
    """Syncs after some seconds, or stops before."""

    def __init__(self, name: str, after: float, *, stops: bool = False) -> None:
        self.name = name
        self._after = after
        self._stops = stops

    def has_synced(self) -> bool:
        return not self._stops and asyncio.get_running_loop().time() >= self._after

    async def wait_synced(self) -> None:
        await asyncio.sleep(max(0.0, self._after - asyncio.get_running_loop().time()))
        if self._stops:
            raise InformerStopped(self.name)


async def test_st13_nothing_to_wait_for() -> None:
    """ST13 WaitFor: none."""
    await wait_for_cache_sync()
    assert asyncio.get_running_loop().time() == 0.0


async def test_st13_all_sync() -> None:
    """ST13: all; it takes as long as the slowest."""
    await wait_for_cache_sync(Cache("a", 3), Cache("b", 1), timeout=10)
    assert asyncio.get_running_loop().time() == pytest.approx(3.0)


async def test_st13_those_that_have_not_synced_in_time_are_named() -> None:
    """ST13: some timed out."""
    with pytest.raises(CacheNotSynced, match="b, d") as raised:
        await wait_for_cache_sync(Cache("a", 1), Cache("b", 100), Cache("c", 4), Cache("d", 6), timeout=5)
    assert raised.value.unsynced == ("b", "d")
    assert asyncio.get_running_loop().time() == pytest.approx(5.0)


async def test_st13_one_that_stopped_is_named_without_waiting_for_the_rest() -> None:
    """ST13."""
    with pytest.raises(CacheNotSynced) as raised:
        await wait_for_cache_sync(Cache("b", 100), Cache("a", 2, stops=True), Cache("c", 1))
    assert raised.value.unsynced == ("b", "a")
    assert asyncio.get_running_loop().time() == pytest.approx(2.0)


async def test_st13_cancelled_it_leaves_quietly() -> None:
    """ST13: cancelled."""
    waiting = asyncio.create_task(wait_for_cache_sync(Cache("a", 100), timeout=200))
    await asyncio.sleep(1.0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
