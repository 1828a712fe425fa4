"""The federation's List equals what each apiserver lists, byte for byte after the transforms."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from federator.client import InventoryClient
from federator.errors import AmbiguousName, KubeStatusError, UnknownResourceType
from federator.testing.testbed import Testbed
from federator.testing.workload import Workload
from tests.integration.federation.conftest import NAMES
from tests.integration.federation.in_process import federated
from tests.integration.federation.truth import assert_equal, held, listed

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

CHURN_SECONDS = 8
OPERATIONS_PER_SECOND = 5


async def test_every_type_of_three_clusters_with_equal_names_at_rest(living_bed: Testbed, tmp_path: Path) -> None:
    async with federated(living_bed, tmp_path) as (_, fed):
        number = await assert_equal(living_bed, fed, NAMES)
        assert number > 300, "the clusters are filled"
        by_cluster = await _names_by_cluster(fed)
        assert by_cluster["ap-1"] & by_cluster["eu-1"] & by_cluster["us-1"], "the clusters share names"


async def test_after_changes_and_a_namespace_deletion_under_load(living_bed: Testbed, tmp_path: Path) -> None:
    namespace = "doomed"
    async with federated(living_bed, tmp_path) as (_, fed):
        workloads = [Workload(plane, namespaces=(namespace,), seed=1) for plane in living_bed]
        await asyncio.gather(*(workload.fill(applications=4) for workload in workloads))
        async with asyncio.TaskGroup() as churns:
            running = [churns.create_task(workload.churn(rate=OPERATIONS_PER_SECOND)) for workload in workloads]
            await asyncio.sleep(CHURN_SECONDS)
            for churn in running:
                churn.cancel()
        done = Counter[str]()
        for workload in workloads:
            done.update(workload.statistics())
        assert {"create", "delete", "scale", "roll", "relabel", "configure"} <= done.keys(), done
        await assert_equal(living_bed, fed, NAMES)
        for plane in living_bed:
            async with plane.client() as client:
                await client.delete(f"/api/v1/namespaces/{namespace}")
        # The load goes on elsewhere while the namespace's controller deletes.
        others = [Workload(plane, seed=2) for plane in living_bed]
        await asyncio.gather(*(other.fill(applications=2) for other in others))
        await _wait_gone(living_bed, namespace)
        await assert_equal(living_bed, fed, NAMES)
        assert not [key for key in await held(fed, ["all", "configmaps", "namespaces"]) if namespace in key[3:]]


async def test_a_name_that_all_clusters_have_stays_as_many_objects(living_bed: Testbed, tmp_path: Path) -> None:
    async with federated(living_bed, tmp_path) as (_, fed):
        answer = await fed.list("namespaces", name="default")
        assert [item.cluster_id for item in answer.items] == list(NAMES)
        assert len({item.uid for item in answer.items}) == len(NAMES)
        with pytest.raises(AmbiguousName) as caught:
            await fed.get("ns", "default")
        assert caught.value.clusters == NAMES
        assert (await fed.get("ns", "default", cluster="us-1")).object.cluster_id == "us-1"


async def test_selectors_answer_as_each_apiserver_does(living_bed: Testbed, tmp_path: Path) -> None:
    async with federated(living_bed, tmp_path) as (_, fed):
        for query in (
            {"labelSelector": "app.kubernetes.io/name"},
            {"labelSelector": "!app.kubernetes.io/name"},
            {"labelSelector": "app.kubernetes.io/name in (cart-0,orders-1),track!=canary"},
            {"fieldSelector": "metadata.namespace=billing"},
            {"fieldSelector": "spec.nodeName=node-0"},
            {"fieldSelector": "status.phase!=Running,metadata.namespace!=billing"},
        ):
            for _ in range(20):
                mine = {
                    (item.cluster_id, item.namespace, item.name, item.resource_version)
                    for item in (
                        await fed.list(
                            "pods", labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", "")
                        )
                    ).items
                }
                theirs = set()
                for plane in living_bed:
                    async with plane.client() as client:
                        for item in (await client.get("/api/v1/pods", **query))["items"]:
                            meta = item["metadata"]
                            theirs.add((plane.name, meta["namespace"], meta["name"], meta["resourceVersion"]))
                if mine == theirs:
                    break
                await asyncio.sleep(0.5)
            assert mine == theirs, query
        only = await fed.list("pods", clusters="*-1,!us-1", namespace="billing")
        assert {(item.cluster_id, item.namespace) for item in only.items} == {("ap-1", "billing"), ("eu-1", "billing")}


async def test_a_new_type_is_followed_and_leaves_when_it_vanishes(living_bed: Testbed, tmp_path: Path) -> None:
    async with federated(living_bed, tmp_path) as (_, fed):
        with pytest.raises(UnknownResourceType):
            await fed.list("widgets")
        plane = living_bed["eu-1"]
        async with plane.client() as client:
            await client.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _widgets())
            await _create_when_served(client, "/apis/example.com/v1/namespaces/default/widgets", "first")
            await _until_held(fed, "widgets", {"first"})
            theirs = await listed(living_bed, ["eu-1"], only=["widgets"])
            async with asyncio.timeout(30):
                while (mine := await held(fed, ["wd"])) != theirs:
                    assert not mine, "all of it, once the type is LIVE"
                    await asyncio.sleep(0.1)
            await client.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com")
            await _until_held(fed, "widgets", set())


async def _names_by_cluster(fed: InventoryClient) -> dict[str, set[tuple[str, str]]]:
    names: dict[str, set[tuple[str, str]]] = {}
    for item in (await fed.list("deployments,configmaps")).items:
        names.setdefault(item.cluster_id, set()).add((item.namespace, item.name))
    return names


async def _wait_gone(bed: Testbed, namespace: str) -> None:
    async with asyncio.timeout(90):
        for plane in bed:
            async with plane.client() as client:
                while True:
                    try:
                        await client.get(f"/api/v1/namespaces/{namespace}")
                    except KubeStatusError as error:
                        assert error.code == 404
                        break
                    await asyncio.sleep(0.2)


async def _create_when_served(client: object, path: str, name: str) -> None:
    obj = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 1.50}}
    async with asyncio.timeout(30):
        while True:
            try:
                await client.create(path, obj)  # type: ignore[attr-defined]
            except KubeStatusError as error:
                assert error.code == 404
                await asyncio.sleep(0.1)
            else:
                return


async def _until_held(fed: InventoryClient, resource: str, names: set[str]) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                found = {item.name for item in (await fed.list(resource)).items}
            except UnknownResourceType:
                found = set()
            if found == names:
                return
            await asyncio.sleep(0.1)


def _widgets() -> dict[str, object]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }
