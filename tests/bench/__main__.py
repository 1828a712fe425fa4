"""`make bench`: figures of agents and an aggregator that run as processes of their own.

    python -m tests.bench [--scenario NAME …] [--pods N] [--objects N] [--clusters N] [--rate N] [--seconds N]
        [--state FOLDER] [--list]

Prints a table and writes `build/bench.json`, a list of {scenario, contender, metric, value, unit, bar}, and
`build/bench-versions.json`, what it was measured with. `docs/benchmarks.md` says what each scenario does. A scenario
whose result is wrong or incomplete ends the run with an error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from federator.observability.logs import configure_logging
from federator.testing.federation import Federation
from federator.testing.testbed import Testbed
from tests.bench import agent_size, digest_cost, indexer_load, many_clusters, million, peers_indexer, queries, wire_cost
from tests.bench.aggregator_alone import aggregator_alone, many_watches
from tests.bench.corpus_figures import corpus_figures
from tests.bench.durable_deltas import durable_deltas
from tests.bench.fan_out import fan_out
from tests.bench.figure import Figure
from tests.bench.first_sync import fill, first_sync, start_up
from tests.bench.idle_watches import idle_watches
from tests.bench.informer import informer
from tests.bench.queries_bed import SAMPLE
from tests.bench.queries_bed import Size as QueriesSize
from tests.bench.sampling import sampled_objects
from tests.bench.steady_updates import steady_updates
from tests.bench.versions import versions
from tests.bench.watch_latency import stalled_watches, watch_latency

CLUSTERS = ("ap-1", "eu-1", "us-1")

SCENARIOS = {
    "start-up": "an agent and an aggregator with nothing to do",
    "first-sync": "three real clusters, from the start of the processes to all LIVE",
    "steady-updates": "pods of three real clusters change at a steady rate, one client watches",
    "aggregator-alone": "an aggregator fed by agents without clusters, at a pace and without one",
    "many-watches": "the same with a hundred watches",
    "informer": "the informer alone, beside the official client's, on one real cluster",
    "corpus": "the objects of the following scenarios: their sizes, and how they compress",
    "durable-deltas": "changes as fast as an aggregator makes them durable, no watch",
    "fan-out": "fifty watches of everything, at growing rates",
    "idle-watches": "ten thousand watches to which nothing happens",
    "watch-latency": "from a change to fifty watches, and at a higher rate to two hundred",
    "stalled-watches": "a hundred watches beside a hundred that take nothing",
    "wire-cost": "what a session costs whose cluster has hardly changed, on the wire",
    "digest-cost": "what part of all work digests are",
    "agent-size": "one agent of a cluster of usual size",
    "many-clusters": "hundreds of clusters; many leave and return at once (only when it is named)",
    "million": "a million objects arrive at once; then the aggregator is restarted (only when it is named)",
    "queries": "questions about a million objects, at rest and while they change (only when it is named)",
    "indexer-queries": "the merged Indexer by itself, in one process (only when it is named)",
    "peers-indexer": "ten questions, to an aggregator and to client-go's Indexers (only when it is named)",
}
ON_THREE_CLUSTERS = {"start-up", "first-sync", "steady-updates"}
WITH_CORPUS = {
    "corpus",
    "durable-deltas",
    "fan-out",
    "idle-watches",
    "watch-latency",
    "stalled-watches",
    "digest-cost",
    "many-clusters",
    "million",
    "queries",
    "peers-indexer",
}
AS_SERVED = {"wire-cost", "agent-size"}
"""With the corpus as an apiserver serves it."""

ONLY_BY_NAME = {"many-clusters", "million", "queries", "indexer-queries", "peers-indexer"}
"""Too long for a run of everything."""

ON_CONTROL_PLANES = {*ON_THREE_CLUSTERS, "informer", *AS_SERVED, *WITH_CORPUS}

REPORT = Path("build/bench.json")
VERSIONS = Path("build/bench-versions.json")


class Sizes(NamedTuple):
    """How large the scenarios are.

    Attributes:
        pods: in each real cluster.
        objects: of those scenarios that have a number of them; None for what each has by itself.
        many: of `many-clusters`.
        queries: of `queries`.
    """

    pods: int
    objects: int | None
    many: many_clusters.Size
    queries: QueriesSize


async def measure(wanted: Collection[str], sizes: Sizes) -> list[Figure]:
    """Runs scenarios, those on real clusters first.

    Raises:
        WrongResult: one did not do what it was to do.
    """
    figures: list[Figure] = []
    if ON_THREE_CLUSTERS.intersection(wanted):
        async with Testbed(CLUSTERS) as bed:
            figures += await _on_three_clusters(bed, wanted, sizes.pods)
    if "informer" in wanted:
        _say("informer")
        figures += await informer(sizes.pods)
    if AS_SERVED.intersection(wanted):
        figures += await _as_served(wanted, sizes)
    if "aggregator-alone" in wanted:
        _say("aggregator-alone")
        figures += await aggregator_alone()
    if "many-watches" in wanted:
        _say("many-watches")
        figures += await many_watches()
    if "indexer-queries" in wanted:
        _say("indexer-queries")
        figures += await indexer_load.indexer_queries(sizes.objects or indexer_load.OBJECTS)
    if WITH_CORPUS.intersection(wanted):
        figures += await _with_corpus(wanted, sizes)
    return figures


async def _as_served(wanted: Collection[str], sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    _say("sampling a living cluster")
    async with sampled_objects(whole=True) as sample:
        if "wire-cost" in wanted:
            _say("wire-cost")
            figures += await wire_cost.wire_cost(sample, sizes.pods)
        if "agent-size" in wanted:
            _say("agent-size")
            figures += await agent_size.agent_size(sample, sizes.objects or agent_size.OBJECTS)
    return figures


async def _with_corpus(wanted: Collection[str], sizes: Sizes) -> list[Figure]:
    scenarios: Mapping[str, Callable[[Path], Awaitable[list[Figure]]]] = {
        "durable-deltas": durable_deltas,
        "fan-out": fan_out,
        "idle-watches": idle_watches,
        "watch-latency": watch_latency,
        "stalled-watches": stalled_watches,
        "digest-cost": partial(digest_cost.digest_cost, objects=sizes.objects or digest_cost.OBJECTS),
        "many-clusters": partial(many_clusters.many_clusters, size=sizes.many),
        "million": partial(million.million, objects=sizes.objects or million.OBJECTS),
        "queries": partial(queries.queries, size=sizes.queries),
        "peers-indexer": partial(
            peers_indexer.peers_indexer, size=QueriesSize(objects=sizes.objects or peers_indexer.OBJECTS)
        ),
    }
    async with _sample(sizes.queries.state) as sample:
        figures = corpus_figures(sample) if "corpus" in wanted else []
        for name, scenario in scenarios.items():
            if name in wanted:
                _say(name)
                figures += await scenario(sample)
    return figures


@asynccontextmanager
async def _sample(state: Path | None) -> AsyncIterator[Path]:
    """A new sample, or the one that a kept state was made from."""
    if state is not None and (kept := state / SAMPLE).exists():
        yield kept
        return
    _say("sampling a living cluster")
    async with sampled_objects() as sample:
        yield sample


async def _on_three_clusters(bed: Testbed, wanted: Collection[str], pods: int) -> list[Figure]:
    figures: list[Figure] = []
    if "start-up" in wanted:
        _say("start-up")
        figures += await start_up(bed, CLUSTERS[0])
    if not {"first-sync", "steady-updates"}.intersection(wanted):
        return figures
    _say(f"filling {len(CLUSTERS)} clusters with {pods} pods each")
    await fill(bed, pods)
    federation = Federation(bed.kubeconfig, CLUSTERS)
    try:
        _say("first-sync")
        synced = await first_sync(federation, pods)
        if "first-sync" in wanted:
            figures += synced
        if "steady-updates" in wanted:
            _say("steady-updates")
            figures += await steady_updates(bed, federation)
    finally:
        federation.close()
    return figures


def report(figures: Sequence[Figure], found: Mapping[str, str]) -> None:
    """Prints the table and writes the files."""
    for name, text in found.items():
        sys.stdout.write(f"{name}: {text}\n")
    header = ("scenario", "contender", "metric", "value", "unit", "bar")
    rows = [header, *((*figure[:3], _rounded(figure.value), figure.unit, figure.bar) for figure in figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sys.stdout.write("\n")
    for *texts, value, unit, bar in rows:
        columns = [f"{text:<{width}}" for text, width in zip(texts, widths, strict=False)]
        columns += (f"{value:>{widths[3]}}", f"{unit:<{widths[4]}}", bar)
        sys.stdout.write("  ".join(columns).rstrip() + "\n")
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps([figure._asdict() for figure in figures], indent=1) + "\n")
    VERSIONS.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(f"\nwritten to {REPORT} and {VERSIONS}\n")


def main() -> int:
    """Runs the command line and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--scenario", action="append", choices=SCENARIOS, metavar="NAME", help="only this one; may be repeated"
    )
    parser.add_argument("--pods", type=int, default=10_000, help="pods in each real cluster (10000)")
    parser.add_argument(
        "--objects",
        type=int,
        help="objects in million, queries, indexer-queries, peers-indexer, digest-cost and agent-size; "
        "of each cluster in many-clusters",
    )
    default = many_clusters.Size()
    parser.add_argument("--clusters", type=int, default=default.clusters, help="in many-clusters (250)")
    of_queries = QueriesSize()
    parser.add_argument(
        "--rate", type=float, help="changes a second there (1.3 of each cluster), and in queries (2000)"
    )
    parser.add_argument(
        "--seconds", type=float, help="of the steady rate there (60), and of each question in queries (10)"
    )
    parser.add_argument("--frame", type=int, default=of_queries.frame, help="changes in a frame of queries (20)")
    parser.add_argument("--state", type=Path, help="folder that keeps what queries has loaded, for further runs")
    parser.add_argument("--list", action="store_true", help="name the scenarios and end")
    options = parser.parse_args()
    if options.list:
        for name, summary in SCENARIOS.items():
            sys.stdout.write(f"{name:<18}{summary}\n")
        return 0
    many = many_clusters.Size(
        clusters=options.clusters,
        leaving=options.clusters * default.leaving // default.clusters,
        objects=options.objects or default.objects,
        rate=options.rate or options.clusters * default.rate / default.clusters,
        seconds=options.seconds or default.seconds,
    )
    asked = QueriesSize(
        objects=options.objects or of_queries.objects,
        seconds=options.seconds or of_queries.seconds,
        rate=options.rate or of_queries.rate,
        frame=options.frame,
        state=options.state,
    )
    wanted = set(options.scenario or SCENARIOS.keys() - ONLY_BY_NAME)
    configure_logging("warning")
    with asyncio.Runner() as runner:
        found = runner.run(versions(control_planes=bool(ON_CONTROL_PLANES & wanted)))
        figures = runner.run(measure(wanted, Sizes(options.pods, options.objects, many, asked)))
    report(figures, found)
    return 0


def _rounded(value: float) -> str:
    """Three significant digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _say(line: str) -> None:
    sys.stderr.write(f"bench: {line} …\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
