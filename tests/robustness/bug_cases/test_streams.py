"""Bugs of long streams between agent, aggregator and client: pings that end them, messages that are too large."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from federator.aggregator.grpc_listener import SERVER_OPTIONS
from federator.aggregator.ingest.settings import IngestSettings
from federator.v1 import inventory_pb2, inventory_pb2_grpc
from tests.integration.push import harness
from tests.integration.push.harness import Aggregator, agent_settings, eventually, running_agent
from tests.robustness.linked_bed import LinkedBed, fill, recorded, terms
from tests.scale import scale, scaled
from tests.unit.agent.scripted_cluster import PODS, ScriptedCluster

INTERVAL = "grpc.http2.min_ping_interval_without_data_ms"
SCALED_MS = 100
"""In place of 5 s."""

LARGE = scale(200, quick=24)
"""MB of a snapshot."""

PINGS = 8
"""More than twice as many as gRPC puts up with where they come too often: two, and ends the connection at the next."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7

MIB = 1024 * 1024
DEFAULT_LIMIT = 4 * MIB
"""Of a gRPC message, where nothing else is said."""


def frame(kind: int, payload: bytes = b"", *, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + bytes(4) + payload


async def note_frames(reader: asyncio.StreamReader, seen: list[int]) -> None:
    """Notes the types of the HTTP/2 frames that come, until the connection ends."""
    try:
        while True:
            header = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(header[:3], "big"))
            seen.append(header[3])
    except (asyncio.IncompleteReadError, ConnectionError):
        return


async def pinged(options: Sequence[tuple[str, int]], *, every: float) -> list[int]:
    """What a server sends to a connection without calls that does nothing but ping; types of frames."""
    server = grpc.aio.server(options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    seen: list[int] = []
    reading = asyncio.create_task(note_frames(reader, seen), name="frames")
    try:
        writer.write(PREFACE + frame(SETTINGS))
        for number in range(PINGS):
            writer.write(frame(PING, number.to_bytes(8, "big")))
            await asyncio.sleep(every)
    finally:
        writer.transport.abort()
        await reading
        await server.stop(0)
    return seen


async def test_bug52_pings_of_an_idle_connection_are_no_abuse_as_long_as_they_are_not() -> None:
    """A server's policy on pings ends idle streams with GOAWAY, and an option with a wrong name changes nothing."""
    assert INTERVAL in dict(SERVER_OPTIONS)
    scaled = [(name, SCALED_MS if name == INTERVAL else value) for name, value in SERVER_OPTIONS]
    in_time, too_often, by_default = await asyncio.gather(
        pinged(scaled, every=1.4 * SCALED_MS / 1000),
        pinged(scaled, every=0.01),
        pinged([("grpc.so_reuseport", 0)], every=1.4 * SCALED_MS / 1000),
    )
    assert GOAWAY not in in_time
    assert in_time.count(PING) >= PINGS
    assert GOAWAY in too_often, "the option has the right name: it is what decides"
    assert GOAWAY in by_default


async def test_bug52_idle_sessions_and_watches_go_on(tmp_path: Path) -> None:
    """Nothing happens for many heartbeats: no session ends, and no watch has to be resumed."""
    async with LinkedBed(tmp_path, ("c0",), ingest=IngestSettings(heartbeat_interval=0.3)) as bed:
        await bed.start_agents()
        async with recorded(bed) as recorder:
            resumes = bed.fed.statistics()["resumes"]
            received = _frames(bed)
            await eventually(lambda: _frames(bed) >= received + 8, timeout=30)
            recorder.check_running()
            assert bed.fed.statistics()["resumes"] == resumes
        assert terms(bed, "c0") == 1


def _frames(bed: LinkedBed) -> int:
    counts = bed.aggregator.statistics()["ingest"]["frames"]
    return sum(counts.values())  # type: ignore[attr-defined]


def noise(seed: int, size: int) -> str:
    """Text that no compression makes much smaller."""
    return base64.b64encode(random.Random(seed).randbytes(size * 3 // 4)).decode()


@scaled
async def test_bug52_a_large_snapshot_passes_a_server_that_takes_messages_of_4_mb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot is larger than any message may be, and than the agent's window; it goes in frames, within that."""
    monkeypatch.setattr(harness, "SERVER_OPTIONS", [("grpc.max_receive_message_length", DEFAULT_LIMIT)])
    cluster = ScriptedCluster(PODS)
    for number in range(LARGE):
        cluster.put(PODS, f"p{number}", noise=noise(number, MIB))
    aggregator = Aggregator(f"unix:{tmp_path}/i.sock", IngestSettings(heartbeat_interval=2.0))
    async with aggregator.running(), running_agent(cluster, agent_settings("c0", aggregator.address)) as agent:
        await eventually(lambda: aggregator.holds("c0", cluster), timeout=30 + LARGE)
        await eventually(lambda: aggregator.servicer.statistics()["snapshots"] == {("c0", "completed"): 1})
        assert aggregator.servicer.statistics()["session_ends"] == {}
        received = aggregator.servicer.statistics()["bytes"]
        assert received["c0"] > 4 * max(DEFAULT_LIMIT, aggregator.settings.window_bytes)  # type: ignore[index]
        assert agent.statistics()["pusher"]["nacks"] == {}


async def test_bug52_answers_larger_than_a_message_come_in_pages(tmp_path: Path) -> None:
    """A client that knows of no larger limit than gRPC's own reads 6 MB, listed and watched."""
    # A session is not to end because the loop that all share is busy with large objects for a second.
    async with LinkedBed(tmp_path, ("c0",), ingest=IngestSettings()) as bed:
        for number in range(6):
            bed["c0"].apiserver.put("pods", f"p{number}", spec={"noise": noise(number, MIB)})
        fill(bed["c0"].apiserver, 10, resource="configmaps")
        await bed.start_agents()
        selection = inventory_pb2.Selection(resources=["pods"])
        async with _plain(bed) as stub:
            listed = [len(page.objects) async for page in stub.List(inventory_pb2.ListRequest(selection=selection))]
            assert sum(listed) == 6
            watched = 0
            call = stub.Watch(inventory_pb2.WatchRequest(selection=selection))
            async for response in call:
                watched += sum(event.HasField("object") for event in response.events)
                if any(event.type == inventory_pb2.WATCH_EVENT_TYPE_INITIAL_END for event in response.events):
                    break
            call.cancel()
            assert watched == 6


@asynccontextmanager
async def _plain(bed: LinkedBed) -> AsyncIterator[inventory_pb2_grpc.InventoryServiceAsyncStub]:
    async with grpc.aio.insecure_channel(bed.address) as channel:
        yield inventory_pb2_grpc.InventoryServiceStub(channel)
