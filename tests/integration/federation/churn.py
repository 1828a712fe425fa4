"""Workloads that change while a test looks on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from federator.testing.workload import Workload

_LONGEST = 60.0


class Churn:
    """Workloads under way."""

    def __init__(self, workloads: Sequence[Workload], running: Sequence[asyncio.Task[None]]) -> None:
        self._workloads = workloads
        self._running = running

    async def until_done(self, operations: int, kinds: Collection[str] = ()) -> None:
        """Waits until so many operations were done on each cluster, and all of these kinds on some."""
        async with asyncio.timeout(_LONGEST):
            while not self._are_done(operations, kinds):  # noqa: ASYNC110 - a workload sets no event
                await asyncio.sleep(0.05)

    def _are_done(self, operations: int, kinds: Collection[str]) -> bool:
        for task in self._running:
            if task.done():
                task.result()
        done = [Counter(workload.statistics()) for workload in self._workloads]
        return all(each.total() >= operations for each in done) and set(kinds) <= sum(done, Counter()).keys()


@asynccontextmanager
async def churning(workloads: Sequence[Workload], *, rate: float) -> AsyncIterator[Churn]:
    """Changes workloads that were filled, each by so many operations a second, while the block runs."""
    running: list[asyncio.Task[None]] = []
    async with asyncio.TaskGroup() as churns:
        try:
            running += [churns.create_task(workload.churn(rate=rate), name="churn") for workload in workloads]
            yield Churn(workloads, running)
        finally:
            for task in running:
                task.cancel()
