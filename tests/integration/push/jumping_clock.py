"""A whole aggregator in a process whose wall clock a test has set, an hour ahead and an hour behind.

`python -m tests.integration.push.jumping_clock FOLDER` writes what its readers saw of each as one JSON document.
"""

from __future__ import annotations

import time

_read_clock = time.time
_ahead = 0.0


def _clock() -> float:
    return _read_clock() + _ahead


time.time = _clock  # before anything else is imported, which may keep it

import asyncio  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from federator.aggregator.aggregator import Aggregator  # noqa: E402
from federator.aggregator.ingest.settings import IngestSettings  # noqa: E402
from federator.client import EventType, aconnect  # noqa: E402
from federator.v1 import ingest_pb2  # noqa: E402
from tests.component.aggregator.running import running, settings  # noqa: E402
from tests.integration.push.raw_agent import pushed, raw_agent  # noqa: E402

BEATS = IngestSettings(heartbeat_interval=0.8)
HOUR = 3600.0
JUMPS = (HOUR, -HOUR, 0.0)
"""Seconds by which the clock is ahead, one after the other."""


async def run(folder: Path) -> dict[str, list[object]]:
    """What a list told after each jump, and the events of a watch that was open all the time."""
    global _ahead  # noqa: PLW0603 - the clock is the whole process'
    seen: dict[str, list[object]] = {"states": [], "complete": [], "objects": [], "revisions": [], "events": []}
    serving = Aggregator(settings(folder, state_directory=folder / "state", ingest=BEATS, compaction_interval=0.2))
    async with running(serving), aconnect(serving.address) as fed, raw_agent(serving.ingest_address) as agent:
        await agent.snapshot(1, "a")
        sequence = 4
        is_open = asyncio.Event()

        async def watch() -> None:
            async for event in fed.watch("pods"):
                if event.type is not EventType.BOOKMARK:
                    seen["events"].append(event.type)
                if event.type is EventType.INITIAL_END:
                    is_open.set()

        watching = asyncio.create_task(watch(), name="watch")
        async with asyncio.timeout(30):
            await is_open.wait()
        for jump in JUMPS:
            sign = ingest_pb2.TypeProof(resource="pods", age_ms=1)
            await agent.send(heartbeat=ingest_pb2.Heartbeat(proofs=[sign]))
            await agent.put(sequence, pushed(f"p-{sequence}"))
            await agent.acknowledged(sequence)
            sequence += 1
            _ahead = jump
            # The aggregator looks twice for who is silent, and nobody has been for too long.
            await asyncio.sleep(1.1 * BEATS.heartbeat_interval)
            found = await fed.list("pods")
            seen["states"].append(found.clusters["c0"].state)  # type: ignore[index]
            seen["complete"].append(found.complete)
            seen["objects"].append(len(found.items))
            seen["revisions"].append(found.revision)
        assert not watching.done()
        watching.cancel()
        await asyncio.wait([watching])
    return seen


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(asyncio.run(run(Path(sys.argv[1])))))
