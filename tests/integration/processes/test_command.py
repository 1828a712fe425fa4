"""How a command ends, as a process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from federator.client import EventType
from federator.v1 import inventory_pb2
from tests.component.client.scripted_inventory import ScriptedInventory, event, freshness, inventory_object


def answer(count: int) -> Sequence[inventory_pb2.ListResponse]:
    objects = [inventory_object("eu-1", f"web-{number}") for number in range(count)]
    summary = inventory_pb2.ListSummary(cursor=b"c1", total=count, complete=True, clusters=[freshness("eu-1")])
    return [inventory_pb2.ListResponse(objects=objects), inventory_pb2.ListResponse(summary=summary)]


# What its console script does. As in a terminal: a test run in the background hands down that it ignores Ctrl-C.
PROGRAM = (
    sys.executable,
    "-c",
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from federator.cli.main import main; sys.exit(main())",
)


async def test_nobody_reads_on(inventory: ScriptedInventory) -> None:
    closed = asyncio.Event()
    inventory.list_pages = [answer(1_000)[0], closed, *answer(1_000)]
    read, write = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "get", "pods", "--chunk-size=0", "-o", "name", stdout=write, stderr=asyncio.subprocess.PIPE
    )
    os.close(write)
    assert await asyncio.to_thread(os.read, read, 4) == b"eu-1"
    os.close(read)
    closed.set()
    _, said = await process.communicate()
    assert (process.returncode, said) == (0, b"")


async def test_interrupted(inventory: ScriptedInventory) -> None:
    inventory.list_pages = answer(1)
    inventory.watches = [[event(EventType.BOOKMARK, cursor=b"c2")]]
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "get", "pods", "-w", "--no-headers", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"eu-1")
    await inventory.watch_opened.wait()
    process.send_signal(signal.SIGINT)
    out, said = await process.communicate()
    assert (process.returncode, out, said) == (130, b"", b"")
    await inventory.watch_closed.wait()
