"""A relay between agents and an aggregator that writes down what was acknowledged, and sees when that is taken back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
import grpc.aio
import msgspec

from federator.v1 import ingest_pb2, ingest_pb2_grpc, types_pb2
from federator.wire.limits import MAX_MESSAGE_BYTES

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)


class Pushed(NamedTuple):
    """A state of an object that an agent has sent as a change."""

    cluster: str
    group: str
    resource: str
    namespace: str
    name: str
    uid: str
    resource_version: str


class _Instance(msgspec.Struct):
    """What is known of one agent instance.

    Attributes:
        durable: last sequence that the aggregator has said to be durable.
        in_flight: what each later frame of the open session has, by sequence.
        begun: types of listings by the sequence of their beginning.
        listing: types of listings that the aggregator let send objects, and that have not ended.
    """

    durable: int = 0
    in_flight: dict[int, tuple[Pushed, ...]] = {}
    begun: dict[int, str] = {}
    listing: set[str] = set()


class PushRelay(ingest_pb2_grpc.IngestServiceServicer):
    """Passes sessions on, message by message.

    Attributes:
        acknowledged: states that the aggregator has said to be durable since `forget`, whether or not its agent heard.
        counts: `sessions`, `frames`, `acknowledged` frames, `resumed` sessions.
        broken: what the aggregator took back, a line each.
        most_listings: at once, over all clusters, that the aggregator has let begin and that had not ended.
    """

    def __init__(self, target: str) -> None:
        """Describes a relay to an ingest listener, which may come and go."""
        self._target = target
        self._instances: dict[tuple[str, str], _Instance] = {}
        self.acknowledged: set[Pushed] = set()
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []
        self.most_listings = 0

    @asynccontextmanager
    async def open(self, address: str) -> AsyncIterator[PushRelay]:
        """Listens on an address while the block runs."""
        server = grpc.aio.server(options=_OPTIONS)
        ingest_pb2_grpc.add_IngestServiceServicer_to_server(self, server)
        server.add_insecure_port(address)
        await server.start()
        try:
            yield self
        finally:
            await server.stop(0)

    def forget(self) -> None:
        """The aggregator is about to lose its ledger: nothing that it has said counts any more."""
        self._instances.clear()
        self.acknowledged.clear()

    async def Push(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        """One session, to its end in whichever way."""
        self.counts["sessions"] += 1
        async with grpc.aio.insecure_channel(self._target, options=_OPTIONS) as channel:
            call: Any = ingest_pb2_grpc.IngestServiceStub(channel).Push()  # type: ignore[call-arg]
            hello = await context.read()
            key = hello.hello.cluster_id, hello.hello.agent_instance
            try:
                await call.write(hello)
                upwards = asyncio.create_task(self._upwards(key, context, call), name=f"relay {key[0]}")
                try:
                    while isinstance(response := await call.read(), ingest_pb2.PushResponse):
                        self._note_response(key, response)
                        await context.write(response)
                finally:
                    upwards.cancel()
                    await asyncio.gather(upwards, return_exceptions=True)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", error.trailing_metadata() or ())
            finally:
                call.cancel()
                if (instance := self._instances.get(key)) is not None:
                    instance.begun.clear()
                    instance.listing.clear()

    async def _upwards(self, key: tuple[str, str], context: Any, call: Any) -> None:
        while isinstance(request := await context.read(), ingest_pb2.PushRequest):
            self._note_request(key, request)
            await call.write(request)
        await call.done_writing()

    def _note_request(self, key: tuple[str, str], request: ingest_pb2.PushRequest) -> None:
        instance = self._instances.get(key)
        if instance is None or not request.sequence:
            return
        self.counts["frames"] += 1
        instance.in_flight[request.sequence] = tuple(_pushed(key[0], request))
        if request.HasField("snapshot_begin"):
            instance.begun[request.sequence] = _name(request.snapshot_begin.type)
        if request.HasField("snapshot_end"):
            instance.listing.discard(_name(request.snapshot_end.type))

    def _note_response(self, key: tuple[str, str], response: ingest_pb2.PushResponse) -> None:
        if response.HasField("welcome"):
            self._welcomed(key, response.welcome)
            return
        instance = self._instances.get(key)
        if instance is None:
            return
        match response.WhichOneof("frame"):
            case "ack":
                self._is_durable(instance, response.ack.sequence)
            case "snapshot_plan" if response.snapshot_plan.plan != ingest_pb2.SnapshotPlan.PLAN_NOTHING:
                instance.listing.add(instance.begun[response.snapshot_plan.sequence])
                self.most_listings = max(self.most_listings, sum(len(one.listing) for one in self._instances.values()))

    def _welcomed(self, key: tuple[str, str], welcome: ingest_pb2.Welcome) -> None:
        instance = self._instances.setdefault(key, _Instance())
        if welcome.durable_sequence < instance.durable:
            self.broken.append(
                f"{key[0]}: acknowledged up to frame {instance.durable}, and there up to {welcome.durable_sequence}"
            )
        if instance.durable and welcome.snapshot_all:
            self.broken.append(f"{key[0]}: its agent is not known any more")
        self.counts["resumed"] += instance.durable > 0
        self._is_durable(instance, welcome.durable_sequence)
        instance.in_flight.clear()  # the rest is sent again, in other frames

    def _is_durable(self, instance: _Instance, sequence: int) -> None:
        instance.durable = max(instance.durable, sequence)
        for number in [number for number in instance.in_flight if number <= sequence]:
            self.counts["acknowledged"] += 1
            self.acknowledged.update(instance.in_flight.pop(number))


def _name(resource_type: types_pb2.ResourceType) -> str:
    return f"{resource_type.group}/{resource_type.resource}"


def _pushed(cluster: str, request: ingest_pb2.PushRequest) -> Iterator[Pushed]:
    deltas = request.deltas
    for delta in deltas.deltas:
        if delta.operation == ingest_pb2.Delta.OPERATION_PUT:
            obj = delta.object
            yield Pushed(
                cluster,
                deltas.type.group,
                deltas.type.resource,
                obj.namespace,
                obj.name,
                obj.uid,
                obj.resource_version,
            )
