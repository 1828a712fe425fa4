"""Scenarios `watch-latency` and `stalled-watches`: how long a change takes to watches of everything."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from tests.bench.corpus_bed import Delivered, Watches, corpus_bed, delays_of, watch_processes
from tests.bench.figure import FEDERATOR, MACHINE, Figure, delays, percentile
from tests.bench.usage import memory

_CLUSTERS, _OBJECTS_EACH = 2, 5_000
_PROCESSES = 2
_DECODING = 4
"""Watches that look into what they get; the others only count it."""

_PATIENCE = 30.0
"""Seconds after the last acknowledgement; what has not come by then counts as having taken so long."""


class _Case(NamedTuple):
    """Changes a second, for so many seconds, to so many watches; and what their delays should be, in milliseconds."""

    rate: int
    seconds: float
    watches: int
    bars: tuple[str, str]


_CASES = (_Case(1_000, 8.0, 50, ("<= 3", "<= 20")), _Case(5_000, 3.0, 200, ("", "<= 100")))

_HEALTHY, _STALLED, _STALLED_READING = 100, 100, 3
_STALLED_RATE, _STALLED_SECONDS, _ROUNDS = 200, 6.0, 2
_STALLING_CHANGES = 400
"""Pushed before the clock runs: 0.8 MB for each watch, of which one that does not read is sent a tenth."""

_SERVED_SECONDS = 25.0
"""A watch that takes no message for half a minute is ended, and cannot read on."""


async def watch_latency(sample: Path) -> list[Figure]:
    """Changes at two rates."""
    figures: list[Figure] = []
    for case in _CASES:
        async with (
            corpus_bed(sample, clusters=_CLUSTERS, objects=_OBJECTS_EACH) as bed,
            watch_processes(bed, processes=_PROCESSES, connections=case.watches // _PROCESSES) as watches,
        ):
            await watches.open("all", case.watches, decode=_DECODING)
            delivered = await _timed(watches, "all", case.watches, case.rate, case.seconds)
            figures += _rows(case, delivered)
            await watches.catch_up("all")
            await bed.check_states(delivered.told)
    return figures


async def stalled_watches(sample: Path) -> list[Figure]:
    """The same, with and without other watches that take nothing."""
    scenario = f"{_STALLED_RATE} changes/s, {_HEALTHY} healthy watches"
    without: list[float] = []
    beside: list[float] = []
    async with (
        corpus_bed(sample, clusters=_CLUSTERS, objects=_OBJECTS_EACH) as bed,
        watch_processes(bed, processes=_PROCESSES, connections=_HEALTHY // _PROCESSES) as watches,
        watch_processes(bed, processes=1, connections=_STALLED, small_windows=True) as stalled,
    ):
        await watches.open("healthy", _HEALTHY, decode=_DECODING)
        used = before = memory(bed.federation.processes["aggregator"]).now
        for number in range(_ROUNDS):  # in turn, so that what else happens to the machine happens to both
            delivered = await _timed(watches, "healthy", _HEALTHY, _STALLED_RATE, _STALLED_SECONDS)
            await watches.catch_up("healthy")
            without += delays_of(delivered)[0]
            group = f"stalled {number}"
            before = memory(bed.federation.processes["aggregator"]).now
            await stalled.open(group, _STALLED, reads=False)
            opened_at = time.monotonic()
            await watches.take("healthy", bed.nudge)
            await watches.follow("healthy", _HEALTHY, _STALLING_CHANGES, patience=_PATIENCE, rate=_STALLED_RATE)
            await watches.catch_up("healthy")
            delivered = await _timed(watches, "healthy", _HEALTHY, _STALLED_RATE, _STALLED_SECONDS)
            used = memory(bed.federation.processes["aggregator"]).now
            await watches.catch_up("healthy")
            beside += delays_of(delivered)[0]
            if time.monotonic() < opened_at + _SERVED_SECONDS:
                # Whoever begins to read in time has lost nothing.
                await stalled.ask(read=group, number=_STALLED_READING)
                changes = bed.nudge + _STALLING_CHANGES + round(_STALLED_RATE * _STALLED_SECONDS)
                await stalled.take(group, changes)
            await stalled.ask(close=group)
        await bed.check_states(delivered.told)
    ratio = percentile(beside, 99) / percentile(without, 99)
    what = "from a frame's write to the healthy watches"
    return [
        *delays(scenario, what, without),
        *delays(f"{scenario}, {_STALLED} stalled ones", what, beside),
        Figure(scenario, FEDERATOR, "p99 with the stalled ones to p99 without", ratio, "x", "<= 1.10"),
        Figure(scenario, FEDERATOR, "memory per stalled watch", (used - before) / _STALLED * 1000, "kB"),
    ]


async def _timed(watches: Watches, group: str, number: int, rate: int, seconds: float) -> Delivered:
    return await watches.follow(group, number, round(rate * seconds), patience=_PATIENCE, rate=rate)


def _rows(case: _Case, delivered: Delivered) -> list[Figure]:
    scenario = f"{case.rate} changes/s, {case.watches} watches of everything"
    from_write, from_acknowledgement = delays_of(delivered)
    timed = delays(scenario, "from a frame's write to the watches", from_write)
    told, span = delivered.told, delivered.span
    deltas = round(case.rate * case.seconds)
    return [
        *(figure._replace(bar=bar) for figure, bar in zip(timed, case.bars, strict=True)),
        *delays(scenario, "from its acknowledgement to the watches", from_acknowledgement),
        Figure(scenario, FEDERATOR, "changes acknowledged", deltas / (told["settled"] - told["began"]), "1/s"),
        Figure(scenario, FEDERATOR, "events that came in time", delivered.events / deltas / case.watches * 100, "%"),
        Figure(scenario, FEDERATOR, "CPU of the aggregator", span.aggregator / span.seconds * 100, "%"),
        Figure(scenario, MACHINE, "CPU of the watching clients", delivered.watching_cpu / span.seconds * 100, "%"),
        Figure(scenario, MACHINE, "CPU in use", span.machine_percent, "%"),
    ]
