"""Types of which the ledger has lost states: their agents are asked to list them, and they are not LIVE before that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from federator.aggregator.ingest.lifecycle import Candidate, ClusterLifecycle
from federator.aggregator.ingest.session import Session
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ingest.shared import Shared
from federator.aggregator.ledger import codec, keeper
from federator.aggregator.ledger.damage import LOST, STATE_LOST
from federator.aggregator.ledger.keeper import LedgerKeeper
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import ClusterRecord
from federator.aggregator.merge.digest_table import DigestTable
from federator.api.cluster import ClusterID, TypeState
from federator.api.resource import GroupResource
from federator.errors import LedgerError
from federator.v1 import ingest_pb2, types_pb2
from federator.wire.digest import Digest, key_hash
from federator.wire.resource_type import resource_type_to_proto
from tests.contract.ledger.member import Member, put
from tests.integration.push.raw_agent import pushed
from tests.unit.agent.scripted_cluster import NODES, PODS
from tests.unit.aggregator.federation import eventually
from tests.unit.aggregator.ingest.test_session import Nobody, Stream

BERLIN = ClusterID("berlin")
RESOURCE = PODS.group_resource


class Losing:
    """A ledger that has lost the state of `web`, and a session of its cluster."""

    @classmethod
    async def open(cls, path: Path) -> Losing:
        ledger = LmdbLedger.open(path)
        berlin = await Member.join(ledger)
        commit = await berlin.push(put("web", content_hash=7), put("db", content_hash=8), of=PODS)
        await ledger.set_type_state(BERLIN, PODS, TypeState.LIVE)
        with ledger._tables.begin(write=True) as transaction:
            key = codec.encode_revision(commit.revision - 1)
            transaction.put(key, b"nonsense", db=ledger._tables.handle("log"))
        list(ledger.present())
        self = cls(ledger)
        await self.keeper.mend()
        return self

    def __init__(self, ledger: LmdbLedger) -> None:
        self.ledger = ledger
        self.keeper = LedgerKeeper(ledger)
        self.lifecycle = ClusterLifecycle(
            ledger, Nobody(), IngestSettings(), has_lost_states=self.keeper.has_lost_states
        )
        self.stream = Stream()

    def state(self) -> tuple[TypeState, str]:
        (record,) = self.ledger.types(BERLIN)
        return record.state, record.reason

    async def session(self) -> tuple[Session, asyncio.Task[None]]:
        record = ClusterRecord(BERLIN, "uid-of-berlin", agent_instance="agent-1")
        opened = await self.lifecycle.open(Candidate(record, (PODS,), False, lambda _: None))
        digests = DigestTable()
        for entry in self.ledger.present():
            digests.take_in(entry)
        digests.loaded()
        shared = Shared(self.ledger, self.lifecycle, Nobody(), digests, IngestSettings())
        session = Session(self.stream, opened.record, shared, asyncio.get_running_loop().create_future())
        return session, asyncio.create_task(session.run())

    def requests(self) -> list[list[GroupResource]]:
        return [
            [GroupResource(each.group, each.resource) for each in message.snapshot_request.types]
            for message in self.stream.written
            if message.HasField("snapshot_request")
        ]

    def plans(self) -> list[int]:
        return [one.snapshot_plan.plan for one in self.stream.written if one.HasField("snapshot_plan")]

    def push(self, sequence: int, **frame: Any) -> None:
        self.stream.incoming.put_nowait(ingest_pb2.PushRequest(sequence=sequence, **frame))

    def snapshot(self, sequence: int, *objects: ingest_pb2.PushedObject) -> None:
        of = resource_type_to_proto(PODS)
        self.push(sequence, snapshot_begin=ingest_pb2.SnapshotBegin(type=of))
        self.push(sequence + 1, snapshot_items=ingest_pb2.SnapshotItems(type=of, objects=objects))
        self.push(sequence + 2, snapshot_end=ingest_pb2.SnapshotEnd(type=of, resource_version="100"))

    async def acknowledged(self, sequence: int) -> None:
        await eventually(lambda: sequence in self.stream.acks())


@pytest.fixture
async def losing(tmp_path: Path) -> AsyncIterator[Losing]:
    losing = await Losing.open(tmp_path)
    yield losing
    await losing.ledger.close()


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_the_agent_is_asked_once_and_the_type_is_live_after_its_listing(losing: Losing) -> None:
    assert losing.state() == (TypeState.SYNCING, STATE_LOST)
    session, task = await losing.session()
    for _ in range(3):
        session.request_listing(BERLIN, RESOURCE)
    await eventually(lambda: losing.requests() == [[RESOURCE]])
    losing.snapshot(1, pushed("web", namespace="shop", uid="uid-1"), pushed("db", namespace="shop", uid="uid-1"))
    await losing.acknowledged(3)
    assert losing.state() == (TypeState.LIVE, "")
    assert losing.requests() == [[RESOURCE]]
    await stopped(task)


async def test_of_a_type_that_has_lost_states_all_is_wanted_whatever_it_adds_up_to(losing: Losing) -> None:
    """What is lost is in no digest, so an equal one proves nothing; and it goes only by not being named."""
    _, task = await losing.session()
    (kept,) = [key for key in losing.ledger.keys(BERLIN, RESOURCE) if key.fingerprint != LOST]
    added_up = Digest().plus(key_hash(kept.namespace, kept.name), kept.fingerprint)
    digest = ingest_pb2.Digest(count=added_up.count, sum=added_up.sum)
    begin = ingest_pb2.SnapshotBegin(type=resource_type_to_proto(PODS), resource_version="100", digest=digest)
    losing.push(1, snapshot_begin=begin)
    await eventually(lambda: losing.plans() == [ingest_pb2.SnapshotPlan.PLAN_ALL])
    await stopped(task)


async def test_others_are_not_asked(losing: Losing) -> None:
    session, task = await losing.session()
    session.request_listing(ClusterID("paris"), RESOURCE)
    session.request_listing(BERLIN, NODES.group_resource)
    losing.push(1, deltas=ingest_pb2.Deltas(type=resource_type_to_proto(PODS)))
    await losing.acknowledged(1)
    assert losing.requests() == []
    await stopped(task)


async def test_a_listing_under_way_is_not_begun_anew(losing: Losing) -> None:
    session, task = await losing.session()
    losing.push(1, snapshot_begin=ingest_pb2.SnapshotBegin(type=resource_type_to_proto(PODS)))
    await losing.acknowledged(1)
    session.request_listing(BERLIN, RESOURCE)
    losing.push(2, deltas=ingest_pb2.Deltas(type=resource_type_to_proto(PODS)))
    await losing.acknowledged(2)
    assert losing.requests() == []
    await stopped(task)


async def test_a_word_of_the_agent_does_not_make_the_type_live(losing: Losing) -> None:
    _, task = await losing.session()
    for sequence, state in enumerate((types_pb2.TYPE_STATE_STALE, types_pb2.TYPE_STATE_LIVE), 1):
        losing.push(sequence, type_status=ingest_pb2.TypeStatus(type=resource_type_to_proto(PODS), state=state))
        await losing.acknowledged(sequence)
        assert losing.state() == (TypeState.SYNCING, STATE_LOST)
    await stopped(task)


async def test_the_keeper_asks_until_the_listing_has_come(losing: Losing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "INTERVAL", 0.01)
    asked: list[tuple[ClusterID, GroupResource]] = []
    losing.keeper.on_lost_states(lambda *which: asked.append(which))
    task = asyncio.create_task(losing.keeper.run())
    await eventually(lambda: len(asked) > 2)
    assert set(asked) == {(BERLIN, RESOURCE)}
    await losing.ledger.set_type_state(BERLIN, PODS, TypeState.LIVE)
    asked.clear()
    await asyncio.sleep(0.05)
    assert len(asked) <= 1
    await stopped(task)


async def test_the_keeper_ends_with_what_the_ledger_failed_with(losing: Losing) -> None:
    task = asyncio.create_task(losing.keeper.run())
    failure = LedgerError("the disk is gone")
    losing.ledger._fail(failure)
    with pytest.raises(LedgerError, match="the disk is gone"):
        await task
    assert losing.keeper.failure is failure


async def test_a_ledger_in_memory_needs_no_keeping() -> None:
    of_memory = LedgerKeeper(MemoryLedger())
    await of_memory.mend()
    await of_memory.run()
    await of_memory.look_for_room()
    assert not await of_memory.wait_full(0)
    assert of_memory.failure is None
    assert not of_memory.has_lost_states(BERLIN, RESOURCE)
