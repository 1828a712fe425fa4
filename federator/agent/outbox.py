"""Outbox: between the informers, which must not wait, and the pusher, which has to (hops 4 and 5)."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence

import structlog

from federator.agent.frame import Frame, TypeStatus
from federator.agent.settings import KIB, MIB
from federator.agent.type_queue import TypeQueue
from federator.api.cluster import TypeState
from federator.api.object import KubeObject
from federator.api.resource import GroupResource, ResourceType
from federator.wire.body import BodyCodec

log = structlog.get_logger(__name__)


class Outbox:
    """What one agent has not yet sent, and what it sent that is not yet acknowledged.

    - *Ordered per type*: frames of one type leave in its queue's order. Types take turns, one frame each, so that no
      snapshot keeps another type waiting.
    - *Numbered*: frames have sequences from 1 without gaps, over all sessions of this agent instance.
    - *Nothing lost*: a frame stays until it is acknowledged; `resume` queues again what a session left open.
    - *Bounded*: unsent changes take `max_bytes`; above it the type with most of them is dropped and listed anew
      (counted as an overflow). Frames in flight take the session's window. A snapshot is held by reference to the
      informer's list while it is being sent, and not at all without a session: then it is listed when one opens.

    Attributes:
        bodies: compresses objects, with the dictionaries that sessions bring.
    """

    def __init__(self, *, max_bytes: int = 64 * MIB, frame_bytes: int = 512 * KIB) -> None:
        """Starts empty and without a session.

        Args:
            max_bytes: bound on unsent changes.
            frame_bytes: size at which a frame is cut.
        """
        self.bodies = BodyCodec()
        self._max_bytes = max_bytes
        self._frame_bytes = frame_bytes
        self._queues: dict[GroupResource, TypeQueue] = {}
        self._turns: OrderedDict[GroupResource, TypeQueue] = OrderedDict()
        self._in_flight: deque[tuple[TypeQueue, Frame]] = deque()
        self._bytes = 0
        self._in_flight_bytes = 0
        self._window_bytes = 0
        self._acknowledged = 0
        self._sequence = 0
        self._is_open = False
        self._changed = asyncio.Event()
        self._counts: Counter[str] = Counter()

    def add_type(self, resource_type: ResourceType, request_list: Callable[[], None]) -> TypeSink:
        """Starts a type, or starts it anew, awaiting its informer's first list.

        Args:
            resource_type: the type.
            request_list: makes the informer list anew.

        Returns:
            The informer's sink.
        """
        resource = resource_type.group_resource
        former = self._queues.pop(resource, None)
        if former is not None:
            former.await_list()
            self._queued(former)
        self._turns.pop(resource, None)
        queue = self._queues[resource] = TypeQueue(resource_type, request_list, self.bodies)
        return TypeSink(self, queue)

    def report(self, resource_type: ResourceType, state: TypeState, reason: str = "") -> None:
        """Queues how the agent sees a type; unchanged, nothing happens.

        ABSENT and NOT_COLLECTED end a type that was added, and may be told of one that never was.
        """
        queue = self._queues.get(resource_type.group_resource)
        if queue is None:
            queue = self._queues[resource_type.group_resource] = TypeQueue(resource_type, _never, self.bodies)
        queue.report(TypeStatus(state, reason))
        self._queued(queue)

    def is_retired(self, resource: GroupResource) -> bool:
        """Whether it was reported that a type is gone or not collected."""
        queue = self._queues.get(resource)
        return queue is not None and queue.is_retired

    def list_anew(self, resource: GroupResource) -> bool:
        """Drops what is queued of a type and has it listed; False where the type is not collected."""
        queue = self._queues.get(resource)
        if queue is None or queue.is_retired:
            return False
        self._await_list(queue)
        return True

    def resume(
        self,
        durable_sequence: int,
        *,
        snapshot_all: bool,
        window_bytes: int,
        dictionary_ids: Collection[int] = (),
    ) -> None:
        """A session is open: queues again what is not durable, and asks for the lists that are needed.

        Args:
            durable_sequence: last frame of this agent instance that is durable.
            snapshot_all: nothing is known of this agent instance; every type is listed.
            window_bytes: bytes that may be in flight.
            dictionary_ids: dictionaries that the other side has. The ledger there may not be the one that gave out
                those which are here.
        """
        self.bodies.use_only(dictionary_ids)
        self._is_open = True
        self._window_bytes = window_bytes
        # What was acknowledged is not kept: an aggregator that has lost it, restored from a backup, needs everything.
        snapshot_all = snapshot_all or durable_sequence < self._acknowledged
        self._acknowledged = durable_sequence
        self.acknowledge(durable_sequence)
        for queue in self._queues.values():
            if snapshot_all or queue.is_snapshot_open:
                queue.await_list(is_known=not snapshot_all)
        for queue, frame in reversed(self._in_flight):
            if queue.takes_changes:  # else a list is awaited, which knows better than whatever was in flight
                queue.put_back(frame.content)
        self._counts["resent_frames"] += len(self._in_flight)
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._sequence = durable_sequence
        for queue in self._queues.values():
            queue.recode(dictionary_ids)
            queue.confirm()
            self._queued(queue)
            if queue.is_awaiting_list:
                queue.request_list()
        self.bodies.forget_unused(dictionary_ids)
        self._shed()

    def suspend(self) -> None:
        """The session is over. Changes go on coalescing; lists are not kept."""
        self._is_open = False
        for queue in self._queues.values():
            if queue.holds_list:
                queue.await_list()
                self._queued(queue)

    def take(self) -> Frame | None:
        """Takes and numbers the next frame, which is in flight from here on.

        None where nothing is queued, or where the window has no room for half a frame: smaller ones cost more than the
        wait for an acknowledgement.
        """
        room = self._window_bytes - self._in_flight_bytes
        if not self._turns or (self._in_flight and room < min(self._frame_bytes, self._window_bytes) / 2):
            return None
        _, queue = self._turns.popitem(last=False)
        content = queue.take(min(self._frame_bytes, room))
        self._queued(queue)
        assert content is not None, "only queues with content have turns"
        self._sequence += 1
        frame = Frame(self._sequence, queue.type, content)
        self._in_flight.append((queue, frame))
        self._in_flight_bytes += frame.size
        self._counts["frames"] += 1
        self._counts["bytes"] += frame.size
        return frame

    def acknowledge(self, sequence: int) -> None:
        """Everything up to a sequence is durable."""
        self._acknowledged = max(self._acknowledged, sequence)
        while self._in_flight and self._in_flight[0][1].sequence <= sequence:
            queue, frame = self._in_flight.popleft()
            self._in_flight_bytes -= frame.size
            queue.acknowledge(frame.content)
            if queue.is_retired and not queue and self._queues.get(queue.type.group_resource) is queue:
                del self._queues[queue.type.group_resource]
        self._changed.set()

    async def wait_changed(self) -> None:
        """Waits until `take` may answer differently, for the one task that sends; cancelling it changes nothing."""
        await self._changed.wait()
        self._changed.clear()

    def wake(self) -> None:
        """Ends the wait of `wait_changed`."""
        self._changed.set()

    @property
    def is_drained(self) -> bool:
        """Whether everything was taken."""
        return not self._turns

    def statistics(self) -> Mapping[str, int]:
        """Entries and bytes that wait, frames and bytes in flight, and totals since the start."""
        return {
            "queued_entries": sum(map(len, self._queues.values())),
            "queued_bytes": self._bytes,
            "in_flight_frames": len(self._in_flight),
            "in_flight_bytes": self._in_flight_bytes,
            "types_awaiting_list": sum(queue.is_awaiting_list for queue in self._queues.values()),
            "sequence": self._sequence,
            "frames": self._counts["frames"],
            "bytes": self._counts["bytes"],
            "resent_frames": self._counts["resent_frames"],
            "coalesced": self._counts["coalesced"],
            "overflows": self._counts["overflows"],
            "snapshots": self._counts["snapshots"],
            "lists_not_kept": self._counts["lists_not_kept"],
        }

    def _replaced_all(self, queue: TypeQueue, resource_version: str, objects: Sequence[KubeObject]) -> None:
        if not self._is_open:
            queue.drop_list()
            self._counts["lists_not_kept"] += 1
        else:
            queue.replace(resource_version, objects)
            self._counts["snapshots"] += 1
        self._queued(queue)

    def _changed_object(self, queue: TypeQueue, *, has_replaced: bool) -> None:
        self._counts["coalesced"] += has_replaced
        self._queued(queue)
        self._shed()

    def _shed(self) -> None:
        while self._bytes > self._max_bytes:
            heaviest = max(self._queues.values(), key=lambda queue: queue.bytes)
            log.warning("outbox full, listing a type anew", resource=str(heaviest.type), bytes=heaviest.bytes)
            self._counts["overflows"] += 1
            self._await_list(heaviest)

    def _await_list(self, queue: TypeQueue) -> None:
        queue.await_list()
        self._queued(queue)
        if self._is_open:
            queue.request_list()

    def _queued(self, queue: TypeQueue) -> None:
        """Takes note of what a queue holds now."""
        self._bytes += queue.bytes - queue.counted_bytes
        queue.counted_bytes = queue.bytes
        if queue:
            self._turns.setdefault(queue.type.group_resource, queue)
        else:
            self._turns.pop(queue.type.group_resource, None)
        self._changed.set()


class TypeSink:
    """The `DeltaSink` of one type's informer: queues what it is told, and never waits."""

    def __init__(self, outbox: Outbox, queue: TypeQueue) -> None:
        self._outbox = outbox
        self._queue = queue

    def replaced_all(self, resource_version: str, objects: Sequence[KubeObject]) -> None:
        """A list came: it is sent as a snapshot."""
        self._outbox._replaced_all(self._queue, resource_version, objects)

    def upserted(self, obj: KubeObject) -> None:
        """An object was added or updated."""
        if self._queue.takes_changes:
            self._outbox._changed_object(self._queue, has_replaced=self._queue.put(obj))

    def deleted(self, key: str, obj: KubeObject | None) -> None:
        """An object is gone."""
        if self._queue.takes_changes:
            self._outbox._changed_object(self._queue, has_replaced=self._queue.delete(key, obj))

    def bookmark(self, resource_version: str) -> None:
        """Everything up to this version was told before."""
        if self._queue.takes_changes:
            self._queue.bookmark(resource_version)
            self._outbox._queued(self._queue)


def _never() -> None:
    """A type that is not collected has no informer that could list it."""
