"""SharedInformer on a real kube-apiserver, as a program would use it without the federation."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache import Lister, SharedInformer, SharedInformerFactory
from federator.kube.member_client import MemberClient
from federator.kube.resource_list_watch import ResourceListWatch
from federator.testing.control_plane import ControlPlane
from federator.testing.testbed import Testbed

pytestmark = pytest.mark.testbed

CONFIG_MAPS = ResourceType(group="", version="v1", resource="configmaps", kind="ConfigMap", namespaced=True)


class Recording:
    """A handler that notes what it is told, and what the Indexer holds at that moment."""

    def __init__(self, informer: SharedInformer, *, slowness: float = 0) -> None:
        self._informer = informer
        self._slowness = slowness
        self.told: list[tuple[str, str, str]] = []
        self.initial: set[str] = set()
        self._behind: list[str] = []
        self._absent: set[str] = set()

    @property
    def stale(self) -> list[str]:
        """Keys of which the Indexer did not hold what was told; to ask when all is told."""
        return [*self._behind, *self._absent]

    def on_add(self, obj: KubeObject, is_initial: bool) -> None:
        if is_initial:
            self.initial.add(obj.name)
        self._note("add", obj)

    async def on_update(self, old: KubeObject, new: KubeObject) -> None:
        await asyncio.sleep(self._slowness)
        self._note("update", new)

    def on_delete(self, obj: KubeObject | Tombstone) -> None:
        assert isinstance(obj, KubeObject)
        self.told.append(("delete", obj.name, ""))
        self._absent.discard(obj.key)
        held = self._informer.indexer.get_by_key(obj.key)
        if held is not None and int(held.resource_version) <= int(obj.resource_version):
            self._behind.append(obj.key)

    def _note(self, kind: str, obj: KubeObject) -> None:
        self.told.append((kind, obj.name, obj.resource_version))
        held = self._informer.indexer.get_by_key(obj.key)
        # It may hold a later state when more has happened since, or none when that is a deletion, which is then told.
        if held is None:
            self._absent.add(obj.key)
        elif int(held.resource_version) < int(obj.resource_version):
            self._behind.append(obj.key)

    def last(self, name: str) -> str:
        return next(version for kind, told, version in reversed(self.told) if told == name and kind != "delete")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a condition over what handlers were told has no event
            await asyncio.sleep(0.02)


def config_map(name: str, value: str = "0", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "data": {"value": value}}


async def test_handlers_see_the_indexer_updated_and_each_the_whole_stream(
    three_clusters: Testbed, shared_namespace: str
) -> None:
    plane = three_clusters["eu-1"]
    path = f"/api/v1/namespaces/{shared_namespace}/configmaps"
    async with (
        MemberClient.from_kubeconfig("eu-1", path=three_clusters.kubeconfig) as member_client,
        plane.client() as admin,
        SharedInformerFactory(functools.partial(ResourceListWatch, member_client)) as factory,
    ):
        for name in ("a", "b", "c"):
            await admin.create(path, config_map(name, app="web"))
        informer = factory.informer(CONFIG_MAPS, namespace=shared_namespace, label_selector="app=web")
        informer.add_indexers({"value": lambda obj: [(obj.meta().labels or {}).get("tier", "none")]})
        early, slow = Recording(informer), Recording(informer, slowness=0.02)
        registrations = [informer.add_event_handler(early), informer.add_event_handler(slow)]
        factory.start()
        await factory.wait_for_cache_sync(timeout=30)
        for registration in registrations:
            await registration.wait_synced()
        assert early.initial == slow.initial == {"a", "b", "c"}

        for number in range(1, 31):
            await admin.patch(f"{path}/a", {"data": {"value": str(number)}})
        await admin.create(path, config_map("d", app="web", tier="front"))
        await admin.create(path, config_map("unseen", app="other"))
        await admin.patch(f"{path}/b", {"metadata": {"labels": {"app": "gone"}}})
        await admin.delete(f"{path}/c")
        newest = (await admin.get(f"{path}/a"))["metadata"]["resourceVersion"]

        deleted = {("delete", "b", ""), ("delete", "c", "")}
        for handler in (early, slow):
            await until(lambda handler=handler: deleted <= set(handler.told))  # type: ignore[misc]
            await until(lambda handler=handler: handler.last("a") == newest)  # type: ignore[misc]
            assert [kind for kind, name, _ in handler.told if name == "d"] == ["add"]
            assert not [name for _, name, _ in handler.told if name == "unseen"]
            assert handler.stale == []
        versions = [int(version) for kind, name, version in early.told if name == "a"]
        assert versions == sorted(versions)
        assert len(versions) == 31, "a handler that keeps up is told every state"

        late = Recording(informer)
        registration = informer.add_event_handler(late)
        assert not registration.has_synced()
        await registration.wait_synced()
        assert late.initial == {"a", "d"}
        assert late.told == [("add", name, late.last(name)) for name in ("a", "d")]
        assert [obj.name for obj in informer.indexer.by_index("value", "front")] == ["d"]
        lister = Lister(informer.indexer, resource="configmaps")
        assert lister.namespace(shared_namespace).get("d").resource_version == late.last("d")


@pytest.mark.usefixtures("quick_dials")
async def test_after_an_apiserver_was_killed_only_what_changed_is_told(expendable_cluster: ControlPlane) -> None:
    plane = expendable_cluster
    async with plane.client() as admin:
        await admin.create("/api/v1/namespaces", {"metadata": {"name": "informed"}})
    path = "/api/v1/namespaces/informed/configmaps"
    async with MemberClient.from_kubeconfig(plane.context, path=plane.kubeconfig) as member_client:
        informer = SharedInformer(ResourceListWatch(member_client, CONFIG_MAPS, namespace="informed"), name="maps")
        handler = Recording(informer)
        informer.add_event_handler(handler)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(informer.run())
            await informer.wait_synced()
            async with plane.client() as admin:
                await admin.create(path, config_map("before"))
                await until(lambda: informer.indexer.get_by_key("informed/before") is not None)
            plane.kill()
            await until(lambda: informer.status().error is not None)
            assert informer.indexer.get_by_key("informed/before") is not None, "what is held stays held"
            await plane.start()
            async with plane.client() as admin:
                await admin.create(path, config_map("after"))
                informer.dial_soon()
                await until(lambda: informer.indexer.get_by_key("informed/after") is not None)
            # Whether it could resume or had to list depends on the history that the new apiserver has.
            told = [(kind, name) for kind, name, _ in handler.told if name in {"before", "after"}]
            assert told == [("add", "before"), ("add", "after")]
            running.cancel()
