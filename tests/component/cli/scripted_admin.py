"""An AdminService that says what a test tells it to, on a real socket."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from federator.errors import FederatorError
from federator.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from federator.wire.status import aio_error_boundary


class ScriptedAdmin(admin_pb2_grpc.AdminServiceServicer):
    """Answers as it is told to and remembers what it was asked.

    Attributes:
        requests: everything asked, in order.
        error: what everything is refused with; None for nothing.
        connected: whether the removed cluster has a session.
        is_new: whether an added index is.
    """

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.error: FederatorError | None = None
        self.connected = False
        self.is_new = True

    @aio_error_boundary
    async def RemoveCluster(self, request: admin_pb2.RemoveClusterRequest, context: Any) -> Any:  # noqa: N802
        self._asked(request)
        return admin_pb2.RemoveClusterResponse(
            cluster_id=request.cluster_id,
            cluster_uid="u-1",
            state=types_pb2.CLUSTER_STATE_STALE,
            state_since_ms=int((time.time() - 3600) * 1000),
            connected=self.connected,
            objects=41230,
            revision=77,
        )

    @aio_error_boundary
    async def AddFieldIndex(self, request: admin_pb2.AddFieldIndexRequest, context: Any) -> Any:  # noqa: N802
        self._asked(request)
        return admin_pb2.AddFieldIndexResponse(is_new=self.is_new)

    @aio_error_boundary
    async def DropFieldIndex(self, request: admin_pb2.DropFieldIndexRequest, context: Any) -> Any:  # noqa: N802
        self._asked(request)
        return admin_pb2.DropFieldIndexResponse()

    def _asked(self, request: Any) -> None:
        self.requests.append(request)
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def administrating(socket: Path) -> AsyncIterator[ScriptedAdmin]:
    """Serves on a socket."""
    scripted = ScriptedAdmin()
    server = grpc.aio.server()
    admin_pb2_grpc.add_AdminServiceServicer_to_server(scripted, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield scripted
    finally:
        await server.stop(None)
