"""Session: one agent's stream, from Welcome to its end."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import msgspec

from federator._aio.task_group import task_group
from federator.aggregator.ingest.batches import BatchRun
from federator.aggregator.ingest.frames import (
    Bookmark,
    Changes,
    Frame,
    ItemRefused,
    SnapshotBegin,
    SnapshotEnd,
    StateBuckets,
    StateItems,
    TypeStatus,
    decode,
    proofs,
)
from federator.aggregator.ingest.known_types import KnownTypes
from federator.aggregator.ingest.listings import Listings
from federator.aggregator.ingest.shared import Shared
from federator.aggregator.ledger.records import ClusterRecord, Delete
from federator.api.cluster import STATES_DIFFER, ClusterID, TypeState
from federator.api.resource import GroupResource
from federator.v1 import ingest_pb2
from federator.wire.body import Dictionary
from federator.wire.dictionary import dictionary_to_proto

RUN_BYTES = 1024 * 1024
"""Bytes of frames that are committed as one run, and acknowledged together."""

MAX_NACKS = 1000
"""Nacks that wait to be sent; more are counted and dropped, the oldest first."""

MAX_ANSWERS = 16
"""Answers to frames that wait to be sent; then committing waits. One has up to 64 Ki positions, in some 200 KB."""

OBJECT_MALFORMED = "OBJECT_MALFORMED"
SEQUENCE_GAP = "SEQUENCE_GAP"


class Stream(Protocol):
    """What of grpc.aio's context a session uses; one reader and one writer at a time."""

    async def read(self) -> object:
        """Waits for a message, or EOF."""

    async def write(self, message: ingest_pb2.PushResponse) -> None:
        """Sends a message, waiting while the peer takes none."""


class _Received(msgspec.Struct, frozen=True):
    """A checked frame that waits for its commit."""

    sequence: int
    frame: Frame
    refused: tuple[ItemRefused, ...]
    bytes: int


class Session:
    """Reads, commits and acknowledges one agent's frames.

    - *In order*: frames are committed in the order of their sequence; a frame beyond a gap is not taken.
    - *Pipelined*: reading goes on while commits are in flight, up to a window of bytes; then the stream waits (hop 6).
    - *Durable before acknowledged*: an Ack is sent once the ledger has everything up to it.
    """

    def __init__(
        self,
        stream: Stream,
        record: ClusterRecord,
        shared: Shared,
        ended: asyncio.Future[None],
        types: KnownTypes | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
            stream: the agent's.
            record: of the cluster, with this session's term.
            shared: what it works with.
            ended: ends the session from outside, with an error or without.
            types: that Hello has described; None for none.
        """
        self._stream = stream
        self._cluster_id = record.cluster_id
        self._term = record.term
        self._ledger = shared.ledger
        self._lifecycle = shared.lifecycle
        self._freshness = shared.freshness
        self._settings = shared.settings
        self._counts = shared.counts
        self._ended = ended
        self._types = types or KnownTypes()
        self._listings = Listings(
            record,
            shared,
            send=self._answer,
            wants_bodies=self._give_dictionary,
            request_listing=lambda resource: self.request_listing(record.cluster_id, resource),
        )
        self._expected = record.durable_sequence + 1
        self._is_past_gap = False
        self._received: deque[_Received] = deque()
        self._received_bytes = 0
        self._answers: deque[ingest_pb2.PushResponse] = deque()
        self._nacks: deque[ingest_pb2.Nack] = deque(maxlen=MAX_NACKS)
        self._offered: dict[GroupResource, Dictionary] = {}
        self._dictionaries: deque[Dictionary] = deque()
        self._wanted_listings: dict[GroupResource, None] = {}
        self._acknowledged = record.durable_sequence
        self._told = record.durable_sequence
        self._is_read = False
        self._is_committed = False
        self._is_beat_due = False
        self._beat: asyncio.TimerHandle | None = None
        self._readable = asyncio.Event()
        self._committable = asyncio.Event()
        self._sendable = asyncio.Event()
        self._answerable = asyncio.Event()

    async def run(self) -> None:
        """Serves the stream until the agent has said goodbye and everything is acknowledged, or until it is ended.

        Cancelled, it leaves no task; what it had handed to the ledger may still become durable.

        Raises:
            InvalidInput: a frame is malformed.
            SessionFenced, LedgerFull: the ledger does not take it.
            FederatorError: it was ended with this.
        """
        name = f"session {self._cluster_id} {self._term}"
        try:
            async with task_group() as tasks:
                ending = tasks.create_task(self._await_end(), name=f"{name} end")
                tasks.create_task(self._read(), name=f"{name} read")
                tasks.create_task(self._commit(), name=f"{name} commit")
                await self._send()
                ending.cancel()
        except _Ended:
            return
        finally:
            if self._beat is not None:
                self._beat.cancel()
            self._listings.close()

    def offer(self, dictionary: Dictionary) -> None:
        """Gives the agent a dictionary as soon as it sends bodies of the type: one has up to 128 KiB."""
        self._offered[dictionary.resource] = dictionary

    def _give_dictionary(self, resource: GroupResource) -> None:
        dictionary = self._offered.pop(resource, None)
        if dictionary is not None:
            self._dictionaries.append(dictionary)
            self._sendable.set()

    def request_listing(self, cluster_id: ClusterID, resource: GroupResource) -> None:
        """Asks the agent to list a type anew, if it is the cluster's, collects the type and is not listing it."""
        is_ours = cluster_id == self._cluster_id and self._lifecycle.collects(cluster_id, resource)
        if is_ours and resource not in self._listings:
            self._wanted_listings[resource] = None
            self._sendable.set()

    async def _await_end(self) -> None:
        await asyncio.shield(self._ended)
        raise _Ended

    # Reading: stream -> checked frames that wait.

    async def _read(self) -> None:
        while isinstance(request := await self._stream.read(), ingest_pb2.PushRequest):
            await self._lifecycle.heard(self._cluster_id, self._term)
            size = request.ByteSize()
            self._counts.bytes[self._cluster_id] += size
            self._counts.frames[self._cluster_id] += 1
            if request.HasField("heartbeat"):
                self._take_heartbeat(request.heartbeat)
            elif self._is_next(request.sequence):
                self._types.complete(request)
                frame, refused = await decode(request, self._ledger.bodies, self._ledger.turn)
                await self._queue(_Received(request.sequence, frame, tuple(refused), size))
        self._is_read = True
        self._committable.set()

    def _take_heartbeat(self, heartbeat: ingest_pb2.Heartbeat) -> None:
        self._freshness.unread_groups(self._cluster_id, heartbeat.unread_groups)
        for proof in proofs(heartbeat):
            if self._lifecycle.collects(self._cluster_id, proof.resource):
                self._freshness.proved(self._cluster_id, proof.resource, proof.age)

    def _is_next(self, sequence: int) -> bool:
        """Whether a frame is to be taken. A repeated one is durable or on its way; one past a gap must come again."""
        if sequence == self._expected:
            self._expected += 1
            return True
        if sequence > self._expected and not self._is_past_gap:
            self._is_past_gap = True
            self._nack(
                ingest_pb2.Nack(
                    sequence=sequence,
                    reason=SEQUENCE_GAP,
                    message=f"frame {self._expected} was expected",
                    expected_sequence=self._expected,
                )
            )
        self._counts.rejected[self._cluster_id, "SEQUENCE_REPEATED" if sequence < self._expected else SEQUENCE_GAP] += 1
        return False

    async def _queue(self, received: _Received) -> None:
        while self._received_bytes and self._received_bytes + received.bytes > self._settings.window_bytes:
            self._readable.clear()
            await self._readable.wait()
        self._received.append(received)
        self._received_bytes += received.bytes
        self._committable.set()

    # Committing: frames that wait -> ledger.

    async def _commit(self) -> None:
        while True:
            if run := self._next_run():
                await self._commit_run(run)
                self._received_bytes -= sum(received.bytes for received in run)
                self._acknowledged = run[-1].sequence
                self._readable.set()
                self._sendable.set()
            elif self._is_read:
                break
            else:
                self._committable.clear()
                await self._committable.wait()
        self._is_committed = True
        self._sendable.set()

    def _next_run(self) -> list[_Received]:
        run: list[_Received] = []
        size = 0
        while self._received and size < RUN_BYTES:
            run.append(self._received.popleft())
            size += run[-1].bytes
        return run

    async def _commit_run(self, run: list[_Received]) -> None:
        batches = BatchRun(self._ledger, self._cluster_id, self._term, self._listings.committed)
        for received in run:
            await self._wait_answerable()
            match received.frame:
                case Changes() as changes:
                    if self._offered:
                        self._give_dictionary(changes.type.group_resource)
                    batches.add(changes, self._listings.note(changes, received.refused))
                    self._nack_items(received)
                case Bookmark() as bookmark:
                    await self._listings.bookmark(bookmark, batches)
                case SnapshotBegin() as begin:
                    await self._listings.begin(begin, received.sequence, batches)
                case StateBuckets() as buckets:
                    await self._listings.compare_buckets(buckets, received.sequence, batches)
                case StateItems() as items:
                    self._listings.compare_states(items, received.sequence)
                case SnapshotEnd() as end:
                    await self._listings.end(end, batches)
                case TypeStatus() as status:
                    await self._take_status(status, batches)
        await batches.finish(run[-1].sequence, run[-1].frame.type)

    async def _take_status(self, status: TypeStatus, batches: BatchRun) -> None:
        resource, state, reason = status.type.group_resource, status.state, status.reason
        await batches.flush()
        if state in {TypeState.ABSENT, TypeState.NOT_COLLECTED}:
            self._listings.drop(resource)
            keys = self._ledger.keys(self._cluster_id, resource)
            await batches.delete(status.type, [Delete(key.namespace, key.name) for key in keys])
        elif state is TypeState.LIVE and self._listings.differs(resource):  # its apiserver is well, what is here is not
            state, reason = TypeState.STALE, STATES_DIFFER
        await self._lifecycle.type_told(self._cluster_id, self._term, status.type, state, reason)

    # Sending: acknowledgements, refusals, answers, dictionaries, heartbeats.

    async def _send(self) -> None:
        """The only writer of the stream; ends once everything that was read is acknowledged."""
        self._beat_later()
        while True:
            self._sendable.clear()
            is_last = self._is_committed  # looked at first: what is told below is then all there is
            while self._nacks:
                await self._stream.write(ingest_pb2.PushResponse(nack=self._nacks.popleft()))
            if self._told < self._acknowledged:
                self._told = self._acknowledged
                await self._stream.write(ingest_pb2.PushResponse(ack=ingest_pb2.Ack(sequence=self._told)))
            while self._dictionaries and not is_last:  # before the answer that asks for what it is good for
                message = dictionary_to_proto(self._dictionaries.popleft())
                await self._stream.write(ingest_pb2.PushResponse(dictionary=message))
            while self._answers:
                await self._stream.write(self._answers.popleft())
                self._answerable.set()
            if is_last:
                return
            if self._wanted_listings:
                wanted, self._wanted_listings = self._wanted_listings, {}
                request = ingest_pb2.SnapshotRequest()
                for group, plural in wanted:
                    request.types.add(group=group, resource=plural)
                await self._stream.write(ingest_pb2.PushResponse(snapshot_request=request))
            if self._is_beat_due:
                self._beat_later()
                await self._stream.write(ingest_pb2.PushResponse(heartbeat=ingest_pb2.Heartbeat()))
            await self._sendable.wait()

    def _beat_later(self) -> None:
        # A timer of its own: to wait for what is to be sent with a timeout would make one for each acknowledgement.
        self._is_beat_due = False
        self._beat = asyncio.get_running_loop().call_later(self._settings.heartbeat_interval, self._beat_now)

    def _beat_now(self) -> None:
        self._is_beat_due = True
        self._sendable.set()

    def _answer(self, answer: ingest_pb2.PushResponse) -> None:
        self._answers.append(answer)
        self._sendable.set()

    async def _wait_answerable(self) -> None:
        while len(self._answers) >= MAX_ANSWERS:
            self._answerable.clear()
            await self._answerable.wait()

    def _nack_items(self, received: _Received) -> None:
        for item in received.refused:
            self._counts.rejected[self._cluster_id, OBJECT_MALFORMED] += 1
            self._nack(
                ingest_pb2.Nack(
                    sequence=received.sequence,
                    reason=OBJECT_MALFORMED,
                    message=item.message,
                    namespace=item.namespace,
                    name=item.name,
                )
            )

    def _nack(self, nack: ingest_pb2.Nack) -> None:
        self._nacks.append(nack)
        self._sendable.set()


class _Ended(Exception):
    """The session was ended from outside, without an error."""
