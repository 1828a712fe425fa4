"""Scenario `peers-indexer`: ten questions, to federator over gRPC and to client-go's Indexers inside one process.

The Go program (`tests/peers/clientgo-indexer`) is built once, into the user's cache. It holds the same objects, typed,
and answers by the loops that programs write around an Indexer. Both have to find the same.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from federator.v1 import inventory_pb2
from tests.bench.corpus import Corpus
from tests.bench.corpus_load import cluster_id
from tests.bench.figure import FEDERATOR, Figure, WrongResult, percentile
from tests.bench.load_process import Json
from tests.bench.queries_asks import Aggregated, Asker, Listed, asker, object_key
from tests.bench.queries_bed import Size, queries_bed
from tests.bench.queries_truth import APP, DEPLOYMENTS, PODS, TRACK, VERSION, Truth
from tests.bench.usage import anonymous_memory, memory
from tests.peers.program import provide as provide_peer

OBJECTS = 200_000
ROUNDS = 50
_ASKED_CLUSTER = 7
_PREFIX = "corpus-1"
"""Of the clusters that some questions are about; an aggregator gets it as a glob."""

_PAGE = 500
_COUNT = inventory_pb2.Measure(function=inventory_pb2.AGGREGATE_FUNCTION_COUNT)
_MB = 1e6


Ask = Callable[[], Awaitable[tuple[float, list[str]]]]
"""Asks once; the seconds it took, and what was found, as the Go program writes it."""


async def peers_indexer(sample: Path, size: Size, *, rounds: int = ROUNDS) -> list[Figure]:
    """Asks both, and compares what they find; nothing where there is no Go."""
    program = await provide()
    if program is None:
        return []
    truth = Truth(Corpus.read(sample), size.clusters, size.of_cluster)
    asked = _asked(truth, rounds)
    report = await _go(program, truth, asked)
    if report["objects"] != truth.total:
        raise WrongResult(f"client-go has {report['objects']} objects instead of {truth.total}")
    contender = f"client-go {report['client_go']}, {report['go']}"
    figures = [
        Figure(size.name, contender, "live objects on the heap", report["memory"]["live"] / _MB, "MB"),
        Figure(size.name, contender, "memory, given back what can be", report["memory"]["resident"] / _MB, "MB"),
        Figure(size.name, contender, "memory, peak", report["memory"]["peak"] / _MB, "MB"),
    ]
    async with queries_bed(sample, size) as bed, asker(bed.federation.address) as asking:
        asks = dict(zip((answer["name"] for answer in report["answers"]), _asks(asking, truth, asked), strict=True))
        for answer in report["answers"]:
            what = f"{answer['name']}, {len(answer['found'])} found"
            taken = await _taken(asks[answer["name"]], answer["found"], rounds, what)
            figures += _delays(size.name, FEDERATOR, what, taken)
            figures += _delays(size.name, contender, what, answer["seconds"])
        figures += [
            Figure(size.name, FEDERATOR, "memory of the aggregator", memory(bed.process).now, "MB"),
            Figure(size.name, FEDERATOR, "memory of the aggregator, anonymous", anonymous_memory(bed.process), "MB"),
        ]
    return figures


async def provide() -> Path | None:
    """The Go program, built if need be; None where there is no Go."""
    if shutil.which("go") is None:
        _say("peers-indexer is left out: there is no `go` on the PATH")
        return None
    return await provide_peer("clientgo-indexer", _say)


def _asked(truth: Truth, rounds: int) -> Json:
    """What the questions are about, as the Go program reads it."""
    cluster = _ASKED_CLUSTER % truth.clusters
    pods = [each for each in truth.facts if each.place.resource == PODS]
    pod = pods[len(pods) // 2]
    app = next(each.labels[APP] for each in truth.facts if each.place.resource == DEPLOYMENTS)
    owned: Any = msgspec.json.decode(truth.state(pod.place, cluster).raw)
    return {
        "rounds": rounds,
        "prefixes": [_PREFIX],
        "cluster": cluster_id(cluster),
        "namespace": pod.namespace,
        "node": pod.node,
        "app": app,
        "owner": owned["metadata"]["ownerReferences"][0]["uid"],
        "name": app,
        "labels": f"{VERSION}={pod.labels[VERSION]},{TRACK}={pod.labels[TRACK]}",
        "notin": f"{TRACK} notin (stable,canary)",
        "group_by": APP,
        "first": _PAGE,
    }


async def _go(program: Path, truth: Truth, asked: Json) -> Json:
    process = await asyncio.create_subprocess_exec(
        program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(asked) + b"\n")
        for lines in _lines(truth):
            process.stdin.write(lines)
            await process.stdin.drain()
        process.stdin.close()
        output = await process.stdout.read()
        if await process.wait():
            raise WrongResult(f"{program.name} ended with exit code {process.returncode}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return msgspec.json.decode(output, type=Json)


def _lines(truth: Truth) -> Iterator[bytes]:
    """Every object of every cluster, a line each."""
    for cluster in range(truth.clusters):
        for each in truth.facts:
            resource = each.place.resource
            head = msgspec.json.encode({"cluster": cluster_id(cluster), "resource": resource})
            yield b'%b,"object":%b}\n' % (head[:-1], truth.state(each.place, cluster).raw)


def _asks(asking: Asker, truth: Truth, asked: Json) -> Iterator[Ask]:
    """The same questions in the order of the Go program."""
    types = [str(each.group_resource) for each in truth.corpus.types.values()]
    deployments = str(truth.corpus.types[DEPLOYMENTS].group_resource)
    some, one = [f"{prefix}*" for prefix in asked["prefixes"]], [asked["cluster"]]

    def listing(resources: Sequence[str], *, clusters: Sequence[str] = (), first: int = 0, **how: str) -> Ask:
        selection = inventory_pb2.Selection(resources=resources, clusters=clusters, **how)
        request = inventory_pb2.ListRequest(selection=selection)
        if first:
            request.page_size, request.order_by = first, "name,cluster,namespace"

        async def ask() -> tuple[float, list[str]]:
            listed: Listed = await asking.list(request)
            return listed.seconds, sorted(map(object_key, listed.objects))

        return ask

    def counting(*group_by: str, text: Callable[[tuple[str | None, ...]], str]) -> Ask:
        selection = inventory_pb2.Selection(resources=types)
        request = inventory_pb2.AggregateRequest(selection=selection, group_by=group_by, measures=[_COUNT])

        async def ask() -> tuple[float, list[str]]:
            counted: Aggregated = await asking.aggregate(request)
            groups = {keys: number for keys, number in counted.groups.items() if None not in keys}
            return counted.seconds, sorted(f"{text(keys)}={number}" for keys, number in groups.items())

        return ask

    yield listing([PODS], namespace=asked["namespace"])
    yield listing([deployments], clusters=some, label_selector=f"{APP}={asked['app']}")
    yield listing([PODS], clusters=one, field_selector=f"spec.nodeName={asked['node']}")
    yield listing([PODS], label_selector=asked["labels"])
    yield listing([PODS], clusters=one, label_selector=asked["notin"])
    yield listing(types, owner_uid=asked["owner"])
    yield counting("cluster", "type", text=lambda keys: f"{keys[0]}/{str(keys[1]).partition('.')[0]}")
    yield counting(f"label:{asked['group_by']}", text=lambda keys: str(keys[0]))
    yield listing([PODS], first=asked["first"])
    yield listing(types, name=asked["name"])


async def _taken(ask: Ask, expected: Sequence[str], rounds: int, what: str) -> list[float]:
    taken = []
    for _ in range(rounds):
        seconds, found = await ask()
        if found != expected:
            differing = sorted(set(found).symmetric_difference(expected))
            raise WrongResult(f"{what}: {len(found)} found, {len(differing)} differ: {differing[:5]}")
        taken.append(seconds)
    return taken


def _delays(scenario: str, contender: str, what: str, seconds: Sequence[float]) -> list[Figure]:
    return [
        Figure(scenario, contender, f"{what}, p{percent}", percentile(seconds, percent) * 1e3, "ms")
        for percent in (50, 99)
    ]


def _say(line: str) -> None:
    sys.stderr.write(f"bench: {line}\n")
    sys.stderr.flush()
