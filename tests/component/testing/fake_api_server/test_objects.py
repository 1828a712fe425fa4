from __future__ import annotations

import pytest

from federator.testing.fake_api_server import ApiError, FakeApiServer
from tests.component.testing.fake_api_server.client import CONFIG_MAPS, Client, names

MERGE = {"Content-Type": "application/merge-patch+json"}


def test_every_write_has_the_next_version_also_a_deletion(server: FakeApiServer) -> None:
    before = int(server.resource_version)
    first = server.put("configmaps", "a", data={"k": "v"})
    second = server.put("configmaps", "a", data={"k": "w"})
    last = server.delete("configmaps", "a")
    versions = [int(obj["metadata"]["resourceVersion"]) for obj in (first, second, last)]
    assert versions == [before + 1, before + 2, before + 3]
    assert last["data"] == {"k": "w"}
    assert server.resource_version == str(before + 3)


def test_an_object_keeps_who_it_is_until_it_is_deleted(server: FakeApiServer) -> None:
    first = server.put("deployments", "a", spec={"replicas": 1})
    second = server.put("deployments", "a", spec={"replicas": 2})
    server.delete("deployments", "a")
    third = server.put("deployments", "a")
    assert (second["apiVersion"], second["kind"]) == ("apps/v1", "Deployment")
    assert first["metadata"]["uid"] == second["metadata"]["uid"] != third["metadata"]["uid"]
    assert first["metadata"]["creationTimestamp"] == second["metadata"]["creationTimestamp"]
    assert [obj["metadata"]["generation"] for obj in (first, second, third)] == [1, 2, 1]


def test_only_the_specification_counts_as_a_generation(server: FakeApiServer) -> None:
    server.put("deployments", "a", spec={"replicas": 1})
    changed = server.patch("deployments", "a", {"metadata": {"labels": {"a": "b"}}, "status": {"replicas": 1}})
    assert changed["metadata"]["generation"] == 1


def test_what_changes_nothing_writes_nothing(server: FakeApiServer) -> None:
    server.put("configmaps", "a", data={"k": "v"})
    version = server.resource_version
    server.put("configmaps", "a", data={"k": "v"})
    server.patch("configmaps", "a", {"data": {"k": "v"}})
    assert server.resource_version == version
    server.touch("configmaps", "a")
    server.touch("configmaps", "a")
    assert int(server.resource_version) == int(version) + 2


def test_objects_are_found_by_any_name_of_their_type(server: FakeApiServer) -> None:
    server.put("cm", "a", "shop", labels={"app": "web"}, annotations={"n": "1"})
    server.put_manifest({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "namespace": "shop"}})
    server.put("Pod", "p")
    assert server.get("configmaps", "a", "shop")["metadata"]["labels"] == {"app": "web"}
    assert [obj["metadata"]["name"] for obj in server.list("configmap", "shop")] == ["a", "b"]
    assert server.get("po", "p")["status"] == {"phase": "Pending"}
    with pytest.raises(LookupError, match="it serves: configmaps, namespaces, nodes"):
        server.put("widgets", "a")
    with pytest.raises(ApiError, match='configmaps "nope" not found'):
        server.get("configmaps", "nope")


def test_what_is_returned_is_a_copy(server: FakeApiServer) -> None:
    server.put("configmaps", "a", data={"k": "v"})["data"]["k"] = "changed"
    server.get("configmaps", "a")["data"]["k"] = "changed"
    assert server.get("configmaps", "a")["data"] == {"k": "v"}


def test_a_namespace_goes_with_all_it_holds(server: FakeApiServer) -> None:
    server.put("namespaces", "shop")
    server.put("configmaps", "a", "shop")
    server.put("configmaps", "kept", "shop-2")
    server.put("pods", "p", "shop")
    server.delete("namespaces", "shop")
    assert [obj["metadata"]["name"] for obj in server.list("configmaps")] == ["kept"]
    assert not server.list("pods")
    assert "shop" not in [obj["metadata"]["name"] for obj in server.list("namespaces")]


def test_finalizers_hold_an_object(server: FakeApiServer) -> None:
    server.put_manifest(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": ["example.com/f"]}}
    )
    assert server.delete("configmaps", "a")["metadata"]["deletionTimestamp"]
    assert server.list("configmaps")
    server.patch("configmaps", "a", {"metadata": {"finalizers": None}})
    assert not server.list("configmaps")


async def test_writes_over_http(server: FakeApiServer, client: Client) -> None:
    created = await client.send("POST", CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"k": "v"}})
    assert created.code == 201
    assert (await client.send("POST", CONFIG_MAPS, {"metadata": {"name": "a"}})).code == 409
    stale = {"metadata": {"name": "a", "resourceVersion": "1"}}
    assert (await client.send("PUT", f"{CONFIG_MAPS}/a", stale)).body["reason"] == "Conflict"
    put = await client.send("PUT", f"{CONFIG_MAPS}/a", created.body | {"data": {"k": "w"}})
    assert (put.code, put.body["data"]) == (200, {"k": "w"})
    patched = await client.send("PATCH", f"{CONFIG_MAPS}/a", {"data": {"k": None, "l": "x"}}, headers=MERGE)
    assert patched.body["data"] == {"l": "x"}
    assert server.get("configmaps", "a") == patched.body
    assert (await client.get(f"{CONFIG_MAPS}/a")).body == patched.body
    deleted = await client.send("DELETE", f"{CONFIG_MAPS}/a")
    assert (deleted.body["kind"], deleted.body["status"]) == ("Status", "Success")
    assert (await client.get(f"{CONFIG_MAPS}/a")).code == 404


async def test_a_collection_is_deleted_by_selector(server: FakeApiServer, client: Client) -> None:
    for number in range(3):
        server.put("configmaps", f"c{number}", labels={"n": str(number % 2)})
    deleted = await client.send("DELETE", CONFIG_MAPS, query={"labelSelector": "n=0"})
    assert names(deleted) == ["c0", "c2"]
    assert [obj["metadata"]["name"] for obj in server.list("configmaps")] == ["c1"]
