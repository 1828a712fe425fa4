"""Scenarios `start-up` and `first-sync`: three real clusters, from the start of the processes to all LIVE."""

from __future__ import annotations

import asyncio
import time

from federator.testing.federation import Federation
from federator.testing.testbed import Testbed
from federator.testing.workload import Workload
from tests.bench.figure import FEDERATOR, MACHINE, Figure, WrongResult
from tests.bench.usage import Span, cpu_seconds, memory


async def start_up(bed: Testbed, context: str) -> list[Figure]:
    """What an agent and an aggregator cost that have nothing to do: what a cluster of no pods holds."""
    scenario = "start-up, 1 empty cluster"
    federation = Federation(bed.kubeconfig, (context,))
    try:
        began = time.monotonic()
        await federation.start()
        wall = time.monotonic() - began
        agent, aggregator = federation.processes[f"agent-{context}"], federation.processes["aggregator"]
        return [
            Figure(scenario, FEDERATOR, "wall time until LIVE", wall, "s"),
            Figure(scenario, FEDERATOR, "CPU of one agent", cpu_seconds(agent), "CPU-s"),
            Figure(scenario, FEDERATOR, "CPU of the aggregator", cpu_seconds(aggregator), "CPU-s"),
            Figure(scenario, FEDERATOR, "memory of one agent", memory(agent).now, "MB"),
            Figure(scenario, FEDERATOR, "memory of the aggregator", memory(aggregator).now, "MB"),
        ]
    finally:
        federation.close()


async def fill(bed: Testbed, pods: int) -> None:
    """Gives each cluster this many pods, of the same names."""
    await asyncio.gather(*(Workload(plane).fill(applications=0, pods=pods) for plane in bed))


async def first_sync(federation: Federation, pods: int) -> list[Figure]:
    """Starts a federation over clusters with this many pods each, and leaves it running."""
    clusters = len(federation.contexts)
    scenario = f"first sync, {clusters} clusters with {pods} pods each"
    machine = Span({})
    began = time.monotonic()
    await federation.start()
    wall = time.monotonic() - began
    processes = federation.processes
    cpu = {name: cpu_seconds(process) for name, process in processes.items()}
    machine.end()
    await _check(federation, clusters * pods)
    of_aggregator = memory(processes["aggregator"])
    of_agent = max(memory(process) for name, process in processes.items() if name != "aggregator")
    cpu_of_aggregator = cpu.pop("aggregator")
    return [
        Figure(scenario, FEDERATOR, "wall time", wall, "s"),
        Figure(scenario, FEDERATOR, "pods", clusters * pods / wall, "1/s"),
        Figure(scenario, FEDERATOR, "CPU of the agents", sum(cpu.values()), "CPU-s"),
        Figure(scenario, FEDERATOR, "CPU of the aggregator", cpu_of_aggregator, "CPU-s"),
        Figure(scenario, FEDERATOR, "memory of one agent", of_agent.now, "MB"),
        Figure(scenario, FEDERATOR, "memory of one agent, peak", of_agent.peak, "MB"),
        Figure(scenario, FEDERATOR, "memory of the aggregator", of_aggregator.now, "MB"),
        Figure(scenario, FEDERATOR, "memory of the aggregator, peak", of_aggregator.peak, "MB"),
        Figure(scenario, MACHINE, "CPU in use", machine.machine_percent, "%"),
    ]


async def _check(federation: Federation, pods: int) -> None:
    async with federation.client() as fed:
        answer = await fed.list("pods", limit=1)
    if not answer.complete or answer.total != pods:
        raise WrongResult(f"{answer.total} of {pods} pods, complete: {answer.complete}")
