"""The seam to whoever knows what is held of a type."""

from __future__ import annotations

from typing import Protocol

from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource
from federator.wire.digest import Digest


class StoredDigests(Protocol):
    """What the present objects of each type in each cluster add up to, as of the last commit that was told."""

    def of(self, cluster_id: ClusterID, resource: GroupResource) -> Digest:
        """The digest of a type in a cluster, but for objects whose state is lost."""
        ...

    def correct(self, cluster_id: ClusterID, resource: GroupResource, digest: Digest) -> None:
        """The ledger was read, and has another digest."""
        ...
