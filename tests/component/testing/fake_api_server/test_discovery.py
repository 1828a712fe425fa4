from __future__ import annotations

from pathlib import Path

import pytest

from federator.api.resource import ResourceType
from federator.errors import KubeStatusError
from federator.kube import MemberClient
from federator.kube.discovery import discover
from federator.testing.fake_api_server import FakeApiServer
from tests.component.testing.fake_api_server.client import Client

WIDGET = ResourceType(
    group="example.com",
    version="v1",
    resource="widgets",
    kind="Widget",
    namespaced=False,
    singular="widget",
    short_names=("wd",),
    categories=("all",),
)


@pytest.mark.parametrize("aggregated", [True, False])
async def test_the_products_client_finds_its_types(server: FakeApiServer, tmp_path: Path, *, aggregated: bool) -> None:
    server.aggregated_discovery = aggregated
    server.add_resource(WIDGET)
    path = server.kubeconfig(tmp_path / "kubeconfig")
    async with MemberClient.from_kubeconfig("fake", path=path) as client:
        found = await discover(client)
        assert WIDGET in found.types
        assert [str(each.group_resource) for each in found.types] == [
            "configmaps",
            "namespaces",
            "nodes",
            "pods",
            "secrets",
            "deployments.apps",
            "widgets.example.com",
        ]
        assert len(server.requests.of("discover")) == (2 if aggregated else 5)
        assert await client.server_version() == "v1.37.2"
        assert await client.cluster_uid() == server.get("namespaces", "kube-system")["metadata"]["uid"]
        server.stale_groups.add("example.com")
        assert (await discover(client)).failed_groups == ("example.com",)


async def test_health(server: FakeApiServer, client: Client) -> None:
    for path in ("/readyz", "/livez", "/healthz"):
        assert (await client.get(path)).text == "ok"
    assert (await client.get("/apis/apps")).body["preferredVersion"]["groupVersion"] == "apps/v1"
    assert (await client.get("/metrics")).code == 404


async def test_a_failing_group_of_the_old_discovery(server: FakeApiServer, tmp_path: Path) -> None:
    server.stale_groups.add("apps")
    path = server.kubeconfig(tmp_path / "kubeconfig")
    async with MemberClient.from_kubeconfig("fake", path=path) as client:
        with pytest.raises(KubeStatusError) as refused:
            await client.get("/apis/apps/v1")
    assert refused.value.code == 503
