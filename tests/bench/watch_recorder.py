"""A client that watches and takes the time of what it sees."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Self

from federator.api.cluster import ClusterID
from federator.client import Event, EventType, InventoryClient
from tests.bench.figure import WrongResult
from tests.bench.stamp import read_stamp

_LONGEST_SILENCE = 30.0
"""Seconds without an event after which what is still missing is given up."""


class WatchRecorder:
    """One watch on pods, from the present state on, for as long as the context is open.

    Attributes:
        delays: seconds from each stamp to its arrival.
        arrivals: of each cluster, monotonic time of each arrival and the delay.
        numbers: numbers of the stamps by cluster, as they came.
        last_at: monotonic time of the last event.
    """

    def __init__(self, fed: InventoryClient) -> None:
        self._fed = fed
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.restart()

    def restart(self) -> None:
        """Forgets what was seen."""
        self.delays: list[float] = []
        self.arrivals: defaultdict[ClusterID, list[tuple[float, float]]] = defaultdict(list)
        self.numbers: defaultdict[ClusterID, list[int]] = defaultdict(list)
        self.last_at = 0.0

    async def wait(self, events: int) -> None:
        """Waits until so many events were seen.

        Raises:
            WrongResult: the watch ended, or nothing came for half a minute.
        """
        assert self._task is not None
        while len(self.delays) < events:
            if self._task.done():
                self._task.result()
            self._arrived.clear()
            try:
                async with asyncio.timeout(_LONGEST_SILENCE):
                    await self._arrived.wait()
            except TimeoutError:
                raise WrongResult(f"{len(self.delays)} of {events} events came") from None

    def check(self, written: Mapping[str, int], *, in_order: bool) -> None:
        """Checks that every change was seen, and once.

        Args:
            written: number of changes by cluster.
            in_order: the changes of a cluster were written one after the other, and must come so.

        Raises:
            WrongResult: it was not so.
        """
        if set(self.numbers) != {cluster for cluster, number in written.items() if number}:
            raise WrongResult(f"events came from {sorted(self.numbers)}")
        for cluster, number in written.items():
            seen = self.numbers[ClusterID(cluster)]
            if (seen if in_order else sorted(seen)) != list(range(number)):
                raise WrongResult(f"{cluster}: {number} changes, {len(seen)} events, {len(set(seen))} different ones")

    async def __aenter__(self) -> Self:
        cursor = (await self._fed.list("pods", limit=1)).cursor
        self._task = asyncio.create_task(self._run(cursor), name="watch recorder")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self, cursor: bytes) -> None:
        try:
            async with aclosing(self._fed.watch("pods", cursor=cursor)) as events:
                async for event in events:
                    self._take(event)
        finally:
            self._arrived.set()

    def _take(self, event: Event) -> None:
        if event.type is not EventType.MODIFIED:
            return
        assert event.object is not None
        stamp = read_stamp(event.object.body)
        if stamp is not None:
            now = time.monotonic_ns()
            delay = (now - stamp.written_ns) / 1e9
            self.delays.append(delay)
            self.arrivals[event.object.cluster_id].append((now / 1e9, delay))
            self.numbers[event.object.cluster_id].append(stamp.number)
            self.last_at = now / 1e9
            self._arrived.set()
