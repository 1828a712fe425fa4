"""Load: very many watches of everything.

    python -m tests.bench.raw_watch_load ADDRESS CONNECTIONS [small-windows]

With small windows gRPC takes in 64 KB of a stream that nobody reads; else it finds out how much the connection carries,
which on one machine are megabytes. Commands:

- `{"open": number, "group": name, "resources": types, "cursor": in hexadecimal}` opens watches over the connections in
  turn, and answers when each was sent something; so there has to be something after the cursor. `"decode": number` of
  them decode what they get; the others count bytes. With `"reads": false` they take nothing at all, as a client that
  hangs.
- `{"wait": group, "events": number, "seconds": at most}` waits until every watch of a group has had so many changes
  since the last such command, and answers when the last of them came (`last_at`, monotonic), how many came to all
  together (`events`), the last `revisions`, without repeats, and what each decoding watch has `seen`: by cluster
  `[resourceVersion, monotonic time]` of each change. A watch that has more changes than that ends the load.
- `{"read": group, "number": of watches}` lets some that took nothing begin to.
- `{"close": group}` ends its watches.

Every answer has the `cpu` that the load used so far.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

import grpc

from federator.v1 import inventory_pb2
from tests.bench.load_process import Json, serve
from tests.bench.raw_watch import RawWatch

_OPENED_AT_ONCE = 250
"""Of calls that it has not got round to, a gRPC server cancels some at random from 1,000 on."""


class Watches:
    """All watches of this process, by group."""

    def __init__(self, channels: Sequence[grpc.aio.Channel]) -> None:
        self._channels = channels
        self._groups: dict[str, list[RawWatch]] = {}
        self._tasks: dict[RawWatch, asyncio.Task[None]] = {}

    async def answer(self, command: Json) -> Json:
        """Does what a command says."""
        told: Json = {}
        match command:
            case {"open": number}:
                await self._open(number, command)
            case {"wait": group}:
                told = await self._wait(self._groups[group], command["events"], command["seconds"])
            case {"read": group}:
                watches = self._groups[group]
                del watches[command["number"] :]
                self._read(watches)
            case {"close": group}:
                for watch in self._groups.pop(group):
                    if watch in self._tasks:
                        self._tasks.pop(watch).cancel()
                    watch.cancel()
        return {**told, "cpu": time.process_time()}

    async def _open(self, number: int, command: Json) -> None:
        request = inventory_pb2.WatchRequest(
            selection=inventory_pb2.Selection(resources=command["resources"]), cursor=bytes.fromhex(command["cursor"])
        ).SerializeToString()
        decoding = command.get("decode", 0)
        group = self._groups.setdefault(command["group"], [])
        for start in range(0, number, _OPENED_AT_ONCE):
            watches = [
                RawWatch(
                    self._channels[place % len(self._channels)],
                    request,
                    # Spread over all: those that were opened first may be served first.
                    decodes=place * decoding // number != (place + 1) * decoding // number,
                )
                for place in range(start, min(number, start + _OPENED_AT_ONCE))
            ]
            group += watches
            if command.get("reads", True):
                self._read(watches)
                for watch in watches:
                    await watch.arrived.wait()

    def _read(self, watches: Sequence[RawWatch]) -> None:
        for watch in watches:
            task = asyncio.create_task(watch.read(), name="watch")
            task.add_done_callback(lambda ended: ended.cancelled() or sys.exit(f"a watch ended: {ended.exception()}"))
            self._tasks[watch] = task

    async def _wait(self, watches: Sequence[RawWatch], expected: int, seconds: float) -> Json:
        try:
            async with asyncio.timeout(seconds):
                for watch in watches:
                    while watch.events < expected:
                        watch.arrived.clear()
                        await watch.arrived.wait()
        except TimeoutError:
            pass
        events = 0
        for watch in watches:
            if watch.events > expected:
                sys.exit(f"{watch.events} events instead of {expected}")
            events += watch.events
            watch.events -= expected  # what is still to come belongs to this command
        seen = [watch.seen for watch in watches if watch.seen]
        for watch in watches:
            watch.seen = {}
        return {
            "last_at": max(watch.last_at for watch in watches),
            "events": events,
            "revisions": sorted({watch.revision for watch in watches}),
            "seen": seen,
        }


async def main(address: str, connections: str, windows: str = "") -> None:
    """Serves commands."""
    # Connections of one process to one address are shared otherwise.
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", int(not windows))]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(int(connections))]
    await serve(Watches(channels).answer)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
