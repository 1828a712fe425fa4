"""Load: many watches of the same pods.

    python -m tests.bench.watch_load ADDRESS LABELS

Commands: `{"watches": number}` opens watches until there are so many, each on a connection of its own, and answers
when all have the present state behind them. `{"events": number}` waits until every watch has had so many changes since
the last such command, and answers when the last one came (`last_at`, monotonic). A watch that has more, or whose
revisions do not grow, ends the load.
"""

from __future__ import annotations

import asyncio
import sys
import time

import grpc

from federator.v1 import inventory_pb2, inventory_pb2_grpc
from tests.bench.load_process import Json, serve

_LONGEST_SILENCE = 30.0


class CountingWatch:
    """One watch, by the generated stub alone: a hundred of them must not be slower than what serves them.

    Attributes:
        events: changes seen since the last command.
        last_at: monotonic time of the last one.
    """

    def __init__(self, address: str, labels: str) -> None:
        # Connections of one process to one address are shared otherwise.
        self._channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        selection = inventory_pb2.Selection(resources=["pods"], label_selector=labels)
        self._request = inventory_pb2.WatchRequest(selection=selection)
        self._synced = asyncio.Event()
        self.arrived = asyncio.Event()
        self.events = 0
        self.last_at = 0.0
        self._revision = 0

    async def open(self) -> asyncio.Task[None]:
        """Starts it and waits until it has the present state."""
        task = asyncio.create_task(self._run(), name="watch")
        task.add_done_callback(lambda ended: ended.cancelled() or sys.exit(f"a watch ended: {ended.exception()}"))
        await self._synced.wait()
        return task

    async def _run(self) -> None:
        stub: inventory_pb2_grpc.InventoryServiceAsyncStub = inventory_pb2_grpc.InventoryServiceStub(self._channel)
        async for response in stub.Watch(self._request):
            for event in response.events:
                match event.type:
                    case inventory_pb2.WATCH_EVENT_TYPE_INITIAL_END:
                        self._synced.set()
                    case inventory_pb2.WATCH_EVENT_TYPE_MODIFIED:
                        if event.revision <= self._revision:
                            raise AssertionError(f"revision {event.revision} after {self._revision}")
                        self._revision = event.revision
                        self.events += 1
            self.last_at = time.monotonic()
            self.arrived.set()


class Watches:
    """All watches."""

    def __init__(self, address: str, labels: str) -> None:
        self._address = address
        self._labels = labels
        self._open: list[CountingWatch] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def answer(self, command: Json) -> Json:
        """Does what a command says."""
        if "watches" in command:
            more = [CountingWatch(self._address, self._labels) for _ in range(command["watches"] - len(self._open))]
            self._tasks += await asyncio.gather(*(watch.open() for watch in more))
            self._open += more
            return {}
        expected: int = command["events"]
        for watch in self._open:
            await self._wait(watch, expected)
            watch.events = 0
        return {"last_at": max(watch.last_at for watch in self._open)}

    async def _wait(self, watch: CountingWatch, expected: int) -> None:
        while watch.events < expected:
            watch.arrived.clear()
            async with asyncio.timeout(_LONGEST_SILENCE):
                await watch.arrived.wait()
        if watch.events > expected:
            sys.exit(f"{watch.events} events instead of {expected}")


async def main(address: str, labels: str) -> None:
    """Serves commands."""
    await serve(Watches(address, labels).answer)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
