"""Session over a scripted stream: pipelining, bounds, and what an Ack promises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from federator.aggregator.ingest.lifecycle import Candidate, ClusterLifecycle
from federator.aggregator.ingest.session import Session, SessionCounts
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import Batch, ClusterRecord, Commit
from federator.api.cluster import ClusterID
from federator.errors import SessionFenced
from federator.v1 import ingest_pb2
from federator.wire.resource_type import resource_type_to_proto
from tests.integration.push.raw_agent import pushed
from tests.unit.agent.scripted_cluster import PODS

C = ClusterID("c")


class SlowLedger(MemoryLedger):
    """Commits only when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may_commit = asyncio.Event()
        self.started = 0

    async def append(self, batch: Batch) -> Commit:
        self.started += 1
        await self.may_commit.wait()
        return await super().append(batch)


class Stream:
    """A stream whose messages a test puts in and takes out."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[object] = asyncio.Queue()
        self.written: list[ingest_pb2.PushResponse] = []
        self.reads = 0

    async def read(self) -> object:
        message = await self.incoming.get()
        self.reads += 1
        return message

    async def write(self, message: ingest_pb2.PushResponse) -> None:
        self.written.append(message)

    def acks(self) -> list[int]:
        return [message.ack.sequence for message in self.written if message.HasField("ack")]


class Nobody:
    def seen(self, *_: Any) -> None: ...

    def proved(self, *_: Any) -> None: ...


class Running:
    """A session that runs."""

    def __init__(self, settings: IngestSettings) -> None:
        self.settings = settings
        self.ledger = SlowLedger()
        self.lifecycle = ClusterLifecycle(self.ledger, Nobody(), settings)
        self.stream = Stream()
        self.counts = SessionCounts()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> asyncio.Task[None]:
        record = ClusterRecord(C, "uid", agent_instance="one")
        opened = await self.lifecycle.open(Candidate(record, (PODS,), False, lambda error: None))
        session = Session(
            self.stream,
            opened.record,
            ledger=self.ledger,
            lifecycle=self.lifecycle,
            freshness=Nobody(),
            settings=self.settings,
            counts=self.counts,
            ended=self.ended,
        )
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
