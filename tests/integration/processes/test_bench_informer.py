"""The informers that are compared, as the benchmark drives them, against an apiserver in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kubernetes import client, config

from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer, faults
from tests.bench.informer_federator import TYPES, FederatorInformer
from tests.bench.informer_official import OfficialInformer
from tests.bench.informer_process import MeasuredInformer

PODS = [f"pod-{number}" for number in range(5)]

NEVER = 3600.0


@asynccontextmanager
async def informer_of(way: str, server: FakeApiServer, folder: Path) -> AsyncIterator[MeasuredInformer]:
    kubeconfig = server.kubeconfig(folder / "kubeconfig")
    if way == "official":
        with config.new_client_from_config(str(kubeconfig)) as api_client:
            api = client.CoreV1Api(api_client)
            official = OfficialInformer(api.list_pod_for_all_namespaces, resync_period=NEVER)
            try:
                yield official
            finally:
                stopping = asyncio.create_task(official.stop())
                while not stopping.done():  # where it is just about to watch, it notices at the next event only
                    server.put("pods", "last")
                    await asyncio.wait({stopping}, timeout=0.05)
        return
    async with MemberClient.from_kubeconfig(path=kubeconfig) as member:
        federator = FederatorInformer(
            ResourceListWatch(member, TYPES["pods"]),
            use_watch_list=way == "watch-list",
            compress=way == "list, compressed",
        )
        try:
            yield federator
        finally:
            await federator.stop()


@pytest.mark.parametrize("way", ["watch-list", "list", "list, compressed", "official"])
async def test_an_informer_syncs_follows_and_lists_anew(way: str, tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        for name in PODS:
            server.put("pods", name)
        async with informer_of(way, server, tmp_path) as informer:
            await informer.sync()
            assert informer.told == len(PODS)
            assert sorted(informer.held()) == truth(server)

            watch = await server.wait_for_watch("pods")
            server.touch("pods", PODS[0])
            await told_more_than(len(PODS), informer)
            assert informer.told == len(PODS) + 1
            assert sorted(informer.held()) == truth(server)

            seen = server.requests.total
            relisting = asyncio.create_task(informer.relist())
            await asyncio.sleep(0)
            if way == "official":  # it is not asked, it lists when it has to
                server.fail("watch", "pods", faults.ErrorEvent(410))
                watch.reset()
            await relisting
            assert lists(server, since=seen) == 1
            unchanged = len(PODS) if way == "official" else 0  # which the official one tells again
            assert informer.told == len(PODS) + 1 + unchanged


@pytest.mark.parametrize(("way", "lists_at_first"), [("watch-list", False), ("list", True)])
async def test_federator_learns_what_exists_in_the_way_that_is_named(
    way: str, lists_at_first: bool, tmp_path: Path
) -> None:
    async with FakeApiServer() as server:
        async with informer_of(way, server, tmp_path) as informer:
            await informer.sync()
        assert bool(server.requests.of("list")) == lists_at_first


async def told_more_than(told: int, informer: MeasuredInformer) -> None:
    async with asyncio.timeout(30):
        while True:
            if informer.told > told:
                return
            await asyncio.sleep(0.01)


def lists(server: FakeApiServer, *, since: int) -> int:
    watch_lists = [each for each in server.requests.of("watch", since=since) if "sendInitialEvents" in each.query]
    return len(server.requests.of("list", since=since)) + len(watch_lists)


def truth(server: FakeApiServer) -> list[tuple[str, str]]:
    metadata = [obj["metadata"] for obj in server.list("pods")]
    return sorted((f"{meta['namespace']}/{meta['name']}", meta["resourceVersion"]) for meta in metadata)
