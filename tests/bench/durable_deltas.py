"""Scenario `durable-deltas`: changes of the corpus as fast as an aggregator makes them durable, and nobody watches."""

from __future__ import annotations

from pathlib import Path

from tests.bench.corpus_bed import corpus_bed
from tests.bench.figure import FEDERATOR, MACHINE, Figure, delays
from tests.bench.usage import Span, memory

_CLUSTERS, _OBJECTS_EACH = 2, 25_000
_DELTAS, _FRAME_DELTAS = 100_000, 500


async def durable_deltas(sample: Path) -> list[Figure]:
    """Frames of many deltas, without a pace."""
    scenario = f"frames of {_FRAME_DELTAS} deltas without a pace, no watch"
    async with corpus_bed(sample, clusters=_CLUSTERS, objects=_OBJECTS_EACH) as bed:
        aggregator = bed.federation.processes["aggregator"]
        await bed.load.ask(prepare=_DELTAS, frame=_FRAME_DELTAS)
        span = Span(bed.federation.processes)
        told = await bed.load.ask(push=True)
        span.end()
        used = memory(aggregator)
        await bed.check_states(told)
    frames = [frame for cluster in told["clusters"].values() for frame in cluster["frames"]]
    wall = told["settled"] - told["began"]
    return [
        Figure(
            scenario,
            FEDERATOR,
            "durable deltas per CPU-second",
            _DELTAS / span.aggregator,
            "1/CPU-s",
            ">= 20000, goal 40000",
        ),
        Figure(scenario, FEDERATOR, "durable deltas", _DELTAS / wall, "1/s"),
        *delays(
            scenario,
            "from a frame's write to its acknowledgement",
            (acknowledged - written for _, written, acknowledged in frames),
        ),
        Figure(scenario, FEDERATOR, "memory of the aggregator, peak", used.peak, "MB"),
        Figure(scenario, MACHINE, "CPU of the load", told["cpu"] / wall * 100, "%"),
        Figure(scenario, MACHINE, "CPU in use", span.machine_percent, "%"),
    ]
