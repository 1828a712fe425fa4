"""The federation's List equals what each apiserver lists, byte for byte after the transforms, and watches end so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest
import pytest_asyncio

from federator.api.resource import GroupResource
from federator.client import EventType, InventoryClient
from federator.errors import AmbiguousName, KubeStatusError, UnknownResourceType
from federator.testing.testbed import Testbed
from federator.testing.workload import Workload
from tests.integration.federation.churn import churning
from tests.integration.federation.conftest import NAMES
from tests.integration.federation.in_process import federated
from tests.integration.federation.recorder import Recorder, settled
from tests.integration.federation.truth import assert_equal, held, listed

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="module")]

WIDGETS = GroupResource("example.com", "widgets")

WATCHED = ("pods", "deployments", "replicasets", "configmaps", "services")

DOOMED, KEPT = "doomed", "kept"

OPERATIONS = 3
"""In each namespace of each cluster, before and after a watch is opened amid them; seeds that draw all kinds early."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fed(living_bed: Testbed, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InventoryClient]:
    """A client of a federation of all clusters and types, which lives as long as this file's tests."""
    async with federated(living_bed, tmp_path_factory.mktemp("federation")) as (_, client):
        yield client


class Load(NamedTuple):
    """What the clusters went through, all of it once.

    Attributes:
        fed: a client of the federation.
        before: a watch that was opened before anything changed.
        selected: another one, of some objects.
        during: one opened amid the changes.
        after: one opened when they were over.
    """

    fed: InventoryClient
    before: Recorder
    selected: Recorder
    during: Recorder
    after: Recorder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def load(living_bed: Testbed, fed: InventoryClient) -> AsyncIterator[Load]:
    """Watches over changes on all clusters at once, and over a namespace's deletion while they go on in another."""
    doomed = [Workload(plane, namespaces=(DOOMED,), seed=1) for plane in living_bed]
    kept = [Workload(plane, namespaces=(KEPT,), seed=8) for plane in living_bed]
    await asyncio.gather(*(workload.fill(applications=2) for workload in doomed + kept))
    async with AsyncExitStack() as recorders:

        async def watch(**options: str) -> Recorder:
            return await recorders.enter_async_context(Recorder(fed, WATCHED, **options))

        before, selected = await watch(), await watch(labels="track=stable")
        async with churning(doomed + kept, rate=5) as churn:
            await churn.until_done(OPERATIONS)
            during = await watch()
            await churn.until_done(2 * OPERATIONS, {"create", "delete", "scale", "roll", "relabel", "configure"})
        async with churning(kept, rate=5):
            for plane in living_bed:
                async with plane.client() as client:
                    await client.delete(f"/api/v1/namespaces/{DOOMED}")
            await _wait_gone(living_bed, DOOMED)
        yield Load(fed, before, selected, during, await watch())


async def test_every_type_of_three_clusters_with_equal_names_at_rest(living_bed: Testbed, fed: InventoryClient) -> None:
    number = await assert_equal(living_bed, fed, NAMES)
    assert number > 200, "the clusters are filled"
    names = (await _names_by_cluster(fed)).values()
    assert len(names) == len(NAMES)
    assert set.intersection(*names), "the clusters share names"


async def test_after_changes_and_a_namespace_deletion_under_load(living_bed: Testbed, load: Load) -> None:
    await assert_equal(living_bed, load.fed, NAMES)
    left = await held(load.fed, ["all", "configmaps", "namespaces"])
    assert not [key for key in left if DOOMED in key[3:]]
    assert [key for key in left if KEPT in key[3:]]


async def test_watches_opened_before_during_and_after_changes_end_as_list_does(load: Load) -> None:
    wanted = await settled(load.before, load.during, load.after)
    kinds = {event.type for event in load.before.events}
    assert {EventType.ADDED, EventType.MODIFIED, EventType.DELETED, EventType.INITIAL_END} <= kinds
    assert not [key for key in wanted if key.namespace == DOOMED]


async def test_a_watch_of_a_selection_ends_as_list_does_and_tells_what_leaves_it(load: Load) -> None:
    await settled(load.selected)
    wanted = await load.before.listed()
    assert wanted is not None
    left = [event.object.key for event in load.selected.events if event.type is EventType.DELETED and event.object]
    assert any(key in wanted for key in left), "relabelled objects left"


async def test_a_name_that_all_clusters_have_stays_as_many_objects(fed: InventoryClient) -> None:
    answer = await fed.list("namespaces", name="default")
    assert [item.cluster_id for item in answer.items] == list(NAMES)
    assert len({item.uid for item in answer.items}) == len(NAMES)
    with pytest.raises(AmbiguousName) as caught:
        await fed.get("ns", "default")
    assert caught.value.clusters == NAMES
    assert (await fed.get("ns", "default", cluster="us-1")).object.cluster_id == "us-1"


async def test_selectors_answer_as_each_apiserver_does(living_bed: Testbed, fed: InventoryClient) -> None:
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
                    await fed.list("pods", labels=query.get("labelSelector", ""), fields=query.get("fieldSelector", ""))
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


async def test_a_new_type_is_followed_and_leaves_when_it_vanishes(living_bed: Testbed, fed: InventoryClient) -> None:
    with pytest.raises(UnknownResourceType):
        await fed.list("widgets")
    plane = living_bed["eu-1"]
    async with plane.client() as client:
        await client.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _widgets())
        await _create_when_served(client, "/apis/example.com/v1/namespaces/default/widgets", "first")
        await _until_held(fed, "widgets", {"first"})
        theirs = await listed(living_bed, ["eu-1"], [WIDGETS])
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
