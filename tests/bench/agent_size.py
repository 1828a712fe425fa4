"""Scenario `agent-size`: what one agent takes that follows a cluster of usual size."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from federator.testing.etcd_store import store_objects
from federator.testing.federation import Federation
from federator.testing.process_group import Process
from federator.testing.testbed import Testbed
from tests.bench.corpus import Corpus
from tests.bench.figure import FEDERATOR, MACHINE, Figure, WrongResult
from tests.bench.live_again import live_since, wait_live_again
from tests.bench.load_process import LoadProcess
from tests.bench.stored_corpus import stored_objects
from tests.bench.usage import Span, forget_peak, memory
from tests.bench.watch_recorder import WatchRecorder
from tests.integration.federation import truth

OBJECTS = 25_000

_CLUSTER = "eu-1"
_RATE = 20.0
_SETTLE_SECONDS, _REST_SECONDS, _SECONDS = 30.0, 20.0, 60.0

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
        stored = await store_objects(plane.etcd_socket, stored_objects(corpus, corpus.counts(objects)))
        federation = Federation(bed.kubeconfig, (_CLUSTER,))
        try:
            return await _figures(bed, federation, corpus, stored)
        finally:
            federation.close()


async def _figures(bed: Testbed, federation: Federation, corpus: Corpus, stored: int) -> list[Figure]:
    scenario = f"1 agent, a cluster of {stored} objects"
    await federation.start()
    name = f"agent-{_CLUSTER}"
    listed = memory(federation.processes[name])
    await asyncio.sleep(_SETTLE_SECONDS)
    settled = memory(federation.processes[name])
    since = await live_since(federation)
    if not await federation.processes[name].stop(15):
        raise WrongResult("the agent did not end by itself")
    federation.start_agent(_CLUSTER)
    await wait_live_again(federation, since)
    agent = federation.processes[name]
    await asyncio.sleep(_SETTLE_SECONDS)
    again = memory(agent)
    rest = Span({"agent": agent})
    await asyncio.sleep(_REST_SECONDS)
    rest.end()
    await _check(bed, federation, corpus, stored)
    forget_peak(agent)
    span, changes = await _changes(bed, federation, agent)
    changing = memory(agent)
    under_changes = f"{scenario}, {_RATE:g} changes/s"
    return [
        Figure(scenario, FEDERATOR, "memory that its imports take", await _imports(), "MiB"),
        Figure(scenario, FEDERATOR, "memory until all was sent, peak", _mib(listed.peak), "MiB"),
        Figure(scenario, FEDERATOR, f"memory {_SETTLE_SECONDS:g} s later", _mib(settled.now), "MiB", "<= 128"),
        Figure(scenario, FEDERATOR, "started again, memory until LIVE, peak", _mib(again.peak), "MiB"),
        Figure(
            scenario, FEDERATOR, f"started again, memory {_SETTLE_SECONDS:g} s later", _mib(again.now), "MiB", "<= 128"
        ),
        Figure(scenario, FEDERATOR, "CPU of a core, at rest", 100 * rest.agents / rest.seconds, "%"),
        Figure(under_changes, "kube-apiserver", "changes", changes / span.seconds, "1/s"),
        Figure(under_changes, FEDERATOR, "memory", _mib(changing.now), "MiB", "<= 128"),
        Figure(under_changes, FEDERATOR, "memory, peak", _mib(changing.peak), "MiB"),
        Figure(under_changes, FEDERATOR, "CPU of a core", 100 * span.agents / span.seconds, "%", "<= 5"),
        Figure(under_changes, MACHINE, "CPU in use", span.machine_percent, "%"),
    ]


async def _changes(bed: Testbed, federation: Federation, agent: Process) -> tuple[Span, int]:
    """Has pods changed for a while; returns what the agent used, and how many changes it were."""
    plane = bed[_CLUSTER]
    async with (
        LoadProcess("tests.bench.update_load", plane.name, plane.url, str(plane.folder)) as load,
        federation.client() as fed,
        WatchRecorder(fed) as recorder,
    ):
        span = Span({"agent": agent})
        told = await load.ask(rate=_RATE, seconds=_SECONDS)
        span.end()
        changes = sum(told["written"].values())
        await recorder.wait(changes)
        recorder.check(told["written"], in_order=False)
    return span, changes


async def _check(bed: Testbed, federation: Federation, corpus: Corpus, stored: int) -> None:
    """Compares every object with what the apiserver lists."""
    theirs = await truth.listed(bed, [_CLUSTER], only={each.group_resource for each in corpus.types.values()})
    async with federation.client() as fed:
        mine = await truth.held(fed, [str(each.group_resource) for each in corpus.types.values()])
    if mine != theirs or len(theirs) < stored:
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
