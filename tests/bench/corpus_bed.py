"""What the scenarios with the corpus stand on: an aggregator, agents that pushed their snapshots, and watches."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.testing.federation import Federation
from federator.testing.scratch import ScratchFolder
from tests.bench.corpus import FIRST_VERSION, Corpus
from tests.bench.corpus_load import cluster_id
from tests.bench.figure import WrongResult
from tests.bench.load_process import Json, LoadProcess
from tests.bench.usage import Span

_LIST_TIMEOUT = 120.0
_LONGEST_WAIT = 300.0
"""Seconds for what has to come at last."""


class CorpusBed:
    """An aggregator with its ledger on disk, and the load that feeds it.

    Attributes:
        federation: of the aggregator.
        load: `tests.bench.corpus_load`.
        corpus: what it pushes.
        types: names of the corpus's types.
    """

    def __init__(self, federation: Federation, load: LoadProcess, corpus: Corpus, clusters: int, objects: int) -> None:
        self.federation = federation
        self.load = load
        self.corpus = corpus
        self.types = [str(each.group_resource) for each in corpus.types.values()]
        self._clusters = clusters
        self._counts = corpus.counts(objects)

    @property
    def nudge(self) -> int:
        """The fewest changes that can be pushed: one in each cluster."""
        return self._clusters

    async def cursor(self) -> bytes:
        """Where everything that happens from now on begins."""
        async with self.federation.client() as fed:
            return (await fed.list(self.types, limit=1)).cursor

    async def check_snapshot(self) -> None:
        """Checks that everything is there.

        Raises:
            WrongResult: it is not.
        """
        async with self.federation.client() as fed:
            for resource, name in zip(self._counts, self.types, strict=True):
                answer = await fed.list(name, limit=1)
                if not answer.complete or answer.total != self._counts[resource] * self._clusters:
                    raise WrongResult(f"{answer.total} {name} after the snapshots, complete: {answer.complete}")

    async def check_states(self, told: Json) -> None:
        """Checks that every object is in its last state, byte for byte, and the answer complete.

        Args:
            told: the last answer of the load.

        Raises:
            WrongResult: one is not.
        """
        changed = {name: cluster["changed"] for name, cluster in told["clusters"].items()}
        async with self.federation.client() as fed:
            answer = await fed.list(self.types, timeout=_LIST_TIMEOUT)
        found = {item.key: item for item in answer.items}
        if not answer.complete or len(found) != sum(self._counts.values()) * self._clusters:
            raise WrongResult(f"{len(found)} objects at the end, complete: {answer.complete}")
        for number in range(self._clusters):
            for key, raw in _last_states(self.corpus, number, self._counts, changed[cluster_id(number)]):
                if key not in found or found[key].body != raw:
                    raise WrongResult(f"{key} is not in its last state")


@asynccontextmanager
async def corpus_bed(sample: Path, *, clusters: int, objects: int) -> AsyncIterator[CorpusBed]:
    """An aggregator into which agents have pushed their snapshots.

    Args:
        sample: of the corpus.
        clusters: number of agents.
        objects: in each of their clusters.
    """
    scratch = ScratchFolder()
    try:
        async with (
            Federation(Path(), (), folder=scratch.path) as federation,
            LoadProcess(
                "tests.bench.corpus_load", federation.ingest_address, str(sample), "0", str(clusters), str(objects)
            ) as load,
        ):
            bed = CorpusBed(federation, load, Corpus.read(sample), clusters, objects)
            await bed.check_snapshot()
            yield bed
    finally:
        scratch.remove()


class Delivered(NamedTuple):
    """What watches had of a number of changes.

    Attributes:
        told: the load's answer.
        span: from the first write until all watches had everything, or were waited for no longer.
        events: that came to all watches together.
        last_at: monotonic time of the last one.
        seen: of each decoding watch, resourceVersion and monotonic time of each change, by cluster.
        gave_up_at: monotonic time after which nothing was waited for.
        watching_cpu: CPU-seconds of the watching processes.
    """

    told: Json
    span: Span
    events: int
    last_at: float
    seen: Sequence[Json]
    gave_up_at: float
    watching_cpu: float


class Watches:
    """Watches of everything, in processes of their own."""

    def __init__(self, bed: CorpusBed, processes: Sequence[LoadProcess]) -> None:
        self._bed = bed
        self._processes = processes

    async def open(self, group: str, number: int, *, decode: int = 0, reads: bool = True) -> None:
        """Opens watches and waits until each is served, or was at least asked for where it reads nothing.

        Args:
            group: name of these watches.
            number: of watches.
            decode: how many of them tell what they saw and when.
            reads: they take what they are sent.
        """
        cursor = (await self._bed.cursor()).hex()
        await self._bed.load.ask(prepare=self._bed.nudge, frame=1)
        await self._bed.load.ask(push=True)
        parts = (_parts(each, len(self._processes)) for each in (number, decode))
        await asyncio.gather(
            *(
                process.ask(
                    open=part, group=group, resources=self._bed.types, cursor=cursor, decode=decoding, reads=reads
                )
                for process, part, decoding in zip(self._processes, *parts, strict=True)
            )
        )
        if reads:
            await self.take(group, self._bed.nudge)

    async def take(self, group: str, changes: int) -> None:
        """Waits until every watch of a group has had so many changes more.

        Raises:
            WrongResult: they do not come.
        """
        await self._wait(group, changes, 0)
        await self.catch_up(group)

    async def follow(self, group: str, number: int, changes: int, *, patience: float, **how: float) -> Delivered:
        """Has the load push changes and waits until all watches of a group have them.

        Args:
            group: the watches.
            number: how many they are.
            changes: how many are pushed.
            patience: seconds that the watches may still take when everything is acknowledged.
            how: `rate` or `frame`, as the load takes them.

        Raises:
            WrongResult: they had everything, but not all the same last change.
        """
        await self._bed.load.ask(prepare=changes, **how)
        watching = await self._cpu()
        span = Span(self._bed.federation.processes)
        told = await self._bed.load.ask(push=True)
        answers = await self._wait(group, changes, patience)
        gave_up_at = time.monotonic()
        span.end()
        events = sum(each["events"] for each in answers)
        revisions = {revision for each in answers for revision in each["revisions"]}
        if events == number * changes and len(revisions) != 1:
            raise WrongResult(f"watches that have everything are at revisions {sorted(revisions)}")
        seen = [one for each in answers for one in each["seen"]]
        last_at = max(each["last_at"] for each in answers)
        return Delivered(told, span, events, last_at, seen, gave_up_at, await self._cpu() - watching)

    async def catch_up(self, group: str) -> None:
        """Waits until watches that were waited for in vain have everything.

        Raises:
            WrongResult: it does not come.
        """
        missing = -sum(each["events"] for each in await self._wait(group, 0, _LONGEST_WAIT))
        if missing:
            raise WrongResult(f"{missing} events of the {group} watches did not come")

    async def ask(self, **command: object) -> list[Json]:
        """Gives all processes a command."""
        return await asyncio.gather(*(process.ask(**command) for process in self._processes))

    async def _cpu(self) -> float:
        """CPU-seconds that the processes have used."""
        return sum((each["cpu"] for each in await self.ask()), start=0.0)

    async def _wait(self, group: str, events: int, seconds: float) -> list[Json]:
        return await self.ask(wait=group, events=events, seconds=seconds)


@asynccontextmanager
async def watch_processes(
    bed: CorpusBed, *, processes: int, connections: int, small_windows: bool = False
) -> AsyncIterator[Watches]:
    """Processes for watches.

    Args:
        bed: with the aggregator.
        processes: how many.
        connections: of each of them.
        small_windows: a watch that does not read is not sent much.
    """
    arguments = (bed.federation.address, str(connections), *(["small-windows"] if small_windows else ()))
    async with AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(LoadProcess("tests.bench.raw_watch_load", *arguments))
            for _ in range(processes)
        ]
        yield Watches(bed, started)


def delays_of(delivered: Delivered) -> tuple[list[float], list[float]]:
    """Seconds from the write of a change's frame to each decoding watch, and from its acknowledgement.

    A change that did not come counts with the time it was waited for: its delay is longer.

    Raises:
        WrongResult: a watch saw a change twice, or one that nobody made, or nobody saw anything.
    """
    if not delivered.seen:
        raise WrongResult("no watch has seen anything")
    from_write: list[float] = []
    from_acknowledgement: list[float] = []
    for seen in delivered.seen:
        for name, cluster in delivered.told["clusters"].items():
            frames = cluster["frames"]
            lasts = [last for last, _, _ in frames]
            missing = set(_versions(cluster, frames))
            for version, at in seen.get(name, ()):
                if version not in missing:
                    raise WrongResult(f"{name}: change {version} was seen twice, or is none")
                missing.remove(version)
                _, written, acknowledged = frames[bisect_left(lasts, version)]
                from_write.append(at - written)
                from_acknowledgement.append(at - acknowledged)
            for version in missing:
                _, written, acknowledged = frames[bisect_left(lasts, version)]
                from_write.append(delivered.gave_up_at - written)
                from_acknowledgement.append(delivered.gave_up_at - acknowledged)
    return from_write, from_acknowledgement


def _versions(cluster: Json, frames: Sequence[Sequence[float]]) -> Iterable[int]:
    return range(cluster["began_after"] + 1, int(frames[-1][0]) + 1) if frames else ()


def _last_states(
    corpus: Corpus, number: int, counts: dict[str, int], changed: Json
) -> Iterator[tuple[ObjectKey, bytes]]:
    first = FIRST_VERSION
    for resource, count in counts.items():
        done = changed[resource]["done"]
        versions = dict(changed[resource]["versions"])
        group = corpus.types[resource].group
        for index in range(count):
            turn = (done - index + count - 1) // count if done > index else 0
            version = versions.get(index, first + index + 1)
            state = corpus.state(resource, number, index, version, turn)
            yield ObjectKey(ClusterID(cluster_id(number)), group, resource, state.namespace, state.name), state.raw
        first += count


def _parts(number: int, parts: int) -> list[int]:
    return [number // parts + (place < number % parts) for place in range(parts)]
