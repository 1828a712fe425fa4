"""`make bench`: the first sync of three real clusters, by agents and an aggregator as processes of their own.

    python -m tests.bench [--pods N]

Prints a table and writes `build/bench.json`, a list of {scenario, contender, metric, value, unit}. The machine is
shared with the apiservers, so that only CPU-seconds and memory of the federation's own processes are told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

from federator import __version__
from federator.observability.logs import configure_logging
from federator.testing.federation import Federation
from federator.testing.process_group import Process
from federator.testing.testbed import Testbed
from federator.testing.workload import Workload

NAMES = ("ap-1", "eu-1", "us-1")
_TICKS = os.sysconf("SC_CLK_TCK")


class Figure(NamedTuple):
    """One row of the report."""

    scenario: str
    contender: str
    metric: str
    value: float
    unit: str


async def first_sync(pods: int) -> list[Figure]:
    """Three apiservers with this many pods each, of the same names; from the start of the processes to all LIVE."""
    scenario = f"first sync, {len(NAMES)} clusters with {pods} pods each"
    async with Testbed(NAMES) as bed:
        await asyncio.gather(*(Workload(plane).fill(applications=0, pods=pods) for plane in bed))
        federation = Federation(bed.kubeconfig, NAMES)
        try:
            began = time.monotonic()
            await federation.start()
            wall = time.monotonic() - began
            async with federation.client() as fed:
                answer = await fed.list("pods", limit=1)
                assert answer.complete
                assert answer.total == len(NAMES) * pods, answer.total
            agents = [process for name, process in federation.processes.items() if name != "aggregator"]
            aggregator = federation.processes["aggregator"]
            contender = f"federator {__version__}"
            return [
                Figure(scenario, contender, "wall time", wall, "s"),
                Figure(scenario, contender, "CPU of the agents", sum(map(cpu_seconds, agents)), "CPU-s"),
                Figure(scenario, contender, "CPU of the aggregator", cpu_seconds(aggregator), "CPU-s"),
                Figure(scenario, contender, "memory of one agent", max(one.memory() for one in agents) / 1e6, "MB"),
                Figure(scenario, contender, "memory of the aggregator", aggregator.memory() / 1e6, "MB"),
            ]
        finally:
            federation.close()


def cpu_seconds(process: Process) -> float:
    """CPU time a process has used, user and system; threads included."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def main() -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pods", type=int, default=10_000, help="pods in each cluster (10000)")
    options = parser.parse_args()
    configure_logging("warning")
    figures = asyncio.run(first_sync(options.pods))
    width = max(len(figure.metric) for figure in figures)
    sys.stdout.write(f"{figures[0].scenario}; {figures[0].contender}, Python {sys.version.split()[0]}\n")
    for figure in figures:
        sys.stdout.write(f"  {figure.metric:<{width}}  {figure.value:8.1f} {figure.unit}\n")
    report = Path("build/bench.json")
    report.parent.mkdir(exist_ok=True)
    report.write_text(json.dumps([figure._asdict() for figure in figures], indent=1) + "\n")
    sys.stdout.write(f"written to {report}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
