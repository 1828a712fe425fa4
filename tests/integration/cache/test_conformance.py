"""Of the conformance suite, what a real kube-apiserver can be made to show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import msgspec
import pytest

from federator.api.list_watch import Known, ListOptions, ListPage, WatchEvent, nothing_known
from federator.api.object import KubeObject
from federator.cache import ListWatch, Reflector, each_item, retry_watch
from federator.cache.pager import list_all
from federator.errors import KubeStatusError
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import ControlPlane, Testbed
from federator.testing.admin_client import AdminClient, Json
from federator.testing.etcd_store import store_objects
from tests.conformance.consistency import check_consistency
from tests.conformance.rig import CONFIG_MAPS, Rig, Store

pytestmark = pytest.mark.testbed


class Place:
    """A namespace of a shared control plane, an administrator and a member client of it."""

    def __init__(self, admin: AdminClient, client: MemberClient, namespace: str) -> None:
        self.admin = admin
        self.client = client
        self.namespace = namespace
        self.path = f"/api/v1/namespaces/{namespace}/configmaps"

    def list_watch(self, **options: str) -> ResourceListWatch:
        return ResourceListWatch(self.client, CONFIG_MAPS, namespace=self.namespace, **options)  # type: ignore[arg-type]

    async def put(self, name: str, **labels: str) -> Json:
        return await self.admin.create(
            self.path, {"metadata": {"name": name, "labels": labels}, "data": {"text": f"of {name}: ä漢🚀"}}
        )

    async def version(self) -> str:
        """Of the newest list."""
        return (await self.list_watch().list(ListOptions())).resource_version


@pytest.fixture
async def place(three_clusters: Testbed, shared_namespace: str) -> AsyncIterator[Place]:
    async with (
        MemberClient.from_kubeconfig("eu-1", path=three_clusters.kubeconfig) as client,
        three_clusters["eu-1"].client() as admin,
    ):
        yield Place(admin, client, shared_namespace)


class Noting:
    """A ListWatch that notes the options of every request, and has every watch end after a time.

    The Reflector asks for watches of five minutes and more, longer than a test should take.
    """

    def __init__(self, list_watch: ListWatch, *, length: int = 0) -> None:
        self._list_watch = list_watch
        self._length = length
        self.lists: list[ListOptions] = []
        self.watches: list[ListOptions] = []

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        self.lists.append(options)
        return await self._list_watch.list(options, known=known)

    @asynccontextmanager
    async def watch(self, options: ListOptions) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        self.watches.append(options)
        length = self._length or options.timeout_seconds
        async with self._list_watch.watch(msgspec.structs.replace(options, timeout_seconds=length)) as events:
            yield events


@asynccontextmanager
async def reflecting(list_watch: ListWatch, **options: bool) -> AsyncIterator[tuple[Reflector, Store]]:
    store = Store()
    reflector = Reflector(list_watch, store, name="maps", **options)  # type: ignore[arg-type]
    running = asyncio.create_task(reflector.run())
    try:
        async with asyncio.timeout(90):
            yield reflector, store
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_rf10_wl04_wl07_a_watch_list_syncs_as_a_list_does(place: Place) -> None:
    """RF10, WL04, WL07: byte for byte, at the version of its bookmark, and the stream goes on."""
    for number in range(20):
        await place.put(f"a{number:02}")
    noting = Noting(place.list_watch())
    async with reflecting(noting) as (reflector, store):
        await store.until(lambda: store.calls)
        synced_at = reflector.last_sync_resource_version or store.versions[0]
        synced = list(store.objects.values())
        await place.put("later")
        await place.admin.delete(f"{place.path}/a00")
        await store.until(lambda: "later" in store.objects and "a00" not in store.objects)
    assert len(synced) == 20
    assert await check_consistency(place.list_watch(), synced, synced_at)
    (asked,) = noting.watches
    assert (asked.resource_version, asked.resource_version_match) == ("", "NotOlderThan")
    assert noting.lists == []
    assert [call.split("@")[0] for call in store.calls if not call.startswith("bookmark")][1:] == [
        "add later",
        "delete a00",
    ]


async def test_sm07_watches_that_end_are_resumed_without_loss_or_repeat(place: Place) -> None:
    """SM07, RF27, R3: each lasts a second or two, changes come all the time; one sync for all of them."""
    streaming, listing = (Noting(place.list_watch(), length=1) for _ in range(2))
    async with (
        reflecting(streaming, use_watch_list=True) as (_, streamed),
        reflecting(listing, use_watch_list=False) as (_, listed),
    ):
        for store in (streamed, listed):
            await store.until(lambda store=store: store.calls)  # type: ignore[misc]
        for number in range(30):
            await place.put(f"a{number:02}")
            if number % 3 == 0:
                await place.admin.patch(f"{place.path}/a{number:02}", {"data": {"text": "changed"}})
            if number % 5 == 0:
                await place.admin.delete(f"{place.path}/a{number:02}")
            await asyncio.sleep(0.1)
        await place.put("last")
        for store in (streamed, listed):
            await store.until(lambda store=store: "last" in store.objects)  # type: ignore[misc]
        there = {obj.name: obj for obj in (await place.list_watch().list(ListOptions())).objects}
    for noting, store, lists in ((streaming, streamed, 0), (listing, listed, 1)):
        assert len(noting.watches) >= 3, "or nothing was resumed"
        assert len(noting.lists) == lists
        assert [watch.send_initial_events for watch in noting.watches] == [
            not lists,
            *[False] * (len(noting.watches) - 1),
        ]
        assert store.objects == there
        told = [call for call in store.calls if not call.startswith(("bookmark", "replace"))]
        assert len(told) == len(set(told)) == 30 + 10 + 6 + 1
        versions = [int(version) for version in store.versions]
        assert versions == sorted(versions)


async def test_rf18_pg01_pages(place: Place) -> None:
    """RF18, PG01, PG03, PG04: joined under the version of the first, whatever is written meanwhile."""
    names = [f"a{number:02}" for number in range(10)]
    for name in names:
        await place.put(name)

    class Writing(Noting):
        async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
            page = await super().list(options, known=known)
            if len(self.lists) == 1:
                await place.put("meanwhile")
                await place.admin.delete(f"{place.path}/a09")
            return page

    listing = Writing(place.list_watch())
    listed = await list_all(listing, ListOptions(limit=4))
    assert [obj.name for obj in listed.page.objects] == names
    assert listed.paginated
    assert int(listed.page.resource_version) < int(await place.version())
    assert [(page.limit, bool(page.continue_token)) for page in listing.lists] == [(4, False), (4, True), (4, True)]
    async with aclosing(each_item(place.list_watch(), ListOptions(limit=3))) as items:
        assert [obj.name async for obj in items] == [*names[:-1], "meanwhile"]


async def test_rf21_w2_a_sync_from_what_is_known(place: Place) -> None:
    """RF21, W2, L2: NotOlderThan what is known; what did not change is not copied anew."""
    await place.put("a")

    async def sync_twice(*, use_watch_list: bool) -> None:
        noting = Noting(place.list_watch())
        async with reflecting(noting, use_watch_list=use_watch_list) as (reflector, store):
            await store.until(lambda: store.calls)
            await asyncio.sleep(1.1)
            known = reflector.last_sync_resource_version
            reflector.request_relist()
            await store.until(lambda: len(store.calls) >= 2)
            assert int(reflector.last_sync_resource_version) >= int(known)
        if use_watch_list:
            assert [watch.resource_version for watch in noting.watches] == ["", known]
            assert {watch.resource_version_match for watch in noting.watches} == {"NotOlderThan"}
        else:
            assert [(asked.resource_version, asked.limit) for asked in noting.lists] == [("0", 500), (known, 0)]
        assert reflector.epoch == 0

    await asyncio.gather(sync_twice(use_watch_list=True), sync_twice(use_watch_list=False))


@pytest.mark.parametrize("use_watch_list", [True, False])
async def test_selectors_hold_for_all_that_is_told(place: Place, use_watch_list: bool) -> None:
    """What leaves the selection is deleted, with the version of now; what enters it is added."""
    await place.put("in", app="web")
    await place.put("out", app="other")
    rig = Rig(place.client, namespace=place.namespace, label_selector="app in (web)", use_watch_list=use_watch_list)
    async with rig.running(), asyncio.timeout(60):
        await rig.store.until(lambda: rig.store.calls)
        assert rig.store.names == ["in"]
        await place.admin.patch(f"{place.path}/out", {"metadata": {"labels": {"app": "web"}}})
        left = await place.admin.patch(f"{place.path}/in", {"metadata": {"labels": {"app": "none"}}})
        await rig.store.until(lambda: rig.store.names == ["out"])
        assert f"delete in@{left['metadata']['resourceVersion']}" in rig.store.calls
    one = Rig(place.client, namespace=place.namespace, field_selector="metadata.name=in", use_watch_list=use_watch_list)
    async with one.running(), asyncio.timeout(60):
        await one.store.until(lambda: one.store.calls)
        assert one.store.names == ["in"]


async def test_d7_d9_metadata_only_and_bytes_that_are_the_same_either_way(place: Place) -> None:
    """D7, D9: by a watch-list and by a list; with metadata only there is nothing else."""
    await place.put("a", app="web")
    objects: dict[tuple[bool, bool], KubeObject] = {}
    for metadata_only in (False, True):
        for use_watch_list in (False, True):
            rig = Rig(
                place.client,
                namespace=place.namespace,
                metadata_only=metadata_only,
                field_selector="metadata.name=a",
                use_watch_list=use_watch_list,
            )
            async with rig.running(), asyncio.timeout(60):
                await rig.store.until(lambda rig=rig: rig.store.calls)  # type: ignore[misc]
            objects[metadata_only, use_watch_list] = rig.store.objects["a"]
    assert objects[False, False] == objects[False, True]
    assert objects[True, False] == objects[True, True]
    whole, partial = (json.loads(objects[metadata_only, True].raw) for metadata_only in (False, True))
    assert set(whole) - set(partial) == {"data"}
    assert (partial["apiVersion"], partial["kind"]) == ("v1", "ConfigMap")


async def test_rf24_a_version_of_the_future(place: Place) -> None:
    """RF24: a list and a watch-list are told so after three seconds; a watch waits in silence (hence DEVIATE-3)."""
    future = str(int(await place.version()) + 1_000_000)
    list_watch = place.list_watch()

    async def listed() -> None:
        await list_watch.list(ListOptions(resource_version=future))

    async def watch_listed() -> None:
        options = ListOptions(
            resource_version=future,
            resource_version_match="NotOlderThan",
            send_initial_events=True,
            allow_bookmarks=True,
        )
        async with list_watch.watch(options) as events:
            await anext(events)

    async def watched() -> list[WatchEvent]:
        async with list_watch.watch(ListOptions(resource_version=future, timeout_seconds=4)) as events:
            return [event async for event in events]

    first, second, third = await asyncio.gather(listed(), watch_listed(), watched(), return_exceptions=True)
    for error in (first, second):
        assert isinstance(error, KubeStatusError)
        assert error.is_too_large_resource_version
        assert error.retry_after == 1
    assert third == []


async def test_rw04_a_watch_without_a_store_goes_on(place: Place) -> None:
    """RW04: over watches of a second each."""
    noting = Noting(place.list_watch(), length=1)
    names = [f"a{number}" for number in range(7)]
    seen: list[str] = []

    async def write() -> None:
        for name in names:
            await place.put(name)
            await asyncio.sleep(0.4)

    events = retry_watch(noting, await place.version(), restart_delay=0.1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks, aclosing(events):
        tasks.create_task(write())
        while len(seen) < len(names):
            seen.append((await anext(events)).object.name)
    assert seen == names
    assert len(noting.watches) >= 3, "or nothing was resumed"


@pytest.mark.usefixtures("quick_dials")
async def test_sm11_an_apiserver_that_lost_its_history_is_synced_from_what_is_known(
    expendable_cluster: ControlPlane,
) -> None:
    """SM11, D5: its new watch cache begins after what is known; the 410 leads to one sync, NotOlderThan."""
    plane = expendable_cluster
    path = "/api/v1/namespaces/forgotten/configmaps"
    async with MemberClient.from_kubeconfig(plane.context, path=plane.kubeconfig) as client, plane.client() as admin:
        await admin.create("/api/v1/namespaces", {"metadata": {"name": "forgotten"}})
        list_watch = ResourceListWatch(client, CONFIG_MAPS, namespace="forgotten")
        await admin.create(path, {"metadata": {"name": "before"}})
        noting = Noting(list_watch)
        async with reflecting(noting, use_watch_list=False) as (reflector, store):
            await store.until(lambda: "before" in store.objects)
            plane.kill()
            # Changes that no apiserver saw: the next one finds them when it fills its watch cache.
            metadata = {
                "name": "meanwhile",
                "namespace": "forgotten",
                "uid": "5f0c9d43-6f43-4e9c-8d9f-0d7f6f1c2b3a",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
            await store_objects(
                plane.etcd_socket,
                [("configmaps/forgotten/meanwhile", {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata})],
            )
            known = reflector.last_sync_resource_version
            await plane.start()
            reflector.dial_soon()
            await store.until(lambda: "meanwhile" in store.objects)
        assert [asked.resource_version for asked in noting.lists] == ["0", known]
        assert "before" in store.objects
        assert reflector.epoch == 0
        with pytest.raises(KubeStatusError) as raised:
            async with list_watch.watch(ListOptions(resource_version=known, timeout_seconds=10)) as events:
                async for _ in events:
                    pass
        assert (raised.value.is_expired, raised.value.in_stream) == (True, True)
