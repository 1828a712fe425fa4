"""Pusher: keeps a session with the aggregator and sends the outbox through it."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import grpc
import msgspec
import structlog

from federator._aio.task_group import task_group
from federator.agent.batch_window import BatchWindow
from federator.agent.frame import Deltas, Frame, SnapshotEnd
from federator.agent.outbox import Outbox
from federator.agent.settings import AgentSettings
from federator.agent.type_queue import MAX_CHANGES
from federator.api.key import local_key
from federator.api.resource import GroupResource, ResourceType
from federator.errors import AggregatorUnreachable, ClusterRemoved, FederatorError, SessionRefused
from federator.observability.heap import give_back
from federator.v1 import ingest_pb2, ingest_pb2_grpc
from federator.wire.dictionary import dictionary_from_proto
from federator.wire.digest import PROTOCOL
from federator.wire.limits import MAX_MESSAGE_BYTES
from federator.wire.resource_type import resource_type_from_proto
from federator.wire.status import from_rpc_error
from federator.wire.tls import explained, open_channel

log = structlog.get_logger(__name__)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # No HTTP/2 pings: heartbeats do their work, and more pings than a server's policy allows end the connection.
    ("grpc.keepalive_permit_without_calls", 0),
    # Each session has a connection of its own, and the pusher does the waiting between two of them.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)

SEQUENCE_GAP = "SEQUENCE_GAP"
"""Reason of the Nack that ends a session."""

SAME_PROOF = 0.001
"""Seconds by which a proof that was told before may seem to be newer: ages are differences of rounded times."""

TIMES_TOLD = 2
"""Heartbeats that tell one proof."""

GIVE_BACK_INTERVAL = 10.0
"""Seconds between two times that free memory is given back: the listings of a cluster do not end all at once."""

HOLD_STEP = 0.02
"""Seconds between two looks whether changes that are held back are enough for a frame by now."""

MAX_DOUBLINGS = 16
"""Of the wait between sessions; far beyond any longest wait."""

SILENT_BEATS = 3
"""Heartbeats the aggregator may miss before the session is given up; it sends them even while its disk is slow."""

RESCHEDULE_BEATS = 0.1
"""Heartbeats between two moves of that deadline: each acknowledgement would pay for a timer otherwise."""

Proof = tuple[GroupResource, float]


class Collection(Protocol):
    """What the pusher has to know of what is collected; the agent knows it."""

    def hello(self) -> ingest_pb2.Hello:
        """Introduces the agent with what it collects now."""
        ...

    def welcomed(self, held_types: Sequence[ResourceType], floors: Mapping[GroupResource, str]) -> None:
        """A session is open.

        Args:
            held_types: of which the aggregator holds objects: account for those that are not collected.
            floors: resourceVersions that the aggregator has reached, by type.
        """
        ...

    def proofs(self) -> Iterable[Proof]:
        """Per type, the seconds since the apiserver last gave a sign."""
        ...

    def proof_age(self, resource: GroupResource) -> float | None:
        """Seconds since the apiserver last gave a sign for a type; None where it has not yet."""
        ...

    def unread_groups(self) -> Iterable[str]:
        """API groups of which nothing is known at present."""
        ...

    def removed(self) -> None:
        """The cluster was taken out: this agent instance is not let in any more."""
        ...


class PushCall(Protocol):
    """What of grpc.aio's call is used; the stubs know it only partly."""

    async def write(self, request: ingest_pb2.PushRequest) -> None:
        """Sends a message, waiting while the peer takes none."""

    async def read(self) -> object:
        """Waits for a message, or EOF."""

    async def done_writing(self) -> None:
        """Tells the peer that nothing more will come."""

    def cancel(self) -> bool:
        """Ends the call; of no effect once it has ended."""


class PusherState(StrEnum):
    """What a pusher is doing."""

    CONNECTING = "CONNECTING"
    OPEN = "OPEN"
    BACKING_OFF = "BACKING_OFF"
    STOPPED = "STOPPED"


class PusherStatus(msgspec.Struct, frozen=True):
    """How a pusher stands with the aggregator.

    Attributes:
        state: what it is doing.
        term: of the open session, else of the last; 0 before the first.
        error: why there is no session, or None.
    """

    state: PusherState
    term: int = 0
    error: FederatorError | None = None


class Pusher:
    """Sends an outbox to one aggregator, for ever.

    A session that ends, for whatever reason, is followed by another after a wait with full jitter. A refusal is no
    exception: what stands against it may go away (the other agent ends, the operator removes the old cluster), so it
    is told in the status and the log, there once for each reason, and tried again.
    """

    def __init__(
        self,
        outbox: Outbox,
        settings: AgentSettings,
        collection: Collection,
    ) -> None:
        """Does nothing yet.

        Args:
            outbox: what is sent; used by no other pusher.
            settings: address, times.
            collection: what is collected.
        """
        self._outbox = outbox
        self._settings = settings
        self._collection = collection
        self._window = BatchWindow(longest=settings.batch_window, items=MAX_CHANGES)
        self._stopping = asyncio.Event()
        self._status = PusherStatus(PusherState.CONNECTING)
        self._told_reason = ""
        self._gives_back_at = -math.inf
        self._is_beat_due = False
        self._described: dict[GroupResource, ResourceType] | None = None  # last; None where nobody would remember
        self._proofs_told: dict[GroupResource, tuple[float, int]] = {}
        self._session_ends: Counter[str] = Counter()
        self._nacks: Counter[str] = Counter()
        self._sessions = 0

    def status(self) -> PusherStatus:
        """How it stands with the aggregator."""
        return self._status

    def statistics(self) -> Mapping[str, float | Mapping[str, int]]:
        """Sessions opened; ends of tries and sessions by reason; refused items by reason; seconds that changes wait."""
        return {
            "batch_window": self._window.seconds,
            "sessions": self._sessions,
            "session_ends": dict(self._session_ends),
            "nacks": dict(self._nacks),
        }

    def stop(self) -> None:
        """Lets `run` return once the open session has sent everything and said goodbye; at once where none is open.

        What is not acknowledged by then stays unsent for good: the next agent instance lists anew.
        """
        self._stopping.set()
        self._outbox.wake()

    async def run(self) -> None:
        """Pushes until stopped or cancelled; cancelled, it drops the connection without a goodbye."""
        attempt = 0
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            started = loop.time()
            self._status = PusherStatus(PusherState.CONNECTING, self._status.term, self._status.error)
            try:
                await self._session()
            except FederatorError as error:
                self._ended(error)
            finally:
                self._outbox.suspend()
            # A session that falls at once proves nothing: whoever refuses or breaks it shall not be pestered.
            attempt = 0 if loop.time() - started > self._settings.backoff_max else attempt + 1
            await self._back_off(attempt)
        self._status = PusherStatus(PusherState.STOPPED, self._status.term, self._status.error)

    async def _back_off(self, attempt: int) -> None:
        # Capped: after two hours of attempts the power no longer fits a float.
        longest = min(self._settings.backoff_max, self._settings.backoff_min * 2 ** min(attempt, MAX_DOUBLINGS))
        try:
            async with asyncio.timeout(random.uniform(0, longest)):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _ended(self, error: FederatorError) -> None:
        self._session_ends[error.reason] += 1
        if isinstance(error, ClusterRemoved):
            self._collection.removed()
        self._status = PusherStatus(PusherState.BACKING_OFF, self._status.term, error)
        if error.reason != self._told_reason:
            self._told_reason = error.reason
            report = log.warning if isinstance(error, SessionRefused) else log.info
            report("no session", cluster=self._settings.cluster_id, reason=error.reason, cause=str(error))

    async def _session(self) -> None:
        """One session, to its end; returns only after a goodbye.

        Raises:
            FederatorError: it could not be opened, or broke off.
        """
        address, tls = self._settings.aggregator, self._settings.tls
        # Read for each session: certificates are replaced long before the process is.
        pem = None if tls is None else await asyncio.to_thread(tls.read)
        try:
            async with open_channel(address, pem, CHANNEL_OPTIONS) as channel:
                call: PushCall = ingest_pb2_grpc.IngestServiceStub(channel).Push()  # type: ignore[call-arg]
                try:
                    welcome = await self._open(call)
                    await self._exchange(call, welcome)
                finally:
                    call.cancel()
        except grpc.aio.AioRpcError as error:
            raise explained(from_rpc_error(error, address), tls) from None
        except TimeoutError:
            raise AggregatorUnreachable(address, "it gave no sign of life in time") from None

    async def _open(self, call: PushCall) -> ingest_pb2.Welcome:
        async with asyncio.timeout(self._settings.welcome_timeout):
            hello = self._collection.hello()
            hello.dictionary_ids.extend(dictionary.dictionary_id for dictionary in self._outbox.bodies)
            await call.write(ingest_pb2.PushRequest(hello=hello))
            response = await _next(call)
        if response is None or not response.HasField("welcome"):
            raise AggregatorUnreachable(self._settings.aggregator, "it did not answer Hello with Welcome")
        welcome = response.welcome
        self._sessions += 1
        self._told_reason = ""
        self._proofs_told.clear()
        is_remembered = welcome.protocol >= PROTOCOL
        described = map(resource_type_from_proto, hello.types)
        self._described = {one.group_resource: one for one in described} if is_remembered else None
        self._status = PusherStatus(PusherState.OPEN, welcome.term)
        log.info(
            "session opened",
            cluster=self._settings.cluster_id,
            term=welcome.term,
            durable_sequence=welcome.durable_sequence,
            snapshot_all=welcome.snapshot_all,
        )
        self._outbox.resume(
            welcome.durable_sequence,
            snapshot_all=welcome.snapshot_all,
            window_bytes=welcome.window_bytes,
            dictionary_ids=frozenset(welcome.dictionary_ids),
            has_plans=welcome.protocol >= PROTOCOL,
        )
        self._collection.welcomed(
            [resource_type_from_proto(held) for held in welcome.held_types],
            {GroupResource(floor.group, floor.resource): floor.resource_version for floor in welcome.floors},
        )
        return welcome

    async def _exchange(self, call: PushCall, welcome: ingest_pb2.Welcome) -> None:
        interval = welcome.heartbeat_interval_ms / 1000
        name = f"push {self._settings.cluster_id}"
        async with task_group() as tasks:
            tasks.create_task(self._write(call, interval), name=f"{name} write")
            tasks.create_task(self._read(call, interval), name=f"{name} read")

    async def _write(self, call: PushCall, interval: float) -> None:
        """The only writer of the stream: a call takes one write at a time."""
        loop = asyncio.get_running_loop()
        self._is_beat_due = True
        timer: asyncio.TimerHandle | None = None
        try:
            while True:
                if self._is_beat_due:
                    self._is_beat_due = False
                    if timer is not None:
                        timer.cancel()
                    timer = loop.call_later(interval, self._beat)
                    await call.write(self._heartbeat())
                if self._outbox.prepare():
                    await asyncio.sleep(0)
                    continue
                if hold := self._hold(loop.time()):
                    await asyncio.sleep(min(hold, HOLD_STEP))
                    continue
                frame = self._outbox.take()
                if frame is not None:
                    self._outbox.flush()
                    await call.write(self._message(frame))
                    if isinstance(frame.content, Deltas):
                        self._window.sent(loop.time())
                    elif isinstance(frame.content, SnapshotEnd) and self._described is None:
                        self._is_beat_due = True  # a type becomes LIVE: its proof shall be there with it
                elif self._stopping.is_set() and self._outbox.is_drained:
                    await call.done_writing()
                    return
                else:
                    if self._outbox.has_released:
                        await self._give_back(loop.time())
                    await self._outbox.wait_changed()
        except asyncio.InvalidStateError:
            return  # the call has ended; why, the reader is told
        finally:
            if timer is not None:
                timer.cancel()

    def _beat(self) -> None:
        """Has a heartbeat written. A timer for all of them is cheaper than a deadline on each wait for a change."""
        self._is_beat_due = True
        self._outbox.wake()

    def _hold(self, now: float) -> float:
        """Seconds for which changes are held back; only changes ever are, and none of a session that is to end."""
        waiting = self._outbox.waiting
        hold = self._window.hold(now, self._outbox.changes, waiting)
        return hold if waiting > 0 and not self._stopping.is_set() else 0.0

    async def _give_back(self, now: float) -> None:
        """Gives back what listings took, at rest, and now and then."""
        if self._outbox.is_drained and now >= self._gives_back_at:
            self._outbox.has_released = False
            self._gives_back_at = now + GIVE_BACK_INTERVAL
            await asyncio.to_thread(give_back)

    def _message(self, frame: Frame) -> ingest_pb2.PushRequest:
        message = frame.to_message(is_type_known=self._is_described(frame.type))
        if isinstance(frame.content, SnapshotEnd):
            age = self._collection.proof_age(frame.type.group_resource)
            if age is not None:
                message.snapshot_end.proof_age_ms = int(age * 1000)
        return message

    def _is_described(self, resource_type: ResourceType) -> bool:
        """Whether this is what was last described of a type in this session, which it is from now on."""
        if self._described is None:
            return False
        before = self._described.get(resource_type.group_resource)
        self._described[resource_type.group_resource] = resource_type
        return before == resource_type

    def _heartbeat(self) -> ingest_pb2.PushRequest:
        """Tells each proof twice: the first time a type may not be known yet, since its frames wait to be committed."""
        now = asyncio.get_running_loop().time()
        heartbeat = ingest_pb2.Heartbeat(unread_groups=self._collection.unread_groups())
        for resource, age in self._collection.proofs():
            proved_at, times = self._proofs_told.get(resource, (-math.inf, 0))
            if now - age > proved_at + SAME_PROOF:
                proved_at, times = now - age, 0
            if times < TIMES_TOLD:
                self._proofs_told[resource] = (proved_at, times + 1)
                heartbeat.proofs.add(group=resource.group, resource=resource.resource, age_ms=int(age * 1000))
        return ingest_pb2.PushRequest(heartbeat=heartbeat)

    async def _read(self, call: PushCall, interval: float) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as silence:
            next_reschedule = 0.0
            while True:
                if (now := loop.time()) >= next_reschedule:
                    next_reschedule = now + interval * RESCHEDULE_BEATS
                    silence.reschedule(now + interval * SILENT_BEATS)
                response = await _next(call)
                if response is None:
                    if self._stopping.is_set():
                        return
                    raise AggregatorUnreachable(self._settings.aggregator, "it ended the session")
                self._take_response(response)

    def _take_response(self, response: ingest_pb2.PushResponse) -> None:
        match response.WhichOneof("frame"):
            case "ack":
                self._outbox.acknowledge(response.ack.sequence)
            case "nack":
                self._refused(response.nack)
            case "dictionary":
                self._outbox.add_dictionary(dictionary_from_proto(response.dictionary))
            case "snapshot_plan":
                self._outbox.planned(response.snapshot_plan.sequence, response.snapshot_plan.plan)
            case "differing":
                self._take_differing(response.differing)
            case "digest_mismatch":
                mismatch = response.digest_mismatch
                self._outbox.recheck(GroupResource(mismatch.group, mismatch.resource))
            case "snapshot_request":
                for requested in response.snapshot_request.types:
                    self._outbox.list_anew(GroupResource(requested.group, requested.resource))

    def _take_differing(self, differing: ingest_pb2.Differing) -> None:
        try:
            self._outbox.differing(differing.sequence, differing.positions)
        except IndexError:
            raise FederatorError(f"the aggregator speaks of what frame {differing.sequence} does not have") from None

    def _refused(self, nack: ingest_pb2.Nack) -> None:
        self._nacks[nack.reason] += 1
        log.warning(
            "item refused",
            cluster=self._settings.cluster_id,
            reason=nack.reason,
            cause=nack.message,
            namespace=nack.namespace,
            name=nack.name,
        )
        if nack.reason == SEQUENCE_GAP:
            # Nothing after the gap is taken any more; a new session says where to go on.
            raise FederatorError(f"the aggregator expected frame {nack.expected_sequence}, not {nack.sequence}")
        self._outbox.refused(nack.sequence, local_key(nack.namespace, nack.name))


async def _next(call: PushCall) -> ingest_pb2.PushResponse | None:
    """The next response, or None after the last."""
    response = await call.read()
    return response if isinstance(response, ingest_pb2.PushResponse) else None
