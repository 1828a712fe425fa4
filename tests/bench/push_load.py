"""Load: agents without clusters, which push made-up pods over the real protocol.

    python -m tests.bench.push_load ADDRESS CLUSTERS PODS

opens a session for each cluster and pushes a snapshot of so many pods in each. Commands:

- `{"rate": deltas a second over all clusters, "seconds": how long}` writes each delta when it is due; what came due
  within `TICK` shares a frame. What cannot be written in time, because the window is full, is left out at the end.
- `{"deltas": number over all clusters}` writes them as fast as the sessions' windows allow. The frames are made
  beforehand, so that making them takes no CPU from whoever takes them in.

Both answer when everything is acknowledged: by cluster the number of deltas `written`, the `wall` time in seconds, and
for each frame the `seconds` from its write to its acknowledgement.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid4

import grpc
import msgspec

from federator.agent.pusher import CHANNEL_OPTIONS
from federator.api.resource import GroupResource, ResourceType
from federator.testing import manifests
from federator.v1 import ingest_pb2, types_pb2
from federator.wire.body import BodyCodec, content_hash, encode_body
from federator.wire.dictionary import dictionary_from_proto
from federator.wire.resource_type import resource_type_to_proto
from tests.bench.load_process import Json, serve
from tests.bench.stamp import ANNOTATION, new_stamp

PODS = resource_type_to_proto(
    ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True, singular="pod")
)

APPS = ("cart", "orders", "payments", "prices", "reviews", "shipping", "stock", "users")
"""The pods' applications, in turn."""

TICK = 0.02
"""Seconds of deltas that share a frame, as what comes with one packet of a watch does."""

_NAMESPACES = 16
_NODES = 50
_SNAPSHOT_ITEMS = 256
_FRAME_DELTAS = 256
_FIRST_VERSION = 1_000_000
_VERSION_MARK, _STAMP_MARK = "@version@", "@stamp@"


def pushed_object(
    namespace: str, name: str, uid: str, version: int, raw: bytes, encode: Callable[[bytes], bytes] = encode_body
) -> ingest_pb2.PushedObject:
    """An object as an agent sends it.

    Args:
        namespace: empty for cluster-scoped types.
        name: its name.
        uid: its UID.
        version: its resourceVersion.
        raw: its JSON after the transforms.
        encode: makes the body of it.
    """
    return ingest_pb2.PushedObject(
        namespace=namespace,
        name=name,
        uid=uid,
        resource_version=str(version),
        content_hash=content_hash(raw),
        body=encode(raw),
    )


def new_frame(sequence: int, **content: Any) -> bytes:
    """A numbered frame, serialised."""
    return ingest_pb2.PushRequest(sequence=sequence, **content).SerializeToString()


class PushedPod:
    """One pod as an agent pushes it: about 2.5 KB of JSON before it is compressed."""

    def __init__(self, number: int) -> None:
        app = APPS[number % len(APPS)]
        self.namespace = f"team-{number % _NAMESPACES}"
        self.name = f"{app}-7c5ddbdf54-{number:06}"
        self.uid = str(UUID(int=number))
        pod = manifests.stored_pod(self.namespace, self.name, app=app, node=f"node-{number % _NODES}", uid=self.uid)
        metadata = pod["metadata"]
        del metadata["managedFields"]  # as the agent's transforms do
        metadata["annotations"][ANNOTATION] = _STAMP_MARK
        pod["metadata"] = {"resourceVersion": _VERSION_MARK, **metadata}
        text = msgspec.json.encode(pod)
        self._head, text = text.split(_VERSION_MARK.encode())
        self._middle, self._tail = text.split(_STAMP_MARK.encode())

    def state(
        self, version: int, stamp: object, encode: Callable[[bytes], bytes] = encode_body
    ) -> ingest_pb2.PushedObject:
        """The pod with a resourceVersion and a stamp."""
        raw = b"%b%d%b%b%b" % (self._head, version, self._middle, str(stamp).encode(), self._tail)
        return pushed_object(self.namespace, self.name, self.uid, version, raw, encode)


class SentFrame:
    """A frame that was written.

    Attributes:
        sequence: its number.
        size: bytes.
        written_at: when, monotonic.
        acknowledged_at: when its acknowledgement came; 0 while it has not.
    """

    __slots__ = ("acknowledged_at", "sequence", "size", "written_at")

    def __init__(self, sequence: int, size: int) -> None:
        self.sequence = sequence
        self.size = size
        self.written_at = time.monotonic()
        self.acknowledged_at = 0.0


class PushingAgent:
    """One session: numbered frames, within the window that the aggregator gave, and heartbeats.

    Attributes:
        cluster_id: the cluster it speaks for.
        bodies: compresses objects, with the dictionaries that the session brought.
        dictionary_came: set by each of them.
    """

    def __init__(self, address: str, cluster_id: str, types: Sequence[types_pb2.ResourceType]) -> None:
        self.cluster_id = cluster_id
        self.bodies = BodyCodec()
        self.dictionary_came = asyncio.Event()
        self._types = types
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        # Frames are serialised here: their size is needed anyway, and some are made long before they are sent.
        self._call: Any = self._channel.stream_stream(
            "/federator.v1.IngestService/Push",
            request_serializer=bytes,
            response_deserializer=ingest_pb2.PushResponse.FromString,
        )()  # type: ignore[call-arg]
        self._writing = asyncio.Lock()
        self._in_flight: deque[SentFrame] = deque()
        self._in_flight_bytes = 0
        self._window_bytes = 0
        self._acknowledged = asyncio.Event()
        self._sequence = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Opens the session."""
        hello = ingest_pb2.Hello(
            cluster_id=self.cluster_id,
            cluster_uid=f"uid-of-{self.cluster_id}",
            agent_instance=uuid4().hex,
            types=self._types,
        )
        await self._call.write(ingest_pb2.PushRequest(hello=hello).SerializeToString())
        welcome = (await self._call.read()).welcome
        self._window_bytes = welcome.window_bytes
        interval = welcome.heartbeat_interval_ms / 1000
        for run, name in ((self._read(), "read"), (self._beat(interval), "heartbeat")):
            self._tasks.append(asyncio.create_task(run, name=f"{name} {self.cluster_id}"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._call.cancel()
        await self._channel.close(None)

    async def burst(self, frames: Sequence[bytes]) -> None:
        """Pushes frames as fast as the window allows."""
        for frame in frames:
            await self.send(frame)

    async def send(self, frame: bytes) -> SentFrame:
        """Writes the frame that is next in sequence, once the window has room for it."""
        while self._in_flight and self._in_flight_bytes + len(frame) > self._window_bytes:
            await self._wait_acknowledged()
        self._sequence += 1
        sent = SentFrame(self._sequence, len(frame))
        self._in_flight.append(sent)
        self._in_flight_bytes += len(frame)
        await self._write(frame)
        return sent

    async def settle(self) -> None:
        """Waits until everything is acknowledged."""
        while self._in_flight:
            await self._wait_acknowledged()

    async def prove(self) -> None:
        """Tells that the cluster was just heard of, as a heartbeat does."""
        await self._write(self._heartbeat())

    @property
    def next_sequence(self) -> int:
        """Sequence of the frame that is sent next."""
        return self._sequence + 1

    def _heartbeat(self) -> bytes:
        proofs = [ingest_pb2.TypeProof(group=each.group, resource=each.resource, age_ms=0) for each in self._types]
        return ingest_pb2.PushRequest(heartbeat=ingest_pb2.Heartbeat(proofs=proofs)).SerializeToString()

    async def _write(self, request: bytes) -> None:
        async with self._writing:  # a call takes one write at a time, and heartbeats have a task of their own
            await self._call.write(request)

    async def _wait_acknowledged(self) -> None:
        self._acknowledged.clear()
        await self._acknowledged.wait()

    async def _read(self) -> None:
        while isinstance(response := await self._call.read(), ingest_pb2.PushResponse):
            if response.HasField("nack"):
                sys.exit(f"{self.cluster_id}: refused: {response.nack}")
            if response.HasField("dictionary"):
                self.bodies.add(dictionary_from_proto(response.dictionary))
                self.dictionary_came.set()
            if response.HasField("ack"):
                self._take_ack(response.ack.sequence)
        sys.exit(f"{self.cluster_id}: the aggregator ended the session")

    def _take_ack(self, sequence: int) -> None:
        now = time.monotonic()
        while self._in_flight and self._in_flight[0].sequence <= sequence:
            frame = self._in_flight.popleft()
            self._in_flight_bytes -= frame.size
            frame.acknowledged_at = now
            self._frame_acknowledged(frame)
        self._acknowledged.set()

    def _frame_acknowledged(self, frame: SentFrame) -> None:
        """For who wants to know."""

    async def _beat(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            await self.prove()


class PodAgent(PushingAgent):
    """An agent of made-up pods that change in turn.

    Attributes:
        seconds: of each frame, from its write to its acknowledgement.
    """

    def __init__(self, address: str, cluster_id: str, pods: int) -> None:
        super().__init__(address, cluster_id, [PODS])
        self.seconds: list[float] = []
        self._pods = [PushedPod(number) for number in range(pods)]
        self._encode = partial(self.bodies.encode, resource=GroupResource(PODS.group, PODS.resource))
        self._version = _FIRST_VERSION
        self._changes = 0

    async def __aenter__(self) -> Self:
        """Opens the session and pushes the snapshot."""
        await super().__aenter__()
        await self._snapshot()
        return self

    async def deltas(self, start: float, rate: float, seconds: float) -> int:
        """Pushes deltas as they come due, until the time is over; returns how many could be pushed."""
        end = start + seconds
        done = 0
        self._changes = 0
        while time.monotonic() < end:
            await asyncio.sleep(start + done / rate + TICK - time.monotonic())
            count = min(int((min(time.monotonic(), end) - start) * rate) - done, _FRAME_DELTAS)
            if count > 0:
                await self.send(self._deltas_frame(count, self.next_sequence))
                done += count
        return done

    def prepare(self, number: int) -> list[bytes]:
        """Makes the frames of so many deltas, for `burst`."""
        self._changes = 0
        return [
            self._deltas_frame(min(_FRAME_DELTAS, number - start), sequence)
            for sequence, start in enumerate(range(0, number, _FRAME_DELTAS), self.next_sequence)
        ]

    async def _snapshot(self) -> None:
        begin = ingest_pb2.SnapshotBegin(type=PODS)
        await self.send(new_frame(self.next_sequence, snapshot_begin=begin))
        for start in range(0, len(self._pods), _SNAPSHOT_ITEMS):
            objects = [
                pod.state(self._next_version(), "", self._encode) for pod in self._pods[start : start + _SNAPSHOT_ITEMS]
            ]
            await self.send(
                new_frame(self.next_sequence, snapshot_items=ingest_pb2.SnapshotItems(type=PODS, objects=objects))
            )
        end = ingest_pb2.SnapshotEnd(type=PODS, resource_version=str(self._version))
        await self.send(new_frame(self.next_sequence, snapshot_end=end))
        await self.prove()
        await self.settle()
        self.seconds.clear()

    def _deltas_frame(self, count: int, sequence: int) -> bytes:
        deltas = []
        for number in range(self._changes, self._changes + count):
            pod = self._pods[number % len(self._pods)]
            state = pod.state(self._next_version(), new_stamp(number), self._encode)
            deltas.append(ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=state))
        self._changes += count
        return new_frame(sequence, deltas=ingest_pb2.Deltas(type=PODS, deltas=deltas))

    def _next_version(self) -> int:
        self._version += 1
        return self._version

    def _frame_acknowledged(self, frame: SentFrame) -> None:
        self.seconds.append(frame.acknowledged_at - frame.written_at)


async def main(address: str, clusters: int, pods: int) -> None:
    """Serves commands."""
    async with AsyncExitStack() as stack:
        agents = [PodAgent(address, f"pushed-{number}", pods) for number in range(clusters)]
        await asyncio.gather(*(stack.enter_async_context(agent) for agent in agents))
        await serve(partial(_answer, agents))


async def _answer(agents: Sequence[PodAgent], command: Json) -> Json:
    if "rate" in command:
        began = time.monotonic()
        each = command["rate"] / len(agents)
        numbers = await asyncio.gather(*(agent.deltas(began, each, command["seconds"]) for agent in agents))
    else:
        number = command["deltas"] // len(agents)
        numbers = [number for _ in agents]
        prepared = [agent.prepare(number) for agent in agents]
        began = time.monotonic()
        await asyncio.gather(*(agent.burst(frames) for agent, frames in zip(agents, prepared, strict=True)))
    await asyncio.gather(*(agent.settle() for agent in agents))
    wall = time.monotonic() - began
    seconds = [taken for agent in agents for taken in agent.seconds]
    for agent in agents:
        agent.seconds.clear()
    written = {agent.cluster_id: number for agent, number in zip(agents, numbers, strict=True)}
    return {"written": written, "wall": wall, "began": began, "seconds": seconds}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
