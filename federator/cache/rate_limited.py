"""A bound on how often one informer asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from aiolimiter import AsyncLimiter

from federator.api.list_watch import Known, ListOptions, ListPage, WatchEvent, nothing_known
from federator.cache.list_watch import ListWatch

REQUESTS_PER_SECOND = 50.0
"""Requests a second of one informer, pages and dials alike, after a burst of as many. No delay stands between a watch
that a server ends and the next; without a bound, one that ends every watch at once would be asked without pause."""


class RateLimitedListWatch:
    """A ListWatch that waits its turn before each request. Cancelled while it waits, nothing was asked."""

    def __init__(self, list_watch: ListWatch, requests_per_second: float = REQUESTS_PER_SECOND) -> None:
        self._list_watch = list_watch
        self._limiter = AsyncLimiter(requests_per_second, 1)
        self.requests = 0
        """Requests made so far, each page and each dial."""

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        """As the ListWatch behind it, in its turn."""
        await self._limiter.acquire()
        self.requests += 1
        return await self._list_watch.list(options, known=known)

    def watch(self, options: ListOptions) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """As the ListWatch behind it, in its turn."""
        return self._watch(options)

    @asynccontextmanager
    async def _watch(self, options: ListOptions) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        await self._limiter.acquire()
        self.requests += 1
        async with self._list_watch.watch(options) as events:
            yield events
