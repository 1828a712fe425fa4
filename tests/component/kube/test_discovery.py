"""Discovery, in one document or many."""

from __future__ import annotations

from typing import Any

import pytest

from federator.api.resource import ResourceType
from federator.errors import KubeStatusError
from federator.kube import Discovery, MemberClient, discover
from tests.component.kube.scripted_server import Exchange, Request, ScriptedServer

READ = ["get", "list", "watch"]

PODS = ResourceType(
    group="",
    version="v1",
    resource="pods",
    kind="Pod",
    namespaced=True,
    singular="pod",
    short_names=("po",),
    categories=("all",),
)
NODES = ResourceType(group="", version="v1", resource="nodes", kind="Node", namespaced=False)
NEW = ResourceType(group="example.com", version="v2", resource="news", kind="New", namespaced=True)
OLD = ResourceType(group="example.com", version="v1", resource="olds", kind="Old", namespaced=True)


def scripted(server: ScriptedServer, documents: dict[str, Any]) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        document = documents.get(request.path)
        if isinstance(document, int):
            await exchange.json({"kind": "Status", "code": document, "message": "not now"}, code=document)
        elif document is None:
            await exchange.json({"kind": "Status", "code": 404, "reason": "NotFound"}, code=404)
        else:
            await exchange.json(document)

    server.script = script


def aggregated(*groups: Any) -> dict[str, Any]:
    items = [{"metadata": {"name": name} if name else {}, "versions": versions} for name, versions in groups]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def resource(name: str, kind: str | None, verbs: list[str], scope: str = "Namespaced", **more: Any) -> dict[str, Any]:
    response_kind = {"group": "", "version": "", "kind": kind} if kind else None
    return {"resource": name, "responseKind": response_kind, "scope": scope, "verbs": verbs, **more}


async def test_aggregated(server: ScriptedServer, client: MemberClient) -> None:
    core = [
        resource(
            "pods",
            "Pod",
            READ,
            singularResource="pod",
            shortNames=["po"],
            categories=["all"],
            subresources=[{"subresource": "log", "responseKind": None, "verbs": ["get"]}],
        ),
        resource("nodes", "Node", READ, "Cluster"),
        resource("bindings", "Binding", ["create"]),
        resource("halves", "Half", ["get", "list"]),
        resource("kindless", None, READ),
    ]
    v2 = {"version": "v2", "freshness": "Current", "resources": [resource("news", "New", READ)]}
    v1 = {"version": "v1", "resources": [resource("news", "New", READ), resource("olds", "Old", READ)]}
    stale = {"version": "v1", "freshness": "Stale", "resources": [resource("metrics", "Metric", READ)]}
    scripted(
        server,
        {
            "/api": aggregated(("", [{"version": "v1", "resources": core}])),
            "/apis": aggregated(
                ("example.com", [v2, v1]), ("metrics.k8s.io", [stale]), ("empty.io", [{"version": "v1"}])
            ),
        },
    )
    assert await discover(client) == Discovery((PODS, NODES, NEW, OLD), ("metrics.k8s.io",))
    assert [request.path for request in server.requests] == ["/api", "/apis"]
    assert (
        server.requests[0]
        .headers["accept"]
        .startswith("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,")
    )
    assert client.statistics()["requests"] == {("discover", 200): 2}


async def test_a_group_with_one_stale_version_is_unknown_as_a_whole(
    server: ScriptedServer, client: MemberClient
) -> None:
    v2 = {"version": "v2", "freshness": "Stale", "resources": []}
    v1 = {"version": "v1", "freshness": "Current", "resources": [resource("news", "New", READ)]}
    scripted(server, {"/api": aggregated(), "/apis": aggregated(("example.com", [v2, v1]))})
    assert await discover(client) == Discovery((), ("example.com",))


def legacy(name: str, kind: str, verbs: list[str], namespaced: bool = True, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "verbs": verbs, "namespaced": namespaced, "singularName": "", **more}


def groups(**versions: list[str]) -> dict[str, Any]:
    return {
        "kind": "APIGroupList",
        "groups": [
            {
                "name": name.replace("_", "."),
                "versions": [{"groupVersion": f"{name}/{v}", "version": v} for v in served],
            }
            for name, served in versions.items()
        ],
    }


async def test_legacy(server: ScriptedServer, client: MemberClient) -> None:
    core = [
        legacy("pods", "Pod", READ, singularName="pod", shortNames=["po"], categories=["all"]),
        legacy("pods/log", "Pod", READ),
        legacy("nodes", "Node", READ, namespaced=False),
        legacy("bindings", "Binding", ["create"]),
    ]
    scripted(
        server,
        {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": core},
            "/apis": groups(example_com=["v2", "v1"], metrics_k8s_io=["v1"], gone_io=["v1"]),
            "/apis/example.com/v2": {"resources": [legacy("news", "New", READ)]},
            "/apis/example.com/v1": {"resources": [legacy("news", "New", READ), legacy("olds", "Old", READ)]},
            "/apis/metrics.k8s.io/v1": 503,
        },
    )
    assert await discover(client) == Discovery((PODS, NODES, NEW, OLD), ("metrics.k8s.io", "gone.io"))


@pytest.mark.parametrize(
    "documents", [{"/api": 403}, {"/api": aggregated(), "/apis": 503}, {"/api": {"kind": "APIVersions"}}]
)
async def test_a_root_that_cannot_be_read_is_an_error(
    server: ScriptedServer, client: MemberClient, documents: dict[str, Any]
) -> None:
    scripted(server, documents)
    with pytest.raises(KubeStatusError):
        await discover(client)
