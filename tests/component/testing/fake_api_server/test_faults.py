from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import aiohttp
import pytest

from federator.testing.fake_api_server import FakeApiServer, Request, faults
from federator.testing.fake_api_server.faults import Fault
from tests.component.testing.fake_api_server.client import CONFIG_MAPS, Client, Stream, client_of, names, raw, request

WATCH = f"{CONFIG_MAPS}?watch=1&timeoutSeconds=3600&resourceVersion=0"


@pytest.fixture(autouse=True)
def _objects(server: FakeApiServer) -> None:
    for name in "abc":
        server.put("configmaps", name)


async def body_of(server: FakeApiServer, *headers: str, count: int) -> tuple[list[bytes], bytes]:
    """The first chunks of a watch, as they were framed."""
    reader, writer = await raw(server, request(WATCH, *headers))
    head = await reader.readuntil(b"\r\n\r\n")
    chunks = []
    for _ in range(count):
        size = int(await reader.readline(), 16)
        chunks.append(await reader.readexactly(size))
        assert await reader.readexactly(2) == b"\r\n"
    writer.close()
    return chunks, head


# ------------------------------------------------------------------------------------------------ which requests


async def test_faults_are_for_the_next_requests_that_match(server: FakeApiServer, client: Client) -> None:
    injection = server.fail("list", "configmaps", faults.HttpError(500), times=2, skip=1)
    assert (await client.get("/api/v1/pods")).code == 200
    assert [(await client.get(CONFIG_MAPS)).code for _ in range(4)] == [200, 500, 500, 200]
    assert [each.number for each in injection.requests] == [3, 4]
    assert injection.used_up


async def test_faults_stay_until_they_are_taken_back(server: FakeApiServer, client: Client) -> None:
    injection = server.fail("*", "*", faults.HttpError(503), times=None)
    assert [(await client.get(path)).code for path in (CONFIG_MAPS, "/apis", "/nowhere")] == [503] * 3
    injection.cancel()
    assert (await client.get(CONFIG_MAPS)).code == 200
    server.fail("*", "*", faults.HttpError(503), times=None)
    server.heal()
    assert (await client.get(CONFIG_MAPS)).code == 200


async def test_calls_queue_up_and_standing_faults_are_added(server: FakeApiServer, client: Client) -> None:
    server.fail("list", "*", faults.Rewrite(faults.null_items), times=None)
    server.fail("list", "*", faults.HttpError(429), skip=1)
    server.fail("*", "configmaps", faults.HttpError(500))
    server.fail("get", "*", faults.HttpError(403))
    assert (await client.get("/api/v1/nodes/n")).code == 403
    replies = [await client.get(CONFIG_MAPS) for _ in range(4)]
    assert [reply.code for reply in replies] == [200, 429, 500, 200]
    assert [replies[at].body["items"] for at in (0, 3)] == [None, None]


async def test_faults_may_look_at_the_request(server: FakeApiServer, client: Client) -> None:
    def consistent(request: Request) -> bool:
        return "resourceVersion" not in request.query

    server.fail("list", "configmaps", faults.HttpError(429), times=None, where=consistent)
    assert (await client.get(CONFIG_MAPS)).code == 429
    assert (await client.get(CONFIG_MAPS, resourceVersion="0")).code == 200


# ------------------------------------------------------------------------------------------- instead of the reply


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (404, "NotFound"),
        (410, "Expired"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
        (504, "Timeout"),
    ],
)
async def test_http_errors(server: FakeApiServer, client: Client, code: int, reason: str) -> None:
    server.fail("*", "*", faults.HttpError(code, retry_after=7))
    reply = await client.get(CONFIG_MAPS, watch="1")
    assert (reply.code, reply.headers["Retry-After"]) == (code, "7")
    assert (reply.body["kind"], reply.body["reason"], reply.body["code"]) == ("Status", reason, code)
    assert reply.body["details"] == {"retryAfterSeconds": 7}


async def test_a_proxy_answers_in_html(server: FakeApiServer, client: Client) -> None:
    server.fail("*", "*", faults.HtmlError())
    reply = await client.get(CONFIG_MAPS)
    assert (reply.code, reply.headers["Content-Type"]) == (502, "text/html")
    assert reply.text.startswith("<html>")


async def test_too_large_in_three_dialects(server: FakeApiServer, client: Client) -> None:
    dialects: list[faults.TooLargeResourceVersion] = [
        faults.TooLargeResourceVersion(),
        faults.TooLargeResourceVersion("cause-message"),
        faults.TooLargeResourceVersion("message"),
    ]
    for dialect in dialects:
        server.fail("list", "*", dialect)
    replies = [(await client.get(CONFIG_MAPS)).body for _ in dialects]
    text = "Too large resource version"
    assert [body["details"].get("causes") for body in replies] == [
        [{"reason": "ResourceVersionTooLarge", "message": text}],
        [{"message": text}],
        None,
    ]
    assert {(body["code"], body["reason"], body["message"]) for body in replies} == {
        (504, "Timeout", f"Timeout: {text}: 1000, current: 1")
    }


async def test_an_unchunked_status_in_place_of_a_watch(server: FakeApiServer) -> None:
    server.fail("watch", "*", faults.UnchunkedStatus(410))
    reader, writer = await raw(server, request(WATCH, "Connection: close"))
    head, body = (await reader.read()).split(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 200")
    assert b"chunked" not in head
    assert json.loads(body)["code"] == 410


async def test_any_bytes(server: FakeApiServer) -> None:
    server.fail("*", "*", faults.RawReply(b"SSH-2.0-OpenSSH\r\n"))
    reader, writer = await raw(server, request(CONFIG_MAPS))
    assert await reader.read() == b"SSH-2.0-OpenSSH\r\n"
    writer.close()


# ------------------------------------------------------------------------------------------------ the connection


async def read_all(server: FakeApiServer, path: str = WATCH) -> tuple[bytes, str]:
    """All that comes, and how it ended."""
    reader, writer = await raw(server, request(path))
    received = b""
    try:
        while chunk := await reader.read(65536):
            received += chunk
    except ConnectionResetError:
        return received, "reset"
    finally:
        writer.close()
    return received, "fin"


async def test_before_the_reply(server: FakeApiServer) -> None:
    for fault, end in ((faults.Reset(), "reset"), (faults.Fin(), "fin")):
        for path in (WATCH, CONFIG_MAPS):
            server.fail("*", "*", fault)
            assert await read_all(server, path) == (b"", end)
            assert server.requests[-1].status == 0
            assert server.requests[-1].outcome == end


@pytest.mark.parametrize(("fault", "end"), [(faults.Reset, "reset"), (faults.Fin, "fin")])
async def test_in_the_middle(server: FakeApiServer, fault: type[faults.Cut], end: str) -> None:
    server.fail("watch", "*", fault(after_events=2))
    received, ended = await read_all(server)
    assert (received.count(b"ADDED"), ended) == (2, end)
    assert not received.endswith(b"0\r\n\r\n")
    server.fail("watch", "*", fault(after_bytes=10))
    received, ended = await read_all(server)
    assert (received.split(b"\r\n")[-1], ended) == (b'{"type":"A', end)  # in the middle of a chunk
    server.fail("watch", "*", fault(after_bytes=0))
    received, ended = await read_all(server)
    assert received.endswith(b"\r\n\r\n")
    assert ended == end
    server.fail("list", "*", fault(after_bytes=10))
    received, ended = await read_all(server, CONFIG_MAPS)
    assert received.split(b"\r\n\r\n")[1] == b'{"kind":"C'
    assert server.requests[-1].bytes_sent == 10


async def test_a_clean_end(server: FakeApiServer, client: Client) -> None:
    server.fail("watch", "*", faults.End())
    server.fail("watch", "*", faults.End(after_events=1))
    async with client.watch() as stream:
        assert await stream.rest() == []
    async with client.watch() as stream:
        assert len(await stream.rest()) == 1


async def test_a_drain_closes_the_connection_after_a_clean_end(server: FakeApiServer) -> None:
    server.fail("watch", "*", faults.Drain(after_events=1))
    received, ended = await read_all(server)
    assert b"Connection: close\r\n" in received
    assert received.endswith(b"\r\n0\r\n\r\n")
    assert ended == "fin"


@pytest.mark.parametrize(
    ("fault", "head", "events"),
    [
        (faults.BlackHole(), False, 0),
        (faults.BlackHole(after_bytes=0), True, 0),
        (faults.BlackHole(after_events=1), True, 1),
        (faults.BlackHole(after_bytes=30), True, 1),
    ],
)
async def test_a_black_hole_keeps_the_connection(
    server: FakeApiServer, fault: Fault, *, head: bool, events: int
) -> None:
    server.fail("watch", "*", fault)
    reader, writer = await raw(server, request(WATCH))
    await server.wait_for_request("watch")
    if head:
        await reader.readuntil(b"\r\n\r\n")
    if events:
        await reader.readuntil(b"ADDED")
    server.put("configmaps", "d")
    _, second = await raw(server, request("/readyz"))
    await server.wait_for(lambda: server.requests[-1].status == 200)  # time for more, if there were more
    assert server.requests[0].live
    assert not reader.at_eof()
    rest = await _rest(reader)
    assert b'"name":"d"' not in rest
    assert head or rest == b""
    writer.close()
    second.close()
    await server.wait_for(lambda: not server.requests[0].live)
    assert server.requests[0].outcome == "black hole"


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """What has arrived already."""
    reader.feed_eof()
    return await reader.read()


@pytest.mark.looptime
async def test_a_delay(server: FakeApiServer, client: Client) -> None:
    server.fail("list", "*", faults.Delay(30))
    begin = asyncio.get_running_loop().time()
    assert (await client.get(CONFIG_MAPS)).code == 200
    assert asyncio.get_running_loop().time() - begin >= 30


# ---------------------------------------------------------------------------------------------- the body's shape


async def test_a_body_in_single_bytes(server: FakeApiServer) -> None:
    server.put("configmaps", "a", data={"k": "ä€𝄞"})
    server.fail("watch", "*", faults.Split(every=1))
    chunks, _ = await body_of(server, count=60)
    assert {len(chunk) for chunk in chunks} == {1}
    server.fail("list", "*", faults.Split(every=1))
    async with client_of(server) as client:
        assert names(await client.get(CONFIG_MAPS)) == ["a", "b", "c"]


async def test_a_body_split_where_a_test_wants_it(server: FakeApiServer) -> None:
    whole = (await body_of(server, count=1))[0][0]
    server.fail("watch", "*", faults.Split(at=(3, 10, len(whole) + 5)))
    chunks, _ = await body_of(server, count=5)
    assert [len(chunk) for chunk in chunks[:4]] == [3, 7, len(whole) - 10, 5]
    assert b"".join(chunks[:3]) == whole


async def test_frames_merged_into_one_chunk(server: FakeApiServer, client: Client) -> None:
    server.fail("watch", "*", faults.Merge(2), faults.End(after_events=3), times=2)
    chunks, _ = await body_of(server, count=2)
    assert [chunk.count(b"\n") for chunk in chunks] == [2, 1]
    async with client.watch() as stream:
        assert len(await stream.rest()) == 3


async def test_a_gzip_member_for_each_frame(server: FakeApiServer, client: Client) -> None:
    server.fail("watch", "*", faults.Gzip(), times=None)
    chunks, head = await body_of(server, "Accept-Encoding: gzip", count=3)
    assert b"Content-Encoding: gzip" in head
    assert [gzip.decompress(chunk).count(b"\n") for chunk in chunks] == [1, 1, 1]
    chunks, head = await body_of(server, "Accept-Encoding: identity", count=3)
    assert b"gzip" not in head
    server.heal()
    server.fail("watch", "*", faults.Gzip(force=True), faults.Merge(3), faults.Split(every=20))
    chunks, _ = await body_of(server, "Accept-Encoding: identity", count=20)
    assert zlib.decompressobj(31).decompress(b"".join(chunks)).count(b"\n") == 1  # the first of three members
    server.fail("watch", "*", faults.Gzip(), faults.Split(every=7))
    async with client.watch() as stream:
        assert await stream.take(3) == ["ADDED c", "ADDED b", "ADDED a"]


# ---------------------------------------------------------------------------------------------------- what is in it


async def frames_with(server: FakeApiServer, client: Client, *injected: Fault) -> list[str]:
    server.fail("watch", "*", *injected, faults.End(after_events=5))
    async with client.watch() as stream:
        return await stream.rest()


async def test_error_events_end_the_watch(server: FakeApiServer, client: Client) -> None:
    error = faults.ErrorEvent(429, reason="TooManyRequests", details={"retryAfterSeconds": 1}, after_events=1)
    assert await frames_with(server, client, error) == ["ADDED c", "ERROR 429"]
    assert await frames_with(server, client, faults.ErrorEvent()) == ["ERROR 410"]
    server.fail("watch", "*", faults.ErrorEvent(500, metadata=False))
    async with client.watch() as stream:
        frame = await stream.next()
    assert list(frame["object"]) == ["kind", "apiVersion", "status", "message", "reason", "code"]


@pytest.mark.parametrize(
    ("what", "obj"),
    [
        ("no-metadata", {"data": {}}),
        ("no-name", {"metadata": {"name": "", "namespace": "default", "resourceVersion": "1"}}),
        ("no-version", {"metadata": {"name": "bad", "namespace": "default"}}),
    ],
)
async def test_bad_objects(server: FakeApiServer, client: Client, what: str, obj: dict[str, object]) -> None:
    bad = faults.BadObject(what, after_events=1)  # type: ignore[arg-type]
    server.fail("*", "*", bad, times=2)
    async with client.watch() as stream:
        await stream.next()
        assert await stream.next() == {"type": "MODIFIED", "object": obj}
        assert await stream.take(2) == ["ADDED b", "ADDED a"]
    assert (await client.get(CONFIG_MAPS)).body["items"][3] == obj
    assert faults.BadObject("wrong-kind").object()["kind"] == "Unexpected"


async def test_broken_frames(server: FakeApiServer, client: Client) -> None:
    server.fail(
        "watch", "*", faults.Frame.unknown_type(1), faults.Frame.table(1), faults.Frame.garbage(3), faults.End(4)
    )
    async with client.watch() as stream:
        assert (await stream.take(3))[1:] == ["REVISED a", "ADDED ?"]
        with pytest.raises(ValueError, match="Expecting"):
            await stream.next()
        assert await stream.rest() == []


async def test_a_frame_that_is_too_long(server: FakeApiServer) -> None:
    frame = faults.Frame.oversized()
    assert len(frame.content) > faults.MAX_FRAME
    server.fail("watch", "*", frame, faults.Reset(after_events=1))
    reader, writer = await raw(server, request(WATCH))
    await reader.readuntil(b"\r\n\r\n")
    assert int(await reader.readline(), 16) == len(frame.content)
    writer.close()


async def test_events_are_lost_or_come_twice(server: FakeApiServer, client: Client) -> None:
    assert (await frames_with(server, client, faults.LoseEvent(2), faults.ErrorEvent(after_events=2)))[:2] == [
        "ADDED c",
        "ADDED a",
    ]
    twice = await frames_with(server, client, faults.DuplicateEvent(1), faults.ErrorEvent(after_events=3))
    assert twice == ["ADDED c", "ADDED c", "ADDED b", "ERROR 410"]


@pytest.mark.parametrize("version", ["", "0", "1"])
async def test_bookmarks_with_a_wrong_version(server: FakeApiServer, client: Client, version: str) -> None:
    server.fail("watch", "*", faults.BookmarkVersion(version))
    async with client.watch(resourceVersion=server.resource_version, allowWatchBookmarks="true") as stream:
        await server.wait_for_watch()
        server.bookmark()
        assert await stream.take(1) == [f"BOOKMARK {version}"]


async def test_rewritten_bodies(server: FakeApiServer, client: Client) -> None:
    server.fail("list", "*", faults.Rewrite(faults.null_items))
    server.fail("list", "*", faults.Rewrite(faults.table))
    server.fail("get", "*", faults.Rewrite(lambda body: {**body, "kind": "Odd"}))
    assert (await client.get(CONFIG_MAPS)).body["items"] is None
    assert (await client.get(CONFIG_MAPS)).body["kind"] == "Table"
    assert (await client.get(f"{CONFIG_MAPS}/a")).body["kind"] == "Odd"


@pytest.mark.parametrize("name", ["reset", "fin", "drain", "end", "black_hole"])
async def test_an_open_watch_is_cut(server: FakeApiServer, client: Client, name: str) -> None:
    async with client.watch(resourceVersion=server.resource_version) as stream:
        watch = await server.wait_for_watch()
        server.put("configmaps", "d")
        getattr(watch, name)()
        server.put("configmaps", "e")
        assert await stream.take(1) == ["ADDED d"]
        match name:
            case "reset" | "fin":
                with pytest.raises(aiohttp.ClientPayloadError):
                    await stream.next()
            case "black_hole":
                await server.wait_until_sent()
                assert watch.request.live
            case _:
                assert await stream.rest() == []
    assert isinstance(stream, Stream)
