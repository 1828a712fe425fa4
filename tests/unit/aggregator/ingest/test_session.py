"""Session over a scripted stream: pipelining, bounds, and what an Ack promises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from federator.aggregator.ingest.lifecycle import Candidate, ClusterLifecycle
from federator.aggregator.ingest.session import MAX_ANSWERS, Session
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ingest.shared import Shared
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import Batch, ClusterRecord, Commit
from federator.aggregator.merge.digest_table import DigestTable
from federator.api.cluster import ClusterID
from federator.errors import SessionFenced
from federator.v1 import ingest_pb2
from federator.wire.resource_type import resource_type_to_proto
from tests.integration.push import comparing_agent
from tests.integration.push.raw_agent import pushed
from tests.unit.agent.scripted_cluster import PODS

C = ClusterID("c")


class SlowLedger(MemoryLedger):
    """Commits only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may_commit = asyncio.Event()
        self.started = 0
        self.is_waiting = False

    async def append(self, batch: Batch) -> Commit:
        self.started += 1
        self.is_waiting = not self.may_commit.is_set()
        await self.may_commit.wait()
        return await super().append(batch)


class Stream:
    """A stream whose messages a test puts in and takes out."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[object] = asyncio.Queue()
        self.written: list[ingest_pb2.PushResponse] = []
        self.reads = 0
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def read(self) -> object:
        message = await self.incoming.get()
        self.reads += 1
        return message

    async def write(self, message: ingest_pb2.PushResponse) -> None:
        await self.may_write.wait()
        self.written.append(message)

    def answers(self, kind: str) -> list[Any]:
        return [getattr(message, kind) for message in self.written if message.WhichOneof("frame") == kind]

    def acks(self) -> list[int]:
        return [message.ack.sequence for message in self.written if message.HasField("ack")]


class Nobody:
    def seen(self, *_: Any) -> None: ...

    def proved(self, *_: Any) -> None: ...

    def unread_groups(self, *_: Any) -> None: ...


class Running:
    """A session that runs."""

    def __init__(self, settings: IngestSettings) -> None:
        self.settings = settings
        self.ledger = SlowLedger()
        self.lifecycle = ClusterLifecycle(self.ledger, Nobody(), settings)
        self.stream = Stream()
        digests = DigestTable()
        self.ledger.on_commit(digests.apply)
        self.shared = Shared(self.ledger, self.lifecycle, Nobody(), digests, settings)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> asyncio.Task[None]:
        record = ClusterRecord(C, "uid", agent_instance="one")
        opened = await self.lifecycle.open(Candidate(record, (PODS,), False, lambda error: None))
        session = Session(self.stream, opened.record, self.shared, self.ended)
        return asyncio.create_task(session.run(), name="session under test")


def deltas(sequence: int, name: str) -> ingest_pb2.PushRequest:
    delta = ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=pushed(name))
    frame = ingest_pb2.Deltas(type=resource_type_to_proto(PODS), deltas=[delta])
    return ingest_pb2.PushRequest(sequence=sequence, deltas=frame)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to that")


async def test_reading_goes_on_while_a_commit_is_in_flight_up_to_the_window() -> None:
    size = deltas(1, "p00").ByteSize()
    running = Running(IngestSettings(window_bytes=10 * size))
    task = await running.start()
    for sequence in range(1, 101):
        running.stream.incoming.put_nowait(deltas(sequence, f"p{sequence:02}"))
    await until(lambda: running.ledger.started == 1 and running.stream.reads >= 11)
    for _ in range(200):
        await asyncio.sleep(0)
    assert running.stream.reads <= 13, "one run in flight, a window that waits, and one frame in hand"
    assert running.stream.acks() == []
    running.ledger.may_commit.set()
    running.stream.incoming.put_nowait(None)
    began = asyncio.get_running_loop().time()
    await task
    assert asyncio.get_running_loop().time() - began < running.settings.heartbeat_interval, (
        "a goodbye waits for no beat"
    )
    assert running.stream.acks()[-1] == 100
    assert len(list(running.ledger.keys(C, PODS.group_resource))) == 100
    assert running.ledger.started < 30, "frames that waited share commits"


async def test_nothing_is_acknowledged_before_it_is_durable() -> None:
    running = Running(IngestSettings())
    task = await running.start()
    running.stream.incoming.put_nowait(deltas(1, "a"))
    await until(lambda: running.ledger.started == 1)
    assert running.stream.acks() == []
    running.ledger.may_commit.set()
    await until(lambda: running.stream.acks() == [1])
    assert running.ledger.clusters()[C].durable_sequence == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def digest(*names: str) -> ingest_pb2.Digest:
    return comparing_agent.digest([pushed(name) for name in names])


async def test_what_came_before_a_digest_is_committed_before_it_is_compared() -> None:
    """Also where all of it is one run."""
    running = Running(IngestSettings())
    task = await running.start()
    of = resource_type_to_proto(PODS)
    requests = [
        deltas(1, "a"),  # is being committed while the others come
        deltas(2, "b"),
        ingest_pb2.PushRequest(
            sequence=3, snapshot_begin=ingest_pb2.SnapshotBegin(type=of, resource_version="100", digest=digest(*"ab"))
        ),
        ingest_pb2.PushRequest(sequence=4, snapshot_end=ingest_pb2.SnapshotEnd(type=of, resource_version="100")),
        deltas(5, "c"),
        ingest_pb2.PushRequest(
            sequence=6, bookmark=ingest_pb2.Bookmark(type=of, resource_version="200", digest=digest(*"abc"))
        ),
        deltas(7, "d"),
    ]
    for request in requests:
        running.stream.incoming.put_nowait(request)
    await until(lambda: running.stream.reads == len(requests))
    running.ledger.may_commit.set()
    await until(lambda: running.stream.acks()[-1:] == [7])
    (plan,) = running.stream.answers("snapshot_plan")
    assert (plan.sequence, plan.plan) == (3, ingest_pb2.SnapshotPlan.PLAN_NOTHING)
    assert running.shared.counts.comparisons == {(C, "equal"): 1}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_came_before_buckets_is_committed_before_they_are_compared() -> None:
    running = Running(IngestSettings())
    running.ledger.may_commit.set()
    task = await running.start()
    running.stream.incoming.put_nowait(deltas(1, "a"))
    begin = comparing_agent.begin([pushed("a"), pushed("b"), pushed("c")])
    running.stream.incoming.put_nowait(ingest_pb2.PushRequest(sequence=2, snapshot_begin=begin))
    await until(lambda: running.stream.acks()[-1:] == [2])
    running.ledger.may_commit.clear()
    running.stream.incoming.put_nowait(deltas(3, "b"))
    await until(lambda: running.ledger.is_waiting)
    running.stream.incoming.put_nowait(deltas(4, "c"))
    buckets = comparing_agent.buckets([pushed("a"), pushed("b"), pushed("c")], 0)
    running.stream.incoming.put_nowait(ingest_pb2.PushRequest(sequence=5, state_buckets=buckets))
    await until(lambda: running.stream.reads == 5)
    running.ledger.may_commit.set()
    await until(lambda: len(running.stream.answers("differing")) == 1)
    assert list(running.stream.answers("differing")[0].positions) == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_agent_that_reads_no_answers_is_not_answered_without_bound() -> None:
    running = Running(IngestSettings())
    running.ledger.may_commit.set()
    running.stream.may_write.clear()
    task = await running.start()
    for sequence in range(1, 100):
        begin = comparing_agent.begin([])
        running.stream.incoming.put_nowait(ingest_pb2.PushRequest(sequence=sequence, snapshot_begin=begin))
    await until(lambda: running.stream.reads == 99)
    for _ in range(500):
        await asyncio.sleep(0)
    assert running.shared.counts.plans[C, "nothing"] <= 2 * MAX_ANSWERS
    running.stream.may_write.set()
    await until(lambda: len(running.stream.answers("snapshot_plan")) == 99)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_heartbeats_are_read_while_the_disk_is_slow() -> None:
    running = Running(IngestSettings())
    task = await running.start()
    running.stream.incoming.put_nowait(deltas(1, "a"))
    for _ in range(50):
        running.stream.incoming.put_nowait(ingest_pb2.PushRequest(heartbeat=ingest_pb2.Heartbeat()))
    await until(lambda: running.stream.reads == 51)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_it_ends_with_the_error_it_is_given_and_leaves_no_task() -> None:
    running = Running(IngestSettings())
    before = asyncio.all_tasks()
    task = await running.start()
    running.stream.incoming.put_nowait(deltas(1, "a"))
    await until(lambda: running.ledger.started == 1)
    running.ended.set_exception(SessionFenced("c", 1, 2))
    with pytest.raises(SessionFenced):
        await task
    assert asyncio.all_tasks() <= before


async def test_cancelled_it_leaves_no_task() -> None:
    running = Running(IngestSettings())
    before = asyncio.all_tasks()
    task = await running.start()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() <= before
    assert not running.ended.cancelled()
