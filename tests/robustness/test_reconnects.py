"""Five hundred watches lose their aggregator in one instant and come back to the next one together."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from federator.client import EventType, InventoryClient, aconnect
from federator.errors import FederatorError
from federator.testing import FakeApiServer
from federator.testing.federation import Federation
from federator.testing.process_group import Process
from tests.fixtures import no_proxies, no_system_authorities
from tests.robustness.linked_bed import Member, eventually, fill

__all__ = ["no_proxies", "no_system_authorities"]

CLIENTS, WATCHES_EACH = 25, 20
PODS = 100
CHANGES = 10
"""Before the restart, and again while nobody serves."""

ALL_CURRENT_WITHIN = 45.0
"""Seconds; clients wait up to 5 s before they dial, and this process does the work of all of them."""

ROOM = 64 * 1024 * 1024
"""Bytes that the returning watches may take at most, all together, beyond what as many took that came at leisure."""


class Watcher:
    """One watch from a cursor.

    Attributes:
        seen: name and version of the pods that changed, in order.
        others: events that a watch inside its history is not sent.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.others: list[EventType] = []

    async def run(self, fed: InventoryClient, cursor: bytes) -> None:
        async with aclosing(fed.watch("pods", cursor=cursor)) as events:
            async for event in events:
                if event.type is EventType.MODIFIED:
                    assert event.object is not None
                    self.seen.append((event.object.name, event.object.resource_version))
                elif event.type not in {EventType.BOOKMARK, EventType.CLUSTER}:
                    self.others.append(event.type)


@pytest.mark.timeout(240)
async def test_five_hundred_watches_come_back_at_once_and_none_is_told_anything_twice(tmp_path: Path) -> None:
    """SIGKILL of the aggregator under 500 watches; all resume from their cursors and get what they missed, only."""
    ingest = f"unix:{tmp_path / 'ingest.sock'}"
    async with AsyncExitStack() as stack:
        federation = Federation(Path(), (), folder=tmp_path, aggregator_arguments=(f"--ingest-listen={ingest}",))
        stack.callback(federation.close)
        apiserver = await stack.enter_async_context(FakeApiServer())
        names = fill(apiserver, PODS)
        member = Member("c0", apiserver, tmp_path)
        federation.start_aggregator()
        member.start_agent(ingest, backoff_max=0.5)
        stack.push_async_callback(member.stop_agent)
        clients = [await stack.enter_async_context(aconnect(federation.address)) for _ in range(CLIENTS)]
        cursor = await _all_there(clients[0])
        watchers = [Watcher() for _ in range(CLIENTS * WATCHES_EACH)]
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(watcher.run(clients[number % CLIENTS], cursor), name=f"watcher {number}")
                for number, watcher in enumerate(watchers)
            ]
            wanted = _change(apiserver, names[:CHANGES])
            await eventually(lambda: all(watcher.seen == wanted for watcher in watchers), timeout=ALL_CURRENT_WITHIN)
            at_leisure = _peak(federation.processes["aggregator"])
            federation.kill("aggregator")
            wanted += _change(apiserver, names[CHANGES : 2 * CHANGES])
            federation.start_aggregator()
            await eventually(
                lambda: all(len(watcher.seen) >= len(wanted) for watcher in watchers), timeout=ALL_CURRENT_WITHIN
            )
            at_once = _peak(federation.processes["aggregator"])
            wanted += _change(apiserver, names[:1])
            await eventually(lambda: all(watcher.seen[-1] == wanted[-1] for watcher in watchers), timeout=20)
            for task in running:
                task.cancel()
        assert all(sorted(watcher.seen) == sorted(wanted) for watcher in watchers), "each change once"
        assert {event for watcher in watchers for event in watcher.others} == set(), "nobody was listed to again"
        assert sum(int(fed.statistics()["resumes"]) for fed in clients) >= len(watchers)
        assert at_once < at_leisure + ROOM


async def _all_there(fed: InventoryClient) -> bytes:
    async with asyncio.timeout(60):
        while True:
            answer = await fed.list("pods", timeout=60) if await _serves(fed) else None
            if answer is not None and answer.complete and len(answer.items) == PODS:
                return answer.cursor
            await asyncio.sleep(0.1)


async def _serves(fed: InventoryClient) -> bool:
    """Whether the aggregator answers, and its only cluster has told it of pods."""
    try:
        return any(each.type.resource == "pods" for each in await fed.resource_types(timeout=5))
    except FederatorError:
        return False


def _change(apiserver: FakeApiServer, names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, apiserver.touch("pods", name)["metadata"]["resourceVersion"]) for name in names]


def _peak(process: Process) -> int:
    """Largest resident memory that a process has had, in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024
