"""Framing and decoding: whatever the edges of chunks, and whatever is between them."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest

from federator.api.list_watch import ListOptions
from federator.api.object import KubeObject
from federator.errors import KubeStatusError
from federator.kube import MemberClient, ResourceListWatch, member_client
from federator.testing import FakeApiServer, faults
from federator.testing.fake_api_server.faults import Fault
from federator.testing.fake_api_server.status import Json
from tests.robustness.bug_cases.follower import (
    CONFIG_MAPS,
    Follower,
    both_ways,
    is_watch_list,
    truth,
    until,
    version_of,
)

pytestmark = pytest.mark.looptime

TEXTS = {"latin": "Straße", "three": "日本語 ‰ €", "four": "𝔉𝔢𝔡 🐘🦉", "escaped": 'quote " and \\ and \n {'}

REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


# ------------------------------------------------------------------------------------------- 11: characters cut in two


async def test_bug11_a_watch_may_be_cut_at_every_byte(server: FakeApiServer, client: MemberClient) -> None:
    put = server.put("configmaps", "texts", data=TEXTS)
    frame = msgspec.json.encode({"type": "MODIFIED", "object": put}) + b"\n"
    length = len(frame)
    # The same frame again and again, each time cut one byte later, and once into single bytes.
    cuts = (
        *(number * length + number for number in range(1, length)),
        *range(length * length, length * length + length),
    )
    server.fail("watch", "configmaps", faults.Split(at=cuts))
    options = ListOptions(resource_version=server.resource_version, timeout_seconds=60)
    async with ResourceListWatch(client, CONFIG_MAPS).watch(options) as events:
        watch = await server.wait_for_watch()
        for _ in range(length + 1):
            watch.send(frame)
        watch.end()
        states = [event.object.raw async for event in events]
    assert (len(states), len(set(states))) == (length + 1, 1)
    assert msgspec.json.decode(states[0]) == put
    assert REPLACEMENT not in states[0]


async def test_bug11_a_list_may_be_cut_at_every_byte(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_client, "REQUESTS_PER_SECOND", 1e6)
    put = server.put("configmaps", "texts", data=TEXTS)
    async with MemberClient.from_kubeconfig(path=server.kubeconfig(tmp_path / "kubeconfig")) as client:
        list_watch = ResourceListWatch(client, CONFIG_MAPS)
        (whole,) = (await list_watch.list(ListOptions())).objects
        assert msgspec.json.decode(whole.raw) == put
        for offset in range(1, server.requests[-1].bytes_sent):
            server.fail("list", "configmaps", faults.Split(at=(offset,)))
            assert (await list_watch.list(ListOptions())).objects == [whole], f"cut at {offset}"
    assert REPLACEMENT not in whole.raw


@both_ways
async def test_bug11_bytes_that_are_no_text_are_put_aside_not_replaced(
    server: FakeApiServer, client: MemberClient, *, use_watch_list: bool
) -> None:
    server.put("configmaps", "a", data={"text": "good"})
    async with Follower(client, use_watch_list=use_watch_list) as follower:
        await follower.synced()
        before = follower.held
        watch = await server.wait_for_watch("configmaps")
        with server.losing_events():
            bad = server.put("configmaps", "a", data={"text": "MARK"})
        for broken in (b"\xf0\x90", b"\xff", b"\xed\xa0\x80"):
            watch.send(msgspec.json.encode({"type": "MODIFIED", "object": bad}).replace(b"MARK", broken) + b"\n")
        server.put("configmaps", "b", data=TEXTS)
        await until(lambda: "b" in follower.held)
        assert follower.held == {**truth(server), **before}
        assert client.statistics()["skipped_objects"] == 3
        assert len(server.requests.of("watch")) == 1, "the stream goes on"
        server.touch("configmaps", "a")
        await until(lambda: follower.held == truth(server))
        assert not [obj for obj in follower.informer.indexer.list() if REPLACEMENT in obj.raw]


# ---------------------------------------------------------------------------------------------- 13: many gzip members


@pytest.mark.parametrize(
    "shape",
    [(), (faults.Split(every=1),), (faults.Split(every=7),)],
    ids=["a member a chunk", "single bytes", "members across chunks"],
)
async def test_bug13_events_in_gzip_members_come_as_they_are_flushed(
    server: FakeApiServer, client: MemberClient, shape: tuple[Fault, ...]
) -> None:
    for name in "abc":
        server.put("configmaps", name, data=TEXTS)
    server.fail("watch", "configmaps", faults.Gzip(force=True), *shape)
    async with Follower(client) as follower:
        await follower.synced()
        assert follower.held == truth(server)
        for number in range(5):
            server.put("configmaps", f"later-{number}", data=TEXTS)
            # No clock moves on here: it has to be there before anything else is flushed.
            await server.wait_until_sent()
            before = asyncio.get_running_loop().time()
            await until(lambda: follower.held == truth(server), step=0.01)
            assert asyncio.get_running_loop().time() - before < 0.1
        assert len(server.requests) == 1


async def test_bug13_two_gzip_members_in_one_chunk(server: FakeApiServer, client: MemberClient) -> None:
    server.fail("watch", "configmaps", faults.Gzip(force=True), faults.Merge(2))
    async with Follower(client) as follower:
        await asyncio.sleep(1)
        server.put("configmaps", "a")
        await follower.synced()
        for name in "bc", "de":
            for each in name:
                server.put("configmaps", each)
            await until(lambda: follower.held == truth(server), timeout=10)
        assert len(server.requests) == 1


async def test_bug13_what_encodings_are_asked_for(server: FakeApiServer, client: MemberClient) -> None:
    async with Follower(client) as follower, Follower(client, use_watch_list=False) as lister:
        await follower.synced()
        await lister.synced()
        await server.wait_for_watch(count=2)
    asked = {(each.verb, each.headers["accept-encoding"]) for each in server.requests}
    assert asked == {("watch", "identity"), ("list", "gzip, deflate")}


async def test_bug13_lists_are_gunzipped_member_by_member(server: FakeApiServer, client: MemberClient) -> None:
    """No server is known to do this to a list; a decoder that stops early would show half of it."""
    for name in "abc":
        server.put("configmaps", name, data=TEXTS)
    list_watch = ResourceListWatch(client, CONFIG_MAPS)
    whole = await list_watch.list(ListOptions())
    plain = await client.get("/api/v1/configmaps")
    middle = len(plain) // 2
    body = gzip.compress(plain[:middle]) + gzip.compress(plain[middle:])
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    server.fail("list", "configmaps", faults.RawReply(head.encode() + body))
    assert await list_watch.list(ListOptions()) == whole


# ------------------------------------------------------------------------------------- 14, 17: how expiry is told


@both_ways
@pytest.mark.parametrize(
    "told",
    [faults.UnchunkedStatus(410), faults.HttpError(410), faults.ErrorEvent(410), faults.ErrorEvent(410, "Gone")],
    ids=["unchunked", "HTTP", "event", "event, old reason"],
)
async def test_bug14_bug17_expiry_is_understood_however_it_is_told(
    server: FakeApiServer, client: MemberClient, told: Fault, *, use_watch_list: bool
) -> None:
    server.put("configmaps", "a")
    async with Follower(client, use_watch_list=use_watch_list) as follower:
        await follower.synced()
        watch = await server.wait_for_watch("configmaps")
        await asyncio.sleep(5)
        begin, version = server.requests.total, server.resource_version
        server.fail("watch", "configmaps", told)
        watch.end()
        await server.wait_for_request("watch", since=begin)
        server.put("configmaps", "b")
        await until(lambda: follower.held == truth(server))

        (error,) = follower.failures
        assert isinstance(error, KubeStatusError)
        assert error.is_expired, "whoever follows is told, it is not only logged"
        dial, sync = server.requests.of(since=begin)[:2]
        assert (dial.verb, version_of(dial), is_watch_list(dial)) == ("watch", version, False)
        assert (sync.verb, version_of(sync)) == ("watch" if use_watch_list else "list", version)
        resynced = [("update", "a")]  # with the version it had
        assert [each for each in follower.told if each not in resynced] == [("add", "a"), ("add", "b")]
        await asyncio.sleep(5)
        assert follower.status.error is None


# ----------------------------------------------------------------------------------------------------- 15: bookmarks


@both_ways
async def test_bug15_bookmarks_move_the_version_and_nothing_else(
    server: FakeApiServer, client: MemberClient, *, use_watch_list: bool
) -> None:
    calls: list[str] = []

    def transform(obj: KubeObject) -> KubeObject:
        calls.append(f"transform {obj.name}")
        return obj

    def index(obj: KubeObject) -> list[str]:
        calls.append(f"index {obj.name}")
        return []

    server.put("configmaps", "a")
    options: dict[str, Any] = {"transform": transform, "indexers": {"i": index}, "use_watch_list": use_watch_list}
    async with Follower(client, **options) as follower:
        await follower.synced()
        watch = await server.wait_for_watch("configmaps")
        await asyncio.sleep(5)
        calls.clear()
        begin = server.requests.total
        versions = []
        for number in range(3):
            server.put("pods", f"busy-{number}")
            versions.append(server.resource_version)
            server.bookmark("configmaps")
            await until(lambda: follower.informer.last_sync_resource_version == versions[-1])
            await until(lambda: follower.informer.indexer.last_resource_version == versions[-1])
        watch.reset()
        again = await server.wait_for_request("watch", "configmaps", since=begin)
        assert (version_of(again), is_watch_list(again)) == (versions[-1], False)
        await asyncio.sleep(5)
        assert (follower.told, calls, follower.failures) == ([("add", "a")], [], [])


# ------------------------------------------------------------------------------------ 18: one bad object among others

LISTED = 100


def nameless(body: Json) -> Json:
    del body["items"][0]["metadata"]["name"]
    return body


@both_ways
async def test_bug18_bad_objects_are_put_aside_until_they_are_mended(
    server: FakeApiServer, client: MemberClient, *, use_watch_list: bool
) -> None:
    for number in range(LISTED):
        server.put("configmaps", f"m-{number:02}", data={"colour": "blue"})
    server.put("configmaps", "m-01", data={"colour": 7})
    server.put("configmaps", "m-02", data={"colour": "secret"})

    def colour(obj: KubeObject) -> str:
        return str(msgspec.json.decode(obj.raw)["data"]["colour"])

    def transform(obj: KubeObject) -> KubeObject:
        if colour(obj) == "secret":
            raise ValueError("refused by the transform")
        return obj

    def by_colour(obj: KubeObject) -> list[str]:
        value = msgspec.json.decode(obj.raw)["data"]["colour"]
        return [value.upper()]

    bad: list[Fault] = [faults.BadObject("no-name")] if use_watch_list else [faults.Rewrite(nameless)]
    server.fail("watch" if use_watch_list else "list", "configmaps", *bad)
    async with Follower(
        client, use_watch_list=use_watch_list, transform=transform, indexers={"colour": by_colour}
    ) as follower:
        await follower.synced()
        assert follower.informer.has_synced()
        served = set(truth(server)) - {"m-02"} - (set() if use_watch_list else {"m-00"})
        assert set(follower.held) == served
        assert len(follower.informer.indexer.by_index("colour", "BLUE")) == len(served) - 1
        assert client.statistics()["skipped_objects"] == 1
        if not use_watch_list:
            assert follower.statistics("reflector")["items_skipped_names"] == ("item 0: no metadata.name",)
        queue, indexer = follower.statistics("queue"), follower.statistics("indexer")
        assert (queue["quarantined"], queue["quarantined_keys"]) == (1, ("default/m-02",))
        assert (indexer["quarantined"], indexer["quarantined_keys"]) == (1, {"colour": ("default/m-01",)})

        server.put("configmaps", "m-01", data={"colour": "red"})
        server.put("configmaps", "m-02", data={"colour": "red"})
        by_index = follower.informer.indexer.by_index
        await until(lambda: {obj.name for obj in by_index("colour", "RED")} == {"m-01", "m-02"})
        left = follower.statistics("queue")["quarantined"], follower.statistics("indexer")["quarantined"]
        assert left == (0, 0)

        follower.informer.request_relist()
        await until(lambda: follower.held == truth(server))
        assert follower.statistics("reflector")["items_skipped"] == 0
        assert follower.failures == []
