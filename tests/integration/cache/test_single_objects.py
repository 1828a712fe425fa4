"""Getting one object of a real kube-apiserver gives what its lists give, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from federator.api.list_watch import ListOptions
from federator.api.resource import ResourceType
from federator.errors import KubeStatusError
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import Testbed
from federator.testing.admin_client import AdminClient

pytestmark = pytest.mark.testbed

CONFIG_MAPS = ResourceType(group="", version="v1", resource="configmaps", kind="ConfigMap", namespaced=True)
ROLES = ResourceType(
    group="rbac.authorization.k8s.io", version="v1", resource="clusterroles", kind="ClusterRole", namespaced=False
)
WIDGETS = ResourceType(
    group="single.example.com", version="v1", resource="widgets", kind="Widget", namespaced=True, singular="widget"
)
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.single.example.com"},
    "spec": {
        "group": "single.example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@pytest.fixture
async def admin(three_clusters: Testbed) -> AsyncIterator[AdminClient]:
    async with three_clusters["eu-1"].client() as admin:
        yield admin


@pytest.fixture
async def client(three_clusters: Testbed) -> AsyncIterator[MemberClient]:
    async with MemberClient.from_kubeconfig("eu-1", path=three_clusters.kubeconfig) as client:
        yield client


async def create_widget(admin: AdminClient, namespace: str) -> None:
    await admin.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
    body = {
        "apiVersion": "single.example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "a", "labels": {"app": "web"}},
        "spec": {"text": "ä漢🚀 <&>", "numbers": [1, 2.5]},
    }
    async with asyncio.timeout(30):
        while True:
            try:
                await admin.create(f"/apis/single.example.com/v1/namespaces/{namespace}/widgets", body)
            except KubeStatusError as error:
                if error.code != 404:
                    raise
                await asyncio.sleep(0.1)  # not served yet
            else:
                return


async def test_what_is_got_is_what_is_listed(admin: AdminClient, client: MemberClient, shared_namespace: str) -> None:
    path = f"/api/v1/namespaces/{shared_namespace}/configmaps"
    await admin.create(path, {"metadata": {"name": "a", "labels": {"app": "web"}}, "data": {"text": "ä漢🚀 <&>"}})
    await create_widget(admin, shared_namespace)
    try:
        for metadata_only in (False, True):
            for resource_type, namespace in ((CONFIG_MAPS, shared_namespace), (WIDGETS, shared_namespace), (ROLES, "")):
                access = ResourceListWatch(client, resource_type, namespace=namespace, metadata_only=metadata_only)
                page = await access.list(ListOptions())
                assert page.objects
                for obj in page.objects:
                    assert await access.get(obj.namespace, obj.name) == obj
                assert await access.get(namespace, "absent") is None
            chosen = ResourceListWatch(client, WIDGETS, label_selector="app=web", metadata_only=metadata_only)
            others = ResourceListWatch(client, WIDGETS, label_selector="app!=web", metadata_only=metadata_only)
            assert [await chosen.get(shared_namespace, "a")] == (await chosen.list(ListOptions())).objects
            assert await others.get(shared_namespace, "a") is None
    finally:
        await admin.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.single.example.com")
