"""Samples objects of a living cluster; `tests.bench.corpus` makes many of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from federator.agent.transforms import drop_bookkeeping
from federator.api.list_watch import ListOptions
from federator.kube import MemberClient, ResourceListWatch
from federator.kube.discovery import discover
from federator.testing.scratch import ScratchFolder
from federator.testing.testbed import Testbed
from federator.testing.workload import Workload
from tests.bench.corpus import WEIGHTS, Sampled, write_sample

_CLUSTER = "sample"
_NODES = 6
_APPLICATIONS = 40
_CHURN_RATE, _CHURN_SECONDS = 12.0, 10.0
"""Rolls, scalings and new labels: pods of different ages and releases, ReplicaSets that are done with."""

_SETTLE_SECONDS = 10.0
_POLL = 0.5
_PODS, _REPLICA_SETS = "Pod", "ReplicaSet"


@asynccontextmanager
async def sampled_objects(*, whole: bool = False) -> AsyncIterator[Path]:
    """The file of a new sample, for `Corpus.read`, while the context is open; about half a minute to make.

    Args:
        whole: objects as the apiserver serves them, `managedFields` included; else as an agent pushes them.
    """
    scratch = ScratchFolder()
    try:
        path = scratch.path / "sample.msgpack"
        sample = await _sample()
        if not whole:
            sample = [Sampled(each.type, drop_bookkeeping(each.object)) for each in sample]
        write_sample(path, sample)
        yield path
    finally:
        scratch.remove()


async def _sample() -> list[Sampled]:
    async with Testbed((_CLUSTER,), living=True, nodes=_NODES) as bed:
        workload = Workload(bed[_CLUSTER])
        await workload.fill(applications=_APPLICATIONS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CHURN_SECONDS):
                await workload.churn(rate=_CHURN_RATE)
        async with MemberClient.from_kubeconfig(_CLUSTER, path=bed.kubeconfig) as member:
            await _settled(member)
            return await _list(member)


async def _settled(member: MemberClient) -> None:
    """Waits until all pods run, but not for ever: one that does not is a part of life."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE_SECONDS):
            while True:
                pods = [obj for obj in await _list(member) if obj.type.kind == _PODS]
                if pods and all(b'"phase":"Running"' in pod.object.raw for pod in pods):
                    return
                await asyncio.sleep(_POLL)


async def _list(member: MemberClient) -> list[Sampled]:
    found: list[Sampled] = []
    for resource_type in (await discover(member)).types:
        if resource_type.resource in WEIGHTS:
            page = await ResourceListWatch(member, resource_type).list(ListOptions())
            found += [Sampled(resource_type, obj) for obj in page.objects]
    return found
