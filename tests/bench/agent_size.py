"""Scenario `agent-size`: what one agent takes that follows a cluster of usual size."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from federator.testing.admin_client import Json
from federator.testing.etcd_store import store_objects
from federator.testing.federation import Federation
from federator.testing.testbed import Testbed
from tests.bench.corpus import FIRST_VERSION, Corpus
from tests.bench.figure import FEDERATOR, MACHINE, Figure, WrongResult
from tests.bench.load_process import LoadProcess
from tests.bench.usage import Span, forget_peak, memory
from tests.bench.watch_recorder import WatchRecorder
from tests.integration.federation import truth

OBJECTS = 25_000

_CLUSTER = "eu-1"
_RATE = 20.0
_SETTLE_SECONDS, _SECONDS = 30.0, 60.0

_FOLDERS = {
    "deployments": "deployments",
    "endpointslices": "endpointslices",
    "namespaces": "namespaces",
    "nodes": "minions",
    "pods": "pods",
    "replicasets": "replicasets",
    "serviceaccounts": "serviceaccounts",
    "services": "services/specs",
    "configmaps": "configmaps",
}
"""Where an apiserver keeps the objects of each type in etcd."""

_IMPORTS = "import sys, federator.cli.agent; sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()"


async def agent_size(sample: Path, objects: int) -> list[Figure]:
    """Fills a real cluster, follows it at rest and under changes.

    Args:
        sample: of objects as the apiserver serves them.
        objects: number of them.
    """
    corpus = Corpus.read(sample)
    async with Testbed((_CLUSTER,)) as bed:
        plane = bed[_CLUSTER]
        stored = await store_objects(plane.etcd_socket, _objects(corpus, objects))
        federation = Federation(bed.kubeconfig, (_CLUSTER,))
        try:
            await federation.start()
            agent = federation.processes[f"agent-{_CLUSTER}"]
            scenario = f"1 agent, a cluster of {stored} objects"
            listed = memory(agent)
            await asyncio.sleep(_SETTLE_SECONDS)
            forget_peak(agent)
            rest = memory(agent)
            await _check(bed, federation, corpus, objects)
            arguments = (plane.name, plane.url, str(plane.folder))
            async with (
                LoadProcess("tests.bench.update_load", *arguments) as load,
                federation.client() as fed,
                WatchRecorder(fed) as recorder,
            ):
                span = Span({"agent": agent})
                told = await load.ask(rate=_RATE, seconds=_SECONDS)
                span.end()
                await recorder.wait(sum(told["written"].values()))
                recorder.check(told["written"], in_order=False)
            changing = memory(agent)
        finally:
            federation.close()
    imports = await _imports()
    percent = 100 * span.agents / span.seconds
    done = sum(told["written"].values()) / span.seconds
    return [
        Figure(scenario, FEDERATOR, "memory that its imports take", imports, "MiB"),
        Figure(scenario, FEDERATOR, "memory when it is LIVE", _mib(listed.now), "MiB"),
        Figure(scenario, FEDERATOR, "memory until it is LIVE, peak", _mib(listed.peak), "MiB"),
        Figure(scenario, FEDERATOR, f"memory {_SETTLE_SECONDS:g} s later", _mib(rest.now), "MiB", "<= 128"),
        Figure(f"{scenario}, {_RATE:g} changes/s", "kube-apiserver", "changes", done, "1/s"),
        Figure(f"{scenario}, {_RATE:g} changes/s", FEDERATOR, "memory", _mib(changing.now), "MiB", "<= 128"),
        Figure(f"{scenario}, {_RATE:g} changes/s", FEDERATOR, "memory, peak", _mib(changing.peak), "MiB"),
        Figure(f"{scenario}, {_RATE:g} changes/s", FEDERATOR, "CPU of a core", percent, "%", "<= 5"),
        Figure(f"{scenario}, {_RATE:g} changes/s", MACHINE, "CPU in use", span.machine_percent, "%"),
    ]


def _objects(corpus: Corpus, objects: int) -> Iterator[tuple[str, Json]]:
    """What is put into etcd: the path of each object, and the object."""
    for resource, number in corpus.counts(objects).items():
        for index in range(number):
            state = corpus.state(resource, 0, index, FIRST_VERSION)
            obj = msgspec.json.decode(state.raw, type=Json)
            del obj["metadata"]["resourceVersion"]  # the apiserver takes etcd's
            if resource == "pods":
                _make_valid(obj)
            yield f"{_FOLDERS[resource]}/{f'{state.namespace}/' if state.namespace else ''}{state.name}", obj


def _make_valid(pod: Json) -> None:
    """What was drawn by itself must fit together where the apiserver is to take changes."""
    for container in pod["spec"]["containers"]:
        resources = container["resources"]
        if "limits" in resources:
            resources["requests"] = resources["limits"]


async def _check(bed: Testbed, federation: Federation, corpus: Corpus, objects: int) -> None:
    """Compares every object with what the apiserver lists."""
    theirs = await truth.listed(bed, [_CLUSTER], only=set(corpus.types))
    async with federation.client() as fed:
        mine = await truth.held(fed, [str(each.group_resource) for each in corpus.types.values()])
    if mine != theirs or len(theirs) < sum(corpus.counts(objects).values()):
        raise WrongResult(f"{len(mine)} of {len(theirs)} objects, or other ones")


async def _imports() -> float:
    """Memory of a process that has imported what an agent is made of, in MiB."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _IMPORTS, stdin=pipe, stdout=pipe)
    try:
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise WrongResult("nothing could be imported")
        return _mib(memory(process).now)
    finally:
        process.kill()
        await process.communicate()


def _mib(megabytes: float) -> float:
    return megabytes * 1e6 / 2**20
