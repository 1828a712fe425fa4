"""Scenario `fan-out`: fifty watches of everything, at rates that grow until the watches no longer keep up."""

from __future__ import annotations

from pathlib import Path

from tests.bench.corpus_bed import Delivered, corpus_bed, watch_processes
from tests.bench.figure import FEDERATOR, MACHINE, Figure

_CLUSTERS, _OBJECTS_EACH = 2, 5_000
_WATCHES, _PROCESSES = 50, 2

_RATES = (250, 500, 1_000, 2_000, 4_000, 6_000, 8_000, 10_000, 12_000)
"""Changes a second."""

_SECONDS = 4.0

_LAG = 1.0
"""Seconds within which a rate is still kept: by the load beyond its time, by the watches after the load's end."""

_PATIENCE = 120.0
"""Seconds that watches which do not keep up may take for the rest."""


async def fan_out(sample: Path) -> list[Figure]:
    """Deliveries a second, at the highest rate that is kept and at the first that is not."""
    figures: list[Figure] = []
    sustained = 0.0
    async with (
        corpus_bed(sample, clusters=_CLUSTERS, objects=_OBJECTS_EACH) as bed,
        watch_processes(bed, processes=_PROCESSES, connections=_WATCHES // _PROCESSES) as watches,
    ):
        await watches.open("all", _WATCHES)
        for rate in _RATES:
            deltas = round(rate * _SECONDS)
            delivered = await watches.follow("all", _WATCHES, deltas, patience=_PATIENCE, rate=rate)
            figures += _rows(f"{_WATCHES} watches of everything, {rate} changes/s asked", delivered)
            if delivered.events < deltas * _WATCHES or _lag(delivered) > _LAG:
                break
            sustained = max(sustained, _deliveries(delivered))
            if delivered.told["settled"] - delivered.told["began"] > _SECONDS + _LAG:
                break  # not even the load gets rid of more
        await watches.catch_up("all")
        await bed.check_states(delivered.told)
    return [
        Figure(f"{_WATCHES} watches of everything", FEDERATOR, "deliveries sustained", sustained, "1/s", ">= 500000"),
        *figures,
    ]


def _rows(scenario: str, delivered: Delivered) -> list[Figure]:
    span = delivered.span
    return [
        Figure(scenario, FEDERATOR, "deliveries", _deliveries(delivered), "1/s"),
        Figure(scenario, FEDERATOR, "last watch behind the last acknowledgement", _lag(delivered) * 1000, "ms"),
        Figure(scenario, FEDERATOR, "CPU per delivery", span.aggregator / delivered.events * 1e6, "CPU-us"),
        Figure(scenario, FEDERATOR, "CPU of the aggregator", span.aggregator / span.seconds * 100, "%"),
        Figure(scenario, MACHINE, "CPU of the watching clients", delivered.watching_cpu / span.seconds * 100, "%"),
        Figure(scenario, MACHINE, "CPU in use", span.machine_percent, "%"),
    ]


def _deliveries(delivered: Delivered) -> float:
    return delivered.events / (delivered.last_at - float(delivered.told["began"]))


def _lag(delivered: Delivered) -> float:
    return delivered.last_at - float(delivered.told["settled"])
