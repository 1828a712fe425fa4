"""A compressed store that is filled from an apiserver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import pytest

from federator.api.list_watch import Known, ListOptions, ListPage, WatchEvent, nothing_known
from federator.api.resource import ResourceType
from federator.cache.handler import ResourceEventHandlerFuncs
from federator.cache.shared_informer import SharedInformer
from federator.kube import MemberClient, ResourceListWatch
from federator.testing.fake_api_server import FakeApiServer
from tests.unit.aggregator.federation import eventually

CONFIG_MAPS = ResourceType(group="", version="v1", resource="configmaps", kind="ConfigMap", namespaced=True)


@pytest.mark.parametrize("use_watch_list", [True, False], ids=["watch-list", "list"])
async def test_an_informer_never_has_a_list_whole(use_watch_list: bool, tmp_path: Path) -> None:
    """Its objects are compressed while they are read; handlers are told whole ones all the same."""
    async with FakeApiServer() as server:
        for number in range(100):
            server.put("configmaps", f"c{number}", data={"text": "shipping and handling " * 20})
        path = server.kubeconfig(tmp_path / "kubeconfig")
        async with MemberClient.from_kubeconfig(path=path) as client:
            list_watch = _Sizes(ResourceListWatch(client, CONFIG_MAPS))
            informer = SharedInformer(list_watch, name="maps", compress=True, use_watch_list=use_watch_list)
            told: dict[str, bytes] = {}
            registration = informer.add_event_handler(
                ResourceEventHandlerFuncs(
                    add=lambda obj, _: told.__setitem__(obj.key, obj.raw),
                    update=lambda _, new: told.__setitem__(new.key, new.raw),
                )
            )
            running = asyncio.create_task(informer.run())
            await registration.wait_synced()
            stored = {obj.key: obj.raw for obj in informer.indexer.list()}
            assert told == stored
            assert len(stored) == 100
            assert all(msgspec.json.decode(raw)["data"]["text"].startswith("shipping") for raw in stored.values())
            sizes = [len(kept.raw) for key in stored if (kept := informer.indexer.kept(key))]
            assert max(sizes) * 2 < min(map(len, stored.values()))
            if not use_watch_list:
                assert list_watch.largest * 2 < min(map(len, stored.values()))
            told.clear()
            server.put("configmaps", "c7", data={"text": "another"})
            informer.request_relist()
            await eventually(lambda: "default/c7" in told)
            assert list(told) == ["default/c7"]
            running.cancel()
            await asyncio.wait([running])


class _Sizes:
    """Notes how large the largest object is that a list gives."""

    def __init__(self, list_watch: ResourceListWatch) -> None:
        self.largest = 0
        self._list_watch = list_watch

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        page = await self._list_watch.list(options, known=known)
        self.largest = max([self.largest, *(len(obj.raw) for obj in page.objects)])
        return page

    def watch(self, options: ListOptions) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        return self._list_watch.watch(options)
