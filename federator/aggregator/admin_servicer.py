"""AdminServicer: what changes the federation's membership and its indexes, as admin.proto documents it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from federator.aggregator.ingest.lifecycle import ClusterLifecycle
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.query.field_index_keeper import DeclaredIndex, FieldIndexKeeper, indexed_path
from federator.api.cluster import ClusterID, parse_cluster_id
from federator.api.field_path import format_field_path, parse_field_path
from federator.v1 import admin_pb2, admin_pb2_grpc
from federator.wire.resource_type import cluster_state_to_proto
from federator.wire.status import aio_error_boundary

Context = grpc.aio.ServicerContext[Any, Any]


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Removes clusters, declares and drops field indexes.

    It believes whoever reaches it, so its listener is a private one.
    """

    def __init__(
        self,
        ledger: Ledger,
        lifecycle: ClusterLifecycle,
        count_objects: Callable[[ClusterID], int],
        field_indexes: FieldIndexKeeper,
        types: ResourceTypes,
    ) -> None:
        """Serves once it is added to a server.

        Args:
            ledger: tells the revision.
            lifecycle: decides what may be removed, and removes it.
            count_objects: tells how many objects of a cluster are present.
            field_indexes: declares and drops them.
            types: resolves the names of types.
        """
        self._ledger = ledger
        self._lifecycle = lifecycle
        self._count_objects = count_objects
        self._field_indexes = field_indexes
        self._types = types

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

    @aio_error_boundary
    async def AddFieldIndex(  # noqa: N802
        self, request: admin_pb2.AddFieldIndexRequest, context: Context
    ) -> admin_pb2.AddFieldIndexResponse:
        """Declares an index on a field."""
        path = indexed_path(request.path)
        resources = self._types.resolve(request.resources) if request.resources else ()
        declared = DeclaredIndex(format_field_path(path), tuple(sorted(map(str, resources))))
        return admin_pb2.AddFieldIndexResponse(is_new=self._field_indexes.add(declared))

    @aio_error_boundary
    async def DropFieldIndex(  # noqa: N802
        self, request: admin_pb2.DropFieldIndexRequest, context: Context
    ) -> admin_pb2.DropFieldIndexResponse:
        """Takes an index on a field back."""
        self._field_indexes.drop(parse_field_path(request.path))
        return admin_pb2.DropFieldIndexResponse()
