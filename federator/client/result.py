"""Results of the client's calls."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from federator.api.cluster import ClusterID
from federator.api.resource import ResourceType
from federator.client.freshness import Cluster, ClusterFreshness
from federator.client.object import InventoryObject
from federator.v1 import inventory_pb2


class GetResult(msgspec.Struct, frozen=True):
    """One object and how far it can be trusted.

    Attributes:
        object: the object.
        revision: revision at which the answer is true.
        freshness: freshness of the object's cluster for the asked type.
    """

    object: InventoryObject
    revision: int
    freshness: ClusterFreshness

    @classmethod
    def from_message(cls, message: inventory_pb2.GetResponse) -> GetResult:
        """Takes the result out of its message."""
        return cls(
            InventoryObject.from_message(message.object),
            message.revision,
            ClusterFreshness.from_message(message.freshness),
        )


class Scan(msgspec.Struct, frozen=True):
    """What had to be read besides the indexes to decide what belongs to an answer.

    Attributes:
        objects: object states read.
        history: whether history was scanned, since more changed after the asked revision than is held in memory.
    """

    objects: int
    history: bool


class ListSummary(msgspec.Struct, frozen=True):
    """What a list as a whole means.

    Attributes:
        revision: revision at which the list is exact.
        cursor: from where `watch` continues without loss or repeat.
        total: number of objects selected, before the limit.
        complete: every asked type of every asked cluster is LIVE or ABSENT and no agent's narrowing hides part of it.
        clusters: freshness of each asked cluster, of now, also where the past was asked for.
        next_page_token: where the next page begins; empty after the last, and where no page was asked for.
        scan: what had to be read besides the indexes; None where they alone decided.
    """

    revision: int
    cursor: bytes
    total: int
    complete: bool
    clusters: Mapping[ClusterID, ClusterFreshness]
    next_page_token: bytes = b""
    scan: Scan | None = None

    @classmethod
    def from_message(cls, message: inventory_pb2.ListSummary) -> ListSummary:
        """Takes the summary out of its message."""
        clusters = map(ClusterFreshness.from_message, message.clusters)
        return cls(
            revision=message.revision,
            cursor=message.cursor,
            total=message.total,
            complete=message.complete,
            clusters={cluster.cluster_id: cluster for cluster in clusters},
            next_page_token=message.next_page_token,
            scan=Scan(message.scan.objects, message.scan.history) if message.HasField("scan") else None,
        )


class ListPage(msgspec.Struct, frozen=True):
    """One page of a list, or of a list in one stream a part of at most about 1 MiB of bodies.

    Attributes:
        objects: objects of this page.
        summary: set on the last part of a stream only; on every page where a page size was given.
    """

    objects: tuple[InventoryObject, ...]
    summary: ListSummary | None = None

    @classmethod
    def from_message(cls, message: inventory_pb2.ListResponse) -> ListPage:
        """Takes the page out of its message."""
        summary = ListSummary.from_message(message.summary) if message.HasField("summary") else None
        return cls(tuple(map(InventoryObject.from_message, message.objects)), summary)


class ListResult(msgspec.Struct, frozen=True):
    """A whole list, or one page of it, exact at one revision.

    It is sorted as it was asked for, else by type, cluster, namespace and name.

    Attributes:
        items: the objects.
        revision: as in `ListSummary`, like all that follow.
        cursor: where `watch` continues.
        clusters: freshness of each asked cluster.
        complete: whether nothing that was asked for may be missing.
        total: number of objects selected, before the limit.
        next_page_token: where the next page begins.
        scan: what had to be read besides the indexes.
    """

    items: tuple[InventoryObject, ...]
    revision: int
    cursor: bytes
    clusters: Mapping[ClusterID, ClusterFreshness]
    complete: bool
    total: int
    next_page_token: bytes = b""
    scan: Scan | None = None


class ClustersResult(msgspec.Struct, frozen=True):
    """The member clusters.

    Attributes:
        clusters: sorted by ID.
        revision: revision at which the answer is true.
    """

    clusters: tuple[Cluster, ...]
    revision: int

    @classmethod
    def from_message(cls, message: inventory_pb2.ListClustersResponse) -> ClustersResult:
        """Takes the result out of its message."""
        return cls(tuple(map(Cluster.from_message, message.clusters)), message.revision)


class ServedType(msgspec.Struct, frozen=True):
    """A resource type and who serves it.

    Attributes:
        type: the type, as the cluster with the newest version describes it.
        clusters: the clusters that serve it.
    """

    type: ResourceType
    clusters: tuple[ClusterID, ...]

    @classmethod
    def from_message(cls, message: inventory_pb2.ServedType) -> ServedType:
        """Takes the type out of its message."""
        described = message.type
        return cls(
            ResourceType(
                group=described.group,
                version=described.version,
                resource=described.resource,
                kind=described.kind,
                namespaced=described.namespaced,
                singular=described.singular,
                short_names=tuple(described.short_names),
                categories=tuple(described.categories),
            ),
            tuple(map(ClusterID, message.clusters)),
        )
