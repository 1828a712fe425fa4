from __future__ import annotations

import asyncio

import aiohttp
import pytest

from federator.testing.fake_api_server import FakeApiServer, faults
from federator.testing.fake_api_server.http import MAX_BODY, MAX_HEAD
from tests.component.testing.fake_api_server.client import CONFIG_MAPS, Client, client_of, raw, request


def fake_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("fake apiserver")]


async def test_leaving_closes_everything_whatever_it_is_doing() -> None:
    async with FakeApiServer() as server:
        server.fail("list", "*", faults.BlackHole())
        server.fail("get", "*", faults.Delay(3600))
        idle, idle_writer = await raw(server, b"")
        half, half_writer = await raw(server, b"GET /api/v1/")
        dark, dark_writer = await raw(server, request("/api/v1/pods"))
        late, late_writer = await raw(server, request("/api/v1/nodes/n"))
        watching, watching_writer = await raw(server, request("/api/v1/pods?watch=1"))
        await watching.readuntil(b"\r\n\r\n")
        await server.wait_for(lambda: server.requests.total == 3 and server.statistics()["connections"] == 5)
        assert len(fake_tasks()) == 5
    assert fake_tasks() == []
    for reader, writer in (
        (idle, idle_writer),
        (half, half_writer),
        (dark, dark_writer),
        (late, late_writer),
        (watching, watching_writer),
    ):
        assert await reader.read() == b""
        writer.close()


async def test_a_watch_ends_when_its_client_leaves(server: FakeApiServer, client: Client) -> None:
    async with client.watch():
        assert (await server.wait_for_watch()).request.live
    await server.wait_for(lambda: not server.watches())
    assert server.requests[0].outcome == "client closed"
    await server.wait_for(lambda: server.statistics()["connections"] == 0)


async def test_one_connection_serves_request_after_request(server: FakeApiServer, client: Client) -> None:
    server.put("configmaps", "a")
    for _ in range(3):
        await client.get(CONFIG_MAPS)
    async with client.watch(timeoutSeconds="3600") as stream:
        await stream.take(1)
        server.end_watches()
        assert await stream.rest() == []
    await client.get(CONFIG_MAPS)
    assert {each.connection for each in server.requests} == {1}
    assert [each.outcome for each in server.requests] == ["complete"] * 3 + ["end", "complete"]


async def test_pipelined_requests_are_answered_in_order(server: FakeApiServer) -> None:
    reader, writer = await raw(server, request("/readyz") + request("/version"))
    writer.write_eof()
    content = await reader.read()
    writer.close()
    assert content.count(b"HTTP/1.1 200") == 2
    assert content.index(b"\r\n\r\nok") < content.index(b"gitVersion")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /x HTTP/2.0\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\nbroken header\r\n\r\n", 400),
        (b"GET /x HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST /x HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1), 413),
        (b"GET /x HTTP/1.1\r\nA: " + b"a" * MAX_HEAD + b"\r\n\r\n", 431),
    ],
)
async def test_what_cannot_be_read_is_refused(server: FakeApiServer, content: bytes, code: int) -> None:
    reader, writer = await raw(server, content)
    assert (await reader.readline()).split()[1] == str(code).encode()
    writer.close()
    assert server.requests.total == 0


async def test_dials_are_refused_and_taken_again_on_the_same_port(server: FakeApiServer) -> None:
    port = server.port
    kept, kept_writer = await raw(server, request("/readyz"))
    await kept.readuntil(b"ok")
    server.refuse_connections()
    with pytest.raises(ConnectionRefusedError):
        await raw(server, b"")
    kept_writer.write(request("/readyz"))  # what stands is not touched
    await kept.readuntil(b"ok")
    await server.accept_connections()
    reader, writer = await raw(server, request("/readyz"))
    await reader.readuntil(b"ok")
    assert server.port == port
    kept_writer.close()
    writer.close()


async def test_all_connections_are_reset(server: FakeApiServer, client: Client) -> None:
    async with client.watch() as first, client.watch() as second:
        await server.wait_for_watch(count=2)
        server.reset_connections()
        for stream in (first, second):
            with pytest.raises(aiohttp.ClientPayloadError):
                await stream.next()


async def test_the_network_goes_dark_and_comes_back(server: FakeApiServer, client: Client) -> None:
    async with client.watch() as stream:
        await server.wait_for_watch()
        server.go_dark()
        server.put("configmaps", "a")
        _, writer = await raw(server, request("/readyz"))
        await server.wait_for_request("other")
        await server.wait_until_sent()
        assert server.requests[0].bytes_sent == server.requests[1].status == 0
        assert all(each.live for each in server.requests)
        server.come_back()
        assert (await client.get("/readyz")).text == "ok"
        assert stream.received == b""
        writer.close()


async def test_it_has_to_be_entered() -> None:
    with pytest.raises(RuntimeError, match="not entered"):
        assert FakeApiServer().url


async def test_many_watches_are_told(server: FakeApiServer) -> None:
    async with client_of(server) as client, asyncio.TaskGroup() as tasks:

        async def follow() -> None:
            async with client.watch(resourceVersion=server.resource_version) as stream:
                assert await stream.take(2) == ["ADDED a", "DELETED a"]

        for _ in range(50):
            tasks.create_task(follow())
        await server.wait_for_watch("configmaps", count=50)
        server.put("configmaps", "a")
        server.delete("configmaps", "a")
        await server.wait_until_sent()
