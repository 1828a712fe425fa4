"""Scenario `idle-watches`: ten thousand watches of everything to which nothing happens."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.bench.corpus_bed import corpus_bed, watch_processes
from tests.bench.figure import FEDERATOR, Figure
from tests.bench.usage import Span, memory

_CLUSTERS, _OBJECTS_EACH = 2, 500
_FIRST_WATCHES, _WATCHES = 100, 10_000
"""The first ones are not counted: they pay for what all watches share."""

_CONNECTIONS = 100
_REST_SECONDS = 20.0
_PATIENCE = 120.0


async def idle_watches(sample: Path) -> list[Figure]:
    """Memory of a watch, what they use at rest, and how long a change takes to the last of them."""
    scenario = f"{_WATCHES} idle watches over {_CONNECTIONS} connections"
    async with (
        corpus_bed(sample, clusters=_CLUSTERS, objects=_OBJECTS_EACH) as bed,
        watch_processes(bed, processes=1, connections=_CONNECTIONS) as watches,
    ):
        aggregator = bed.federation.processes["aggregator"]
        await watches.open("first", _FIRST_WATCHES)
        before = memory(aggregator)
        opening = Span(bed.federation.processes)
        await watches.open("idle", _WATCHES)
        opening.end()
        after = memory(aggregator)
        rest = Span(bed.federation.processes)
        await asyncio.sleep(_REST_SECONDS)
        rest.end()
        delivered = await watches.follow("idle", _WATCHES, bed.nudge, patience=_PATIENCE, frame=1)
        await watches.catch_up("idle")
        await bed.check_states(delivered.told)
    per_watch = (after.now - before.now) / _WATCHES * 1e6 / 1024
    return [
        Figure(scenario, FEDERATOR, "memory per watch", per_watch, "KiB", "<= 32"),
        Figure(scenario, FEDERATOR, "CPU at rest", rest.aggregator / rest.seconds * 1000, "CPU-ms/s"),
        Figure(scenario, FEDERATOR, "CPU to open one", opening.aggregator / _WATCHES * 1e6, "CPU-us"),
        Figure(
            scenario,
            FEDERATOR,
            f"from the first of {bed.nudge} writes until all have both",
            (delivered.last_at - delivered.told["began"]) * 1000,
            "ms",
        ),
        Figure(scenario, FEDERATOR, "memory of the aggregator", after.now, "MB"),
    ]
