"""What client-go's decoder tests check, and what decoding has to bear besides, over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from federator.api.list_watch import ListOptions, WatchEvent
from federator.api.resource import ResourceType
from federator.errors import KubeStatusError, MemberUnreachable
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer, faults
from tests.conformance.rig import CONFIG_MAPS, Rig, config_map, send, settle, versions

pytestmark = pytest.mark.looptime

WIDGETS = ResourceType(group="example.com", version="v1", resource="widgets", kind="Widget", namespaced=True)


async def watched(client: MemberClient, options: ListOptions, resource_type: ResourceType = CONFIG_MAPS) -> list[str]:
    """The events of one watch until its end."""
    async with ResourceListWatch(client, resource_type).watch(options) as events:
        return [described(event) async for event in events]


def described(event: WatchEvent) -> str:
    return f"{event.type} {event.object.name}@{event.object.resource_version}"


def history(server: FakeApiServer) -> tuple[ListOptions, list[str]]:
    """Some changes, the options of a watch that brings them, and what it brings."""
    since = ListOptions(resource_version=server.resource_version, timeout_seconds=5)
    server.skip_to(10)
    server.put("configmaps", "a", data={"text": "ä漢🚀"})
    server.put("configmaps", "a", data={"text": 'quotes " and \\ and }{'})
    server.put("configmaps", "b", data={"text": "x" * 200_000})
    server.delete("configmaps", "a")
    return since, ["ADDED a@11", "MODIFIED a@12", "ADDED b@13", "DELETED a@14"]


async def test_dc01_d5_all_event_types_come_through(server: FakeApiServer, client: MemberClient) -> None:
    """DC01, D5."""
    since, expected = history(server)
    watching = asyncio.create_task(watched(client, since))
    watch = await server.wait_for_watch()
    watch.bookmark("20")
    assert await watching == [*expected, "BOOKMARK @20"]


BROKEN = {
    "garbage": faults.Frame.garbage(1),
    "unknown type": faults.Frame.unknown_type(1),
    "no type": faults.Frame(b'{"kind":"ConfigMap","metadata":{"name":"a"}}\n', 1),
    "no object at all": faults.Frame(b"[1, 2]\n", 1),
    "ERROR without a Status": faults.Frame(b'{"type":"ERROR","object":{"kind":"Pod","code":410}}\n', 1),
    "too long": faults.Frame.oversized(1),
}


@pytest.mark.parametrize("frame", BROKEN.values(), ids=BROKEN)
async def test_dc01_d4_what_is_no_event_is_an_internal_error(
    server: FakeApiServer, client: MemberClient, frame: faults.Frame
) -> None:
    """DC01, D2, D4, D5: after the events before it. A code on an object that is no Status means nothing."""
    since, expected = history(server)
    server.fail("watch", "*", frame)
    seen: list[str] = []
    with pytest.raises(KubeStatusError) as raised:
        async with ResourceListWatch(client, CONFIG_MAPS).watch(since) as events:
            async for event in events:
                seen.append(described(event))  # noqa: PERF401 - a comprehension would lose it
    assert seen == expected[:1]
    assert (raised.value.code, raised.value.status_reason) == (500, "InternalError")
    assert (raised.value.in_stream, raised.value.is_expired) == (True, False)


async def test_dc02_closing_unblocks_a_pending_read(server: FakeApiServer, client: MemberClient) -> None:
    """DC02: and closes the connection."""
    list_watch = ResourceListWatch(client, CONFIG_MAPS)
    watching = asyncio.create_task(watched(client, ListOptions(resource_version=server.resource_version)))
    watch = await server.wait_for_watch()
    await settle()
    assert not watching.done()
    watching.cancel()
    await asyncio.wait([watching])
    assert watching.cancelled()
    await server.wait_for(lambda: watch.request.outcome == "client closed")
    async with list_watch.watch(ListOptions(resource_version=server.resource_version)):
        second = await server.wait_for_watch()
    await server.wait_for(lambda: second.request.outcome == "client closed")


SHAPES: dict[str, tuple[faults.Fault, ...]] = {
    "as it is": (),
    "single bytes": (faults.Split(every=1),),
    "seven bytes": (faults.Split(every=7),),
    "two frames in a chunk": (faults.Merge(2),),
    "all in one chunk": (faults.Merge(100),),
    "gzip": (faults.Gzip(force=True),),
    "gzip in pieces": (faults.Gzip(force=True), faults.Split(every=100)),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
async def test_d1_d3_the_edges_of_chunks_mean_nothing(
    server: FakeApiServer, client: MemberClient, shape: tuple[faults.Fault, ...]
) -> None:
    """D1: amid an object, amid a character. D3: also gzip with a member per flush, which no watch asks for."""
    since, expected = history(server)
    if faults.Split(every=1) in shape or faults.Split(every=7) in shape:
        # Without the object of 200 kB, which would take long in such pieces.
        since = ListOptions(resource_version=server.resource_version, timeout_seconds=5)
        server.put("configmaps", "c", data={"text": "ä漢🚀"})
        server.delete("configmaps", "c")
        expected = ["ADDED c@15", "DELETED c@16"]
    if shape:
        server.fail("watch", "*", *shape)
    assert await watched(client, since) == expected
    assert server.requests[0].headers["accept-encoding"] == "identity"


async def test_d2_a_frame_as_long_as_clients_have_to_take(server: FakeApiServer, client: MemberClient) -> None:
    """D2: far beyond the lines that HTTP libraries read."""
    since = ListOptions(resource_version=server.resource_version, timeout_seconds=5)
    server.put("configmaps", "long", data={"text": "x" * (faults.MAX_FRAME - 10_000)})
    assert await watched(client, since) == [f"ADDED long@{server.resource_version}"]


ENDINGS: dict[str, faults.Fault] = {
    "last chunk": faults.End(after_events=2),
    "last chunk, then closed": faults.Drain(after_events=2),
    "FIN between frames": faults.Fin(after_events=2),
    "FIN amid a frame": faults.Fin(after_bytes=700),
    "RST": faults.Reset(after_events=2),
    "RST amid a frame": faults.Reset(after_bytes=700),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
async def test_d4_a_connection_that_breaks_is_an_end_like_others(
    server: FakeApiServer, client: MemberClient, ending: faults.Fault
) -> None:
    """D4: what came before is kept, the stream is resumed, no list."""
    server.fail("watch", "*", ending)
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        await rig.synced(server)
        for number in range(4):
            server.put("configmaps", f"a{number}")
        await rig.store.until(lambda: rig.store.names == ["a0", "a1", "a2", "a3"])
    assert rig.store.versions == sorted(set(rig.store.versions), key=int), "nothing twice"
    assert len(server.requests.of("list")) == 1


@pytest.mark.parametrize("metadata", [True, False])
async def test_d4_an_error_needs_no_metadata(server: FakeApiServer, client: MemberClient, metadata: bool) -> None:
    """D4, D5."""
    server.fail("watch", "*", faults.ErrorEvent(410, metadata=metadata))
    with pytest.raises(KubeStatusError) as raised:
        await watched(client, ListOptions(resource_version="1"))
    assert raised.value.is_expired


@pytest.mark.parametrize(
    ("code", "reason", "expired"),
    [(410, "Expired", True), (410, "Gone", True), (410, "", True), (400, "Expired", True), (410, "NotFound", False)],
)
async def test_d5_what_counts_as_expired(
    server: FakeApiServer, client: MemberClient, code: int, reason: str, expired: bool
) -> None:
    """D5: the reason, and the code only where the reason is unknown."""
    server.fail("watch", "*", faults.ErrorEvent(code, reason=reason))
    with pytest.raises(KubeStatusError) as raised:
        await watched(client, ListOptions(resource_version="1"))
    assert raised.value.is_expired is expired


async def test_d6_a_status_in_place_of_a_watch(server: FakeApiServer, client: MemberClient) -> None:
    """D6: unchunked, with 200."""
    server.fail("watch", "*", faults.UnchunkedStatus(410))
    with pytest.raises(KubeStatusError) as raised:
        await watched(client, ListOptions(resource_version="1"))
    assert (raised.value.is_expired, raised.value.in_stream) == (True, True)


@pytest.mark.parametrize("metadata_only", [False, True])
@pytest.mark.parametrize("custom", [False, True])
async def test_d7_listed_and_watched_objects_have_the_same_bytes(
    server: FakeApiServer, client: MemberClient, custom: bool, metadata_only: bool
) -> None:
    """D7: whichever carries apiVersion and kind, and in whichever order."""
    resource_type = server.add_resource(WIDGETS) if custom else CONFIG_MAPS
    server.put(resource_type.resource, "a", labels={"x": "ä"}, data={"k": "v"})
    rigs = [
        Rig(client, resource_type=resource_type, metadata_only=metadata_only, use_watch_list=use_watch_list)
        for use_watch_list in (True, False)
    ]
    for rig in rigs:
        async with rig.running():
            await rig.store.until(lambda rig=rig: rig.store.calls)  # type: ignore[misc]
    by_watch, by_list = (rig.store.objects["a"] for rig in rigs)
    assert by_watch == by_list
    decoded = json.loads(by_list.raw)
    assert (decoded["apiVersion"], decoded["kind"]) == (resource_type.api_version, resource_type.kind)
    assert ("data" in decoded) is not metadata_only


async def test_d7_bookmarks_are_no_objects(server: FakeApiServer, client: MemberClient) -> None:
    """D7: nearly empty, of any kind, and still a bookmark."""
    rig = Rig(client)
    async with rig.running():
        watch = await rig.synced(server)
        send(watch, "BOOKMARK", {"metadata": {"resourceVersion": "70"}})
        send(watch, "BOOKMARK", {"kind": "Other", "metadata": {"resourceVersion": "71", "creationTimestamp": None}})
        await rig.store.until(lambda: rig.store.versions[-1] == "71")
    assert rig.store.calls[1:] == ["bookmark @70", "bookmark @71"]
    assert rig.store.objects == {}


@pytest.mark.parametrize("custom", [False, True])
async def test_d8_lists_come_in_either_order(server: FakeApiServer, client: MemberClient, custom: bool) -> None:
    """D8: metadata first, as built-in types have it, or the items first, as custom resources do."""
    resource_type = server.add_resource(WIDGETS) if custom else CONFIG_MAPS
    for number in range(30):
        server.put(resource_type.resource, f"a{number:02}", data={"filling": "x" * 20_000})
    body = await client.get(resource_type.path(""))
    assert (body.index(b'"items"') < body.index(b'"metadata"')) is custom
    page = await ResourceListWatch(client, resource_type).list(ListOptions())
    assert page.resource_version == server.resource_version
    assert [obj.name for obj in page.objects] == [f"a{number:02}" for number in range(30)]


def _without_version(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {}}


async def test_d8_a_list_without_items_and_one_without_a_version(server: FakeApiServer, client: MemberClient) -> None:
    """D8: null is none; without a version nothing is told to anybody."""
    server.put("configmaps", "a")
    server.fail("list", "*", faults.Rewrite(faults.null_items))
    server.fail("list", "*", faults.Rewrite(_without_version))
    list_watch = ResourceListWatch(client, CONFIG_MAPS)
    assert (await list_watch.list(ListOptions())).objects == []
    with pytest.raises(KubeStatusError, match=r"without metadata\.resourceVersion"):
        await list_watch.list(ListOptions())


@pytest.mark.parametrize("fault", [faults.Fin(after_bytes=150), faults.Reset(after_bytes=150)], ids=["FIN", "RST"])
async def test_d8_a_list_that_breaks_off_is_told_to_nobody(
    server: FakeApiServer, client: MemberClient, fault: faults.Fault
) -> None:
    """D8: the next one is."""
    server.put("configmaps", "a")
    server.put("configmaps", "b")
    server.fail("list", "*", fault)
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        await rig.synced(server)
    assert rig.store.calls == [f"replace a,b@{server.resource_version}"]
    assert [type(failure) for failure in rig.failures] == [MemberUnreachable]


async def test_d9_metadata_only_asks_for_it(server: FakeApiServer, client: MemberClient) -> None:
    """D9."""
    server.put("configmaps", "a", data={"secret": "s"})
    rig = Rig(client, metadata_only=True, use_watch_list=False)
    async with rig.running():
        await rig.synced(server)
        server.put("configmaps", "b", data={"secret": "s"})
        await rig.store.until(lambda: rig.store.names == ["a", "b"])
    listed, watch = server.requests
    assert listed.headers["accept"] == (
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    )
    assert watch.headers["accept"] == "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
    assert not [obj for obj in rig.store.objects.values() if b"secret" in obj.raw]


async def test_d9_a_server_that_gives_more_is_refused(server: FakeApiServer, client: MemberClient) -> None:
    """D9: a list whole, an event by itself."""
    server.put("configmaps", "a")
    server.fail("list", "*", faults.Rewrite(lambda body: {**body, "kind": "ConfigMapList"}))
    list_watch = ResourceListWatch(client, CONFIG_MAPS, metadata_only=True)
    with pytest.raises(KubeStatusError, match="though only metadata was asked for"):
        await list_watch.list(ListOptions())
    whole = {"type": "ADDED", "object": config_map("whole", 50)}
    server.fail("watch", "*", faults.Frame(json.dumps(whole).encode() + b"\n"))
    since = ListOptions(resource_version=server.resource_version, timeout_seconds=5)
    server.put("configmaps", "b")
    async with list_watch.watch(since) as events:
        assert [event.object.name async for event in events] == ["b"]
    assert client.statistics()["skipped_objects"] == 1


@pytest.mark.parametrize("what", ["no-metadata", "no-name", "no-version", "wrong-kind"])
async def test_d10_what_cannot_be_used_is_left_out_and_gives_no_version(
    server: FakeApiServer, client: MemberClient, what: Any
) -> None:
    """D10: counted, in the log, and the stream goes on."""
    server.put("configmaps", "a")
    known = server.resource_version
    server.fail("list", "*", faults.BadObject(what))
    server.fail("watch", "*", faults.BadObject(what))
    rig = Rig(client, use_watch_list=False)
    async with rig.running():
        watch = await rig.synced(server)
        assert rig.reflector.statistics()["items_skipped"] == 1
        await asyncio.sleep(2)  # without an event a shorter watch would be a failure
        watch.end()
        await server.wait_for_request("watch", count=2)
        server.put("configmaps", "b")
        await rig.store.until(lambda: rig.store.names == ["a", "b"])
    assert set(versions(server, "watch")) == {known}
    assert client.statistics()["skipped_objects"] == 2
    assert rig.failures == []
