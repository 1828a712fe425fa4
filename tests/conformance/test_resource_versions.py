"""What is made of resourceVersions, over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from federator.api import resource_version
from federator.cache import SharedInformer
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer, faults
from tests.conformance.rig import CONFIG_MAPS, Rig, config_map, send, send_end_of_initial_events, versions

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize("version", ["00017", "v1.2-x", "9" * 40, "a b&c=ä"])
async def test_r1_versions_are_given_back_as_they_came(
    server: FakeApiServer, client: MemberClient, version: str
) -> None:
    """R1: aggregated APIs have others than numbers."""
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        send(watch, "ADDED", config_map("a", version))
        watch.end()
        second = await server.wait_for_request("watch", count=2)
    assert second.query["resourceVersion"] == version
    assert not server.requests.refused_versions


@pytest.mark.parametrize("use_watch_list", [True, False])
async def test_r1_no_version_is_ever_none(server: FakeApiServer, client: MemberClient, use_watch_list: bool) -> None:
    """R1: neither "None" nor "null", wherever a version is missing."""
    server.put("configmaps", "a")
    rig = Rig(client, use_watch_list=use_watch_list)
    async with rig.running():
        watch = await rig.synced(server)
        for metadata in ({}, {"resourceVersion": None}, {"resourceVersion": ""}, None):
            send(watch, "BOOKMARK", {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata})
        send(watch, "MODIFIED", {**config_map("a", 1), "metadata": {"name": "a", "resourceVersion": None}})
        watch.error(410)
        await server.wait_for_request("watch", count=2)
    assert not server.requests.refused_versions
    assert {request.status for request in server.requests} == {200}


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ("9", "10", -1),
        ("10", "10", 0),
        ("11", "10", 1),
        ("9" * 30, "1" + "0" * 30, -1),
        ("010", "9", None),
        ("0", "9", None),
        ("", "9", None),
        ("x", "y", None),
        ("x", "x", 0),
        ("٣", "9", None),
    ],
)
def test_r2_well_formed_versions_are_ordered(left: str, right: str, order: int | None) -> None:
    """R2: of any length; what is malformed is only equal or not."""
    assert resource_version.compare(left, right) == order
    assert resource_version.is_older(left, right) is (order == -1)


async def test_r3_a_deletion_has_the_version_of_the_deletion(server: FakeApiServer, client: MemberClient) -> None:
    """R3: it is resumed after it, and not told again."""
    server.put("configmaps", "a")
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        server.skip_to(40)
        server.delete("configmaps", "a")
        await rig.store.until(lambda: not rig.store.objects)
        watch.end()
        second = await server.wait_for_request("watch", count=2)
        server.put("configmaps", "b")
        await rig.store.until(lambda: rig.store.objects)
    assert second.query["resourceVersion"] == "41"
    assert rig.store.calls[1:] == ["delete a@41", "add b@42"]


async def test_r4_the_initial_events_give_no_version(server: FakeApiServer, client: MemberClient) -> None:
    """R4: they come in no order; broken off amid them, it begins anew and not at one of theirs."""
    for name in ("a", "b", "c"):
        server.put("configmaps", name)
    server.fail("watch", "*", faults.Reset(after_events=2))
    rig = Rig(client)
    async with rig.running():
        await rig.synced(server)
        assert rig.reflector.last_sync_resource_version in ("", server.resource_version)
    assert rig.store.calls == [f"replace a,b,c@{server.resource_version}"]
    assert versions(server, "watch") == ["", ""]
    assert all("sendInitialEvents" in request.query for request in server.requests)


@pytest.mark.parametrize("version", ["", "0", "9"])
async def test_r5_bookmarks_without_a_version_or_from_the_past_are_ignored(
    server: FakeApiServer, client: MemberClient, version: str
) -> None:
    """R5: and counted."""
    server.skip_to(20)
    server.put("configmaps", "a")
    server.fail("watch", "*", faults.BookmarkVersion(version), times=None)
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        watch.bookmark()
        watch.end()
        second = await server.wait_for_request("watch", count=2)
    assert second.query["resourceVersion"] == "21"
    assert rig.store.calls == ["replace a@21"]
    assert rig.reflector.statistics()["bookmarks_ignored"] == 1


async def test_r6_the_store_has_the_version_of_what_it_holds(server: FakeApiServer, client: MemberClient) -> None:
    """R6: of the list, an event, a deletion, a bookmark."""
    server.watch_list = "endless"
    informer = SharedInformer(ResourceListWatch(client, CONFIG_MAPS), name="maps")
    running = asyncio.create_task(informer.run())
    watch = await server.wait_for_watch()
    seen = []

    async def becomes(version: str) -> None:
        async with asyncio.timeout(60):
            while informer.last_sync_resource_version != version:  # noqa: ASYNC110 - the informer has no event for it
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        seen.append(informer.indexer.last_resource_version)

    send(watch, "ADDED", config_map("a", 5))
    send_end_of_initial_events(watch, 50)
    await becomes("50")
    send(watch, "MODIFIED", config_map("a", 60))
    await becomes("60")
    send(watch, "DELETED", config_map("a", 70))
    await becomes("70")
    watch.bookmark("80")
    await becomes("80")
    assert seen == ["50", "60", "70", "80"]
    running.cancel()
    await asyncio.wait([running])
