"""Outbox: between the informers, which must not wait, and the pusher, which has to (hops 4 and 5)."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import structlog

from federator.agent.frame import Deltas, Frame, SnapshotBegin, SnapshotEnd, StateBuckets, StateItems, TypeStatus
from federator.agent.listing import Plan
from federator.agent.settings import KIB, MIB
from federator.agent.spool import Spool
from federator.agent.type_queue import TypeQueue, TypeSource
from federator.api.cluster import TypeState
from federator.api.object import KubeObject
from federator.api.resource import GroupResource, ResourceType
from federator.wire.body import BodyCodec, Dictionary

log = structlog.get_logger(__name__)

NAMED_LEFT_OUT = 10
"""Keys of each type that are named."""

_PLAN_NAMES: Mapping[int, str] = {plan: f"plans_{plan.name.lower()}" for plan in Plan}


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
        has_released: a listing has left since this was set to False: the memory that it took is free.
    """

    def __init__(self, *, max_bytes: int = 64 * MIB, frame_bytes: int = 512 * KIB) -> None:
        """Starts empty and without a session.

        Args:
            max_bytes: bound on unsent changes.
            frame_bytes: size at which a frame is cut.
        """
        self.bodies = BodyCodec()
        self.has_released = False
        self._spool: Spool | None = None
        self._max_bytes = max_bytes
        self._frame_bytes = frame_bytes
        self._queues: dict[GroupResource, TypeQueue] = {}
        self._turns: OrderedDict[GroupResource, TypeQueue] = OrderedDict()
        self._in_flight: deque[_Sent] = deque()
        self._bytes = 0
        self._in_flight_bytes = 0
        self._window_bytes = 0
        self._acknowledged = 0
        self._sequence = 0
        self._is_open = False
        self._has_plans = False
        self._awaited: dict[int, TypeQueue] = {}
        self._unhashed: list[TypeQueue] = []
        self._changed = asyncio.Event()
        self._counts: Counter[str] = Counter()

    def use(self, spool: Spool) -> None:
        """Keeps changes in a spool, too, and queues what it still has of an earlier process; before anything else."""
        self._spool = spool
        for dictionary in spool.dictionaries():
            self.bodies.add(dictionary)
        for resource_type, low_water, changes in spool.load():
            queue = self._queues[resource_type.group_resource] = self._new_queue(resource_type, None)
            queue.replay(changes, low_water)
            self._counts["replayed"] += len(changes)
            self._queued(queue)

    def add_dictionary(self, dictionary: Dictionary) -> None:
        """Bodies of its type may be made with it from now on."""
        self.bodies.add(dictionary)
        if self._spool is not None:
            self._spool.add_dictionary(dictionary)

    def flush(self) -> None:
        """Has what was queued outlive the process, before anything is sent of it."""
        if self._spool is not None:
            self._spool.flush()

    def add_type(self, resource_type: ResourceType, source: TypeSource) -> TypeSink:
        """Starts a type, or starts it anew, awaiting its informer's first list.

        Args:
            resource_type: the type.
            source: its informer.

        Returns:
            The informer's sink.
        """
        resource = resource_type.group_resource
        former = self._queues.get(resource)
        if former is not None and former.type == resource_type and former.attach(source):
            return TypeSink(self, former)
        if former is not None:
            former.await_list()
            self._queued(former)
        self._turns.pop(resource, None)
        queue = self._queues[resource] = self._new_queue(resource_type, source)
        if former is None and self._spool is not None and self._spool.is_restored:
            queue.continues()
            self._queued(queue)
        return TypeSink(self, queue)

    def report(self, resource_type: ResourceType, state: TypeState, reason: str = "") -> None:
        """Queues how the agent sees a type; unchanged, nothing happens.

        ABSENT and NOT_COLLECTED end a type that was added, and may be told of one that never was.
        """
        queue = self._queues.get(resource_type.group_resource)
        if queue is None:
            queue = self._queues[resource_type.group_resource] = self._new_queue(resource_type, None)
        if queue.report(TypeStatus(state, reason)):
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
        has_plans: bool = False,
    ) -> None:
        """A session is open: queues again what is not durable, and asks for the lists that are needed.

        Args:
            durable_sequence: last frame of this agent instance that is durable.
            snapshot_all: nothing is known of this agent instance; every type is listed.
            window_bytes: bytes that may be in flight.
            dictionary_ids: dictionaries that the other side has. The ledger there may not be the one that gave out
                those which are here.
            has_plans: the other side answers the begin of a snapshot with a plan.
        """
        self.bodies.use_only(dictionary_ids)
        self._is_open = True
        self._has_plans = has_plans
        self._window_bytes = window_bytes
        # What was acknowledged is not kept: an aggregator that has lost it, restored from a backup, needs everything.
        snapshot_all = snapshot_all or durable_sequence < self._acknowledged
        self._acknowledged = durable_sequence
        self.acknowledge(durable_sequence)
        for queue in self._queues.values():
            queue.has_plans = has_plans
            if snapshot_all or queue.is_snapshot_open:
                queue.await_list(is_known=not snapshot_all)
        for queue, frame, _ in reversed(self._in_flight):
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
        self._awaited.clear()
        for queue in self._queues.values():
            if queue.holds_list:
                queue.await_list()
                self._queued(queue)

    def prepare(self) -> bool:
        """Does the next 5 ms of what has to be done before large snapshots can be taken; False where there is nothing.

        Call it until there is nothing before `take`, and let others have the loop in between.
        """
        while self._unhashed:
            queue = self._unhashed[-1]
            if queue.needs_hashing:
                queue.hash_some()
                self._queued(queue)
                return True
            self._unhashed.pop()
        return False

    def take(self) -> Frame | None:
        """Takes and numbers the next frame, which is in flight from here on.

        None where nothing is queued, or where the window has no room for half a frame: smaller ones cost more than the
        wait for an acknowledgement.
        """
        room = self._window_bytes - self._in_flight_bytes
        if not self._turns or (self._in_flight and room < min(self._frame_bytes, self._window_bytes) / 2):
            return None
        _, queue = self._turns.popitem(last=False)
        self._sequence += 1
        content = queue.take(min(self._frame_bytes, room), self._sequence)
        self._note(queue)
        assert content is not None, "only queues with content have turns"
        if isinstance(content, SnapshotBegin | StateBuckets | StateItems):
            self._awaited[self._sequence] = queue
        elif isinstance(content, SnapshotEnd):
            self.has_released = True
        frame = Frame(self._sequence, queue.type, content)
        size = frame.size
        self._in_flight.append(_Sent(queue, frame, size))
        self._in_flight_bytes += size
        self._counts["frames"] += 1
        self._counts["bytes"] += size
        return frame

    def acknowledge(self, sequence: int) -> None:
        """Everything up to a sequence is durable."""
        self._acknowledged = max(self._acknowledged, sequence)
        while self._in_flight and self._in_flight[0].frame.sequence <= sequence:
            queue, frame, size = self._in_flight.popleft()
            self._in_flight_bytes -= size
            queue.acknowledge(frame.content)
            if queue.is_retired and not queue and self._queues.get(queue.resource) is queue:
                del self._queues[queue.resource]
        if self._turns:  # else there is room for nothing
            self._changed.set()

    def planned(self, sequence: int, plan: int) -> None:
        """The other side says how the snapshot that began with a frame goes on."""
        queue = self._awaited.pop(sequence, None)
        if queue is not None:
            self._counts[_PLAN_NAMES.get(plan, _PLAN_NAMES[Plan.ALL])] += 1
            queue.planned(sequence, plan)
            self._queued(queue)

    def differing(self, sequence: int, positions: Sequence[int]) -> None:
        """The other side says what of a frame differs.

        Raises:
            IndexError: of something that was not in it.
        """
        queue = self._awaited.pop(sequence, None)
        if queue is not None:
            queue.differing(sequence, positions)
            self._queued(queue)

    def refused(self, sequence: int, key: str) -> None:
        """The other side has refused an object of a frame that is in flight."""
        refused = next((sent for sent in self._in_flight if sent.frame.sequence == sequence), None)
        if refused is None:
            return
        queue = refused.queue
        later = [
            sent.frame.content for sent in self._in_flight if sent.queue is queue and sent.frame.sequence > sequence
        ]
        if not any(isinstance(one, Deltas) and any(change.key == key for change in one.changes) for one in later):
            queue.refuse(refused.frame.content, key)

    def recheck(self, resource: GroupResource) -> None:
        """What was sent of a type does not add up to what is stored: has it compared."""
        queue = self._queues.get(resource)
        if queue is not None:
            self._counts["rechecks"] += 1
            queue.recheck()
            self._queued(queue)

    async def wait_changed(self) -> None:
        """Waits until `take` may answer differently, for the one task that sends; cancelling it changes nothing."""
        await self._changed.wait()
        self._changed.clear()

    def wake(self) -> None:
        """Ends the wait of `wait_changed`."""
        self._changed.set()

    @property
    def changes(self) -> int:
        """Changes that were put in since the start, those that coalesced too."""
        return self._counts["changes"]

    @property
    def waiting(self) -> int:
        """Entries that could be taken, where nothing but changes and markers waits; -1 where a listing does."""
        waiting = 0
        for queue in self._turns.values():
            if queue.holds_list:
                return -1
            waiting += len(queue)
        return waiting

    def left_out(self) -> Mapping[GroupResource, Sequence[str]]:
        """Keys of objects that were refused or cannot be sent, and are not compared: the first ten of each type."""
        queues = self._queues.items()
        return {resource: tuple(queue.left_out)[:NAMED_LEFT_OUT] for resource, queue in queues if queue.left_out}

    @property
    def is_drained(self) -> bool:
        """Whether everything was taken."""
        return not self._turns and not any(queue.holds_list for queue in self._queues.values())

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
            "replayed": self._counts["replayed"],
            "resent_frames": self._counts["resent_frames"],
            "changes": self._counts["changes"],
            "coalesced": self._counts["coalesced"],
            "overflows": self._counts["overflows"],
            "snapshots": self._counts["snapshots"],
            "lists_not_kept": self._counts["lists_not_kept"],
            "plans_nothing": self._counts["plans_nothing"],
            "plans_differing": self._counts["plans_differing"],
            "plans_all": self._counts["plans_all"],
            "rechecks": self._counts["rechecks"],
            "left_out": sum(len(queue.left_out) for queue in self._queues.values()),
        }

    def _new_queue(self, resource_type: ResourceType, source: TypeSource | None) -> TypeQueue:
        queue = TypeQueue(resource_type, source, self.bodies, self._spool)
        queue.has_plans = self._has_plans
        return queue

    def _replaced_all(
        self,
        queue: TypeQueue,
        resource_version: str,
        objects: Sequence[KubeObject],
        withheld: Mapping[str, KubeObject | None],
    ) -> None:
        if not self._is_open:
            queue.drop_list()
            self._counts["lists_not_kept"] += 1
        else:
            queue.replace(resource_version, objects, withheld)
            self._counts["snapshots"] += 1
        self._queued(queue)

    def _changed_object(self, queue: TypeQueue, *, has_replaced: bool) -> None:
        self._counts["changes"] += 1
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
        """Takes note of what was put into a queue, or dropped from it, and ends the wait of whoever sends."""
        self._note(queue)
        self._changed.set()

    def _note(self, queue: TypeQueue) -> None:
        """Takes note of what a queue holds now."""
        self._bytes += queue.bytes - queue.counted_bytes
        queue.counted_bytes = queue.bytes
        if queue.needs_hashing and queue not in self._unhashed:
            self._unhashed.append(queue)
        if queue.can_take:
            self._turns.setdefault(queue.resource, queue)
        else:
            self._turns.pop(queue.resource, None)


class _Sent(NamedTuple):
    """A frame in flight, and its size."""

    queue: TypeQueue
    frame: Frame
    size: int


class TypeSink:
    """The `DeltaSink` of one type's informer: queues what it is told, and never waits."""

    def __init__(self, outbox: Outbox, queue: TypeQueue) -> None:
        self._outbox = outbox
        self._queue = queue

    def replaced_all(
        self, resource_version: str, objects: Sequence[KubeObject], withheld: Mapping[str, KubeObject | None]
    ) -> None:
        """A list came: it is sent as a snapshot."""
        self._outbox._replaced_all(self._queue, resource_version, objects, withheld)

    def upserted(self, obj: KubeObject, before: KubeObject | None) -> None:
        """An object was added or updated."""
        if self._queue.takes_changes:
            self._outbox._changed_object(self._queue, has_replaced=self._queue.put(obj, before))

    def deleted(self, key: str, obj: KubeObject | None, before: KubeObject) -> None:
        """An object is gone."""
        if self._queue.takes_changes:
            self._outbox._changed_object(self._queue, has_replaced=self._queue.delete(key, before))

    def settled(self, low_water: str) -> None:
        """Everything up to this version was told."""
        if self._queue.takes_changes:
            self._queue.settled(low_water)

    def fetched(self, asked: Sequence[KubeObject], objects: Sequence[KubeObject]) -> None:
        """Objects that the queue asked its source to fetch came, as far as they could be had."""
        self._queue.fetched(asked, objects)
        self._outbox._queued(self._queue)

    def bookmark(self, resource_version: str) -> None:
        """Everything up to this version was told before."""
        if self._queue.takes_changes:
            self._queue.bookmark(resource_version)
            self._outbox._queued(self._queue)
