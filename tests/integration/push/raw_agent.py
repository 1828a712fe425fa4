"""An agent whose every frame a test writes itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from federator.api.resource import ResourceType
from federator.v1 import ingest_pb2, ingest_pb2_grpc
from federator.wire.body import content_hash, encode_body
from federator.wire.resource_type import resource_type_to_proto
from tests.unit.agent.scripted_cluster import PODS


class RawAgent:
    """One open session; sequences are given by the test."""

    def __init__(self, call: Any, welcome: ingest_pb2.Welcome) -> None:
        self.call = call
        self.welcome = welcome
        self.nacks: list[ingest_pb2.Nack] = []
        self.dictionaries: list[ingest_pb2.Dictionary] = []

    async def send(self, sequence: int = 0, **frame: Any) -> None:
        """Sends one frame."""
        await self.call.write(ingest_pb2.PushRequest(sequence=sequence, **frame))

    async def begin(self, sequence: int, resource_type: ResourceType = PODS) -> None:
        await self.send(sequence, snapshot_begin=ingest_pb2.SnapshotBegin(type=resource_type_to_proto(resource_type)))

    async def items(self, sequence: int, *names: str, version: int = 10, resource_type: ResourceType = PODS) -> None:
        objects = [pushed(name, version=version) for name in names]
        items = ingest_pb2.SnapshotItems(type=resource_type_to_proto(resource_type), objects=objects)
        await self.send(sequence, snapshot_items=items)

    async def end(self, sequence: int, *, version: int = 100, resource_type: ResourceType = PODS) -> None:
        end = ingest_pb2.SnapshotEnd(type=resource_type_to_proto(resource_type), resource_version=str(version))
        await self.send(sequence, snapshot_end=end)

    async def put(self, sequence: int, *objects: ingest_pb2.PushedObject) -> None:
        deltas = [ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=each) for each in objects]
        await self.send(sequence, deltas=ingest_pb2.Deltas(type=resource_type_to_proto(PODS), deltas=deltas))

    async def snapshot(self, sequence: int, *names: str, version: int = 10) -> int:
        """A whole snapshot, acknowledged; returns the next sequence."""
        await self.begin(sequence)
        await self.items(sequence + 1, *names, version=version)
        await self.end(sequence + 2)
        await self.acknowledged(sequence + 2)
        return sequence + 3

    async def heartbeat(self) -> None:
        await self.send(heartbeat=ingest_pb2.Heartbeat())

    async def acknowledged(self, sequence: int) -> None:
        """Reads until a sequence is acknowledged."""
        while (response := await self.read()).WhichOneof("frame") != "ack" or response.ack.sequence < sequence:
            pass

    async def read(self) -> ingest_pb2.PushResponse:
        """The next response; Nacks are kept aside as well."""
        async with asyncio.timeout(5):
            response = await self.call.read()
        if not isinstance(response, ingest_pb2.PushResponse):
            raise AssertionError(f"the session ended: {await self.call.code()} {await self.call.details()}")
        if response.HasField("nack"):
            self.nacks.append(response.nack)
        if response.HasField("dictionary"):
            self.dictionaries.append(response.dictionary)
        return response

    async def goodbye(self) -> None:
        """Ends the session as an agent does that stops, and waits for its end."""
        await self.call.done_writing()
        async with asyncio.timeout(5):
            while isinstance(await self.call.read(), ingest_pb2.PushResponse):
                pass

    async def failure(self) -> grpc.aio.AioRpcError:
        """Reads until the session fails, and returns how."""
        try:
            while True:
                await self.read()
        except grpc.aio.AioRpcError as error:
            return error


def pushed(
    name: str, *, namespace: str = "default", version: int = 10, uid: str = "", **changes: Any
) -> ingest_pb2.PushedObject:
    """A pod on its way up; `changes` damage it."""
    uid = uid or f"uid-{name}"
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    raw = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}).encode()
    values: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "uid": uid,
        "resource_version": str(version),
        "content_hash": content_hash(raw),
        "body": encode_body(raw),
    }
    return ingest_pb2.PushedObject(**(values | changes))


@asynccontextmanager
async def raw_agent(
    address: str,
    *,
    instance: str = "instance-1",
    cluster_id: str = "c0",
    cluster_uid: str = "uid-c0",
    types: Sequence[ResourceType] = (PODS,),
    **hello: Any,
) -> AsyncIterator[RawAgent]:
    """Opens a session; leaving it breaks the connection off.

    Raises:
        grpc.aio.AioRpcError: it was refused.
    """
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Any = ingest_pb2_grpc.IngestServiceStub(channel).Push()  # type: ignore[call-arg]
        message = ingest_pb2.Hello(
            cluster_id=cluster_id,
            cluster_uid=cluster_uid,
            agent_instance=instance,
            types=map(resource_type_to_proto, types),
            **hello,
        )
        await call.write(ingest_pb2.PushRequest(hello=message))
        async with asyncio.timeout(5):
            response = await call.read()
        try:
            yield RawAgent(call, response.welcome)
        finally:
            call.cancel()
