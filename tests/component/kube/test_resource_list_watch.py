"""Lists and watches against a real HTTP server that misbehaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
import structlog

from federator.api.list_watch import ListOptions, WatchEvent, WatchEventType
from federator.api.resource import ResourceType
from federator.errors import KubeStatusError, MemberUnreachable
from federator.kube import MemberClient, ResourceListWatch, member_client
from federator.kube.object_decoder import ObjectDecoder
from federator.kube.resource_list_watch import Page
from tests.component.kube.scripted_server import Exchange, Request, ScriptedServer, eventually
from tests.turns import counted_turns

PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)
WATCH = ListOptions(resource_version="5", allow_bookmarks=True, timeout_seconds=300)


def pod(name: str = "a", version: str = "1", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "uid": f"uid-{name}", "resourceVersion": version}
    return {"metadata": metadata, "spec": {"text": "ä漢🚀"}, **more}


def frame(event_type: str, obj: dict[str, Any], **form: Any) -> bytes:
    return json.dumps({"type": event_type, "object": obj}, ensure_ascii=False, **form).encode()


def watched_pod(name: str = "a", version: str = "1") -> dict[str, Any]:
    return {"kind": "Pod", "apiVersion": "v1", **pod(name, version)}


def list_watch(client: MemberClient, **options: Any) -> ResourceListWatch:
    return ResourceListWatch(client, PODS, **options)


async def events(client: MemberClient, options: ListOptions = WATCH) -> list[WatchEvent]:
    async with list_watch(client).watch(options) as stream:
        return [event async for event in stream]


def scripted_watch(server: ScriptedServer, *chunks: bytes) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.stream()
        for chunk in chunks:
            await exchange.chunk(chunk)
        await exchange.end()

    server.script = script


def scripted_body(server: ScriptedServer, body: bytes, code: int = 200, **headers: str) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.body(body, code=code, headers={k.replace("_", "-"): v for k, v in headers.items()})

    server.script = script


# Lists


@pytest.mark.parametrize("items_first", [False, True])
async def test_list_in_either_key_order(server: ScriptedServer, client: MemberClient, items_first: bool) -> None:
    head = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9", "continue": "next"}}
    items = {"items": [pod("a"), pod("b")]}
    scripted_body(server, json.dumps({**items, **head} if items_first else {**head, **items}).encode())
    page = await list_watch(client).list(ListOptions())
    assert (page.resource_version, page.continue_token, page.skipped) == ("9", "next", ())
    assert [obj.key for obj in page.objects] == ["n/a", "n/b"]
    assert json.loads(page.objects[0].raw) == {"apiVersion": "v1", "kind": "Pod", **pod("a")}


@pytest.mark.parametrize("items", [None, []])
async def test_list_without_items(server: ScriptedServer, client: MemberClient, items: Any) -> None:
    scripted_body(server, json.dumps({"metadata": {"resourceVersion": "9"}, "items": items}).encode())
    assert (await list_watch(client).list(ListOptions())).objects == []


async def test_list_skips_and_names_what_it_cannot_use(server: ScriptedServer, client: MemberClient) -> None:
    items = [pod("a"), {"metadata": {"namespace": "n"}}, {"metadata": {"name": 5}}, pod("b", kind="Node"), pod("c")]
    scripted_body(server, json.dumps({"metadata": {"resourceVersion": "9"}, "items": items}).encode())
    page = await list_watch(client).list(ListOptions())
    assert [obj.name for obj in page.objects] == ["a", "c"]
    assert [text.split(":")[0] for text in page.skipped] == ["item 1", "item 2", "item 3"]
    assert "n/b: is a Node, not a Pod" in page.skipped[2]
    assert client.statistics()["skipped_objects"] == 3


def deep(name: str) -> str:
    return json.dumps(watched_pod(name))[:-1] + ',"status":' + '{"a":' * 3000 + "1" + "}" * 3000 + "}"


async def test_an_object_nested_too_deeply_is_skipped_and_the_others_are_served(
    server: ScriptedServer, client: MemberClient
) -> None:
    """Bug 18: one bad object must not take its type with it."""
    items = ",".join([json.dumps(pod("a")), deep("deep"), json.dumps(pod("c"))])
    scripted_body(server, f'{{"kind":"PodList","metadata":{{"resourceVersion":"9"}},"items":[{items}]}}'.encode())
    page = await list_watch(client).list(ListOptions())
    assert [obj.name for obj in page.objects] == ["a", "c"]
    assert "nested too deeply" in page.skipped[0]
    deep_frame = f'{{"type":"ADDED","object":{deep("deep")}}}\n'.encode()
    scripted_watch(server, frame("ADDED", watched_pod("a")) + b"\n", deep_frame, frame("ADDED", watched_pod("c")))
    assert [event.object.name for event in await events(client)] == ["a", "c"]
    assert client.statistics()["skipped_objects"] == 2


async def test_a_long_run_of_items_lets_other_tasks_run() -> None:
    page = Page(ObjectDecoder(PODS))
    with counted_turns() as turns:
        await page.take([msgspec.Raw(json.dumps(pod(str(number))).encode()) for number in range(5000)])
    assert (len(page.objects), turns.taken) == (5000, 10)


async def test_a_list_is_decoded_while_it_comes(server: ScriptedServer, client: MemberClient) -> None:
    """The rest of the body is sent only when the first items are decoded: nothing waits for its end."""
    items = [pod(str(number), data="x" * 1000) for number in range(1000)]
    body = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": items}, separators=(",", ":"))
    decoded = asyncio.Event()

    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.raw(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body.encode())}\r\n\r\n".encode())
        await exchange.raw(body[: len(body) // 2].encode())
        await decoded.wait()
        await exchange.raw(body[len(body) // 2 :].encode())

    def known(namespace: str, name: str) -> None:
        decoded.set()

    server.script = script
    async with asyncio.timeout(20):
        page = await list_watch(client).list(ListOptions(), known=known)
    assert [obj.name for obj in page.objects] == [str(number) for number in range(1000)]


async def test_a_list_gives_known_objects_again(server: ScriptedServer, client: MemberClient) -> None:
    items = [pod("same"), pod("changed"), pod("recreated"), pod("new")]
    scripted_body(server, json.dumps({"metadata": {"resourceVersion": "9"}, "items": items}).encode())
    first = {obj.name: obj for obj in (await list_watch(client).list(ListOptions())).objects}
    held = {
        "same": first["same"],
        "changed": msgspec.structs.replace(first["changed"], resource_version="0"),
        "recreated": msgspec.structs.replace(first["recreated"], uid="another"),
    }
    again = (await list_watch(client).list(ListOptions(), known=lambda _, name: held.get(name))).objects
    assert again == list(first.values())
    assert [obj is held.get(obj.name) for obj in again] == [True, False, False, False]


async def test_list_query_is_what_was_asked(server: ScriptedServer, client: MemberClient) -> None:
    scripted_body(server, b'{"metadata":{"resourceVersion":"9"},"items":[]}')
    selected = list_watch(client, namespace="n", label_selector="a in (b,c),d!=é+f", field_selector="spec.nodeName=x")
    await selected.list(ListOptions(resource_version="0", limit=500, resource_version_match="NotOlderThan"))
    await list_watch(client).list(ListOptions(continue_token="eyJ2IjoibWV0YSJ9=="))
    first, second = server.requests
    assert first.path == "/api/v1/namespaces/n/pods"
    assert first.query == {
        "labelSelector": "a in (b,c),d!=é+f",
        "fieldSelector": "spec.nodeName=x",
        "limit": "500",
        "resourceVersion": "0",
        "resourceVersionMatch": "NotOlderThan",
    }
    assert (second.path, second.query) == ("/api/v1/pods", {"continue": "eyJ2IjoibWV0YSJ9=="})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"metadata":{"resourceVersion":"9"},"items":[', "cannot be read"),
        (b"<html>", "cannot be read"),
        (b'{"kind":"Table","metadata":{"resourceVersion":"9"},"rows":[]}', "a Table instead of a list"),
        (b'{"kind":"PodList","metadata":{},"items":[]}', "without metadata.resourceVersion"),
    ],
)
async def test_unreadable_list(server: ScriptedServer, client: MemberClient, body: bytes, message: str) -> None:
    scripted_body(server, body)
    with pytest.raises(KubeStatusError, match=message) as caught:
        await list_watch(client).list(ListOptions())
    assert (caught.value.code, caught.value.in_stream) == (500, False)


async def test_list_cut_off(server: ScriptedServer, client: MemberClient) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        exchange.fin()

    server.script = script
    with pytest.raises(MemberUnreachable, match="in the middle of the answer"):
        await list_watch(client).list(ListOptions())


async def test_metadata_only_asks_for_it_and_refuses_more(server: ScriptedServer, client: MemberClient) -> None:
    secretive = list_watch(client, metadata_only=True)
    scripted_body(
        server,
        b'{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"9"},"items":'
        b'[{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a","resourceVersion":"1"}}]}',
    )
    page = await secretive.list(ListOptions())
    assert page.objects[0].raw == b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","resourceVersion":"1"}}'
    assert server.requests[0].headers["accept"] == (
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    )
    scripted_body(server, json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": []}).encode())
    with pytest.raises(KubeStatusError, match="a PodList, though only metadata was asked for"):
        await secretive.list(ListOptions())


# Watches


async def test_watch_request(server: ScriptedServer, client: MemberClient) -> None:
    scripted_watch(server)
    assert await events(client) == []
    options = ListOptions(
        resource_version_match="NotOlderThan", allow_bookmarks=True, send_initial_events=True, timeout_seconds=7
    )
    assert await events(client, options) == []
    first, second = server.requests
    assert first.headers["accept-encoding"] == "identity"
    assert first.headers["user-agent"].startswith("federator/")
    assert first.query == {
        "watch": "1",
        "resourceVersion": "5",
        "timeoutSeconds": "300",
        "allowWatchBookmarks": "true",
    }
    assert second.query == {
        "watch": "1",
        "resourceVersionMatch": "NotOlderThan",
        "timeoutSeconds": "7",
        "allowWatchBookmarks": "true",
        "sendInitialEvents": "true",
    }


async def test_a_body_split_at_every_byte(server: ScriptedServer, client: MemberClient) -> None:
    body = frame("ADDED", watched_pod("ä", "1")) + b"\n" + frame("MODIFIED", watched_pod("🚀", "2")) + b"\n"
    scripted_watch(server, body)
    whole = await events(client)
    assert [(event.type, event.object.name) for event in whole] == [("ADDED", "ä"), ("MODIFIED", "🚀")]
    scripted_watch(server, *(bytes([byte]) for byte in body))
    assert await events(client) == whole
    for edge in range(1, len(body), 20):
        scripted_watch(server, body[:edge], body[edge:])
        assert await events(client) == whole


async def test_listed_and_watched_bytes_are_equal(server: ScriptedServer, client: MemberClient) -> None:
    compact = {"separators": (",", ":"), "ensure_ascii": False}
    listed = json.dumps({"metadata": {"resourceVersion": "9"}, "items": [pod()]}, **compact)  # type: ignore[arg-type]
    scripted_body(server, listed.encode())
    page = await list_watch(client).list(ListOptions())
    scripted_watch(server, frame("ADDED", watched_pod(), separators=(",", ":")))
    assert [event.object for event in await events(client)] == page.objects


async def test_pretty_printed_and_concatenated_frames(server: ScriptedServer, client: MemberClient) -> None:
    pretty = frame("ADDED", watched_pod("a"), indent=2)
    scripted_watch(server, pretty + frame("ADDED", watched_pod("b")) + frame("DELETED", watched_pod("c")), pretty)
    assert [event.object.name for event in await events(client)] == ["a", "b", "c", "a"]


async def test_an_event_without_newline_is_given_at_once(server: ScriptedServer, client: MemberClient) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.chunk(frame("ADDED", watched_pod()))
        await exchange.closed_by_client()

    server.script = script
    async with asyncio.timeout(5), list_watch(client).watch(WATCH) as stream:
        assert (await anext(stream)).object.name == "a"


async def test_a_frame_of_17_mib(server: ScriptedServer, client: MemberClient) -> None:
    scripted_watch(
        server,
        b'{"type":"ADDED","object":{"a":"',
        *[b"x" * (1024 * 1024)] * 17,
        b'"}}\n',
        frame("ADDED", watched_pod()),
    )
    with pytest.raises(KubeStatusError, match="more than 16777216 bytes") as caught:
        await events(client)
    assert (caught.value.code, caught.value.in_stream) == (500, True)


GONE = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "too old resource version: 5 (9)",
    "reason": "Expired",
    "code": 410,
}


async def test_a_bare_status_in_place_of_a_watch(server: ScriptedServer, client: MemberClient) -> None:
    scripted_body(server, json.dumps(GONE).encode(), Content_Type="application/json")
    with pytest.raises(KubeStatusError) as caught:
        await events(client)
    assert caught.value.is_expired
    assert caught.value.in_stream


async def test_error_frame(server: ScriptedServer, client: MemberClient) -> None:
    status = {
        "kind": "Status",
        "code": 504,
        "reason": "Timeout",
        "message": "Too large resource version: 9, current: 5",
        "details": {"causes": [{"reason": "ResourceVersionTooLarge"}], "retryAfterSeconds": 1},
    }
    scripted_watch(server, frame("ADDED", watched_pod()) + b"\n" + frame("ERROR", status))
    seen = []
    with pytest.raises(KubeStatusError) as caught:
        async with list_watch(client).watch(WATCH) as stream:
            async for event in stream:
                seen.append(event.object.name)  # noqa: PERF401  # a comprehension would lose it
    assert seen == ["a"]
    error = caught.value
    assert (error.code, error.status_reason, error.causes, error.retry_after) == (
        504,
        "Timeout",
        ("ResourceVersionTooLarge",),
        1,
    )
    assert error.is_too_large_resource_version
    assert error.in_stream


@pytest.mark.parametrize(
    "body",
    [
        frame("RENAMED", watched_pod()),
        frame("ERROR", pod()),
        b"garbage\n",
        b'{"kind":"Pod","metadata":{}}',
        b'{"type":"ADDED","object":{"metadata":}}\n',
    ],
    ids=["unknown type", "error without status", "no json", "no event", "bad json"],
)
async def test_frames_that_are_none(server: ScriptedServer, client: MemberClient, body: bytes) -> None:
    scripted_watch(server, body)
    with pytest.raises(KubeStatusError) as caught:
        await events(client)
    assert (caught.value.code, caught.value.status_reason, caught.value.in_stream) == (500, "InternalError", True)


async def test_unusable_objects_are_skipped_and_the_watch_lives(server: ScriptedServer, client: MemberClient) -> None:
    table = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", **pod()}
    unusable = [frame("ADDED", {"kind": "Pod"}), frame("MODIFIED", table), frame("BOOKMARK", {"metadata": 5})]
    scripted_watch(server, *unusable, b'{"type":"ADDED"}\n', frame("ADDED", watched_pod("b", "2")))
    with structlog.testing.capture_logs() as logs:
        assert [event.object.name for event in await events(client)] == ["b"]
    assert [entry["log_level"] for entry in logs if entry["event"] == "watch event skipped"] == [
        "warning",
        *["debug"] * 3,
    ]
    assert client.statistics()["skipped_objects"] == 4
    assert client.statistics()["watch_frames"] == 5


async def test_bookmarks(server: ScriptedServer, client: MemberClient) -> None:
    end = {"resourceVersion": "12", "annotations": {"k8s.io/initial-events-end": "true"}}
    scripted_watch(
        server,
        frame("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": end}),
        frame("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "13"}}),
    )
    first, second = await events(client)
    assert (first.type, first.object.resource_version, first.initial_events_end) == ("BOOKMARK", "12", True)
    assert (second.type, second.object.resource_version, second.initial_events_end) == ("BOOKMARK", "13", False)
    assert first.type is WatchEventType.BOOKMARK


@pytest.mark.parametrize("ending", ["terminating chunk", "FIN in a chunk", "FIN between chunks", "RST"])
async def test_every_end_of_a_watch_just_ends_it(server: ScriptedServer, client: MemberClient, ending: str) -> None:
    read = asyncio.Event()

    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.chunk(frame("ADDED", watched_pod("a")) + b"\n" + frame("ADDED", watched_pod("half"))[:-9])
        await read.wait()
        match ending:
            case "terminating chunk":
                await exchange.end()
            case "FIN in a chunk":
                await exchange.raw(b"ff\r\n{")
                exchange.fin()
            case "FIN between chunks":
                exchange.fin()
            case _:
                exchange.rst()

    server.script = script
    names = []
    async with list_watch(client).watch(WATCH) as stream:
        async for event in stream:
            names.append(event.object.name)
            read.set()
    assert names == ["a"]


async def test_a_silent_watch_ends_after_its_length(
    server: ScriptedServer, client: MemberClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.chunk(frame("ADDED", watched_pod()))
        await exchange.closed_by_client()

    server.script = script
    monkeypatch.setattr(member_client, "WATCH_GRACE", -0.9)
    async with asyncio.timeout(5):
        assert [event.object.name for event in await events(client, ListOptions(timeout_seconds=1))] == ["a"]


def test_a_watch_may_be_longer_than_any_default() -> None:
    assert member_client.WATCH_GRACE == 15
    assert member_client.LONGEST_WATCH == 3600


async def test_leaving_the_watch_closes_the_connection_at_once(server: ScriptedServer, client: MemberClient) -> None:
    closed = asyncio.Event()

    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.chunk(frame("ADDED", watched_pod()))
        await exchange.closed_by_client()
        closed.set()

    server.script = script
    async with list_watch(client).watch(WATCH) as stream:
        await anext(stream)
        assert not closed.is_set()
    async with asyncio.timeout(5):
        await closed.wait()


async def test_cancelling_a_watch_closes_the_connection(server: ScriptedServer, client: MemberClient) -> None:
    opened, closed = asyncio.Event(), asyncio.Event()

    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.stream()
        opened.set()
        await exchange.closed_by_client()
        closed.set()

    server.script = script
    watching = asyncio.create_task(events(client))
    async with asyncio.timeout(5):
        await opened.wait()
        await asyncio.sleep(0.01)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        await closed.wait()


async def test_more_than_a_hundred_watches_at_once(server: ScriptedServer, client: MemberClient) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.stream()
        await all_open.wait()
        await exchange.end()

    server.script = script
    all_open = asyncio.Event()
    watches = [asyncio.create_task(events(client)) for _ in range(120)]
    async with asyncio.timeout(10):
        await eventually(lambda: len(server.requests) == 120)
        all_open.set()
        assert await asyncio.gather(*watches) == [[]] * 120


# Single objects


async def test_an_object_by_itself_has_the_bytes_that_it_has_in_a_list(
    server: ScriptedServer, client: MemberClient
) -> None:
    compact: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")}
    body = {"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": [pod()]}
    scripted_body(server, json.dumps(body, **compact).encode())
    (listed,) = (await list_watch(client).list(ListOptions())).objects
    scripted_body(server, json.dumps(watched_pod(), **compact).encode() + b"\n")
    assert await list_watch(client).get("n", "a") == listed
    assert server.requests[-1].target == "/api/v1/namespaces/n/pods/a"
    assert server.requests[-1].headers["accept"] == "application/json"
    assert client.statistics()["requests"] == {("list", 200): 1, ("get", 200): 1}


async def test_names_are_quoted_in_the_path(server: ScriptedServer, client: MemberClient) -> None:
    roles = ResourceType(
        group="rbac.authorization.k8s.io", version="v1", resource="clusterroles", kind="ClusterRole", namespaced=False
    )
    scripted_body(server, b'{"metadata":{"name":"system:a?b=c#d","resourceVersion":"1"}}')
    got = await ResourceListWatch(client, roles).get("", "system:a?b=c#d")
    assert got is not None
    assert got.key == "system:a?b=c#d"
    assert server.requests[-1].target == "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:a%3Fb=c%23d"


async def test_an_object_that_is_not_there_is_none(server: ScriptedServer, client: MemberClient) -> None:
    missing = {"kind": "Status", "code": 404, "reason": "NotFound", "message": 'pods "a" not found'}
    scripted_body(server, json.dumps(missing).encode(), code=404)
    assert await list_watch(client).get("n", "a") is None


async def test_a_404_that_is_no_apiservers_is_an_error(server: ScriptedServer, client: MemberClient) -> None:
    scripted_body(server, b"<html>nothing here</html>", code=404)
    with pytest.raises(KubeStatusError, match="nothing here"):
        await list_watch(client).get("n", "a")


@pytest.mark.parametrize("code", [403, 500, 503])
async def test_another_failure_of_a_get_is_an_error(server: ScriptedServer, client: MemberClient, code: int) -> None:
    scripted_body(server, json.dumps({"kind": "Status", "code": code, "message": "no"}).encode(), code=code)
    with pytest.raises(KubeStatusError, match="no") as caught:
        await list_watch(client).get("n", "a")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"kind":"Status","status":"Success"}', "no metadata.name"),
        (b"<html>", "metadata of a wrong shape"),
        (json.dumps(watched_pod() | {"kind": "Node"}).encode(), "is a Node, not a Pod"),
    ],
)
async def test_an_object_that_cannot_be_used_is_an_error(
    server: ScriptedServer, client: MemberClient, body: bytes, said: str
) -> None:
    scripted_body(server, body)
    with pytest.raises(KubeStatusError, match=said) as caught:
        await list_watch(client).get("n", "a")
    assert (caught.value.code, caught.value.in_stream) == (500, False)
    assert client.statistics()["skipped_objects"] == 1


async def test_of_an_object_by_itself_only_metadata(server: ScriptedServer, client: MemberClient) -> None:
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": pod()["metadata"]}
    scripted_body(server, json.dumps(partial, separators=(",", ":")).encode())
    got = await list_watch(client, metadata_only=True).get("n", "a")
    assert got is not None
    assert json.loads(got.raw) == {"apiVersion": "v1", "kind": "Pod", "metadata": pod()["metadata"]}
    assert server.requests[-1].headers["accept"].startswith("application/json;as=PartialObjectMetadata;")
    scripted_body(server, json.dumps(watched_pod()).encode())
    with pytest.raises(KubeStatusError, match="is a Pod, not a PartialObjectMetadata"):
        await list_watch(client, metadata_only=True).get("n", "a")


async def test_selectors_hold_for_a_single_object_too(server: ScriptedServer, client: MemberClient) -> None:
    """A GET takes none, and would give what is outside of the narrowing."""
    narrowed = list_watch(client, label_selector="app=web", field_selector="spec.nodeName=n1", namespace="n")
    scripted_body(server, b'{"metadata":{"resourceVersion":"9"},"items":[]}')
    assert await narrowed.get("n", "a") is None
    assert server.requests[-1].path == "/api/v1/namespaces/n/pods"
    assert server.requests[-1].query == {
        "labelSelector": "app=web",
        "fieldSelector": "spec.nodeName=n1,metadata.name=a",
    }
    scripted_body(server, json.dumps({"metadata": {"resourceVersion": "9"}, "items": [pod()]}).encode())
    got = await narrowed.get("n", "a")
    assert got is not None
    assert json.loads(got.raw) == {"apiVersion": "v1", "kind": "Pod", **pod()}
