"""Aggregator: what it offers when it has started, what keeps it from starting, and how it ends and forgets."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from prometheus_client.core import GaugeMetricFamily

from federator.agent.agent import Agent, AgentPhase
from federator.agent.settings import AgentSettings
from federator.aggregator.aggregator import Aggregator
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.api.cluster import ClusterID
from federator.api.resource import ResourceType
from federator.errors import AggregatorUnreachable, InvalidInput, LedgerLocked
from federator.v1 import inventory_pb2, inventory_pb2_grpc
from federator.wire.status import from_rpc_error
from tests.component.aggregator.running import bound_ring, get, running, scrape, settings
from tests.contract.ledger.member import Member, put
from tests.unit.agent.scripted_cluster import PODS, ScriptedCluster
from tests.unit.aggregator.federation import eventually

INVENTORY = "federator.v1.InventoryService"
INGEST = "federator.v1.IngestService"
RING_ENTRIES = 200
"""Bound of the ring where that is made small."""

BLOBS = 24
"""Objects of a mebibyte, more than a connection takes without a reader."""


@pytest.fixture
def small_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    bound_ring(monkeypatch, RING_ENTRIES)


def pushing(cluster: ScriptedCluster, aggregator: Aggregator) -> Agent:
    """An agent of the cluster `berlin`."""
    return Agent(
        AgentSettings(
            cluster_id=ClusterID("berlin"),
            aggregator=aggregator.ingest_address,
            backoff_min=0.01,
            backoff_max=0.05,
            flush_timeout=0.2,
        ),
        cluster,
    )


async def listed_services(channel: grpc.aio.Channel, version: str) -> set[str]:
    """What server reflection lists, asked as a client of that version does."""
    response = await reflected(channel, version, list_services="*")
    return {service.name for service in response.list_services_response.service}


async def reflected(channel: grpc.aio.Channel, version: str, **question: str) -> Any:
    call: Any = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    request = reflection_pb2.ServerReflectionRequest(**question)
    (response,) = [response async for response in call(iter([request]), timeout=30, wait_for_ready=True)]
    return response


async def health_of(channel: grpc.aio.Channel, service: str) -> str:
    request = health_pb2.HealthCheckRequest(service=service)
    answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=30, wait_for_ready=True)
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    return name


async def test_both_sides_are_healthy_and_describe_themselves(tmp_path: Path) -> None:
    async with running(Aggregator(settings(tmp_path))) as aggregator:
        for address, service in ((aggregator.address, INVENTORY), (aggregator.ingest_address, INGEST)):
            async with grpc.aio.insecure_channel(address) as channel:
                for name in ("", service):
                    assert await health_of(channel, name) == "SERVING"
                for version in ("v1", "v1alpha"):
                    listed = await listed_services(channel, version)
                    assert {INVENTORY, INGEST} & listed == {service}, version
                    assert "grpc.health.v1.Health" in listed
                    assert f"grpc.reflection.{version}.ServerReflection" in listed


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_whatever_has_a_name_is_described(tmp_path: Path, version: str) -> None:
    async with (
        running(Aggregator(settings(tmp_path))) as aggregator,
        grpc.aio.insecure_channel(aggregator.address) as channel,
    ):
        for name in (INVENTORY, f"{INVENTORY}.List", "federator.v1.Selection", "federator.v1.Selection.namespace"):
            response = await reflected(channel, version, file_containing_symbol=name)
            assert response.file_descriptor_response.file_descriptor_proto, name
        for name in (f"{INVENTORY}.Lost", "federator.v1.Nothing", "", "List"):
            response = await reflected(channel, version, file_containing_symbol=name)
            assert response.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0], name


async def test_ports_asked_for_as_0_are_told(tmp_path: Path) -> None:
    aggregator = Aggregator(settings(tmp_path, ingest_listen="127.0.0.1:0"))
    assert aggregator.statistics() == {}
    async with running(aggregator):
        ports = {
            int(aggregator.address.rpartition(":")[2]),
            int(aggregator.ingest_address.rpartition(":")[2]),
            aggregator.http_port,
        }
        assert len(ports) == 3
        assert 0 not in ports
        assert set(aggregator.statistics()) == {"ledger", "merge", "serve", "ingest"}


async def test_without_an_address_it_has_no_http_side(tmp_path: Path) -> None:
    async with running(Aggregator(settings(tmp_path, http_listen=""))) as aggregator:
        assert aggregator.http_port == 0


async def test_metrics_tell_of_all_parts_and_members(tmp_path: Path) -> None:
    def more() -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily("federator_more", "What else runs here.", 7)]

    cluster = ScriptedCluster(PODS)
    cluster.put(PODS, "web")
    async with running(Aggregator(settings(tmp_path), more_metrics=more)) as aggregator:
        agent = pushing(cluster, aggregator)
        task = asyncio.create_task(agent.run())
        await eventually(lambda: aggregator.statistics()["merge"].get("objects") == 1)
        families = await scrape(aggregator.http_port)
        task.cancel()
        await asyncio.wait([task])
    (build,) = families["federator_build_info"].samples
    assert build.labels["component"] == "aggregator"
    (objects,) = families["federator_objects"].samples
    assert (objects.labels, objects.value) == ({"member_cluster": "berlin", "resource": "pods"}, 1)
    # The agent's end may have been committed since.
    ledger: Any = aggregator.statistics()["ledger"]
    assert ledger["oldest_revision"] < families["federator_ledger_revision"].samples[0].value <= ledger["revision"]
    assert families["federator_ledger_commit_duration_seconds"].type == "histogram"
    assert families["federator_more"].samples[0].value == 7
    assert {"federator_ledger_bytes", "federator_event_loop_lag_seconds", "grpc_server_started"} <= set(families)
    labels = {label for family in families.values() for sample in family.samples for label in sample.labels}
    assert "member_cluster" in labels
    assert "cluster" not in labels, "that label is Prometheus users' own"


async def test_it_is_ready_without_members(tmp_path: Path) -> None:
    async with running(Aggregator(settings(tmp_path))) as aggregator:
        assert await get(aggregator.http_port, "/readyz") == (200, "ok\n")
        _, verbose = await get(aggregator.http_port, "/readyz?verbose")
        assert "[+]ledger ok" in verbose
        assert "[+]listeners ok" in verbose


async def test_a_ledger_has_one_aggregator_at_a_time(tmp_path: Path) -> None:
    first = Aggregator(settings(tmp_path, state_directory=tmp_path / "state"))
    second = Aggregator(settings(tmp_path, state_directory=tmp_path / "state", ingest_listen="127.0.0.1:0"))
    async with running(first):
        with pytest.raises(LedgerLocked):
            await second.run()
        assert not second.started.is_set()
        assert await get(first.http_port, "/readyz") == (200, "ok\n")
    async with running(second):
        assert await get(second.http_port, "/readyz") == (200, "ok\n")


@pytest.mark.parametrize("field", ["listen", "ingest-listen", "http-listen"])
async def test_an_address_that_is_taken_is_named_and_nothing_stays_open(tmp_path: Path, field: str) -> None:
    before = asyncio.all_tasks()
    state = tmp_path / "state"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        values = settings(tmp_path, state_directory=state, **{field.replace("-", "_"): address})
        with pytest.raises(InvalidInput) as refused:
            await Aggregator(values).run()
    assert (refused.value.field, refused.value.given) == (field, address)
    assert asyncio.all_tasks() == before
    await LmdbLedger.open(state).close()


@pytest.mark.parametrize("field", ["listen", "ingest-listen"])
def test_an_address_that_others_reach_is_refused_before_anything_is_opened(tmp_path: Path, field: str) -> None:
    state = tmp_path / "state"
    with pytest.raises(InvalidInput) as refused:
        Aggregator(settings(tmp_path, state_directory=state, **{field.replace("-", "_"): "0.0.0.0:0"}))
    assert refused.value.field == field
    assert not state.exists()


async def test_cancelled_it_leaves_no_task_no_listener_and_no_lock(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    state = tmp_path / "state"
    cluster = ScriptedCluster(PODS)
    async with running(Aggregator(settings(tmp_path, state_directory=state))) as aggregator:
        agent = pushing(cluster, aggregator)
        pushes = asyncio.create_task(agent.run())
        await eventually(lambda: agent.status().phase is AgentPhase.PUSHING)
        async with grpc.aio.insecure_channel(aggregator.address) as channel:
            watch: Any = inventory_pb2_grpc.InventoryServiceStub(channel).Watch(
                inventory_pb2.WatchRequest(selection=inventory_pb2.Selection(resources=["pods"]))
            )
            await eventually(lambda: aggregator.statistics()["serve"]["watchers_live"] == 1)
            run = next(task for task in asyncio.all_tasks() if task.get_name() == "aggregator")
            run.cancel()
            await asyncio.wait([run])
            assert run.cancelled()
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                _ = [response async for response in watch]
            error = from_rpc_error(ended.value, aggregator.address)
            assert isinstance(error, AggregatorUnreachable)
            assert error.cause == "it is shutting down", "told to come back, not cut off"
    pushes.cancel()
    await asyncio.wait([pushes])
    assert asyncio.all_tasks() == before
    for port in (aggregator.http_port, int(aggregator.address.rpartition(":")[2])):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
    await LmdbLedger.open(state).close()


async def test_what_was_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path / "state")
    await (await Member.join(ledger)).push(put("web", body=b'{"metadata":{"name":"web"}}'))
    await ledger.close()
    async with running(Aggregator(settings(tmp_path, state_directory=tmp_path / "state"))) as aggregator:
        assert aggregator.statistics()["merge"]["objects"] == 1
        async with grpc.aio.insecure_channel(aggregator.address) as channel:
            stub: Any = inventory_pb2_grpc.InventoryServiceStub(channel)
            (berlin,) = (await stub.ListClusters(inventory_pb2.ListClustersRequest())).clusters
    assert (berlin.cluster_id, berlin.reason) == ("berlin", "aggregator restarted")


@pytest.mark.usefixtures("small_ring")
async def test_history_is_forgotten_up_to_what_watches_may_still_ask_of_the_ring(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path / "state")
    berlin = await Member.join(ledger)
    for _ in range(RING_ENTRIES // 50 + 4):
        await berlin.push(*(put(f"web-{number}", body=b"{}") for number in range(50)))
    before, oldest, entries = ledger.revision, ledger.oldest_revision, ledger.statistics()["entries"]
    await ledger.close()
    values = settings(tmp_path, state_directory=tmp_path / "state", history=0.001, compaction_interval=0.02)
    async with running(Aggregator(values)) as aggregator:

        def told(name: str) -> Any:
            return aggregator.statistics()["ledger"][name]

        assert told("revision") > before, "the restart itself is news: the member is STALE"
        await eventually(lambda: bool(told("revision") - told("oldest_revision") <= RING_ENTRIES))
        await asyncio.sleep(0.1)
        assert told("oldest_revision") > oldest
        kept = told("revision") - told("oldest_revision")
        assert kept >= RING_ENTRIES - 50, "the newest is in the ring also after a restart, and stays"
        assert told("entries") < entries


async def test_recent_history_is_kept(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path / "state")
    await (await Member.join(ledger)).push(put("web", body=b"{}"))
    oldest = ledger.oldest_revision
    await ledger.close()
    values = settings(tmp_path, state_directory=tmp_path / "state", history=3600, compaction_interval=0.02)
    async with running(Aggregator(values)) as aggregator:
        await asyncio.sleep(0.1)
        assert aggregator.statistics()["ledger"]["oldest_revision"] == oldest


@pytest.mark.usefixtures("small_ring")
async def test_history_that_a_slow_list_still_reads_is_kept(tmp_path: Path) -> None:
    secret = ResourceType(group="example.com", version="v1", resource="blobs", kind="Blob", namespaced=True)
    cluster = ScriptedCluster(PODS, secret)
    for number in range(BLOBS):
        cluster.put(secret, f"blob-{number}", content="x" * (1 << 20))
    values = settings(tmp_path, history=0.001, compaction_interval=0.02)
    async with running(Aggregator(values)) as aggregator:

        def told(name: str) -> Any:
            return aggregator.statistics()["ledger"][name]

        task = asyncio.create_task(pushing(cluster, aggregator).run())
        await eventually(lambda: aggregator.statistics()["merge"].get("objects") == BLOBS)
        async with grpc.aio.insecure_channel(
            aggregator.address, options=(("grpc.max_receive_message_length", -1),)
        ) as channel:
            stub: Any = inventory_pb2_grpc.InventoryServiceStub(channel)
            selection = inventory_pb2.Selection(resources=["blobs"])
            listing = stub.List(inventory_pb2.ListRequest(selection=selection))
            await eventually(lambda: aggregator.statistics()["serve"]["pinned_readers"] == 1)
            pinned = told("revision")
            for number in range(2 * RING_ENTRIES):  # more than the ring holds
                cluster.put(PODS, f"web-{number}")
            await eventually(lambda: aggregator.statistics()["merge"]["objects"] == BLOBS + 2 * RING_ENTRIES)
            await eventually(lambda: bool(told("oldest_revision") >= pinned))
            await asyncio.sleep(0.1)
            assert told("oldest_revision") == pinned
            responses = [response async for response in listing]
            assert sum(len(response.objects) for response in responses) == BLOBS
            assert responses[-1].summary.revision == pinned
            await eventually(lambda: bool(told("oldest_revision") > pinned))
        task.cancel()
        await asyncio.wait([task])
