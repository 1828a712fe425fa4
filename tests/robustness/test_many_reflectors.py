"""Hundreds of reflectors on many clusters, started and stopped three times: what they take, and that they give it back.

Bug 37: elsewhere, each watch made a client of its own, with threads and connections that nobody ended.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import ssl
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from federator.cache.cluster_factories import ClusterInformerFactories
from federator.kube import MemberClient, ResourceListWatch
from tests.bench.load_process import LoadProcess
from tests.bench.member_load import allow_many_files
from tests.fixtures import logs, no_proxies, no_system_authorities, no_task_is_left
from tests.robustness.many_members import cluster_name, kubeconfig_of, numbered_type, object_name
from tests.scale import scale, scaled

__all__ = ["logs", "no_proxies", "no_system_authorities", "no_task_is_left"]

CLUSTERS = scale(50, quick=20)
TYPES = scale(20, quick=10)
REFLECTORS = CLUSTERS * TYPES

MORE_BLOCKS = REFLECTORS // 2
"""Python objects by which the third round may leave more than the second: one for every other reflector. They are
counted by Python's allocator, strings and all, so nothing small can be missed; it is never the same number, since
interpreter and libraries keep a few of what they used last."""

MORE_RESIDENT = REFLECTORS / 100
"""MB by which the third round may leave more than the second. What is no Python object, e.g. buffers of TLS and of
sockets, shows only here; so do pages that are given back in part, and not always the same ones. 10 KB a reflector."""


class Usage(NamedTuple):
    """What this process has.

    Attributes:
        tasks: of the loop.
        threads: of the process.
        descriptors: open files and sockets.
        connectors: pools of connections.
        tls_contexts: each with its certificate authorities.
        blocks: of Python's allocator; about as many as there are objects.
        resident: memory that belongs to no file, in MB.
    """

    tasks: int
    threads: int
    descriptors: int
    connectors: int
    tls_contexts: int
    blocks: int
    resident: float


def usage() -> Usage:
    gc.collect()
    alive = [type(each) for each in gc.get_objects()]
    connectors = alive.count(aiohttp.TCPConnector)
    tls_contexts = alive.count(ssl.SSLContext)
    del alive
    resident = Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]
    return Usage(
        tasks=len(asyncio.all_tasks()),
        threads=threading.active_count(),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        connectors=connectors,
        tls_contexts=tls_contexts,
        blocks=sys.getallocatedblocks(),
        resident=int(resident) * 1024 / 1e6,
    )


@pytest.fixture
async def members(tmp_path: Path) -> AsyncIterator[LoadProcess]:
    allow_many_files()
    async with LoadProcess("tests.robustness.many_members", str(tmp_path), str(CLUSTERS), str(TYPES), "1") as members:
        yield members


async def start_and_stop(members: LoadProcess, folder: Path) -> Usage:
    """Follows all types of all clusters; half of these are removed before all is shut down. What it took at most."""
    async with AsyncExitStack() as stack:
        factories = ClusterInformerFactories()
        for number in range(CLUSTERS):
            client = MemberClient.from_kubeconfig(path=kubeconfig_of(folder, number))
            new_list_watch = functools.partial(ResourceListWatch, await stack.enter_async_context(client))
            factory = factories.add(cluster_name(number), new_list_watch)
            listers = [factory.lister(numbered_type(number)) for number in range(TYPES)]
        async with factories:
            await factories.wait_for_cache_sync(timeout=100)
            assert [[obj.name for obj in lister.list()] for lister in listers] == [[object_name(0)]] * TYPES
            assert (await members.ask(watches=True))["watches"] == [TYPES] * CLUSTERS
            running = usage()
            await asyncio.gather(*(factories.remove(cluster_name(number)) for number in range(0, CLUSTERS, 2)))
    return running


@scaled
@pytest.mark.timeout(400)
async def test_bug37_many_reflectors_on_many_clusters_leave_nothing(members: LoadProcess, tmp_path: Path) -> None:
    # Credentials are read in threads; the loop keeps those until it is closed.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
    await asyncio.to_thread(int)
    before = usage()
    after = []
    for _ in range(3):
        running = await start_and_stop(members, tmp_path)
        assert running.threads == before.threads
        assert running.descriptors == before.descriptors + REFLECTORS, "a connection for each watch"
        assert running.connectors == before.connectors + CLUSTERS, "one pool for each cluster"
        assert running.tls_contexts == before.tls_contexts + CLUSTERS, "one for each cluster"

        after.append(usage())
        assert after[-1][:5] == before[:5]
        assert (await members.ask(watches=True))["watches"] == [0] * CLUSTERS
    assert after[2].blocks - after[1].blocks <= MORE_BLOCKS
    assert after[2].resident - after[1].resident <= MORE_RESIDENT
