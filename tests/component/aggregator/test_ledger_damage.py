"""A whole aggregator on a damaged, failing or full ledger, with an agent that pushes to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from federator.agent.agent import Agent
from federator.agent.settings import AgentSettings
from federator.aggregator.aggregator import Aggregator
from federator.aggregator.ledger import codec
from federator.aggregator.ledger.lmdb import FOLDER, LmdbLedger
from federator.aggregator.ledger.store import ASIDE
from federator.api.cluster import ClusterID, TypeState
from federator.errors import CursorForeign, FederatorError, LedgerCorrupt, LedgerError
from federator.v1 import inventory_pb2, inventory_pb2_grpc
from federator.wire.status import from_rpc_error
from tests.component.aggregator.ledger.file_size import writes_fail_beyond
from tests.component.aggregator.running import bound_ring, get, running, scrape, settings
from tests.contract.ledger.member import Member, put
from tests.unit.agent.scripted_cluster import PODS, ScriptedCluster
from tests.unit.aggregator.federation import eventually

BERLIN = ClusterID("berlin")
NAMES = [f"web-{number}" for number in range(8)]


def started(folder: Path, **changes: Any) -> Aggregator:
    return Aggregator(settings(folder, state_directory=folder / "state", **changes))


@asynccontextmanager
async def pushing(folder: Path, cluster: ScriptedCluster) -> AsyncIterator[Agent]:
    """An agent that outlives aggregators."""
    agent = Agent(
        AgentSettings(
            cluster_id=BERLIN,
            aggregator=f"unix:{folder / 'ingest.sock'}",
            backoff_min=0.01,
            backoff_max=0.05,
            flush_timeout=0.2,
        ),
        cluster,
    )
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        task.cancel()
        await asyncio.wait([task])


def ledger_of(aggregator: Aggregator) -> LmdbLedger:
    assert aggregator._parts is not None
    assert isinstance(aggregator._parts.ledger, LmdbLedger)
    return aggregator._parts.ledger


def pods(aggregator: Aggregator) -> tuple[TypeState, int]:
    """State of the type, and how many of its objects are indexed."""
    assert aggregator._parts is not None
    states = [one.state for one in ledger_of(aggregator).types(BERLIN) if one.type.resource == "pods"]
    return states[0] if states else TypeState.ABSENT, len(aggregator._parts.view.indexer)


async def synced(aggregator: Aggregator) -> None:
    await eventually(lambda: pods(aggregator) == (TypeState.LIVE, len(NAMES)))


def damage(ledger: LmdbLedger, name: str) -> None:
    """Flips a bit of the newest entry of a pod, behind the back of the ledger that has the file open."""
    with ledger._tables.begin(write=True) as transaction:
        log = ledger._tables.handle("log")
        revision = next(entry.revision for entry in ledger.present() if entry.key.name == name)
        key = codec.encode_revision(revision)
        sealed = bytearray(transaction.get(key, b"", log))
        sealed[-1] ^= 1
        transaction.put(key, bytes(sealed), db=log)


async def listed(aggregator: Aggregator) -> tuple[set[str], bool]:
    """Names in an answer, and whether it says that it is complete."""
    async with grpc.aio.insecure_channel(aggregator.address) as channel:
        stub: Any = inventory_pb2_grpc.InventoryServiceStub(channel)
        call = stub.List(inventory_pb2.ListRequest(selection=inventory_pb2.Selection(resources=["pods"])))
        answers = [answer async for answer in call]
    return {each.name for answer in answers for each in answer.objects}, answers[-1].summary.complete


async def error_of(aggregator: Aggregator, method: str, request: object) -> FederatorError:
    async with grpc.aio.insecure_channel(aggregator.address) as channel:
        call = getattr(inventory_pb2_grpc.InventoryServiceStub(channel), method)(request)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            if method == "Get":
                await call
            else:
                _ = [answer async for answer in call]
    return from_rpc_error(raised.value, aggregator.address)


@pytest.fixture
def cluster() -> ScriptedCluster:
    cluster = ScriptedCluster(PODS)
    for name in NAMES:
        cluster.put(PODS, name)
    return cluster


async def test_an_agent_that_resumes_is_asked_for_what_was_lost_between(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    async with pushing(tmp_path, cluster):
        async with running(started(tmp_path)) as aggregator:
            await synced(aggregator)
        ledger = LmdbLedger.open(tmp_path / "state")
        damage(ledger, "web-3")
        await ledger.close()
        async with running(started(tmp_path)) as aggregator:
            assert aggregator.statistics()["ledger"]["lost_states"] == 1
            await synced(aggregator)
            assert aggregator.statistics()["ledger"]["lost_objects"] == 0
            assert (await listed(aggregator))[0] == set(NAMES)
            families = await scrape(aggregator.http_port)
            (lost,) = [s for s in families["federator_ledger_damage"].samples if s.labels == {"result": "state_lost"}]
            assert lost.value == 1


async def test_a_list_that_meets_damage_says_what_it_lacks_and_the_agent_is_asked(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    async with pushing(tmp_path, cluster), running(started(tmp_path)) as aggregator:
        await synced(aggregator)
        damage(ledger_of(aggregator), "web-3")
        names, complete = await listed(aggregator)
        assert (names, complete) == (set(NAMES) - {"web-3"}, False)
        await eventually(lambda: aggregator.statistics()["ledger"]["lost_objects"] == 0)
        async with asyncio.timeout(10):
            while await listed(aggregator) != (set(NAMES), True):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)


async def test_a_get_of_a_lost_state_is_refused(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path / "state")
    berlin = await Member.join(ledger)
    await berlin.push(put("web-3", body=b'{"metadata":{"name":"web-3"}}'))
    await ledger.close()
    async with running(started(tmp_path)) as aggregator:
        damage(ledger_of(aggregator), "web-3")
        one = inventory_pb2.GetRequest(cluster_id="berlin", resource="pods", namespace="shop", name="web-3")
        assert isinstance(await error_of(aggregator, "Get", one), LedgerCorrupt)


async def test_a_ledger_past_use_is_replaced_and_the_agents_fill_the_new_one(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    async with pushing(tmp_path, cluster):
        async with running(started(tmp_path)) as aggregator:
            await synced(aggregator)
            cursor = ledger_of(aggregator).cursors.encode(ledger_of(aggregator).revision)
            revision = ledger_of(aggregator).revision
        os.truncate(tmp_path / "state" / FOLDER / "data.mdb", 5 * 4096)
        async with running(started(tmp_path)) as aggregator:
            await synced(aggregator)
            assert ledger_of(aggregator).oldest_revision > revision
            watch = inventory_pb2.WatchRequest(selection=inventory_pb2.Selection(resources=["pods"]), cursor=cursor)
            assert isinstance(await error_of(aggregator, "Watch", watch), CursorForeign)
    assert len(list((tmp_path / "state").glob(f"{ASIDE}*"))) == 1


async def test_a_write_that_fails_ends_the_process_and_the_next_one_goes_on(
    tmp_path: Path, cluster: ScriptedCluster
) -> None:
    async with pushing(tmp_path, cluster):
        aggregator = started(tmp_path)
        run = asyncio.create_task(aggregator.run())
        await eventually(aggregator.started.is_set)
        await synced(aggregator)
        ready = aggregator._ledger_trouble
        assert ready() is None
        with writes_fail_beyond((tmp_path / "state" / FOLDER / "data.mdb").stat().st_size):
            cluster.put(PODS, "large", content=os.urandom(200_000).hex())
            with pytest.raises(LedgerError):
                await asyncio.wait_for(run, 20)
        assert ready() is not None
        async with running(started(tmp_path)) as aggregator:
            await eventually(lambda: pods(aggregator) == (TypeState.LIVE, len(NAMES) + 1))
            assert await get(aggregator.http_port, "/readyz") == (200, "ok\n")
    assert not list((tmp_path / "state").glob(f"{ASIDE}*")), "nothing was damaged"


async def test_a_full_ledger_is_compacted_at_once_and_takes_more(
    tmp_path: Path, cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = LmdbLedger.open(tmp_path / "state")
    paris = await Member.join(ledger, "paris")
    for _ in range(20):
        await paris.push(*(put(f"old-{number}", body=b"{}" + bytes(300)) for number in range(100)))
    used = int(ledger.statistics()["used_bytes"])
    oldest = ledger.oldest_revision
    await ledger.close()
    bound_ring(monkeypatch, 200)  # what it holds is not compacted
    free = SimpleNamespace(f_bavail=1 << 30, f_frsize=512)
    monkeypatch.setattr(os, "statvfs", lambda _: free)
    full = started(tmp_path, ledger_max_bytes=used + 50_000, compaction_interval=3600.0)
    for name in NAMES:
        cluster.put(PODS, name, content=os.urandom(20_000).hex())
    async with running(full) as aggregator, pushing(tmp_path, cluster):
        await eventually(lambda: ledger_of(aggregator).oldest_revision > oldest, within=20)
        await eventually(lambda: aggregator.statistics()["ledger"]["is_full"] == 0, within=20)
        await eventually(lambda: pods(aggregator)[1] == 100 + len(NAMES), within=20)
