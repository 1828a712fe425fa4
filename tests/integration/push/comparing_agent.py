"""An agent whose listings are compared before they are sent; a test writes each frame itself, if need be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from federator.api.resource import ResourceType
from federator.v1 import ingest_pb2
from federator.wire.digest import Buckets, HashedState, bucket, digest_of, key_hash, state_hash
from federator.wire.resource_type import resource_type_to_proto
from tests.integration.push.raw_agent import RawAgent
from tests.unit.agent.scripted_cluster import PODS

Plan = ingest_pb2.SnapshotPlan
Objects = Sequence[ingest_pb2.PushedObject]


def hashed(obj: ingest_pb2.PushedObject, api_version: str = "v1") -> HashedState:
    return HashedState(key_hash(obj.namespace, obj.name), state_hash(obj.content_hash, api_version, obj.uid))


def names(objects: Iterable[ingest_pb2.PushedObject]) -> list[ingest_pb2.ObjectName]:
    return [ingest_pb2.ObjectName(namespace=obj.namespace, name=obj.name) for obj in objects]


def digest(objects: Objects, left_out: Objects = ()) -> ingest_pb2.Digest:
    """What some objects add up to; those left out are named."""
    added_up = digest_of(map(hashed, objects))
    return ingest_pb2.Digest(count=added_up.count, sum=added_up.sum, left_out=names(left_out))


def begin(
    objects: Objects, *, version: int = 100, left_out: Objects = (), restored: bool = False, of: ResourceType = PODS
) -> ingest_pb2.SnapshotBegin:
    return ingest_pb2.SnapshotBegin(
        type=resource_type_to_proto(of),
        resource_version=str(version),
        digest=digest(objects, left_out),
        restored=restored,
    )


def buckets(objects: Objects, bits: int) -> ingest_pb2.StateBuckets:
    sums = Buckets(bits)
    for obj in objects:
        sums.add(*hashed(obj))
    return ingest_pb2.StateBuckets(type=resource_type_to_proto(PODS), bits=bits, sums=sums.sums())


def states(objects: Objects, bits: int, numbers: Sequence[int]) -> tuple[ingest_pb2.StateItems, Objects]:
    """The frame of some buckets, and the objects in it by position."""
    chosen = [obj for obj in objects if bucket(hashed(obj).key, bits) in numbers]
    keys, hashes = zip(*map(hashed, chosen), strict=True) if chosen else ((), ())
    frame = ingest_pb2.StateItems(
        type=resource_type_to_proto(PODS), bits=bits, buckets=numbers, keys=keys, states=hashes
    )
    return frame, chosen


def items(objects: Objects) -> ingest_pb2.SnapshotItems:
    return ingest_pb2.SnapshotItems(type=resource_type_to_proto(PODS), objects=objects)


def end(*, version: int = 100, left_out: Objects = (), of: ResourceType = PODS) -> ingest_pb2.SnapshotEnd:
    return ingest_pb2.SnapshotEnd(
        type=resource_type_to_proto(of), resource_version=str(version), left_out=names(left_out)
    )


def bookmark(objects: Objects, *, version: int = 200, left_out: Objects = ()) -> ingest_pb2.Bookmark:
    return ingest_pb2.Bookmark(
        type=resource_type_to_proto(PODS), resource_version=str(version), digest=digest(objects, left_out)
    )


class ComparingAgent:
    """Numbers the frames of a raw agent, and waits for answers.

    Attributes:
        raw: the agent.
        sequence: of the newest frame.
        sent: names of the objects of listings, in order.
    """

    def __init__(self, raw: RawAgent) -> None:
        self.raw = raw
        self.sequence = raw.welcome.durable_sequence
        self.sent: list[str] = []

    async def send(self, **frame: Any) -> int:
        """Sends a numbered frame."""
        self.sequence += 1
        if "snapshot_items" in frame:
            self.sent += [obj.name for obj in frame["snapshot_items"].objects]
        await self.raw.send(self.sequence, **frame)
        return self.sequence

    async def settled(self) -> None:
        """Waits until everything is acknowledged."""
        await self.raw.acknowledged(self.sequence)

    async def answer(self, kind: str) -> Any:
        """The next answer of a kind; others are passed over."""
        while True:
            response = await self.raw.read()
            if response.WhichOneof("frame") == kind:
                return getattr(response, kind)

    async def plan(self, **frame: Any) -> int:
        """Sends a begin and returns the plan that comes for it."""
        sequence = await self.send(snapshot_begin=begin(**frame))
        answer = await self.answer("snapshot_plan")
        assert answer.sequence == sequence
        return int(answer.plan)

    async def differing(self, **frame: Any) -> list[int]:
        """Sends a frame to be compared, and returns what of it differs."""
        sequence = await self.send(**frame)
        answer = await self.answer("differing")
        assert answer.sequence == sequence
        return list(answer.positions)

    async def compare(self, objects: Objects, *, bits: int = 2, buckets_at_once: int = 2) -> Objects:
        """Compares a listing whose plan is PLAN_DIFFERING; returns the objects that are wanted."""
        numbers = await self.differing(state_buckets=buckets(objects, bits))
        wanted: list[ingest_pb2.PushedObject] = []
        for start in range(0, len(numbers), buckets_at_once):
            frame, chosen = states(objects, bits, numbers[start : start + buckets_at_once])
            wanted += [chosen[position] for position in await self.differing(state_items=frame)]
        return wanted

    async def list(self, objects: Objects, *, version: int = 100, **more: Any) -> int:
        """A whole listing, as its plan says; returns the plan."""
        plan = await self.plan(objects=objects, version=version, **more)
        wanted: Objects = ()
        if plan == Plan.PLAN_ALL:
            wanted = objects
        elif plan == Plan.PLAN_DIFFERING:
            wanted = await self.compare(objects)
        if wanted:
            await self.send(snapshot_items=items(wanted))
        await self.send(snapshot_end=end(version=version))
        await self.settled()
        return plan
