"""Every read looks through a scope: whoever asks within one learns nothing of what is beyond."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from google.protobuf.message import Message
from pyroaring import BitMap

from federator.aggregator.merge.scope import Located, Scope
from federator.aggregator.serve.inventory_servicer import InventoryServicer
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.v1 import inventory_pb2 as pb
from federator.v1 import inventory_pb2_grpc
from tests.unit.aggregator.federation import DEPLOYMENTS, PODS, Federation, delete, put

SECRET = "hidden"
"""In every name, label and cluster that is beyond the scope."""


class OnlyPodsOf:
    """Allows the pods of one cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster_id = ClusterID(cluster)

    def rows(self, located: Located) -> BitMap | None:
        return located.rows_in(self._cluster_id, PODS.group_resource)

    def allows(self, key: ObjectKey) -> bool:
        return key.cluster_id == self._cluster_id and key.group_resource == PODS.group_resource


@pytest.fixture
async def federation() -> Federation:
    """Objects come, change and go on both sides of the scope."""
    federation = Federation()
    scope: Scope = OnlyPodsOf("seen")
    federation.servicer = InventoryServicer(
        federation.view, federation.ledger, federation.hub, scope_of=lambda _: scope
    )
    for cluster in ("seen", "other"):
        await federation.join(cluster)
    await change(federation, "1")
    return federation


async def change(federation: Federation, turn: str) -> None:
    for cluster, prefix in (("seen", "pod"), ("other", SECRET)):
        await federation.commit(cluster, put(f"{prefix}-kept", labels={"turn": turn, "app": prefix}))
        await federation.commit(cluster, put(f"{prefix}-{turn}", labels={"turn": turn}), delete(f"{prefix}-0"))
    await federation.commit("seen", put(f"{SECRET}-web", labels={"turn": turn, "app": SECRET}), type=DEPLOYMENTS)


@pytest.fixture
async def stub(federation: Federation) -> AsyncIterator[inventory_pb2_grpc.InventoryServiceAsyncStub]:
    async with federation.serving() as stub:
        yield stub


def everything() -> pb.Selection:
    return pb.Selection(resources=["pods", "deployments"])


async def answered(stub: inventory_pb2_grpc.InventoryServiceAsyncStub, request: Message) -> list[Message]:
    match request:
        case pb.ListRequest():
            return [part async for part in stub.List(request)]
        case pb.AggregateRequest():
            return [await stub.Aggregate(request)]
        case pb.GetChangesRequest():
            return [part async for part in stub.GetChanges(request)]
        case _:
            raise AssertionError(request)


async def test_lists_aggregates_and_changes_have_nothing_of_what_is_beyond(
    federation: Federation, stub: inventory_pb2_grpc.InventoryServiceAsyncStub
) -> None:
    before = federation.view.revision
    await change(federation, "2")
    requests: list[tuple[Message, int]] = [
        (pb.ListRequest(selection=everything()), 3),
        (pb.ListRequest(selection=everything(), page_size=1), 3),
        (pb.ListRequest(selection=everything(), count_only=True), 3),
        (pb.ListRequest(selection=everything(), at_revision=before), 2),
        (pb.ListRequest(selection=everything(), order_by="name desc", page_size=2), 3),
        (pb.AggregateRequest(selection=everything(), group_by=["label:app"]), 3),
        (pb.AggregateRequest(selection=everything(), group_by=["cluster", "type"]), 3),
        (pb.AggregateRequest(selection=everything(), group_by=[".metadata.name"]), 3),
        (pb.AggregateRequest(selection=everything(), group_by=["label:app"], at_revision=before), 2),
        (pb.GetChangesRequest(selection=everything(), after_revision=before), 2),
    ]
    for request, total in requests:
        parts = await answered(stub, request)
        assert parts[-1].summary.total == total, request  # type: ignore[attr-defined]  # all of these have one
        told = "".join(str(part) for part in parts)
        assert SECRET not in told, request


async def test_what_is_beyond_is_not_found(
    federation: Federation, stub: inventory_pb2_grpc.InventoryServiceAsyncStub
) -> None:
    for cluster, resource, name, is_seen in (
        ("seen", "pods", "pod-kept", True),
        ("", "pods", "pod-kept", True),
        ("other", "pods", f"{SECRET}-kept", False),
        ("seen", "deployments", f"{SECRET}-web", False),
    ):
        get = pb.GetRequest(cluster_id=cluster, resource=resource, namespace="shop", name=name)
        history = pb.GetHistoryRequest(cluster_id=cluster, resource=resource, namespace="shop", name=name)
        if is_seen:
            assert (await stub.Get(get)).object.name == name
            assert [part async for part in stub.GetHistory(history)]
            continue
        for call in (stub.Get(get), stub.GetHistory(history).read()):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watch_is_told_nothing_of_what_is_beyond(
    federation: Federation, stub: inventory_pb2_grpc.InventoryServiceAsyncStub
) -> None:
    for labels in ("", "turn"):
        watch = stub.Watch(
            pb.WatchRequest(selection=pb.Selection(resources=["pods", "deployments"], label_selector=labels))
        )
        seen: list[str] = []
        is_changed = False
        async for response in watch:
            seen += [event.object.name for event in response.events if event.HasField("object")]
            assert SECRET not in str(response)
            if not is_changed and response.events[-1].type == pb.WATCH_EVENT_TYPE_INITIAL_END:
                is_changed = True
                await change(federation, f"3{labels}")
                await federation.commit("seen", put("pod-last", labels={"turn": "x"}))
            if "pod-last" in seen:
                break
        watch.cancel()
        assert "pod-kept" in seen
        await federation.commit("seen", delete("pod-last"))


async def test_objects_that_may_be_seen_are_counted(stub: inventory_pb2_grpc.InventoryServiceAsyncStub) -> None:
    clusters = (await stub.ListClusters(pb.ListClustersRequest())).clusters
    assert {cluster.cluster_id: cluster.objects for cluster in clusters} == {"seen": 2, "other": 0}
