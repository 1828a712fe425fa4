"""Scenarios `aggregator-alone` and `many-watches`: one aggregator, fed by agents without clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from federator.client import InventoryClient
from federator.testing.federation import Federation
from federator.testing.scratch import ScratchFolder
from tests.bench.figure import FEDERATOR, MACHINE, Figure, WrongResult, delays
from tests.bench.load_process import LoadProcess
from tests.bench.push_load import APPS
from tests.bench.stamp import read_stamp
from tests.bench.usage import Span, memory
from tests.bench.watch_recorder import WatchRecorder

CLUSTERS = 4
PODS_EACH = 2_500

PACES = ((2_000, 15.0), (5_000, 20.0))
"""Deltas a second over all clusters, and for how long."""

BURST = 40_000
"""Deltas pushed without a pace; some ten seconds of them."""

WATCHES, WATCHED_RATE, WATCHED_SECONDS = 100, 1_000, 12.0
"""The ring holds what eight seconds at this rate bring, so that it is full in both halves of the comparison."""


async def aggregator_alone() -> list[Figure]:
    """A paced and an unpaced stream of deltas, with one watch."""
    async with (
        _aggregator() as (federation, load),
        federation.client() as fed,
        WatchRecorder(fed) as recorder,
    ):
        figures: list[Figure] = []
        for rate, seconds in PACES:
            figures += await _pushed(
                f"{rate} deltas/s into an aggregator, 1 watch", federation, load, recorder, rate=rate, seconds=seconds
            )
        figures += await _pushed(
            "deltas without a pace into an aggregator, 1 watch", federation, load, recorder, deltas=BURST
        )
    return figures


async def _pushed(
    scenario: str, federation: Federation, load: LoadProcess, recorder: WatchRecorder, **command: float
) -> list[Figure]:
    is_paced = "rate" in command
    recorder.restart()
    span = Span(federation.processes)
    told = await load.ask(**command)
    number = sum(told["written"].values())
    await recorder.wait(number)
    span.end()
    recorder.check(told["written"], in_order=True)
    async with federation.client() as fed:
        await _check(fed, told["written"])
    used = memory(federation.processes["aggregator"])
    return [
        Figure(scenario, FEDERATOR, "deltas acknowledged", number / told["wall"], "1/s"),
        Figure(scenario, FEDERATOR, "events at the watch", number / (recorder.last_at - told["began"]), "1/s"),
        Figure(scenario, FEDERATOR, "CPU per 1000 deltas", span.aggregator / number * 1000, "CPU-s"),
        *delays(scenario, "from a frame's write to its acknowledgement", told["seconds"]),
        # Without a pace, deltas are made long before they are written.
        *(delays(scenario, "from the delta to the watch", recorder.delays) if is_paced else ()),
        Figure(scenario, FEDERATOR, "memory of the aggregator", used.now, "MB"),
        Figure(scenario, FEDERATOR, "memory of the aggregator, peak", used.peak, "MB"),
        Figure(scenario, MACHINE, "CPU in use", span.machine_percent, "%"),
    ]


async def many_watches() -> list[Figure]:
    """The same load with one watch and with many on one selector, each of which means every eighth pod."""
    scenario = f"{WATCHED_RATE} deltas/s, {WATCHES} watches of every eighth"
    async with (
        _aggregator() as (federation, load),
        LoadProcess("tests.bench.watch_load", federation.address, f"app.kubernetes.io/name={APPS[0]}") as watches,
    ):
        before, _, used_before, events_before = await _watched(federation, load, watches, 1)
        span, seconds, used, events = await _watched(federation, load, watches, WATCHES)
    alone = before.aggregator / before.seconds * 1000
    together = span.aggregator / span.seconds * 1000
    per_event = (span.aggregator - before.aggregator) / (events * WATCHES - events_before) * 1e6
    return [
        Figure(scenario, FEDERATOR, "events at the watches", events * WATCHES / seconds, "1/s"),
        Figure(scenario, FEDERATOR, "CPU of the aggregator, 1 watch", alone, "CPU-ms/s"),
        Figure(scenario, FEDERATOR, "CPU of the aggregator", together, "CPU-ms/s"),
        Figure(scenario, FEDERATOR, "CPU per delivered event", per_event, "CPU-us"),
        Figure(scenario, FEDERATOR, "memory per watch", (used - used_before) / (WATCHES - 1) * 1000, "kB"),
        Figure(scenario, MACHINE, "CPU in use", span.machine_percent, "%"),
    ]


async def _watched(
    federation: Federation, load: LoadProcess, watches: LoadProcess, number: int
) -> tuple[Span, float, float, int]:
    """What the aggregator uses, seconds to the last event, its memory in MB, and events of each watch."""
    await watches.ask(watches=number)
    span = Span(federation.processes)
    told = await load.ask(rate=WATCHED_RATE, seconds=WATCHED_SECONDS)
    events = sum(_selected(written) for written in told["written"].values())
    last_at = (await watches.ask(events=events))["last_at"]
    span.end()
    return span, last_at - told["began"], memory(federation.processes["aggregator"]).now, events


def _selected(changes: int) -> int:
    """How many of a cluster's changes are of a pod of the first application."""
    return sum(number % PODS_EACH % len(APPS) == 0 for number in range(changes))


@asynccontextmanager
async def _aggregator() -> AsyncIterator[tuple[Federation, LoadProcess]]:
    """An aggregator with its ledger on disk, and agents that have pushed their snapshots."""
    scratch = ScratchFolder()
    socket = f"unix:{scratch.path / 'push.sock'}"
    try:
        async with (
            Federation(
                Path(), (), folder=scratch.path, aggregator_arguments=(f"--ingest-listen={socket}",)
            ) as federation,
            LoadProcess("tests.bench.push_load", socket, str(CLUSTERS), str(PODS_EACH)) as load,
        ):
            async with federation.client() as fed:
                answer = await fed.list("pods", limit=1)
            if not answer.complete or answer.total != CLUSTERS * PODS_EACH:
                raise WrongResult(f"{answer.total} pods after the snapshots, complete: {answer.complete}")
            yield federation, load
    finally:
        scratch.remove()


async def _check(fed: InventoryClient, written: Mapping[str, int]) -> None:
    """Checks that each pod is in the state of its last change, and the answer complete.

    Args:
        fed: where it is asked.
        written: number of deltas by cluster, each in turn over its pods.
    """
    answer = await fed.list("pods", timeout=60)
    if not answer.complete or len(answer.items) != CLUSTERS * PODS_EACH:
        raise WrongResult(f"{len(answer.items)} pods at the end, complete: {answer.complete}")
    for item in answer.items:
        place = int(item.name.rpartition("-")[2])
        last = place + (written[item.cluster_id] - 1 - place) // PODS_EACH * PODS_EACH
        stamp = read_stamp(item.body)
        if stamp is None or stamp.number != last:
            raise WrongResult(f"{item.key} is in the state of change {stamp and stamp.number}, not {last}")
