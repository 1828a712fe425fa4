from __future__ import annotations

import asyncio

import aiohttp
import pytest

from federator.api.resource import ResourceType
from federator.testing.fake_api_server import FakeApiServer
from tests.component.testing.fake_api_server.client import CONFIG_MAPS, PARTIAL, WATCH_LIST, Client, client_of, names

WIDGET = ResourceType(group="example.com", version="v1", resource="widgets", kind="Widget", namespaced=True)


async def test_what_happens_between_list_and_watch_is_replayed_deletions_too(
    server: FakeApiServer, client: Client
) -> None:
    server.put("configmaps", "a")
    server.put("configmaps", "b")
    listed = await client.get(CONFIG_MAPS)
    assert names(listed) == ["a", "b"]
    server.delete("configmaps", "a")
    async with client.watch(resourceVersion=listed.body["metadata"]["resourceVersion"]) as stream:
        frame = await stream.next()
        assert frame["type"] == "DELETED"
        assert frame["object"]["metadata"]["name"] == "a"
        assert frame["object"]["metadata"]["resourceVersion"] == server.resource_version


async def test_a_watch_out_of_history_says_so_in_the_stream(server: FakeApiServer, client: Client) -> None:
    server.put("configmaps", "a")
    version = server.resource_version
    server.touch("configmaps", "a")
    server.touch("configmaps", "a")
    server.compact(keep=1)
    async with client.watch(resourceVersion=version) as stream:
        frame = await stream.next()
        assert (frame["type"], frame["object"]["reason"], frame["object"]["code"]) == ("ERROR", "Expired", 410)
        assert await stream.rest() == []
    async with client.watch(resourceVersion=str(int(version) + 1)) as stream:
        assert await stream.take(1) == ["MODIFIED a"]


async def test_history_is_bounded() -> None:
    async with FakeApiServer(history=10) as server, client_of(server) as client:
        for number in range(100):
            server.put("configmaps", "a", data={"n": str(number)})
        assert int(server.resource_version) - server.statistics()["compacted"] <= 20
        async with client.watch(resourceVersion="1") as stream:
            assert await stream.rest() == ["ERROR 410"]


@pytest.mark.parametrize("version", ["", "0"])
async def test_synthetic_events_come_newest_first(server: FakeApiServer, client: Client, version: str) -> None:
    for name in "ab":
        server.put("configmaps", name)
    async with client.watch(resourceVersion=version) as stream:
        assert await stream.take(2) == ["ADDED b", "ADDED a"]
        server.delete("configmaps", "b")
        assert await stream.take(1) == ["DELETED b"]


async def test_frames_say_what_they_carry(server: FakeApiServer, client: Client) -> None:
    server.add_resource(WIDGET)
    server.put("configmaps", "a", data={"k": "v"})
    server.put("widgets", "a", spec={})
    async with client.watch() as stream:
        assert list((await stream.next())["object"]) == ["kind", "apiVersion", "metadata", "data"]
    async with client.watch("/apis/example.com/v1/widgets") as stream:
        assert list((await stream.next())["object"]) == ["apiVersion", "kind", "metadata", "spec"]
    async with client.watch(headers=PARTIAL) as stream:
        assert (await stream.next())["object"]["kind"] == "PartialObjectMetadata"


async def test_a_watch_list_ends_with_its_bookmark_and_goes_on(server: FakeApiServer, client: Client) -> None:
    server.put("configmaps", "a")
    async with client.watch(CONFIG_MAPS, WATCH_LIST) as stream:
        assert await stream.take(2) == ["ADDED a", f"BOOKMARK {server.resource_version} end"]
        server.touch("configmaps", "a")
        assert await stream.take(1) == ["MODIFIED a"]


async def test_a_watch_list_can_be_unknown_or_endless(server: FakeApiServer, client: Client) -> None:
    server.put("configmaps", "a")
    server.watch_list = "off"
    refused = await client.get(CONFIG_MAPS, WATCH_LIST, watch="1")
    assert (refused.code, refused.body["reason"]) == (422, "Invalid")
    server.watch_list = "endless"
    async with client.watch(CONFIG_MAPS, WATCH_LIST) as stream:
        assert await stream.take(1) == ["ADDED a"]
        server.bookmark()
        assert await stream.take(1) == [f"BOOKMARK {server.resource_version}"]


async def test_a_watch_list_of_the_future_is_an_error_in_the_stream(server: FakeApiServer, client: Client) -> None:
    async with client.watch(CONFIG_MAPS, WATCH_LIST, resourceVersion="9999") as stream:
        assert await stream.rest() == ["ERROR 504"]


async def test_a_watch_of_the_future_waits_in_silence(server: FakeApiServer, client: Client) -> None:
    future = str(int(server.resource_version) + 2)
    async with client.watch(resourceVersion=future) as stream:
        for name in "abc":
            server.put("configmaps", name)
        assert await stream.take(1) == ["ADDED c"]


async def test_entering_and_leaving_a_selection(server: FakeApiServer, client: Client) -> None:
    async with client.watch(labelSelector="app=web") as stream:
        server.put("configmaps", "a", labels={"app": "db"})
        server.put("configmaps", "a", labels={"app": "web"})
        server.put("configmaps", "a", labels={"app": "web", "b": "c"})
        left = server.put("configmaps", "a", labels={"app": "db"})
        server.delete("configmaps", "a")
        assert await stream.take(2) == ["ADDED a", "MODIFIED a"]
        gone = await stream.next()
        assert gone["type"] == "DELETED"
        assert gone["object"]["metadata"]["labels"] == {"app": "web", "b": "c"}
        assert gone["object"]["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]


@pytest.mark.looptime
async def test_its_time_ends_it_cleanly(server: FakeApiServer, client: Client) -> None:
    server.bookmark_interval = None
    async with client.watch(timeoutSeconds="30", allowWatchBookmarks="true", resourceVersion="1") as stream:
        begin = asyncio.get_running_loop().time()
        server.put("configmaps", "a")
        assert await stream.rest() == ["ADDED a"]
        assert 30 <= asyncio.get_running_loop().time() - begin < 31  # on the loop's own clock


@pytest.mark.looptime
async def test_bookmarks_come_by_themselves(server: FakeApiServer, client: Client) -> None:
    version = server.resource_version
    async with client.watch(timeoutSeconds="130", allowWatchBookmarks="true", resourceVersion=version) as stream:
        assert await stream.rest() == [f"BOOKMARK {version}"] * 3  # after 60 s, 120 s, and 2 s before the end
    async with client.watch(timeoutSeconds="130", resourceVersion=version) as stream:
        assert await stream.rest() == []


async def test_bookmarks_on_demand(server: FakeApiServer, client: Client) -> None:
    version = server.resource_version
    async with (
        client.watch(resourceVersion=version, allowWatchBookmarks="true") as wants,
        client.watch(resourceVersion=version) as does_not,
    ):
        server.bookmark("configmaps")
        server.bookmark("pods")
        server.put("configmaps", "a")
        server.bookmark("configmaps", "0")
        assert await wants.take(3) == [f"BOOKMARK {version}", "ADDED a", "BOOKMARK 0"]
        assert await does_not.take(2) == ["ADDED a", "BOOKMARK 0"]


async def test_what_is_asked_of_an_open_watch_comes_in_that_order(server: FakeApiServer, client: Client) -> None:
    async with client.watch(resourceVersion=server.resource_version) as stream:
        watch = await server.wait_for_watch("configmaps")
        server.put("configmaps", "a")
        watch.send({"type": "ADDED", "object": {"metadata": {"name": "injected"}}})
        server.put("configmaps", "b")
        watch.error(500, reason="InternalError", message="lost its mind")
        server.put("configmaps", "c")
        assert await stream.rest() == ["ADDED a", "ADDED injected", "ADDED b", "ERROR 500"]


async def test_lost_events_are_in_lists_only(server: FakeApiServer, client: Client) -> None:
    version = server.resource_version
    async with client.watch(resourceVersion=version) as stream:
        with server.losing_events():
            server.put("configmaps", "lost")
        server.put("configmaps", "a")
        assert await stream.take(1) == ["ADDED a"]
    async with client.watch(resourceVersion=version) as stream:
        assert await stream.take(1) == ["ADDED a"]
    assert names(await client.get(CONFIG_MAPS)) == ["a", "lost"]


async def test_a_restored_store_goes_back_and_open_watches_wait(server: FakeApiServer, client: Client) -> None:
    server.put("configmaps", "a", data={"k": "1"})
    backup = server.snapshot()
    back = int(server.resource_version)
    server.put("configmaps", "b")
    server.put("configmaps", "a", data={"k": "2"})
    async with client.watch(resourceVersion=str(back), allowWatchBookmarks="true") as stream:
        assert await stream.take(2) == ["ADDED b", "MODIFIED a"]
        server.restore(backup)
        server.bookmark()  # not to a watch that has seen more
        assert server.resource_version == str(back)
        assert [obj["metadata"]["name"] for obj in server.list("configmaps")] == ["a"]
        assert server.get("configmaps", "a")["data"] == {"k": "1"}
        for name in "xyz":
            server.put("configmaps", name)
        assert await stream.take(1) == ["ADDED z"]  # x and y have resourceVersions the watch had seen before
        server.restore(backup, cut_watches=True)
        with pytest.raises(aiohttp.ClientPayloadError):
            await stream.rest()


async def test_a_write_to_another_type_is_passed_over(server: FakeApiServer, client: Client) -> None:
    async with client.watch(resourceVersion=server.resource_version, allowWatchBookmarks="true") as stream:
        watch = await server.wait_for_watch("configmaps")
        await server.wait_until_sent()
        server.put("secrets", "b")
        assert (watch.up_to_date, watch.position) == (True, int(server.resource_version)), "it was not woken for that"
        server.put("configmaps", "a")
        assert not watch.up_to_date
        server.put("secrets", "c")
        backup = server.snapshot()
        await server.wait_until_sent()
        assert (watch.up_to_date, watch.position) == (True, int(server.resource_version))
        server.put("secrets", "d")
        server.restore(backup)
        server.put("configmaps", "x")  # under the resourceVersion that d had
        server.put("configmaps", "y")
        assert await stream.take(2) == ["ADDED a", "ADDED y"]


async def test_a_replica_may_lag(server: FakeApiServer, client: Client) -> None:
    server.put("configmaps", "a")
    async with server.replica() as second, client_of(second) as other:
        async with other.watch(resourceVersion=server.resource_version) as stream:
            second.fall_behind()
            server.put("configmaps", "b")
            assert names(await other.get(CONFIG_MAPS, resourceVersion="0")) == ["a"]
            assert (await other.get(CONFIG_MAPS, resourceVersion=server.resource_version)).code == 504
            assert names(await other.get(CONFIG_MAPS)) == ["a", "b"]
            second.catch_up()
            assert await stream.take(1) == ["ADDED b"]
        second.put("configmaps", "c")
    assert names(await client.get(CONFIG_MAPS)) == ["a", "b", "c"]
    assert server.requests.total == 1


async def test_a_type_comes_and_goes(server: FakeApiServer, client: Client) -> None:
    path = "/apis/example.com/v1/widgets"
    assert (await client.get(path)).code == 404
    server.add_resource(WIDGET)
    server.put("widgets", "a")
    async with client.watch(path) as stream:
        assert await stream.take(1) == ["ADDED a"]
        server.remove_resource("widgets")
        assert await stream.rest() == ["DELETED a"]
    assert (await client.get(path)).text == "404 page not found\n"
    server.add_resource(WIDGET)
    assert names(await client.get(path)) == []
