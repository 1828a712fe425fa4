"""Scenario `many-clusters`: hundreds of clusters at a steady rate of changes; then many leave, and return at once.

The clusters are fake apiservers: no machine that this is run on holds hundreds of real ones. Agents, wire and
aggregator are real, but for that many agents share a process.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from federator.api.cluster import ClusterID, ClusterState
from federator.client import InventoryClient
from federator.testing.federation import Federation
from federator.testing.scratch import ScratchFolder
from tests.bench.corpus import Corpus
from tests.bench.figure import FEDERATOR, MACHINE, Figure, WrongResult, delays, percentile
from tests.bench.load_process import LoadProcess
from tests.bench.member_load import member_name
from tests.bench.usage import Span, forget_peak, memory
from tests.bench.watch_recorder import WatchRecorder
from tests.bench.wire_relay import Carried, WireRelay

MEMBER_PROCESSES = 2
AGENTS_IN_A_PROCESS = 50

_JOIN_SECONDS = 600.0
_PATIENCE = 300.0
_LIST_TIMEOUT = 120.0

Step = Callable[[], Awaitable[None]]


class Size(NamedTuple):
    """How large it is.

    Attributes:
        clusters: number of them.
        leaving: of these, those that leave and return.
        objects: of each cluster.
        rate: changes a second over all clusters.
        seconds: for which the steady rate is measured.
        training_seconds: in which the aggregator trains its dictionaries, and gives them out.
        margin_seconds: of changes before and after what is measured.
        away_seconds: for which those that leave are away.
        poll_seconds: between two looks at who is LIVE, each of which is answered with all types of all clusters.
    """

    clusters: int = 250
    leaving: int = 100
    objects: int = 1_000
    rate: float = 325.0
    seconds: float = 60.0
    training_seconds: float = 15.0
    margin_seconds: float = 5.0
    away_seconds: float = 20.0
    poll_seconds: float = 1.0


class Return(NamedTuple):
    """How clusters came back.

    Attributes:
        seconds: until all were LIVE.
        carried: bytes until then.
        others: seconds from each change of the other clusters to the watch, meanwhile and just after.
        aggregator: CPU-seconds of the aggregator meanwhile.
        peak: memory of the aggregator since they left, in MB.
    """

    seconds: float
    carried: Carried
    others: Sequence[float]
    aggregator: float
    peak: float


async def many_clusters(sample: Path, size: Size) -> list[Figure]:
    """Joins all at once; a steady rate; restarted agents; a network that was away."""
    scratch = ScratchFolder()
    try:
        async with AsyncExitStack() as stack:
            federation = await stack.enter_async_context(Federation(Path(), (), folder=scratch.path))
            relays = [
                await stack.enter_async_context(WireRelay(scratch.path / f"{name}.sock", federation.ingest_address))
                for name in ("leaving", "staying")
            ]
            members = await _members(stack, sample, scratch.path, size)
            fed = await stack.enter_async_context(federation.client())
            run = _Run(federation, fed, scratch.path, size, members, *relays)
            try:
                return await run.figures(Corpus.read(sample))
            finally:
                await run.close()
    finally:
        scratch.remove()


async def _members(stack: AsyncExitStack, sample: Path, folder: Path, size: Size) -> list[LoadProcess]:
    numbers = [size.clusters * place // MEMBER_PROCESSES for place in range(MEMBER_PROCESSES + 1)]
    loads = [
        LoadProcess(
            "tests.bench.member_load", str(sample), str(folder), str(first), str(last - first), str(size.objects)
        )
        for first, last in pairwise(numbers)
    ]
    return list(await asyncio.gather(*(stack.enter_async_context(load) for load in loads)))


class _Run:
    """One run, and what it needs."""

    def __init__(
        self,
        federation: Federation,
        fed: InventoryClient,
        folder: Path,
        size: Size,
        members: Sequence[LoadProcess],
        leaving_relay: WireRelay,
        staying_relay: WireRelay,
    ) -> None:
        self._federation = federation
        self._fed = fed
        self._folder = folder
        self._size = size
        self._members = members
        self._leaving_relay = leaving_relay
        self._staying_relay = staying_relay
        self._leaving_agents: list[LoadProcess] = []
        self._staying_agents: list[LoadProcess] = []
        self._leaving = [ClusterID(member_name(number)) for number in range(size.leaving)]

    async def figures(self, corpus: Corpus) -> list[Figure]:
        """Runs everything."""
        size = self._size
        self._leaving_agents = await self._agents(self._leaving_relay, 0, size.leaving)
        self._staying_agents = await self._agents(self._staying_relay, size.leaving, size.clusters)
        title = f"{size.clusters} clusters with {size.objects} objects each"
        figures = await self._join(f"{title}, all join at once")
        await asyncio.sleep(size.training_seconds)
        objects = await self._check_counts(corpus)
        figures.append(Figure(title, FEDERATOR, "objects", objects, "1"))
        figures += await self._at_rest(f"{title}, at rest")
        async with WatchRecorder(self._fed) as recorder:
            figures += await self._steady(f"{title}, {size.rate:g} changes/s", recorder)
            restarted = await self._returning(recorder, self._end_agents, self._start_agents)
            figures += self._return_rows(f"{size.leaving} of them leave and return as other processes", restarted)
            cut = await self._returning(recorder, self._cut, self._mend)
            figures += self._return_rows(f"{size.leaving} of them are cut off for {size.away_seconds:g} s", cut)
        await self._check_counts(corpus)
        return figures

    async def close(self) -> None:
        """Ends the agents' processes."""
        for process in (*self._leaving_agents, *self._staying_agents):
            await process.__aexit__(None, None, None)

    # What is measured.

    async def _join(self, scenario: str) -> list[Figure]:
        began = time.monotonic()
        span = self._span()
        await _tell(self._all_agents, run=True)
        await self._wait_live(())
        seconds = time.monotonic() - began
        span.end()
        carried = self._carried()
        used = memory(self._federation.processes["aggregator"])
        return [
            Figure(scenario, FEDERATOR, "time until all are LIVE", seconds, "s"),
            Figure(scenario, FEDERATOR, "CPU of the agents", span.agents, "CPU-s"),
            Figure(scenario, FEDERATOR, "CPU of the aggregator", span.aggregator, "CPU-s"),
            Figure(scenario, FEDERATOR, "bytes to the aggregator", carried.up, "bytes"),
            Figure(scenario, FEDERATOR, "bytes to the agents", carried.down, "bytes"),
            Figure(scenario, FEDERATOR, "memory of the aggregator, peak", used.peak, "MB"),
            Figure(scenario, MACHINE, "CPU in use", span.machine_percent, "%"),
        ]

    async def _at_rest(self, scenario: str) -> list[Figure]:
        span, carried = self._span(), self._carried()
        await asyncio.sleep(self._size.training_seconds)
        span.end()
        carried = self._carried().since(carried)
        return [
            Figure(scenario, FEDERATOR, "CPU of the agents", span.agents / span.seconds, "CPU-s/s"),
            Figure(scenario, FEDERATOR, "CPU of the aggregator", span.aggregator / span.seconds, "CPU-s/s"),
            Figure(scenario, FEDERATOR, "bytes a second, both ways", carried.both / span.seconds, "1/s"),
            Figure(scenario, MACHINE, "CPU in use", span.machine_percent, "%"),
        ]

    async def _steady(self, scenario: str, recorder: WatchRecorder) -> list[Figure]:
        size = self._size
        recorder.restart()
        await self._begin_changes()
        await asyncio.sleep(self._size.margin_seconds)
        span = self._span()
        carried = self._carried()
        first = len(recorder.delays)
        await asyncio.sleep(size.seconds)
        span.end()
        carried = self._carried().since(carried)
        events = recorder.delays[first:]
        await self._end_changes(recorder)
        aggregator = memory(self._federation.processes["aggregator"])
        agents = sum(memory(process).now for process in self._all_agents) / size.clusters
        return [
            Figure(scenario, FEDERATOR, "events at the watch", len(events) / span.seconds, "1/s"),
            *delays(scenario, "from the change to the watch", events),
            Figure(scenario, FEDERATOR, "CPU of the agents", span.agents / span.seconds, "CPU-s/s"),
            Figure(scenario, FEDERATOR, "CPU of the aggregator", span.aggregator / span.seconds, "CPU-s/s"),
            Figure(scenario, FEDERATOR, "bytes a second, both ways", carried.both / span.seconds, "1/s"),
            Figure(scenario, FEDERATOR, "memory of the aggregator", aggregator.now, "MB"),
            Figure(scenario, FEDERATOR, "memory of the agents' processes, per agent", agents, "MB"),
            Figure(scenario, MACHINE, "CPU in use", span.machine_percent, "%"),
        ]

    async def _returning(self, recorder: WatchRecorder, leave: Step, come_back: Step) -> Return:
        """Has clusters leave and return, while all of them go on changing."""
        aggregator = self._federation.processes["aggregator"]
        recorder.restart()
        await self._begin_changes()
        await asyncio.sleep(self._size.margin_seconds)
        forget_peak(aggregator)
        await leave()
        await asyncio.sleep(self._size.away_seconds)
        carried, span = self._leaving_relay.carried, self._span()
        began = time.monotonic()
        await come_back()
        await self._wait_live(self._leaving)
        ended = time.monotonic()
        span.end()
        carried = self._leaving_relay.carried.since(carried)
        await asyncio.sleep(self._size.margin_seconds)
        others = [
            delay
            for name, arrivals in recorder.arrivals.items()
            if name not in self._leaving
            for at, delay in arrivals
            if began <= at <= ended + self._size.margin_seconds
        ]
        await self._end_changes(recorder)
        return Return(ended - began, carried, others, span.aggregator, memory(aggregator).peak)

    def _return_rows(self, what: str, returned: Return) -> list[Figure]:
        scenario = f"{what}, {self._size.rate:g} changes/s"
        return [
            Figure(scenario, FEDERATOR, "time until all are LIVE", returned.seconds, "s"),
            Figure(scenario, FEDERATOR, "bytes to the aggregator", returned.carried.up, "bytes"),
            Figure(scenario, FEDERATOR, "bytes to the agents", returned.carried.down, "bytes"),
            Figure(scenario, FEDERATOR, "CPU of the aggregator", returned.aggregator, "CPU-s"),
            Figure(
                scenario,
                FEDERATOR,
                "from the change of another cluster to the watch, p99",
                percentile(returned.others, 99) * 1000,
                "ms",
            ),
            Figure(scenario, FEDERATOR, "memory of the aggregator, peak", returned.peak, "MB"),
        ]

    # What happens.

    async def _agents(self, relay: WireRelay, first: int, end: int) -> list[LoadProcess]:
        """Processes with agents that do not run yet."""
        processes = [
            LoadProcess(
                "tests.bench.agent_load",
                relay.address,
                str(self._folder),
                str(number),
                str(min(AGENTS_IN_A_PROCESS, end - number)),
            )
            for number in range(first, end, AGENTS_IN_A_PROCESS)
        ]
        return list(await asyncio.gather(*(process.__aenter__() for process in processes)))

    async def _end_agents(self) -> None:
        await _tell(self._leaving_agents, stop=True)
        for process in self._leaving_agents:
            await process.__aexit__(None, None, None)
        self._leaving_agents = await self._agents(self._leaving_relay, 0, self._size.leaving)

    async def _start_agents(self) -> None:
        await _tell(self._leaving_agents, run=True)

    async def _cut(self) -> None:
        self._leaving_relay.cut()

    async def _mend(self) -> None:
        self._leaving_relay.mend()

    async def _begin_changes(self) -> None:
        await _tell(self._members, rate=self._size.rate / len(self._members))

    async def _end_changes(self, recorder: WatchRecorder) -> None:
        """Ends them, and checks that all were seen, and once."""
        told = await asyncio.gather(*(member.ask(stop=True) for member in self._members))
        written = {name: number for each in told for name, number in each["written"].items()}
        await recorder.wait(sum(written.values()))
        recorder.check(written, in_order=False)

    # What is looked at.

    @property
    def _all_agents(self) -> Sequence[LoadProcess]:
        return (*self._leaving_agents, *self._staying_agents)

    def _span(self) -> Span:
        agents = {f"agents {number}": process for number, process in enumerate(self._all_agents)}
        return Span({"aggregator": self._federation.processes["aggregator"], **agents})

    def _carried(self) -> Carried:
        leaving, staying = self._leaving_relay.carried, self._staying_relay.carried
        return Carried(leaving.up + staying.up, leaving.down + staying.down)

    async def _wait_live(self, names: Collection[ClusterID]) -> None:
        """Waits until these clusters are LIVE, or all that there should be."""
        wanted = len(names) or self._size.clusters
        async with asyncio.timeout(_JOIN_SECONDS):
            while True:
                found = (await self._fed.clusters(names, timeout=_PATIENCE)).clusters
                if sum(cluster.state is ClusterState.LIVE for cluster in found) == wanted:
                    return
                await asyncio.sleep(self._size.poll_seconds)

    async def _check_counts(self, corpus: Corpus) -> int:
        """Compares the number of objects of each type with the members'; returns their sum."""
        there: Counter[str] = Counter()
        for member in self._members:
            there.update(await member.ask(count=True))
        for resource, of_type in corpus.types.items():
            answer = await self._fed.list(str(of_type.group_resource), limit=1, timeout=_LIST_TIMEOUT)
            if not answer.complete or answer.total != there[resource]:
                raise WrongResult(f"{answer.total} of {there[resource]} {resource}, complete: {answer.complete}")
        return there.total()


async def _tell(processes: Sequence[LoadProcess], **command: object) -> None:
    await asyncio.gather(*(process.ask(**command) for process in processes))
