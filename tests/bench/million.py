"""Scenario `million`: very many objects arrive at once, are kept, and are there again after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path

from federator.client import InventoryClient
from federator.errors import FederatorError
from federator.testing.federation import Federation
from federator.testing.process_group import Process
from federator.testing.scratch import ScratchFolder
from tests.bench.corpus import FIRST_VERSION, Corpus
from tests.bench.corpus_load import cluster_id
from tests.bench.figure import FEDERATOR, MACHINE, Figure, WrongResult
from tests.bench.load_process import LoadProcess
from tests.bench.usage import Span, memory

OBJECTS = 1_000_000
_CLUSTERS, _LOADS = 10, 2
_FIRST_OBJECTS = 10_000
"""Of a cluster that is there before the others: the dictionaries are trained from it."""

_READ = 300
"""Objects that are read one by one and compared, byte for byte."""

_STOP_SECONDS, _START_SECONDS = 60.0, 300.0
_POLL = 0.05


async def million(sample: Path, objects: int) -> list[Figure]:
    """Snapshots of ten clusters at once, then a restart of the aggregator."""
    corpus = Corpus.read(sample)
    each, part = objects // _CLUSTERS, _CLUSTERS // _LOADS
    counts = corpus.counts(each)
    number = sum(counts.values()) * _CLUSTERS
    first_counts = corpus.counts(_FIRST_OBJECTS)
    totals = {resource: count * _CLUSTERS + first_counts[resource] for resource, count in counts.items()}
    scenario = f"{number} objects of {_CLUSTERS} clusters"
    scratch = ScratchFolder()
    try:
        async with Federation(Path(), (), folder=scratch.path) as federation:
            async with AsyncExitStack() as stack:
                # Its agent stays, as the answer is not complete without it.
                await stack.enter_async_context(_load(federation, sample, _CLUSTERS, 1, _FIRST_OBJECTS))
                loads = await asyncio.gather(
                    *(
                        stack.enter_async_context(
                            _load(federation, sample, place * part, part, each, str(scratch.path))
                        )
                        for place in range(_LOADS)
                    )
                )
                span = Span(federation.processes)
                told = await asyncio.gather(*(load.ask(snapshot=True) for load in loads))
                span.end()
                used = memory(federation.processes["aggregator"])
                async with federation.client() as fed:
                    await _check_totals(fed, corpus, totals, complete=True)
            # The agents are gone: each would end with an error when the aggregator does.
            room = _bytes_in(federation.folder / "state")
            if not await federation.processes["aggregator"].stop(_STOP_SECONDS):
                raise WrongResult("the aggregator did not end by itself")
            starting = time.monotonic()
            federation.start_aggregator()
            await _answers(federation)
            started = time.monotonic() - starting
            used_again = memory(federation.processes["aggregator"])
            async with federation.client() as fed:
                await _check_totals(fed, corpus, totals, complete=False)
                await _check_some(fed, corpus, counts)
    finally:
        scratch.remove()
    wall = max(each["settled"] for each in told) - min(each["began"] for each in told)
    return [
        Figure(scenario, FEDERATOR, "from the first write to the last acknowledgement", wall, "s", "<= 60"),
        Figure(scenario, FEDERATOR, "objects", number / wall, "1/s"),
        Figure(scenario, FEDERATOR, "objects per CPU-second", number / span.aggregator, "1/CPU-s"),
        Figure(scenario, FEDERATOR, "file per object", room / sum(totals.values()), "bytes", "<= 900, goal 600"),
        Figure(scenario, FEDERATOR, "memory of the aggregator", used.now, "MB"),
        Figure(scenario, FEDERATOR, "memory of the aggregator, peak", used.peak, "MB"),
        Figure(scenario, FEDERATOR, "from a restart to the first answer", started, "s", "<= 15"),
        Figure(scenario, FEDERATOR, "memory of the restarted aggregator", used_again.now, "MB"),
        Figure(scenario, MACHINE, "CPU of the load", sum(each["cpu"] for each in told) / wall * 100, "%"),
        Figure(scenario, MACHINE, "CPU in use", span.machine_percent, "%"),
    ]


def _load(federation: Federation, sample: Path, first: int, clusters: int, objects: int, *folder: str) -> LoadProcess:
    numbers = map(str, (first, clusters, objects))
    return LoadProcess("tests.bench.corpus_load", federation.ingest_address, str(sample), *numbers, *folder)


async def _answers(federation: Federation) -> None:
    """Waits until the aggregator answers a question about objects."""
    process: Process = federation.processes["aggregator"]
    async with asyncio.timeout(_START_SECONDS):
        while process.running:
            async with federation.client() as fed:
                with contextlib.suppress(FederatorError):
                    await fed.list("pods", limit=1)
                    return
            await asyncio.sleep(_POLL)
    raise WrongResult(f"the aggregator ended: {process.log_tail()}")


async def _check_totals(fed: InventoryClient, corpus: Corpus, totals: dict[str, int], *, complete: bool) -> None:
    for resource, of_type in corpus.types.items():
        answer = await fed.list(str(of_type.group_resource), limit=1)
        if answer.complete != complete or answer.total != totals[resource]:
            raise WrongResult(f"{answer.total} {resource}, complete: {answer.complete}")


async def _check_some(fed: InventoryClient, corpus: Corpus, counts: dict[str, int]) -> None:
    drawn = random.Random(0)
    firsts = {}
    first = FIRST_VERSION
    for resource, count in counts.items():
        firsts[resource] = first
        first += count
    for _ in range(_READ):
        resource = drawn.choice(list(counts))
        cluster, index = drawn.randrange(_CLUSTERS), drawn.randrange(counts[resource])
        state = corpus.state(resource, cluster, index, firsts[resource] + index + 1)
        found = await fed.get(
            str(corpus.types[resource].group_resource),
            state.name,
            namespace=state.namespace,
            cluster=cluster_id(cluster),
        )
        if found.object.body != state.raw:
            raise WrongResult(f"{found.object.key} is not what was pushed")


def _bytes_in(folder: Path) -> int:
    """Room that the files of a folder take."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
