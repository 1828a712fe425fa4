"""Pusher against a scripted aggregator behind a real listener: refusals, silence, gaps, goodbyes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from federator.agent.outbox import Outbox
from federator.agent.pusher import Proof, Pusher, PusherState
from federator.agent.settings import AgentSettings
from federator.api.cluster import ClusterID
from federator.api.object import KubeObject
from federator.api.resource import GroupResource, ResourceType
from federator.errors import AggregatorUnreachable, ClusterHeld, FederatorError, LedgerFull
from federator.v1 import ingest_pb2, ingest_pb2_grpc
from federator.wire.limits import MAX_MESSAGE_BYTES
from federator.wire.resource_type import resource_type_to_proto
from federator.wire.status import aio_error_boundary
from tests.unit.agent.scripted_cluster import PODS
from tests.unit.agent.scripted_informer import ScriptedInformer

Script = Callable[[Any], Awaitable[None]]


class Scripted(ingest_pb2_grpc.IngestServiceServicer):
    """Plays one script per session, the last one again and again."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.received: list[ingest_pb2.PushRequest] = []
        self.sessions = 0

    @aio_error_boundary
    async def Push(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # noqa: N802
        self.sessions += 1
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        await script(context)

    async def welcome(self, context: Any, **fields: Any) -> None:
        self.received.append(await context.read())
        values = {"term": self.sessions, "window_bytes": 1 << 20, "heartbeat_interval_ms": 50, "snapshot_all": True}
        await context.write(ingest_pb2.PushResponse(welcome=ingest_pb2.Welcome(**(values | fields))))

    async def take(self, context: Any) -> None:
        """Takes and acknowledges everything until the goodbye."""
        await self.welcome(context, heartbeat_interval_ms=150)  # a silence is longer than a machine's stall
        while isinstance(request := await context.read(), ingest_pb2.PushRequest):
            self.received.append(request)
            await context.write(ingest_pb2.PushResponse(ack=ingest_pb2.Ack(sequence=request.sequence)))

    async def swallow(self, context: Any) -> None:
        """Welcomes, and says nothing more."""
        await self.welcome(context)
        while isinstance(await context.read(), ingest_pb2.PushRequest):
            pass

    async def full(self, context: Any) -> None:
        raise LedgerFull("test")

    async def held(self, context: Any) -> None:
        raise ClusterHeld("c", "other")

    def kinds(self) -> list[str | None]:
        return [request.WhichOneof("frame") for request in self.received]

    def numbered(self) -> list[str | None]:
        return [request.WhichOneof("frame") for request in self.received if request.sequence]


class Nothing:
    """A collection of nothing."""

    def __init__(self) -> None:
        self.held: list[ResourceType] = []
        self.floors: dict[GroupResource, str] = {}
        self.is_removed = False
        self.last_proof: float | None = None  # loop time; None for always a moment ago

    def hello(self) -> ingest_pb2.Hello:
        return ingest_pb2.Hello(cluster_id="c")

    def welcomed(self, held_types: Sequence[ResourceType], floors: Mapping[GroupResource, str]) -> None:
        self.held = list(held_types)
        self.floors = dict(floors)

    def proof_age(self, resource: GroupResource) -> float | None:
        return dict(self.proofs()).get(resource)

    def removed(self) -> None:
        self.is_removed = True

    def unread_groups(self) -> Iterable[str]:
        return ["example.com"]

    def proofs(self) -> Iterable[Proof]:
        age = 1.25 if self.last_proof is None else asyncio.get_running_loop().time() - self.last_proof
        return [(PODS.group_resource, age)]


class Running:
    """A pusher that runs against a script."""

    def __init__(self, aggregator: Scripted, address: str, **changes: Any) -> None:
        settings = {"backoff_min": 0.01, "backoff_max": 0.02, "welcome_timeout": 0.5} | changes
        self.aggregator = aggregator
        self.address = address
        self.outbox = Outbox()
        self.collection = Nothing()
        self.sink = ScriptedInformer(self.outbox, PODS)
        self.pusher = Pusher(
            self.outbox, AgentSettings(cluster_id=ClusterID("c"), aggregator=address, **settings), self.collection
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)])
        ingest_pb2_grpc.add_IngestServiceServicer_to_server(self.aggregator, server)
        server.add_insecure_port(self.address)
        await server.start()
        task = asyncio.create_task(self.pusher.run(), name="pusher under test")
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await server.stop(0)

    def error(self) -> FederatorError | None:
        return self.pusher.status().error


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the state has no event
            await asyncio.sleep(0.005)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/a.sock"


def pod(name: str) -> KubeObject:
    return KubeObject("ns", name, "u", "1", b"{}", 1)


async def test_a_refusal_is_told_once_per_reason_and_tried_again(address: str) -> None:
    aggregator = Scripted()
    aggregator.scripts = [aggregator.held, aggregator.held, aggregator.held, aggregator.full, aggregator.take]
    running = Running(aggregator, address)
    with capture_logs() as logs:
        async with running.running():
            await until(lambda: isinstance(running.error(), ClusterHeld))
            await until(lambda: running.pusher.status().state is PusherState.OPEN)
    told = [(log["log_level"], log["reason"]) for log in logs if log["event"] == "no session"]
    assert told == [("warning", "CLUSTER_HELD"), ("info", "LEDGER_FULL")]
    assert running.error() is None
    assert running.pusher.statistics()["session_ends"] == {"CLUSTER_HELD": 3, "LEDGER_FULL": 1}


async def test_nobody_there_is_waited_for(address: str) -> None:
    running = Running(Scripted(), address)
    task = asyncio.create_task(running.pusher.run())
    await until(lambda: isinstance(running.error(), AggregatorUnreachable))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_aggregator_that_says_nothing_is_left(address: str) -> None:
    aggregator = Scripted()
    aggregator.scripts = [aggregator.swallow]
    running = Running(aggregator, address)
    with capture_logs() as logs:
        async with running.running():
            await until(lambda: aggregator.sessions >= 2)
    assert "sign of life" in next(log["cause"] for log in logs if log["event"] == "no session")


async def test_no_welcome_in_time_is_a_failure(address: str) -> None:
    async def hang(context: Any) -> None:
        await asyncio.sleep(3600)

    aggregator = Scripted(hang)
    running = Running(aggregator, address, welcome_timeout=0.05)
    async with running.running():
        await until(lambda: aggregator.sessions >= 2)
    assert running.pusher.statistics()["session_ends"].keys() == {"AGGREGATOR_UNREACHABLE"}  # type: ignore[union-attr]


async def test_it_sends_heartbeats_with_proofs_and_a_proof_with_each_snapshot(address: str) -> None:
    aggregator = Scripted()

    async def slow_beats(context: Any) -> None:
        await aggregator.welcome(context, heartbeat_interval_ms=3_600_000)
        while isinstance(request := await context.read(), ingest_pb2.PushRequest):
            aggregator.received.append(request)

    aggregator.scripts = [slow_beats]
    running = Running(aggregator, address)
    async with running.running():
        await until(lambda: running.pusher.status().state is PusherState.OPEN)
        running.sink.replaced_all("1", [])
        await until(lambda: len(aggregator.received) == 5)
    assert aggregator.kinds() == ["hello", "heartbeat", "snapshot_begin", "snapshot_end", "heartbeat"]
    (proof,) = aggregator.received[-1].heartbeat.proofs
    assert (proof.group, proof.resource, proof.age_ms) == ("", "pods", 1250)


async def test_of_a_protocol_that_remembers_types_are_named_and_proofs_are_told_twice(address: str) -> None:
    aggregator = Scripted()

    async def plans(context: Any) -> None:
        await aggregator.welcome(context, protocol=1, heartbeat_interval_ms=100)
        while isinstance(request := await context.read(), ingest_pb2.PushRequest):
            aggregator.received.append(request)
            if request.HasField("snapshot_begin"):
                nothing = ingest_pb2.SnapshotPlan.PLAN_NOTHING
                plan = ingest_pb2.SnapshotPlan(sequence=request.sequence, plan=nothing)
                await context.write(ingest_pb2.PushResponse(snapshot_plan=plan))
            elif request.HasField("heartbeat"):
                await context.write(ingest_pb2.PushResponse(heartbeat=request.heartbeat))

    aggregator.scripts = [plans]
    running = Running(aggregator, address)
    running.collection.last_proof = asyncio.get_running_loop().time() - 1.25
    async with running.running():
        await until(lambda: running.pusher.status().state is PusherState.OPEN)
        for version in ("1", "2"):
            running.sink.replaced_all(version, [])
            await until(lambda version=version: aggregator.numbered().count("snapshot_end") == int(version))  # type: ignore[misc]
        await until(lambda: aggregator.kinds().count("heartbeat") >= 4)
        running.collection.last_proof += 1
        await until(lambda: aggregator.kinds().count("heartbeat") >= 8)
    begins = [request.snapshot_begin for request in aggregator.received if request.HasField("snapshot_begin")]
    assert [(begin.type.resource, begin.type.kind) for begin in begins] == [("pods", "Pod"), ("pods", "")]
    ends = [request.snapshot_end for request in aggregator.received if request.HasField("snapshot_end")]
    assert all(1250 <= end.proof_age_ms < 60_000 for end in ends)
    told = [len(request.heartbeat.proofs) for request in aggregator.received if request.HasField("heartbeat")]
    # On a machine that stalls between two looks at the clock, a proof passes for a newer one.
    assert told[:2] == [1, 1]
    assert 0 in told
    assert sum(told) >= 4


async def test_stopped_it_sends_what_it_has_says_goodbye_and_returns(address: str) -> None:
    aggregator = Scripted()
    aggregator.scripts = [aggregator.take]
    running = Running(aggregator, address)
    async with running.running() as task:
        await until(lambda: running.pusher.status().state is PusherState.OPEN)
        running.sink.replaced_all("1", [pod(f"p{number}") for number in range(1000)])
        running.pusher.stop()
        async with asyncio.timeout(5):
            await task
    assert aggregator.numbered()[-2:] == ["snapshot_items", "snapshot_end"]
    assert running.outbox.statistics()["in_flight_frames"] == 0
    assert running.pusher.status().state is PusherState.STOPPED


async def test_stopped_without_a_session_it_returns_at_once(address: str) -> None:
    running = Running(Scripted(), address, backoff_min=3600.0, backoff_max=3600.0)
    task = asyncio.create_task(running.pusher.run())
    await until(lambda: running.pusher.status().state is PusherState.BACKING_OFF)
    running.pusher.stop()
    async with asyncio.timeout(1):
        await task


async def test_the_wait_stays_a_wait_after_days_of_attempts(address: str) -> None:
    running = Running(Scripted(), address, backoff_min=0.001, backoff_max=0.002)
    await running.pusher._back_off(100_000)


async def test_a_gap_ends_the_session_and_the_next_one_goes_on_from_what_is_durable(address: str) -> None:
    aggregator = Scripted()

    async def gap(context: Any) -> None:
        await aggregator.welcome(context)
        nack = ingest_pb2.Nack(reason="SEQUENCE_GAP", sequence=9, expected_sequence=4)
        await context.write(ingest_pb2.PushResponse(nack=nack))
        await asyncio.sleep(3600)

    aggregator.scripts = [gap, aggregator.take]
    running = Running(aggregator, address)
    async with running.running():
        await until(lambda: aggregator.sessions == 2)
    assert running.pusher.statistics()["nacks"] == {"SEQUENCE_GAP": 1}


async def test_heartbeats_keep_their_time_while_changes_are_sent(address: str) -> None:
    aggregator = Scripted()
    aggregator.scripts = [aggregator.take]
    running = Running(aggregator, address)
    async with running.running():
        await until(lambda: running.pusher.status().state is PusherState.OPEN)
        running.sink.replaced_all("1", [])

        def changed_until_four_beats() -> bool:
            running.sink.upserted(pod("a"))
            return aggregator.kinds().count("heartbeat") >= 4

        await until(changed_until_four_beats)
    assert aggregator.kinds().count("deltas") > 1
    assert aggregator.sessions == 1, "acknowledgements are signs of life"


async def test_a_wanted_listing_is_asked_of_the_informer_and_other_nacks_only_counted(address: str) -> None:
    aggregator = Scripted()
    is_listed = asyncio.Event()

    async def ask(context: Any) -> None:
        held = [resource_type_to_proto(PODS)]
        await aggregator.welcome(context, snapshot_all=False, held_types=held, heartbeat_interval_ms=3_600_000)
        await context.write(ingest_pb2.PushResponse(nack=ingest_pb2.Nack(reason="OBJECT_MALFORMED", name="x")))
        await until(lambda: running.pusher.statistics()["nacks"])
        await is_listed.wait()
        wanted = ingest_pb2.SnapshotRequest(types=[resource_type_to_proto(PODS)])
        await context.write(ingest_pb2.PushResponse(snapshot_request=wanted))
        while isinstance(await context.read(), ingest_pb2.PushRequest):
            await context.write(ingest_pb2.PushResponse(heartbeat=ingest_pb2.Heartbeat()))

    aggregator.scripts = [ask]
    running = Running(aggregator, address)
    async with running.running():
        await until(lambda: running.pusher.status().state is PusherState.OPEN)
        running.sink.replaced_all("1", [])
        is_listed.set()
        await until(lambda: running.sink.lists == 1)
        assert running.collection.held == [PODS]
        assert running.pusher.statistics()["nacks"] == {"OBJECT_MALFORMED": 1}
        assert aggregator.sessions == 1
