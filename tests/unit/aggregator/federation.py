"""A small federation in memory: what an aggregator holds, without agents and processes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import grpc
import msgspec

from federator.aggregator.ledger.indexed_state import read_indexed_state
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import Batch, ClusterRecord, Commit, Delete, Put
from federator.aggregator.merge.freshness import FreshnessTable
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.serve.inventory_servicer import InventoryServicer
from federator.aggregator.serve.registration import add_inventory_service
from federator.aggregator.serve.watch_hub import MAX_BYTES, MAX_ENTRIES, WatchHub
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import ResourceType
from federator.v1 import inventory_pb2_grpc
from federator.wire.body import content_hash, encode_body

PODS = ResourceType(
    group="", version="v1", resource="pods", kind="Pod", namespaced=True, singular="pod", short_names=("po",),
    categories=("all",),
)  # fmt: skip
NODES = ResourceType(
    group="", version="v1", resource="nodes", kind="Node", namespaced=False, singular="node", short_names=("no",)
)
DEPLOYMENTS = ResourceType(
    group="apps", version="v1", resource="deployments", kind="Deployment", namespaced=True, singular="deployment",
    short_names=("deploy",), categories=("all",),
)  # fmt: skip


def put(
    name: str,
    *,
    namespace: str = "shop",
    uid: str = "",
    labels: Mapping[str, str] | None = None,
    node: str = "",
    owner: str = "",
    owner_kind: str = "",
    created: int = 0,
    resource_version: str = "1",
    **fields: object,
) -> Put:
    """A change that makes an object exist in a state; `fields` are top-level fields of its JSON."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": labels or {}}
    if owner:
        metadata["ownerReferences"] = [{"uid": owner, "kind": owner_kind, "controller": True}]
    if created:
        metadata["creationTimestamp"] = f"{datetime.fromtimestamp(created, UTC):%Y-%m-%dT%H:%M:%SZ}"
    raw = msgspec.json.encode({"metadata": metadata, "spec": {"nodeName": node} if node else {}, **fields})
    return raw_put(name, raw, namespace=namespace, uid=uid, resource_version=resource_version)


def raw_put(name: str, raw: bytes, *, namespace: str = "shop", uid: str = "", resource_version: str = "1") -> Put:
    """A change that makes an object exist with any bytes as its JSON."""
    uid = uid or f"uid-{namespace}-{name}"
    return Put(namespace, name, uid, resource_version, content_hash(raw), encode_body(raw), read_indexed_state(raw))


def delete(name: str, *, namespace: str = "shop") -> Delete:
    """A change that makes an object not exist."""
    return Delete(namespace, name)


async def eventually(holds: Callable[[], bool], *, within: float = 10) -> None:
    """Waits for what another side of a connection does in its own time."""
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


class Federation:
    """Ledger, merged view, hub and servicer, joined as the aggregator joins them."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        write_seconds: float = 30,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.ledger = MemoryLedger(clock=clock)
        self.view = MergedView(FreshnessTable(clock=monotonic))
        self.view.load(self.ledger)
        self.hub = WatchHub(self.ledger, self.view.types, max_entries=max_entries, max_bytes=max_bytes)
        self.servicer = InventoryServicer(self.view, self.ledger, self.hub, write_seconds=write_seconds)
        self.ledger.on_commit(self._on_commit)
        self._numbers = itertools.count(1)

    def _on_commit(self, commit: Commit) -> None:
        self.view.apply(commit)
        self.hub.publish(commit)

    async def join(
        self,
        cluster: str,
        types: Sequence[ResourceType] = (PODS, NODES, DEPLOYMENTS),
        *,
        state: ClusterState = ClusterState.LIVE,
        namespace: str = "",
        label_selector: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """A cluster joins, or its agent comes back with other labels; its types are LIVE and proved now."""
        cluster_id = ClusterID(cluster)
        await self.ledger.open_session(
            ClusterRecord(
                cluster_id,
                f"uid-of-{cluster}",
                agent_instance=f"agent-{next(self._numbers)}",
                namespace=namespace,
                label_selector=label_selector,
                labels=labels or {},
            )
        )
        for resource_type in types:
            await self.ledger.set_type_state(cluster_id, resource_type, TypeState.LIVE)
            self.view.freshness.proved(cluster_id, resource_type.group_resource, 0)
        self.view.freshness.seen(cluster_id)
        await self.ledger.set_cluster_state(cluster_id, state)

    async def commit(self, cluster: str, *changes: Put | Delete, type: ResourceType = PODS) -> Commit:  # noqa: A002
        """One batch of a member's session."""
        cluster_id = ClusterID(cluster)
        term = self.ledger.clusters()[cluster_id].term
        return await self.ledger.append(Batch(cluster_id, term, 0, type, changes))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[inventory_pb2_grpc.InventoryServiceAsyncStub]:
        """A real server on loopback, and a client of it."""
        server = grpc.aio.server()
        add_inventory_service(self.servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield inventory_pb2_grpc.InventoryServiceStub(channel)
        finally:
            await server.stop(None)
