"""Scenario `steady-updates`: pods of three real clusters change at a steady rate, and one client watches."""

from __future__ import annotations

import asyncio
import time

from federator.api.resource import GroupResource
from federator.testing.federation import Federation
from federator.testing.testbed import Testbed
from tests.bench.figure import FEDERATOR, MACHINE, Figure, WrongResult, delays
from tests.bench.load_process import LoadProcess
from tests.bench.usage import Span
from tests.bench.watch_recorder import WatchRecorder
from tests.integration.federation import truth

RATES = (100, 200)
"""Updates a second over all clusters; three apiservers on two cores take some 240."""

SECONDS = 30.0
IDLE_SECONDS = 15.0


async def steady_updates(bed: Testbed, federation: Federation) -> list[Figure]:
    """Measures a running federation, at rest and at each rate; then compares it with what the apiservers hold."""
    arguments = [text for plane in bed for text in (plane.name, plane.url, str(plane.folder))]
    async with (
        federation.client() as fed,
        LoadProcess("tests.bench.update_load", *arguments) as load,
        WatchRecorder(fed) as recorder,
    ):
        figures = await _at_rest(federation)
        for rate in RATES:
            figures += await _at_rate(federation, load, recorder, rate)
        await _check(bed, federation)
    return figures


async def _at_rest(federation: Federation) -> list[Figure]:
    scenario = f"at rest, {len(federation.contexts)} clusters, 1 watch"
    span = Span(federation.processes)
    await asyncio.sleep(IDLE_SECONDS)
    span.end()
    return [
        Figure(scenario, FEDERATOR, "CPU of the agents", span.agents / span.seconds * 1000, "CPU-ms/s"),
        Figure(scenario, FEDERATOR, "CPU of the aggregator", span.aggregator / span.seconds * 1000, "CPU-ms/s"),
        Figure(scenario, MACHINE, "CPU in use", span.machine_percent, "%"),
    ]


async def _at_rate(federation: Federation, load: LoadProcess, recorder: WatchRecorder, rate: float) -> list[Figure]:
    scenario = f"{rate} updates/s over {len(federation.contexts)} clusters, 1 watch"
    recorder.restart()
    span = Span(federation.processes)
    began = time.monotonic()
    told = await load.ask(rate=rate, seconds=SECONDS)
    written = told["written"]
    updates = sum(written.values())
    await recorder.wait(updates)
    span.end()
    recorder.check(written, in_order=False)
    return [
        Figure(scenario, "kube-apiserver", "updates", updates / told["wall"], "1/s"),
        Figure(scenario, FEDERATOR, "events at the watch", updates / (recorder.last_at - began), "1/s"),
        Figure(scenario, FEDERATOR, "CPU of the agents per event", span.agents / updates * 1000, "CPU-ms"),
        Figure(scenario, FEDERATOR, "CPU of the aggregator per event", span.aggregator / updates * 1000, "CPU-ms"),
        *delays(scenario, "from the write's start to the watch", recorder.delays),
        *(
            figure._replace(contender="kube-apiserver")
            for figure in delays(scenario, "from the write's start to its answer", told["seconds"])
        ),
        Figure(scenario, MACHINE, "CPU in use", span.machine_percent, "%"),
    ]


async def _check(bed: Testbed, federation: Federation) -> None:
    """Compares every pod, byte for byte, with what its apiserver lists."""
    theirs = await truth.listed(bed, federation.contexts, only={GroupResource("", "pods")})
    async with federation.client() as fed:
        mine = await truth.held(fed, ["pods"])
    if mine != theirs:
        differing = [key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)]
        raise WrongResult(f"{len(differing)} of {len(theirs)} pods differ from the apiservers', e.g. {differing[0]}")
