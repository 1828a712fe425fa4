"""GrpcListener: what every listener of an aggregator does, whatever service it carries."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from federator.aggregator.grpc_listener import GrpcListener
from federator.errors import InvalidInput
from federator.observability.grpc_metrics import GrpcMetrics
from federator.testing.federation import FederationTLS
from federator.wire.tls import TLSFiles, open_channel

SERVICE = "test.Echo"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def listener(
    address: str, *, grace: float = 0.1, registry: CollectorRegistry | None = None, is_private: bool = False
) -> GrpcListener:
    metrics = GrpcMetrics(registry or CollectorRegistry())
    return GrpcListener(address, "listen", grace=grace, metrics=metrics, is_private=is_private)


def add_echo(to: GrpcListener, release: asyncio.Event | None = None) -> asyncio.Event:
    """Adds a method that answers what it is sent, once it may; returns what is set when it is called."""
    called = asyncio.Event()

    async def echo(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        called.set()
        if release is not None:
            await release.wait()
        return request

    method = grpc.unary_unary_rpc_method_handler(echo)
    to.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Echo": method}),))
    return called


async def echoed(address: str, message: bytes = b"hello") -> bytes:
    async with grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),)) as typed_channel:
        channel: Any = typed_channel  # bytes in, bytes out: no serializers
        answer: bytes = await channel.unary_unary(f"/{SERVICE}/Echo")(message, timeout=5)
        return answer


async def test_a_free_port_is_told(tmp_path: Path) -> None:
    for address in ("127.0.0.1:0", "localhost:0", f"unix:{tmp_path / 'x.sock'}"):
        listening = listener(address)
        add_echo(listening)
        async with listening.open(SERVICE) as told:
            assert told.rpartition(":")[0] == address.rpartition(":")[0]
            assert not told.endswith(":0")
            assert await echoed(told) == b"hello"


async def test_messages_may_be_larger_than_grpc_allows_by_itself() -> None:
    listening = listener("127.0.0.1:0")
    add_echo(listening)
    async with listening.open(SERVICE) as address:
        options = (("grpc.max_receive_message_length", -1),)
        async with grpc.aio.insecure_channel(address, options=options) as typed_channel:
            channel: Any = typed_channel
            large = bytes(6 << 20)
            assert await channel.unary_unary(f"/{SERVICE}/Echo")(large, timeout=5) == large


async def test_calls_are_counted() -> None:
    registry = CollectorRegistry()
    listening = listener("127.0.0.1:0", registry=registry)
    add_echo(listening)
    async with listening.open(SERVICE) as address:
        await echoed(address)
    labels = {"grpc_type": "unary", "grpc_service": SERVICE, "grpc_method": "Echo", "grpc_code": "OK"}
    assert registry.get_sample_value("grpc_server_handled_total", labels) == 1


async def test_a_port_that_another_listener_has_is_not_shared() -> None:
    first, second = listener("127.0.0.1:0"), None
    async with first.open(SERVICE) as address:
        second = listener(address)
        with pytest.raises(InvalidInput) as refused:
            async with second.open(SERVICE):
                pass
    assert (refused.value.field, refused.value.given) == ("listen", address)


async def test_a_unix_socket_that_somebody_listens_on_is_not_taken_from_them(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'x.sock'}"
    first = listener(address)
    add_echo(first)
    async with first.open(SERVICE):
        for spelling in (address, address.replace("unix:", "unix://")):
            with pytest.raises(InvalidInput, match="listen"):
                async with listener(spelling).open(SERVICE):
                    pass
        assert await echoed(address) == b"hello"


async def test_a_unix_socket_that_a_killed_process_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()
    listening = listener(f"unix:{path}")
    add_echo(listening)
    async with listening.open(SERVICE) as address:
        assert await echoed(address) == b"hello"


async def test_a_unix_socket_in_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="listen"):
        async with listener(f"unix:{tmp_path / 'nowhere' / 'x.sock'}").open(SERVICE):
            pass


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "example.com:1", "10.0.0.1:1", "", "127.0.0.1"])
async def test_an_address_that_others_reach_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="listen"):
        listener(address)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "127.0.0.1:0"])
async def test_with_tls_others_may_reach_it_and_have_to_show_a_certificate(address: str, tmp_path: Path) -> None:
    tls = FederationTLS(tmp_path)
    files = TLSFiles(
        ca_file=tmp_path / "readers.crt",
        certificate_file=tmp_path / "server.crt",
        private_key_file=tmp_path / "server.key",
    )
    listening = GrpcListener(address, "listen", grace=0.1, metrics=GrpcMetrics(CollectorRegistry()), tls=files)
    add_echo(listening)
    async with listening.open(SERVICE) as told:
        target = told.replace("0.0.0.0", "127.0.0.1")
        async with open_channel(target, tls.reader.read(), ()) as typed_channel:
            channel: Any = typed_channel
            assert await channel.unary_unary(f"/{SERVICE}/Echo")(b"hello", timeout=10) == b"hello"
        with pytest.raises(grpc.aio.AioRpcError):
            await echoed(target)


async def test_files_that_cannot_be_used_are_named_before_it_listens(tmp_path: Path) -> None:
    tls = FederationTLS(tmp_path)
    listening = GrpcListener(
        "127.0.0.1:0", "listen", grace=0.1, metrics=GrpcMetrics(CollectorRegistry()), tls=tls.reader
    )
    tls.reader.private_key_file.unlink()
    with pytest.raises(InvalidInput, match="tls-private-key-file"):
        async with listening.open(SERVICE):
            pass


async def test_when_it_closes_it_says_so_first_and_lets_calls_end() -> None:
    release = asyncio.Event()
    listening = listener("127.0.0.1:0", grace=10)
    called = add_echo(listening, release)
    opened = listening.open(SERVICE)
    address = await opened.__aenter__()
    async with grpc.aio.insecure_channel(address) as channel:
        watch: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == SERVING
        call = asyncio.create_task(echoed(address))
        await called.wait()
        closing = asyncio.create_task(opened.__aexit__(None, None, None))
        assert (await watch.read()).status == NOT_SERVING
        assert not call.done()
        release.set()
        assert await call == b"hello"
        watch.cancel()
        await closing


async def test_calls_that_do_not_end_are_ended_after_the_grace() -> None:
    before = asyncio.all_tasks()
    listening = listener("127.0.0.1:0", grace=0.05)
    called = add_echo(listening, asyncio.Event())
    async with listening.open(SERVICE) as address:
        call = asyncio.create_task(echoed(address))
        await called.wait()
    with pytest.raises(grpc.aio.AioRpcError):
        await call
    assert asyncio.all_tasks() == before


async def test_a_private_one_is_for_its_own_user_alone(tmp_path: Path) -> None:
    former = os.umask(0o022)
    try:
        for name, is_private, mode in (("private", True, 0o600), ("public", False, 0o755)):
            path = tmp_path / name
            listening = listener(f"unix:{path}", is_private=is_private)
            add_echo(listening)
            async with listening.open(SERVICE) as address:
                assert stat.S_IMODE(path.stat().st_mode) == mode
                assert await echoed(address) == b"hello"
    finally:
        assert os.umask(former) == 0o022, "nothing else of the process is touched"


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0"])
def test_a_private_one_is_a_unix_socket(address: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        listener(address, is_private=True)
    assert (refused.value.field, refused.value.given) == ("listen", address)
