"""An InventoryService that says what a test tells it to, on a real port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import msgspec

from federator.client.event import EventType
from federator.errors import FederatorError
from federator.v1 import inventory_pb2, inventory_pb2_grpc, types_pb2
from federator.wire.status import to_grpc

Context = grpc.aio.ServicerContext[Any, Any]
Answer = Any
"""A message, an error to refuse with, a grpc status code to abort with, or something to await first."""


def inventory_object(
    cluster_id: str,
    name: str,
    *,
    namespace: str = "shop",
    group: str = "",
    version: str = "v1",
    resource: str = "pods",
    kind: str = "Pod",
    revision: int = 1,
    **manifest: Any,
) -> inventory_pb2.InventoryObject:
    """An object; `manifest` is merged over the metadata that follows from the rest."""
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-29T10:00:00Z",
    }
    if namespace:
        metadata["namespace"] = namespace
    body = {
        "apiVersion": f"{group}/{version}" if group else version,
        "kind": kind,
        "metadata": metadata | manifest.pop("metadata", {}),
        **manifest,
    }
    return inventory_pb2.InventoryObject(
        cluster_id=cluster_id,
        group=group,
        version=version,
        resource=resource,
        kind=kind,
        namespace=namespace,
        name=name,
        uid=f"uid-{name}",
        resource_version="7",
        revision=revision,
        body=msgspec.json.encode(body),
    )


def freshness(
    cluster_id: str,
    state: types_pb2.ClusterState.ValueType = types_pb2.CLUSTER_STATE_LIVE,
    *,
    proved_age_ms: int | None = 1000,
    incomplete_types: Sequence[inventory_pb2.TypeFreshness] = (),
) -> inventory_pb2.ClusterFreshness:
    return inventory_pb2.ClusterFreshness(
        cluster_id=cluster_id,
        state=state,
        seen_age_ms=500,
        proved_age_ms=proved_age_ms,
        incomplete_types=incomplete_types,
    )


def event(
    kind: EventType,
    object: inventory_pb2.InventoryObject | None = None,  # noqa: A002 - the field's name
    *,
    cursor: bytes = b"",
    revision: int = 0,
    **fields: Any,
) -> inventory_pb2.WatchResponse:
    """A response of one event."""
    number = inventory_pb2.WatchEventType.Value(f"WATCH_EVENT_TYPE_{kind}")
    return inventory_pb2.WatchResponse(
        events=[inventory_pb2.WatchEvent(type=number, object=object, cursor=cursor, revision=revision, **fields)]
    )


class ScriptedInventory(inventory_pb2_grpc.InventoryServiceServicer):
    """Answers from its fields and remembers what it was asked.

    Attributes:
        list_pages: what List answers with: a list of messages and errors, or a function of the request that gives one.
        watches: one script for each call of Watch, in order; a script that ends ends the call, except the last one's,
            which is held open.
        history_parts: what GetHistory answers with.
        change_parts: what GetChanges answers with.
        requests: everything asked, in order.
        watch_opened: set by the first call of Watch.
        watch_closed: set when a call of Watch has ended, however it did.
    """

    def __init__(self) -> None:
        self.get: Answer = None
        self.list_pages: Sequence[Answer] | Callable[[inventory_pb2.ListRequest], Sequence[Answer]] = ()
        self.watches: list[Sequence[Answer]] = []
        self.aggregate: Answer = inventory_pb2.AggregateResponse()
        self.history_parts: Sequence[Answer] = ()
        self.change_parts: Sequence[Answer] = ()
        self.clusters: Answer = inventory_pb2.ListClustersResponse()
        self.resource_types: Answer = inventory_pb2.ListResourceTypesResponse()
        self.field_indexes: Answer = inventory_pb2.ListFieldIndexesResponse()
        self.requests: list[Any] = []
        self.watch_opened = asyncio.Event()
        self.watch_closed = asyncio.Event()
        self.address = ""

    async def Get(self, request: Any, context: Context) -> Any:  # noqa: N802 - the RPC's name
        self.requests.append(request)
        return await _answer(self.get, context)

    async def List(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        self.requests.append(request)
        pages = self.list_pages(request) if callable(self.list_pages) else self.list_pages
        for page in pages:
            if (message := await _answer(page, context)) is not None:
                yield message

    async def Watch(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        self.requests.append(request)
        self.watch_opened.set()
        try:
            for step in self.watches.pop(0):
                if (message := await _answer(step, context)) is not None:
                    yield message
            if not self.watches:
                await asyncio.Event().wait()
        finally:
            self.watch_closed.set()

    async def Aggregate(self, request: Any, context: Context) -> Any:  # noqa: N802
        self.requests.append(request)
        return await _answer(self.aggregate, context)

    async def GetHistory(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        self.requests.append(request)
        for part in self.history_parts:
            if (message := await _answer(part, context)) is not None:
                yield message

    async def GetChanges(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        self.requests.append(request)
        for part in self.change_parts:
            if (message := await _answer(part, context)) is not None:
                yield message

    async def ListClusters(self, request: Any, context: Context) -> Any:  # noqa: N802
        self.requests.append(request)
        return await _answer(self.clusters, context)

    async def ListResourceTypes(self, request: Any, context: Context) -> Any:  # noqa: N802
        self.requests.append(request)
        return await _answer(self.resource_types, context)

    async def ListFieldIndexes(self, request: Any, context: Context) -> Any:  # noqa: N802
        self.requests.append(request)
        return await _answer(self.field_indexes, context)


async def _answer(step: Answer, context: Context) -> Any:
    if isinstance(step, FederatorError):
        status = to_grpc(step)
        await context.abort(status.code, status.details or "", tuple(status.trailing_metadata or ()))
    if isinstance(step, grpc.StatusCode):
        await context.abort(step, "scripted")
    if isinstance(step, asyncio.Event):
        await step.wait()
        return None
    return step


@asynccontextmanager
async def serving(inventory: ScriptedInventory, address: str = "127.0.0.1:0") -> AsyncIterator[grpc.aio.Server]:
    """Serves on a port of its own, or on the given one, and notes the address in the inventory."""
    server = grpc.aio.server()
    inventory_pb2_grpc.add_InventoryServiceServicer_to_server(inventory, server)
    port = server.add_insecure_port(address)
    inventory.address = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield server
    finally:
        await server.stop(None)
