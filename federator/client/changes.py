"""What became of everything selected between two revisions or times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from federator.api.cluster import ClusterID
from federator.client.connection import Connection
from federator.client.event import EventType, event_type
from federator.client.freshness import ClusterFreshness
from federator.client.history import Gap, operations_of
from federator.client.object import InventoryObject
from federator.client.result import Scan
from federator.errors import AggregatorUnreachable
from federator.v1 import inventory_pb2


class ObjectChange(msgspec.Struct, frozen=True):
    """What became of one object.

    Attributes:
        type: ADDED: it is in the selection and was not; MODIFIED: it is and was, but differs; DELETED: it was and is
            not, or it came and went in between.
        object: as it is at the end, or as it was last in the selection.
        previous_revision: of its state at the beginning; 0 where that was not in the selection.
        revision: of its newest change in between.
        time: when that was committed, seconds since 1970.
        versions: how often it changed in between.
        patch: for MODIFIED, with `with_patches`: RFC 6902 JSON Patch from its state at the beginning.
    """

    type: EventType
    object: InventoryObject
    previous_revision: int
    revision: int
    time: float
    versions: int
    patch: bytes = b""

    def operations(self) -> list[dict[str, Any]]:
        """The operations of the patch, decoded anew with each call; none where there is no patch."""
        return operations_of(self.patch)

    @classmethod
    def from_message(cls, message: inventory_pb2.ObjectChange) -> ObjectChange:
        """Takes the change out of its message."""
        return cls(
            type=event_type(message.type),
            object=InventoryObject.from_message(message.object),
            previous_revision=message.previous_revision,
            revision=message.revision,
            time=message.time_ms / 1000,
            versions=message.versions,
            patch=message.patch,
        )


class ChangesResult(msgspec.Struct, frozen=True):
    """The net changes between two revisions.

    Attributes:
        changes: in the order of their newest changes.
        after_revision: the beginning.
        until_revision: the end.
        total: changes, before the limit.
        complete: whether nothing that was asked for may be missing now.
        clusters: freshness of each asked cluster, of now.
        gaps: times in which an asked cluster was not live, by cluster.
        scan: what had to be read.
    """

    changes: tuple[ObjectChange, ...]
    after_revision: int
    until_revision: int
    total: int
    complete: bool
    clusters: Mapping[ClusterID, ClusterFreshness]
    gaps: Mapping[ClusterID, tuple[Gap, ...]]
    scan: Scan | None = None


async def ask_changes(
    connection: Connection, request: inventory_pb2.GetChangesRequest, timeout: float | None
) -> ChangesResult:
    """Makes one call, and puts the parts of its answer together.

    Raises:
        AggregatorUnreachable: it ended before its last part, too.
        FederatorError: as the aggregator refused it.
    """
    changes: list[ObjectChange] = []
    summary = None
    async with connection.call(lambda stub: stub.GetChanges, request, timeout) as call:
        async for part in call:
            connection.reached = True
            changes.extend(map(ObjectChange.from_message, part.changes))
            summary = part.summary if part.HasField("summary") else None
    if summary is None:
        raise AggregatorUnreachable(connection.address, "the changes ended before their last part")
    gaps: dict[ClusterID, list[Gap]] = {}
    for each in summary.gaps:
        gaps.setdefault(ClusterID(each.cluster_id), []).append(Gap.from_message(each.gap))
    clusters = map(ClusterFreshness.from_message, summary.clusters)
    return ChangesResult(
        changes=tuple(changes),
        after_revision=summary.after_revision,
        until_revision=summary.until_revision,
        total=summary.total,
        complete=summary.complete,
        clusters={cluster.cluster_id: cluster for cluster in clusters},
        gaps={cluster_id: tuple(of_cluster) for cluster_id, of_cluster in gaps.items()},
        scan=Scan(summary.scan.objects, summary.scan.history) if summary.HasField("scan") else None,
    )
