from __future__ import annotations

import gzip
import json

import pytest

from federator.api.resource import ResourceType
from federator.testing.fake_api_server import FakeApiServer
from tests.component.testing.fake_api_server.client import (
    CONFIG_MAPS,
    PARTIAL,
    PARTIAL_LIST,
    Client,
    client_of,
    names,
    raw,
    request,
)

WIDGET = ResourceType(group="example.com", version="v1", resource="widgets", kind="Widget", namespaced=True)


async def test_built_in_lists_have_metadata_first_and_bare_items(server: FakeApiServer, client: Client) -> None:
    server.put("configmaps", "a", data={"k": "v"})
    reply = await client.get(CONFIG_MAPS)
    assert list(reply.body) == ["kind", "apiVersion", "metadata", "items"]
    assert list(reply.body["items"][0]) == ["metadata", "data"]
    assert reply.body["metadata"] == {"resourceVersion": server.resource_version}


async def test_custom_lists_have_items_first_and_items_that_say_what_they_are(
    server: FakeApiServer, client: Client
) -> None:
    server.add_resource(WIDGET)
    server.put("widgets", "a", spec={"b": 1, "a": 2})
    reply = await client.get("/apis/example.com/v1/widgets")
    assert list(reply.body) == ["apiVersion", "items", "kind", "metadata"]
    assert list(reply.body["items"][0]) == ["apiVersion", "kind", "metadata", "spec"]
    assert list(reply.body["items"][0]["spec"]) == ["a", "b"]
    assert reply.body["metadata"] == {"continue": "", "resourceVersion": server.resource_version}


async def test_pages_are_all_of_the_first_ones_revision(server: FakeApiServer, client: Client) -> None:
    for name in "abcde":
        server.put("configmaps", name)
    version = server.resource_version
    first = await client.get(CONFIG_MAPS, limit="2")
    assert first.body["metadata"]["remainingItemCount"] == 3
    server.delete("configmaps", "c")
    server.put("configmaps", "bb")
    second = await client.get(CONFIG_MAPS, limit="2", query={"continue": first.body["metadata"]["continue"]})
    third = await client.get(CONFIG_MAPS, limit="2", query={"continue": second.body["metadata"]["continue"]})
    assert [names(page) for page in (first, second, third)] == [["a", "b"], ["c", "d"], ["e"]]
    assert {page.body["metadata"]["resourceVersion"] for page in (first, second, third)} == {version}
    assert "continue" not in third.body["metadata"]


async def test_a_page_of_a_compacted_list_offers_to_go_on_without_consistency(
    server: FakeApiServer, client: Client
) -> None:
    for name in "abcd":
        server.put("configmaps", name)
    first = await client.get(CONFIG_MAPS, limit="2")
    server.delete("configmaps", "c")
    server.put("configmaps", "e")
    server.compact()
    expired = await client.get(CONFIG_MAPS, limit="2", query={"continue": first.body["metadata"]["continue"]})
    assert (expired.code, expired.body["reason"]) == (410, "Expired")
    rest = await client.get(CONFIG_MAPS, query={"continue": expired.body["metadata"]["continue"]})
    assert names(rest) == ["d", "e"]


async def test_exact_versions_are_listed_until_they_are_compacted(server: FakeApiServer, client: Client) -> None:
    server.put("configmaps", "a")
    then = server.resource_version
    server.delete("configmaps", "a")
    server.put("configmaps", "b")
    exact = {"resourceVersion": then, "resourceVersionMatch": "Exact"}
    legacy = {"resourceVersion": then, "limit": "10"}
    assert names(await client.get(CONFIG_MAPS, exact)) == names(await client.get(CONFIG_MAPS, legacy)) == ["a"]
    assert names(await client.get(CONFIG_MAPS, resourceVersion=then)) == ["b"]
    server.compact(keep=1)
    assert (await client.get(CONFIG_MAPS, exact)).code == 410
    assert names(await client.get(CONFIG_MAPS, resourceVersion=then)) == ["b"]


async def test_a_version_of_the_future_is_waited_for(server: FakeApiServer, client: Client) -> None:
    future = str(int(server.resource_version) + 1)
    reply = await client.get(CONFIG_MAPS, resourceVersion=future)
    assert reply.code == 504
    assert reply.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    assert reply.headers["Retry-After"] == "1"


@pytest.mark.looptime
async def test_the_wait_for_a_version_ends_when_it_comes(server: FakeApiServer, client: Client) -> None:
    server.too_large_wait = 3.0
    behind = server.replica()
    async with behind:
        behind.fall_behind()
        server.put("configmaps", "a")
        async with client_of(behind) as other:
            assert (await other.get(CONFIG_MAPS, resourceVersion=server.resource_version)).code == 504
        behind.catch_up()
        async with client_of(behind) as other:
            assert names(await other.get(CONFIG_MAPS, resourceVersion=server.resource_version)) == ["a"]


async def test_selectors(server: FakeApiServer, client: Client) -> None:
    server.put("pods", "a", "one", labels={"app": "web"}, spec={"nodeName": "n1"})
    server.put("pods", "b", "two", spec={"nodeName": "n2"}, status={"phase": "Running"})
    pods = "/api/v1/pods"
    assert names(await client.get(pods, labelSelector="app in (web,db)")) == ["a"]
    assert names(await client.get(pods, fieldSelector="spec.nodeName=n2,status.phase=Running")) == ["b"]
    assert names(await client.get(pods, fieldSelector="metadata.namespace!=one")) == ["b"]
    server.put("pods", "c", "one", labels={"app": "web"})
    page = await client.get(pods, labelSelector="app=web", limit="1")
    assert list(page.body["metadata"]) == ["resourceVersion", "continue"]  # how many remain is not told
    server.delete("pods", "c", "one")
    assert names(await client.get("/api/v1/namespaces/one/pods")) == ["a"]
    assert (await client.get(pods, fieldSelector="spec.x=1")).code == 400
    assert (await client.get(pods, labelSelector="a===b")).code == 400


async def test_metadata_alone(server: FakeApiServer, client: Client) -> None:
    server.put("secrets", "a", data={"password": "eA=="})
    path = "/api/v1/namespaces/default/secrets"
    listed = await client.get(path, headers=PARTIAL_LIST)
    assert listed.body["kind"] == "PartialObjectMetadataList"
    assert "password" not in listed.text
    one = await client.get(f"{path}/a", headers=PARTIAL)
    assert (one.body["kind"], list(one.body)) == ("PartialObjectMetadata", ["kind", "apiVersion", "metadata"])
    assert (await client.get(path, headers={"Accept": "application/yaml"})).code == 406


@pytest.mark.parametrize(
    "query",
    [
        "resourceVersionMatch=Exact",
        "resourceVersionMatch=Exact&resourceVersion=0",
        "resourceVersionMatch=Odd&resourceVersion=1",
        "resourceVersionMatch=NotOlderThan&resourceVersion=1&continue=x",
        "sendInitialEvents=true",
        "watch=1&sendInitialEvents=true",
        "watch=1&sendInitialEvents=false",
        "watch=1&resourceVersionMatch=NotOlderThan",
        "watch=1&sendInitialEvents=true&resourceVersionMatch=Exact",
        "watch=1&continue=x",
    ],
)
async def test_what_may_not_stand_together_is_refused(client: Client, query: str) -> None:
    reply = await client.get(f"{CONFIG_MAPS}?{query}")
    assert (reply.code, reply.body["reason"]) == (422, "Invalid")


async def test_none_is_no_version_and_is_remembered(server: FakeApiServer, client: Client) -> None:
    assert (await client.get(CONFIG_MAPS, resourceVersion="None")).code == 400
    assert (await client.get(CONFIG_MAPS, watch="1", resourceVersion="null")).code == 500
    assert [each.query["resourceVersion"] for each in server.requests.refused_versions] == ["None", "null"]


async def test_long_lists_are_gzipped_for_who_accepts_it(server: FakeApiServer) -> None:
    server.put("configmaps", "a", data={"k": "v" * 200_000})
    for header, encoded in (("Accept-Encoding: gzip", True), ("Accept-Encoding: identity", False)):
        reader, writer = await raw(server, request(CONFIG_MAPS, header, "Connection: close"))
        head, body = (await reader.read(-1)).split(b"\r\n\r\n", 1)
        writer.close()
        assert (b"Content-Encoding: gzip" in head) is encoded
        assert json.loads(gzip.decompress(body) if encoded else body)["items"]


async def test_large_versions_are_no_trouble(server: FakeApiServer, client: Client) -> None:
    server.skip_to(10**18)
    server.put("configmaps", "a")
    assert (await client.get(CONFIG_MAPS)).body["metadata"]["resourceVersion"] == str(10**18 + 1)
    with pytest.raises(ValueError, match="not after"):
        server.skip_to(5)
