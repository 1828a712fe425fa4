from __future__ import annotations

import asyncio

import pytest

from federator.testing.fake_api_server import FakeApiServer, Request, RequestLog
from tests.component.testing.fake_api_server.client import CONFIG_MAPS, Client


async def test_the_log_tells_what_was_asked(server: FakeApiServer, client: Client) -> None:
    server.put("deployments", "d", "shop")
    await client.get("/apis/apps/v1/namespaces/shop/deployments/d", headers={"X-Mine": "1"})
    await client.get(f"{CONFIG_MAPS}?labelSelector=a%3Db&limit=5")
    await client.send("POST", CONFIG_MAPS, {"metadata": {"name": "a"}})
    await client.get("/nowhere")
    get, listed, created, nowhere = server.requests
    assert (get.verb, get.resource, get.namespace, get.name) == ("get", "deployments.apps", "shop", "d")
    assert get.headers["x-mine"] == "1"
    assert get.bytes_sent > 100
    assert (listed.verb, listed.query) == ("list", {"labelSelector": "a=b", "limit": "5"})
    assert (created.method, created.verb, created.status) == ("POST", "create", 201)
    assert (nowhere.verb, nowhere.status, nowhere.live) == ("other", 404, False)
    assert server.requests.of("*", "deployments") == [get] == server.requests.of("get", "deployments.apps")
    assert server.requests.of("list", since=listed.number) == []
    assert server.requests.counts["list", "configmaps"] == 1
    assert str(listed) == "list configmaps {'labelSelector': 'a=b', 'limit': '5'} -> 200"
    server.requests.clear()
    assert (len(server.requests), server.requests.total) == (0, 4)


def test_the_log_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("federator.testing.fake_api_server.request_log.MAX_REQUESTS", 3)
    log = RequestLog()
    for number in range(1, 6):
        log.add(Request(number, 1, "GET", "/", {}, {}, 0.0))
    assert [request.number for request in log] == [3, 4, 5]
    assert log.total == 5


async def test_waiting_for_what_is_here_and_what_comes(server: FakeApiServer, client: Client) -> None:
    await client.get(CONFIG_MAPS)
    assert (await server.wait_for_request("list", "configmaps")).number == 1
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(server.wait_for_request("list", "configmaps", count=2))
        tasks.create_task(client.get(CONFIG_MAPS))
    assert waiting.result().number == 2
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.wait_for(lambda: server.list("configmaps")))
        server.put("configmaps", "a")


@pytest.mark.looptime
async def test_what_does_not_come_says_what_came_instead(server: FakeApiServer, client: Client) -> None:
    await client.get(CONFIG_MAPS, limit="7")
    with pytest.raises(TimeoutError, match=r"within 10.0 s; requests:\nlist configmaps {'limit': '7'} -> 200"):
        await server.wait_for_watch()


async def test_statistics(server: FakeApiServer, client: Client) -> None:
    async with client.watch():
        await server.wait_for_watch()
        assert server.statistics() == {
            "connections": 1,
            "accepted_connections": 1,
            "requests": 1,
            "watches": 1,
            "resource_version": int(server.resource_version),
            "compacted": 0,
        }
