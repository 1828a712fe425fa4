"""A gRPC listener with what every one of ours has: health, reflection, metrics, limits and an orderly end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any

import grpc
from google.protobuf import descriptor_pool
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from federator.api.address import UNIX, is_local
from federator.errors import InvalidInput
from federator.observability.grpc_metrics import GrpcMetrics
from federator.wire.limits import MAX_MESSAGE_BYTES
from federator.wire.status import RequestDecoding
from federator.wire.tls import TLSFiles, server_credentials

_REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Else two processes on one port would share it in silence, each with some of the connections.
    ("grpc.so_reuseport", 0),
    # Clients may ping idle streams every 10 s; by default the server would end them with GOAWAY.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # After a restart all watchers call within a second; beyond 1,000 calls not taken up yet gRPC would cancel some.
    ("grpc.server.max_pending_requests", 20_000),
    ("grpc.server.max_pending_requests_hard_limit", 40_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
"""Options of every server."""


class GrpcListener:
    """A server on one address. Add services to `server`, then `open` it.

    With TLS every client needs a certificate. Without, it carries everything in plaintext and believes what a client
    says of itself, so the address must be loopback or a unix socket.
    """

    def __init__(
        self,
        address: str,
        field: str,
        *,
        grace: float,
        metrics: GrpcMetrics,
        tls: TLSFiles | None = None,
        is_private: bool = False,
    ) -> None:
        """Prepares the server.

        Args:
            address: `host:port`, port 0 for a free one, or `unix:/path`.
            field: name of the setting, for errors.
            grace: seconds that calls may take to end when it closes.
            metrics: counts its calls.
            tls: its certificate, and the authority of its clients'; None for plaintext.
            is_private: only this process's user may connect; the address must be a unix socket.

        Raises:
            InvalidInput: the address can be reached by others, and there is no TLS, or it has to be private.
        """
        if not is_local(address, field=field) and tls is None:
            raise InvalidInput(field, address, "unix:/path, or host:port on loopback: this listener has no TLS")
        if is_private and not address.startswith(UNIX):
            raise InvalidInput(field, address, "unix:/path: this listener is for the aggregator's own user")
        self._address = address
        self._is_private = is_private
        self._tls = tls
        self._field = field
        self._grace = grace
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self.server = grpc.aio.server(interceptors=[metrics, RequestDecoding()], options=SERVER_OPTIONS)

    @asynccontextmanager
    async def open(self, *services: str) -> AsyncIterator[str]:
        """Listens while the block runs, and yields the address with the port resolved.

        When it is left, health turns to NOT_SERVING, then calls have the grace to end.

        Args:
            services: full names of the services added, for health and reflection.

        Raises:
            InvalidInput: the address cannot be listened on, or a file of TLS cannot be used.
        """
        credentials = None if self._tls is None else await asyncio.to_thread(server_credentials, self._tls)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        _add_reflection(self.server, (*services, health.SERVICE_NAME))
        if _is_listened_on(self._address):
            raise InvalidInput(self._field, self._address, "an address that is free")
        try:
            if credentials is None:
                with _owner_only() if self._is_private else nullcontext():
                    port = self.server.add_insecure_port(self._address)
            else:
                port = self.server.add_secure_port(self._address, credentials)
        except RuntimeError as error:
            raise InvalidInput(self._field, self._address, "an address that is free") from error
        await self.server.start()
        for name in ("", *services):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        try:
            yield self._address if self._address.startswith(UNIX) else _with_port(self._address, port)
        finally:
            await self._health.enter_graceful_shutdown()
            await self.server.stop(self._grace)


@contextmanager
def _owner_only() -> Iterator[None]:
    """What is created meanwhile, others cannot open, not even for the moment before its mode could be changed."""
    former = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(former)


def _is_listened_on(address: str) -> bool:
    """Whether somebody listens on a unix socket. gRPC would take its path away from them, in silence."""
    if not address.startswith(UNIX):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address.removeprefix(UNIX))
        except BlockingIOError:
            return True  # it has more callers than it takes
        except OSError:
            return False
        return True


def _with_port(address: str, port: int) -> str:
    return f"{address.rpartition(':')[0]}:{port}"


def _add_reflection(server: grpc.aio.Server, services: tuple[str, ...]) -> None:
    """Registers reflection as v1alpha, which the library has, and as v1, which newer clients ask first.

    The messages of both are the same on the wire.
    """
    names = (*services, reflection.SERVICE_NAME, _REFLECTION_V1)
    pool: Any = _PoolWithMethods()
    reflection.enable_server_reflection(names, server, pool)
    servicer = reflection.aio.ReflectionServicer(names, pool)  # type: ignore[attr-defined]
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handler = grpc.method_handlers_generic_handler(_REFLECTION_V1, {"ServerReflectionInfo": method})
    server.add_generic_rpc_handlers((handler,))


class _PoolWithMethods:
    """The pool of descriptors, in which methods are symbols, too: protobuf's own finds none by `Service.Method`."""

    def FindFileContainingSymbol(self, symbol: str) -> Any:  # noqa: N802 - the pool's name for it
        pool = descriptor_pool.Default()
        try:
            return pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return pool.FindMethodByName(symbol).containing_service.file

    def __getattr__(self, name: str) -> Any:
        return getattr(descriptor_pool.Default(), name)
