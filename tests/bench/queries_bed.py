"""An aggregator to ask: it was loaded with many objects and started again, and its agents have come back."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from federator.api.cluster import ClusterState
from federator.client.field_index import FieldIndexState
from federator.errors import FederatorError
from federator.testing.federation import Federation
from federator.testing.process_group import Process
from federator.testing.scratch import ScratchFolder
from tests.bench.corpus_load import DICTIONARY_SECONDS
from tests.bench.figure import FEDERATOR, Figure, WrongResult
from tests.bench.load_process import LoadProcess
from tests.bench.usage import Span, anonymous_memory, memory

OBJECTS = 1_000_000
CLUSTERS = 20
SAMPLE = "sample"
"""File of a loaded state: what the corpus of its objects is made from."""

_ORIGIN = "origin.json"
INDEXES = ("status.phase", "spec.containers.*.image@pods")
"""Fields that are indexed besides what always is."""

_LOADS = 2
_START_SECONDS = 600.0
_STOP_SECONDS = 120.0
_POLL = 0.05


class Size(NamedTuple):
    """How large the scenario is.

    Attributes:
        objects: of all clusters together.
        clusters: how many.
        seconds: for each question, at rest and again while objects change.
        rate: changes a second over all clusters.
        frame: changes in one frame of an agent, and so at least in one commit.
        dictionary_seconds: for which whoever loads waits for dictionaries, at most.
        state: folder that keeps the loaded aggregator's state for further runs; None for a temporary one.
    """

    objects: int = OBJECTS
    clusters: int = CLUSTERS
    seconds: float = 10.0
    rate: float = 2000.0
    frame: int = 20
    dictionary_seconds: float = DICTIONARY_SECONDS
    state: Path | None = None

    @property
    def name(self) -> str:
        """The scenario's name in the report."""
        return f"{self.objects} objects of {self.clusters} clusters"

    @property
    def of_cluster(self) -> int:
        """Objects of one cluster."""
        return self.objects // self.clusters


class QueriesBed(NamedTuple):
    """An aggregator that has everything.

    Attributes:
        federation: of the aggregator.
        loads: `tests.bench.queries_load`, whose agents have come back; their clusters are `parts`.
        figures: of loading; empty where the state was there.
    """

    federation: Federation
    loads: Sequence[LoadProcess]
    figures: Sequence[Figure]

    @property
    def process(self) -> Process:
        """The aggregator's."""
        return self.federation.processes["aggregator"]


@asynccontextmanager
async def queries_bed(sample: Path, size: Size) -> AsyncIterator[QueriesBed]:
    """Loads an aggregator, or takes a loaded one, and starts it again.

    Raises:
        WrongResult: it does not start or end, or not all clusters are LIVE.
    """
    scratch = ScratchFolder()
    try:
        kept = size.state or scratch.path / "loaded"
        figures = await _loaded(sample, kept, size)
        folder = scratch.path / "run"
        if size.state is None:
            kept.rename(folder)
        else:
            await asyncio.to_thread(shutil.copytree, kept, folder)
        async with _aggregator(folder) as federation, AsyncExitStack() as stack:
            loads = await asyncio.gather(
                *(
                    stack.enter_async_context(_load_process(federation, folder / SAMPLE, size, folder, *part))
                    for part in parts(0, size.clusters)
                )
            )
            await _check_complete(federation)
            yield QueriesBed(federation, loads, figures)
    finally:
        scratch.remove()


def parts(first: int, end: int) -> list[tuple[int, int]]:
    """First and number of the clusters of each load."""
    middle = (first + end) // _LOADS
    return [(first, middle - first), (middle, end - middle)]


class _Origin(msgspec.Struct, frozen=True):
    """What a state was loaded with."""

    objects: int
    clusters: int
    sample: str

    def is_in(self, folder: Path) -> bool:
        """Whether a folder has such a state.

        Raises:
            WrongResult: it has another one.
        """
        file = folder / _ORIGIN
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            return False
        found = msgspec.json.decode(file.read_bytes(), type=_Origin)
        if found != self:
            raise WrongResult(f"{folder} was loaded with something else: {found}")
        return True

    def write(self, folder: Path) -> None:
        """Says that the folder's state is whole."""
        (folder / _ORIGIN).write_bytes(msgspec.json.encode(self))


def _origin(sample: Path, size: Size) -> _Origin:
    return _Origin(size.objects, size.clusters, hashlib.sha256(sample.read_bytes()).hexdigest())


async def _loaded(sample: Path, folder: Path, size: Size) -> list[Figure]:
    """Makes the state of an aggregator that has everything, unless it is there; returns what loading it took."""
    origin = _origin(sample, size)
    if origin.is_in(folder):
        return []
    frames = ScratchFolder()
    try:
        async with _aggregator(folder) as federation:
            load = partial(_load_process, federation, sample, size, frames.path)
            async with AsyncExitStack() as stack:
                # The first cluster is there before the others: the dictionaries are trained from it.
                first = await stack.enter_async_context(load(0, 1))
                await first.ask(snapshot=True)
                loads = await asyncio.gather(
                    *(stack.enter_async_context(load(*part)) for part in parts(1, size.clusters))
                )
                span = Span(federation.processes)
                await asyncio.gather(*(each.ask(snapshot=True) for each in loads))
                span.end()
                process = federation.processes["aggregator"]
                used, anonymous = memory(process), anonymous_memory(process)
                await _check_complete(federation)
        for digests in frames.path.glob("*.digests"):
            shutil.copy(digests, folder)
        shutil.copy(sample, folder / SAMPLE)
    finally:
        frames.remove()
    origin.write(folder)
    return [
        Figure(size.name, FEDERATOR, "CPU per object while it is loaded", span.aggregator / size.objects * 1e6, "us"),
        Figure(size.name, FEDERATOR, "memory after the load", used.now, "MB", "<= 1074"),
        Figure(size.name, FEDERATOR, "memory after the load, peak", used.peak, "MB"),
        Figure(size.name, FEDERATOR, "memory after the load, anonymous", anonymous, "MB", "<= 1074, goal 644"),
    ]


@asynccontextmanager
async def _aggregator(folder: Path) -> AsyncIterator[Federation]:
    """An aggregator of a folder, once it answers; it is ended in order."""
    arguments = [f"--field-index={index}" for index in INDEXES]
    federation = Federation(Path(), (), folder=folder, aggregator_arguments=arguments)
    try:
        federation.start_aggregator()
        await _answers(federation)
        yield federation
        if not await federation.processes["aggregator"].stop(_STOP_SECONDS):
            raise WrongResult("the aggregator did not end by itself")
    finally:
        federation.close()


def _load_process(
    federation: Federation, sample: Path, size: Size, folder: Path, first: int, clusters: int
) -> LoadProcess:
    words = map(str, (federation.ingest_address, sample, first, clusters, size.of_cluster, folder))
    return LoadProcess("tests.bench.queries_load", *words, str(size.dictionary_seconds))


async def _answers(federation: Federation) -> None:
    process: Process = federation.processes["aggregator"]
    async with asyncio.timeout(_START_SECONDS):
        while process.running:
            async with federation.client() as fed:
                with contextlib.suppress(FederatorError):
                    await fed.clusters()
                    return
            await asyncio.sleep(_POLL)
    raise WrongResult(f"the aggregator ended: {process.log_tail()}")


async def _check_complete(federation: Federation) -> None:
    async with federation.client() as fed:
        answer = await fed.clusters()
        if stale := {each.cluster_id: each.state for each in answer.clusters if each.state is not ClusterState.LIVE}:
            raise WrongResult(f"not LIVE: {stale}")
        async with asyncio.timeout(_START_SECONDS):
            while states := {index.state for index in await fed.field_indexes()} - {FieldIndexState.READY}:
                if states != {FieldIndexState.BUILDING}:
                    raise WrongResult(f"an index is {states}")
                await asyncio.sleep(_POLL)
