"""The calls that are answered once, on the wire."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing

import grpc
import pytest

from federator.api.cluster import ClusterState, TypeState
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.client import FieldIndex, FieldIndexState, FreshAsOf, InventoryClient, ListPage, aconnect
from federator.errors import (
    AggregatorUnreachable,
    AmbiguousName,
    FederatorError,
    MalformedSelector,
    UnknownCluster,
    UnknownResourceType,
)
from federator.v1 import inventory_pb2, types_pb2
from tests.component.client.scripted_inventory import ScriptedInventory, freshness, inventory_object


def summary(total: int = 2) -> inventory_pb2.ListResponse:
    return inventory_pb2.ListResponse(
        summary=inventory_pb2.ListSummary(
            revision=884213,
            cursor=b"cursor",
            total=total,
            complete=False,
            clusters=[
                freshness(
                    "ap-1",
                    types_pb2.CLUSTER_STATE_STALE,
                    proved_age_ms=None,
                    incomplete_types=[
                        inventory_pb2.TypeFreshness(
                            resource="pods", state=types_pb2.TYPE_STATE_STALE, proved_age_ms=151000, reason="silent"
                        )
                    ],
                ),
                freshness("eu-1"),
            ],
        )
    )


def page(*objects: inventory_pb2.InventoryObject) -> inventory_pb2.ListResponse:
    return inventory_pb2.ListResponse(objects=objects)


async def test_list_joins_its_pages_and_says_how_fresh_each_cluster_is(
    client: InventoryClient, inventory: ScriptedInventory
) -> None:
    inventory.list_pages = [page(inventory_object("ap-1", "web-0")), page(inventory_object("eu-1", "web-1")), summary()]
    pods = await client.list(
        "pods, deployments.apps", labels="app=web", clusters=["prod-*", "!prod-ap-1"], namespace="shop", limit=5
    )
    assert [str(item.key) for item in pods.items] == ["ap-1//pods/shop/web-0", "eu-1//pods/shop/web-1"]
    assert (pods.revision, pods.cursor, pods.total, pods.complete) == (884213, b"cursor", 2, False)
    stale, live = pods.clusters.values()
    assert (stale.cluster_id, stale.state, stale.proved_age) == ("ap-1", ClusterState.STALE, None)
    assert stale.incomplete_types[0].group_resource == GroupResource("", "pods")
    assert stale.incomplete_types[0].state is TypeState.STALE
    assert stale.incomplete_types[0].proved_age == 151.0
    assert (live.state, live.seen_age, live.proved_age) == (ClusterState.LIVE, 0.5, 1.0)
    (asked,) = inventory.requests
    assert list(asked.selection.resources) == ["pods", "deployments.apps"]
    assert list(asked.selection.clusters) == ["prod-*", "!prod-ap-1"]
    assert (asked.selection.namespace, asked.selection.label_selector, asked.limit) == ("shop", "app=web", 5)


async def test_an_object_decodes_its_body_only_when_asked(
    client: InventoryClient, inventory: ScriptedInventory
) -> None:
    broken = inventory_object("eu-1", "web-0")
    broken.body = b"{"
    inventory.list_pages = [
        page(inventory_object("eu-1", "web", group="apps", resource="deployments"), broken),
        summary(),
    ]
    deployment, undecodable = (await client.list("all")).items
    assert deployment.key == ObjectKey.parse("eu-1/apps/deployments/shop/web")
    assert deployment.api_version == "apps/v1"
    first, second = deployment.to_dict(), deployment.to_dict()
    assert first == second
    assert first is not second
    assert undecodable.name == "web-0"
    with pytest.raises(ValueError, match="truncated"):
        undecodable.to_dict()


async def test_a_list_without_its_last_page_is_no_list(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.list_pages = [page(inventory_object("eu-1", "web-0"))]
    with pytest.raises(AggregatorUnreachable, match="ended before its last page"):
        await client.list("pods")


async def test_pages_come_as_they_are_and_leaving_cancels_the_call(
    client: InventoryClient, inventory: ScriptedInventory
) -> None:
    never = asyncio.Event()
    inventory.list_pages = [page(inventory_object("eu-1", "web-0")), never, summary()]
    async with aclosing(client.pages("pods")) as pages:
        first = await anext(pages)
    assert isinstance(first, ListPage)
    assert (len(first.objects), first.summary) == (1, None)


async def test_a_page_of_more_than_4_mib_passes(client: InventoryClient, inventory: ScriptedInventory) -> None:
    huge = inventory_object("eu-1", "huge", data={"blob": "x" * (16 << 20)})
    inventory.list_pages = [page(huge), summary(1)]
    (item,) = (await client.list("configmaps")).items
    assert len(item.body) > 16 << 20


async def test_get_tells_the_object_and_its_freshness(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.get = inventory_pb2.GetResponse(
        object=inventory_object("eu-1", "web-0"), revision=9, freshness=freshness("eu-1")
    )
    got = await client.get("pods", "web-0", namespace="shop", cluster="eu-1")
    assert (got.object.name, got.revision, got.freshness.state) == ("web-0", 9, ClusterState.LIVE)
    (asked,) = inventory.requests
    assert (asked.cluster_id, asked.resource, asked.namespace, asked.name) == ("eu-1", "pods", "shop", "web-0")


async def test_what_an_answer_has_to_contain_is_asked_for(
    client: InventoryClient, inventory: ScriptedInventory
) -> None:
    inventory.get = inventory_pb2.GetResponse(object=inventory_object("eu-1", "web-0"), freshness=freshness("eu-1"))
    inventory.list_pages = [summary()]
    one, two = FreshAsOf("eu-1", "pods", "7"), FreshAsOf("us-1", "deploy", "8")
    await client.get("pods", "web-0", fresh_as_of=one, fresh_within=0.25)
    await client.list("pods", fresh_as_of=[one, two], fresh_within=1)
    async for _ in client.pages("pods", fresh_as_of=(two,)):
        pass
    messages = [
        inventory_pb2.FreshAsOf(cluster_id="eu-1", resource="pods", resource_version="7"),
        inventory_pb2.FreshAsOf(cluster_id="us-1", resource="deploy", resource_version="8"),
    ]
    assert [(list(asked.fresh_as_of), asked.fresh_within_ms) for asked in inventory.requests] == [
        (messages[:1], 250),
        (messages, 1000),
        (messages[1:], 0),
    ]


async def test_clusters_and_resource_types(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.clusters = inventory_pb2.ListClustersResponse(
        clusters=[
            inventory_pb2.Cluster(
                cluster_id="eu-1",
                display_name="EU 1",
                state=types_pb2.CLUSTER_STATE_SYNCING,
                objects=38991,
                server_version="v1.37.2",
                state_since_ms=1_500,
                types=[inventory_pb2.TypeFreshness(group="apps", resource="x", state=types_pb2.TYPE_STATE_DENIED)],
            )
        ],
        revision=3,
    )
    inventory.resource_types = inventory_pb2.ListResourceTypesResponse(
        types=[
            inventory_pb2.ServedType(
                type=types_pb2.ResourceType(
                    group="apps",
                    version="v1",
                    resource="deployments",
                    kind="Deployment",
                    namespaced=True,
                    short_names=["deploy"],
                ),
                clusters=["eu-1"],
            )
        ]
    )
    found = await client.clusters("eu-*")
    (cluster,) = found.clusters
    assert found.revision == 3
    assert (cluster.state, cluster.seen_age, cluster.objects, cluster.state_since) == (
        ClusterState.SYNCING,
        None,
        38991,
        1.5,
    )
    assert cluster.types[0].state is TypeState.DENIED
    (served,) = await client.resource_types()
    assert str(served.type) == "apps/v1 deployments"
    assert served.type.short_names == ("deploy",)
    assert served.clusters == ("eu-1",)


@pytest.mark.parametrize(
    "error",
    [
        UnknownResourceType("pads"),
        UnknownCluster("eu-9", ("eu-1",)),
        MalformedSelector("label_selector", "a==", "kubectl's grammar"),
        AmbiguousName("pods", "web-0", ("ap-1", "eu-1")),
    ],
)
async def test_refusals_arrive_as_what_they_were(
    client: InventoryClient, inventory: ScriptedInventory, error: FederatorError
) -> None:
    inventory.list_pages = [error]
    inventory.get = error
    with pytest.raises(type(error)) as listed:
        await client.list("pods")
    assert (str(listed.value), listed.value.metadata()) == (str(error), error.metadata())
    with pytest.raises(type(error)):
        await client.get("pods", "web-0")


async def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        async with aconnect(address) as client:
            with pytest.raises(AggregatorUnreachable, match=address):
                await client.clusters()
            with pytest.raises(AggregatorUnreachable, match=address):
                await anext(client.watch("pods"))
            assert client.statistics() == {
                "calls": 2,
                "open_calls": 0,
                "watches": 0,
                "resumes": 0,
                "reached": False,
            }


async def test_an_answer_that_takes_too_long(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.list_pages = [page(inventory_object("eu-1", "web-0")), asyncio.Event()]
    with pytest.raises(AggregatorUnreachable, match="timeout"):
        await client.list("pods", timeout=0.05)


async def test_cancelling_a_call_is_a_cancellation(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.list_pages = [asyncio.Event()]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.list("pods"), 0.05)


async def test_a_call_cancelled_by_the_aggregator_is_not(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.list_pages = [grpc.StatusCode.CANCELLED]
    inventory.get = grpc.StatusCode.CANCELLED
    with pytest.raises(AggregatorUnreachable, match="cancelled the call"):
        await client.list("pods")
    with pytest.raises(AggregatorUnreachable, match="cancelled the call"):
        await client.get("pods", "web-0")


async def test_a_client_is_used_within_its_context() -> None:
    client = aconnect("127.0.0.1:1")
    with pytest.raises(AggregatorUnreachable, match="async with"):
        await client.clusters()
    async with client:
        await client.close()
        with pytest.raises(AggregatorUnreachable, match="closed"):
            await client.list("pods")


async def test_closing_the_client_ends_calls_that_wait(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.list_pages = [page(inventory_object("eu-1", "web-0")), asyncio.Event()]
    async with aclosing(client.pages("pods")) as pages:
        await anext(pages)
        waiting = asyncio.ensure_future(anext(pages))
        await asyncio.sleep(0)
        await client.close()
        async with asyncio.timeout(5):
            with pytest.raises(AggregatorUnreachable, match="closed"):
                await waiting
    assert client.statistics()["open_calls"] == 0


async def test_every_condition_of_a_selection_is_asked(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.list_pages = [inventory_pb2.ListResponse(summary=inventory_pb2.ListSummary())]
    await client.list("pods", cluster_labels="env=prod", uid="u-1", owner_uid="u-2")
    async with aclosing(client.pages("pods", cluster_labels="env=prod", uid="u-1", owner_uid="u-2")) as pages:
        async for _ in pages:
            pass
    wanted = inventory_pb2.Selection(resources=["pods"], cluster_selector="env=prod", uid="u-1", owner_uid="u-2")
    assert [request.selection for request in inventory.requests] == [wanted, wanted]


async def test_clusters_are_told_and_chosen_by_their_labels(
    client: InventoryClient, inventory: ScriptedInventory
) -> None:
    inventory.clusters = inventory_pb2.ListClustersResponse(
        revision=7,
        clusters=[
            inventory_pb2.Cluster(cluster_id=name, state=types_pb2.CLUSTER_STATE_LIVE, labels=labels)
            for name, labels in {"a": {"env": "prod"}, "b": {"env": "test"}, "c": {}}.items()
        ],
    )
    found = await client.clusters(labels="env!=test")
    assert {cluster.cluster_id: cluster.labels for cluster in found.clusters} == {"a": {"env": "prod"}, "c": {}}
    assert found.revision == 7
    with pytest.raises(MalformedSelector) as refused:
        await client.clusters(labels="env in")
    assert refused.value.position == 6


async def test_field_indexes(client: InventoryClient, inventory: ScriptedInventory) -> None:
    inventory.field_indexes = inventory_pb2.ListFieldIndexesResponse(
        indexes=[
            inventory_pb2.FieldIndex(
                path="spec.replicas",
                resources=["deployments.apps"],
                state=inventory_pb2.FIELD_INDEX_STATE_TOO_LARGE,
                objects=1,
                values=2,
                entries=3,
                bytes=4,
                quarantined=5,
                quarantined_keys=["eu-1/apps/deployments/shop/web"],
                is_from_settings=True,
            )
        ]
    )
    assert await client.field_indexes() == (
        FieldIndex(
            path="spec.replicas",
            resources=("deployments.apps",),
            state=FieldIndexState.TOO_LARGE,
            objects=1,
            values=2,
            entries=3,
            bytes=4,
            quarantined=5,
            quarantined_keys=(ObjectKey.parse("eu-1/apps/deployments/shop/web"),),
            is_from_settings=True,
        ),
    )
    assert inventory.requests == [inventory_pb2.ListFieldIndexesRequest()]
    inventory.field_indexes = grpc.StatusCode.UNAVAILABLE
    with pytest.raises(AggregatorUnreachable):
        await client.field_indexes()
