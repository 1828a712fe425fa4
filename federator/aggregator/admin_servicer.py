"""AdminServicer: what changes the federation's membership, as admin.proto documents it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from federator.aggregator.ingest.lifecycle import ClusterLifecycle
from federator.aggregator.ledger.ledger import Ledger
from federator.api.cluster import ClusterID, parse_cluster_id
from federator.v1 import admin_pb2, admin_pb2_grpc
from federator.wire.resource_type import cluster_state_to_proto
from federator.wire.status import aio_error_boundary

Context = grpc.aio.ServicerContext[Any, Any]


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Removes clusters. It believes whoever reaches it, so its listener is a private one."""

    def __init__(self, ledger: Ledger, lifecycle: ClusterLifecycle, count_objects: Callable[[ClusterID], int]) -> None:
        """Serves once it is added to a server.

        Args:
            ledger: tells the revision.
            lifecycle: decides what may be removed, and removes it.
            count_objects: tells how many objects of a cluster are present.
        """
        self._ledger = ledger
        self._lifecycle = lifecycle
        self._count_objects = count_objects

    @aio_error_boundary
    async def RemoveCluster(  # noqa: N802
        self, request: admin_pb2.RemoveClusterRequest, context: Context
    ) -> admin_pb2.RemoveClusterResponse:
        """Takes a cluster out of the federation."""
        cluster_id = parse_cluster_id(request.cluster_id)
        uid, force = request.cluster_uid, request.force
        record = self._lifecycle.removable(cluster_id, cluster_uid=uid, force=force)
        is_connected = self._lifecycle.is_connected(cluster_id)
        if request.validate_only:
            objects = self._count_objects(cluster_id)
        else:
            objects = await self._lifecycle.remove(cluster_id, cluster_uid=uid, force=force)
        return admin_pb2.RemoveClusterResponse(
            cluster_id=cluster_id,
            cluster_uid=record.cluster_uid,
            state=cluster_state_to_proto(record.state),
            state_since_ms=record.since_ms,
            connected=is_connected,
            objects=objects,
            revision=self._ledger.revision,
        )
