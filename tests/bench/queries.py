"""Scenario `queries`: questions about a million objects of twenty clusters, at rest and while they change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from federator.v1 import inventory_pb2
from tests.bench.corpus import Corpus
from tests.bench.corpus_load import cluster_id
from tests.bench.figure import FEDERATOR, MACHINE, Figure, WrongResult, percentile
from tests.bench.load_process import Json
from tests.bench.queries_asks import Asker, asker, object_key
from tests.bench.queries_bed import QueriesBed, Size, parts, queries_bed
from tests.bench.queries_truth import APP, PODS, VERSION, Truth
from tests.bench.usage import Span, anonymous_memory, memory

_ASKED_CLUSTER = 7
_HITS = 100
_PAGE = 500
_WALKED_PAGE = 1000
_WALKED_PAGES = 3
"""Of a walk, at least: where there are few objects, its pages are smaller."""

_WARM_UP = 3
_MEMORY_POLL = 0.05

_Selection = inventory_pb2.Selection
_Count = inventory_pb2.Measure(function=inventory_pb2.AGGREGATE_FUNCTION_COUNT)


class Question(NamedTuple):
    """One question.

    Attributes:
        name: what is asked.
        ask: asks it once, checks the answer, and returns the seconds it took.
        bar: of its p99 at rest.
    """

    name: str
    ask: Callable[[], Awaitable[float]]
    bar: str


async def queries(sample: Path, size: Size) -> list[Figure]:
    """Asks an aggregator that has everything."""
    truth = Truth(Corpus.read(sample), size.clusters, size.of_cluster)
    async with queries_bed(sample, size) as bed:
        return [*bed.figures, *await _Run(bed, truth, size).figures()]


class _Run:
    """The questions to one aggregator."""

    def __init__(self, bed: QueriesBed, truth: Truth, size: Size) -> None:
        self._federation = bed.federation
        self._process = bed.process
        self._loads = bed.loads
        self._truth = truth
        self._size = size
        self._scenario = size.name
        self._changes = False
        self._types = [str(each.group_resource) for each in truth.corpus.types.values()]
        self._page = min(_PAGE, truth.total)
        self._walked_page = min(_WALKED_PAGE, truth.total // _WALKED_PAGES)
        self._most = 0.0

    async def figures(self) -> list[Figure]:
        """Everything, in turn."""
        figures = self._memory_figures("after a restart")
        async with asker(self._federation.address) as asking:
            questions = self._questions(asking)
            at_rest, cpu = await self._ask_all(questions)
            for question in questions:
                figures += self._delays(question, at_rest[question.name], "", question.bar)
                used = cpu[question.name] * 1e3
                figures.append(Figure(self._scenario, FEDERATOR, f"{question.name}, CPU", used, "ms"))
            figures += self._memory_figures("after the questions")
            figures += await self._walk(asking)
            figures += await self._beside_changes(asking, questions, at_rest)
            figures += self._memory_figures("at the end")
        return figures

    def _questions(self, asking: Asker) -> list[Question]:
        truth = self._truth
        versions = truth.values_with(VERSION, PODS, _HITS)
        cluster = _ASKED_CLUSTER % truth.clusters
        hits = truth.where(lambda each: each.labels.get(VERSION) in versions, PODS)
        keys, bodies = truth.keys(hits, [cluster]), {truth.state(place, cluster).raw for place in hits}
        selection = _Selection(
            resources=[PODS], clusters=[cluster_id(cluster)], label_selector=f"{VERSION} in ({','.join(versions)})"
        )
        everything = _Selection(resources=self._types)
        by_type = {
            (cluster_id(number), str(truth.corpus.types[resource].group_resource)): count
            for number in range(truth.clusters)
            for resource, count in truth.counts.items()
        }
        by_label = {(value,): count for value, count in truth.by_label(APP).items()}
        by_phase = {(value,): count for value, count in truth.by_phase().items()}
        first_names = truth.first_names(self._page)

        async def label_cluster_type() -> float:
            listed = await asking.list(inventory_pb2.ListRequest(selection=selection))
            found = [object_key(each) for each in listed.objects]
            self._expect("hits", len(found), len(keys))
            if not self._changes:
                self._expect("keys of hits", set(found), keys)
                self._expect("bodies of hits", {each.body for each in listed.objects}, bodies)
            return listed.seconds

        async def cluster_and_type() -> float:
            request = inventory_pb2.AggregateRequest(
                selection=everything, group_by=["cluster", "type"], measures=[_Count]
            )
            aggregated = await asking.aggregate(request)
            self._expect("numbers by cluster and type", aggregated.groups, by_type)
            return aggregated.seconds

        async def label() -> float:
            request = inventory_pb2.AggregateRequest(selection=everything, group_by=[f"label:{APP}"], measures=[_Count])
            aggregated = await asking.aggregate(request)
            self._expect("numbers by a label", aggregated.groups, by_label)
            return aggregated.seconds

        async def phase() -> float:
            request = inventory_pb2.AggregateRequest(
                selection=everything, group_by=[".status.phase"], measures=[_Count]
            )
            aggregated = await asking.aggregate(request)
            if aggregated.summary.HasField("scan"):
                raise WrongResult("objects were read for an indexed field")
            self._expect("numbers by a field", aggregated.groups, by_phase)
            return aggregated.seconds

        async def first_page() -> float:
            request = inventory_pb2.ListRequest(selection=everything, order_by="name", page_size=_PAGE)
            listed = await asking.list(request)
            names = [each.name for each in listed.objects]
            self._expect("total", listed.summary.total, truth.total)
            if self._changes:
                self._expect("order of names", names, sorted(names))
                self._expect("keys of a page", len({object_key(each) for each in listed.objects}), self._page)
            else:
                self._expect("first names", names, first_names)
            return listed.seconds

        return [
            Question(f"label and cluster and type, {len(keys)} hits", label_cluster_type, "<= 5"),
            Question("number by cluster and type", cluster_and_type, "<= 5"),
            Question(f"number by a label with {len(by_label)} values", label, "<= 200"),
            Question("number by an indexed field", phase, ""),
            Question(f"first {_PAGE} of everything by name", first_page, "<= 20"),
        ]

    async def _ask_all(self, questions: Sequence[Question]) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Asks each question again and again for its time; the first times warm up.

        Returns:
            The seconds of each time, and the CPU-seconds that the aggregator used for one time, by question.
        """
        taken: dict[str, list[float]] = {}
        cpu: dict[str, float] = {}
        for question in questions:
            for _ in range(_WARM_UP):
                await question.ask()
            seconds = taken[question.name] = []
            span = Span(self._federation.processes)
            end = time.monotonic() + self._size.seconds
            while not seconds or time.monotonic() < end:
                seconds.append(await question.ask())
            span.end()
            cpu[question.name] = span.aggregator / len(seconds)
        return taken, cpu

    # -------------------------------------------------------------------------------------------------------- walking

    async def _walk(self, asking: Asker) -> list[Figure]:
        """All pages of everything by name; how much memory that takes."""
        before = anonymous_memory(self._process)
        watched = asyncio.create_task(self._peak(), name="memory of a walk")
        span = Span(self._federation.processes)
        began = time.monotonic()
        try:
            number = await self._walk_pages(
                asking,
                inventory_pb2.ListRequest(
                    selection=_Selection(resources=self._types), order_by="name", page_size=self._walked_page
                ),
            )
        finally:
            watched.cancel()
            await asyncio.wait([watched])
        span.end()
        self._expect("objects of all pages", number, self._truth.total)
        walked = f"walk of all pages of {self._walked_page}"
        return [
            Figure(self._scenario, FEDERATOR, walked, time.monotonic() - began, "s"),
            Figure(self._scenario, FEDERATOR, f"{walked}, CPU per object", span.aggregator / number * 1e6, "us"),
            Figure(self._scenario, FEDERATOR, f"{walked}, memory more", self._most - before, "MB", "<= 34"),
        ]

    async def _walk_pages(self, asking: Asker, request: inventory_pb2.ListRequest) -> int:
        """Walks pages and checks that they are one list at one revision; returns how many objects they have."""
        keys: set[int] = set()
        number, last, revision, total = 0, "", 0, 0
        async for page in asking.walk(request):
            revision, total = revision or page.summary.revision, total or page.summary.total
            self._expect("revision of a page", page.summary.revision, revision)
            for each in page.objects:
                if each.name < last or each.revision > revision:
                    raise WrongResult(f"{object_key(each)} at {each.revision} comes after {last} at {revision}")
                last = each.name
                keys.add(hash(object_key(each)))
            number += len(page.objects)
        self._expect("objects of all pages", number, total)
        self._expect("different objects of all pages", len(keys), number)
        return number

    async def _peak(self) -> None:
        while True:
            self._most = max(self._most, anonymous_memory(self._process))
            await asyncio.sleep(_MEMORY_POLL)

    # ----------------------------------------------------------------------------------------------- beside the changes

    async def _beside_changes(
        self, asking: Asker, questions: Sequence[Question], at_rest: dict[str, list[float]]
    ) -> list[Figure]:
        """The same while objects change, and what the changes cost with and without questions."""
        await self._prepare(min(2.0, self._size.seconds))
        await self._told()  # the agents get their dictionaries
        await self._prepare(self._size.seconds)
        span = Span(self._federation.processes)
        alone = self._change_figures("without questions", await self._told(), span)
        await self._prepare((len(questions) + 1) * self._size.seconds)
        self._changes = True
        over = asyncio.Event()
        span = Span(self._federation.processes)
        pushing = asyncio.create_task(self._push_until(over), name="changes")
        try:
            beside, _ = await self._ask_all(questions)
            pods = _Selection(resources=[PODS], clusters=[cluster_id(0)])
            walked = await self._walk_pages(
                asking, inventory_pb2.ListRequest(selection=pods, order_by="name", page_size=_PAGE)
            )
        finally:
            over.set()
            told = await pushing
        self._expect("pods of all pages", walked, self._truth.counts[PODS])
        figures = []
        for question in questions:
            figures += self._delays(question, beside[question.name], ", beside changes", "")
            ratio = percentile(beside[question.name], 99) / percentile(at_rest[question.name], 99)
            figures.append(
                Figure(
                    self._scenario,
                    FEDERATOR,
                    f"{question.name}: p99 beside changes to p99 at rest",
                    ratio,
                    "x",
                    "<= 1.2",
                )
            )
        figures += alone
        figures += self._change_figures("beside questions", told, span)
        return figures

    async def _push_until(self, over: asyncio.Event) -> list[Json]:
        """Pushes what is prepared, and more if that ends before it is over."""
        told = await self._told()
        while not over.is_set():
            await self._prepare(self._size.seconds)
            told += await self._told()
        return told

    def _change_figures(self, what: str, told: Sequence[Json], span: Span) -> list[Figure]:
        span.end()
        frames = [frame for each in told for cluster in each["clusters"].values() for frame in cluster["frames"]]
        changes = len(frames) * self._size.frame
        wall = sum(each["settled"] - each["began"] for each in told) / len(self._loads)
        delays = [acknowledged - written for _, written, acknowledged in frames]
        rows = [
            ("changes", changes / wall, "1/s"),
            ("CPU per 1,000 changes", span.aggregator / changes * 1e6, "ms"),
            ("to the acknowledgement, p50", percentile(delays, 50) * 1e3, "ms"),
            ("to the acknowledgement, p99", percentile(delays, 99) * 1e3, "ms"),
        ]
        figures = [Figure(self._scenario, FEDERATOR, f"{metric}, {what}", value, unit) for metric, value, unit in rows]
        return [*figures, Figure(self._scenario, MACHINE, f"CPU in use, {what}", span.machine_percent, "%")]

    async def _prepare(self, seconds: float) -> None:
        """Makes the changes of so long; each load has its share of the clusters, and so of the rate."""
        shares = [count / self._truth.clusters for _, count in parts(0, self._truth.clusters)]
        await asyncio.gather(
            *(
                load.ask(
                    prepare=round(self._size.rate * seconds * share),
                    rate=self._size.rate * share,
                    frame=self._size.frame,
                )
                for load, share in zip(self._loads, shares, strict=True)
            )
        )

    async def _told(self) -> list[Json]:
        """Pushes what is prepared."""
        return await asyncio.gather(*(load.ask(push=True) for load in self._loads))

    # -------------------------------------------------------------------------------------------------------- figures

    def _delays(self, question: Question, seconds: Sequence[float], when: str, bar: str) -> list[Figure]:
        return [
            Figure(
                self._scenario,
                FEDERATOR,
                f"{question.name}{when}, p{percent}",
                percentile(seconds, percent) * 1e3,
                "ms",
                bar if percent == 99 else "",
            )
            for percent in (50, 99)
        ]

    def _memory_figures(self, when: str) -> list[Figure]:
        used = memory(self._process)
        anonymous = anonymous_memory(self._process)
        return [
            Figure(self._scenario, FEDERATOR, f"memory {when}", used.now, "MB", "<= 1074"),
            Figure(self._scenario, FEDERATOR, f"memory {when}, anonymous", anonymous, "MB", "<= 1074, goal 644"),
        ]

    def _expect(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise WrongResult(f"{what}: {str(found)[:300]} instead of {str(expected)[:300]}")
