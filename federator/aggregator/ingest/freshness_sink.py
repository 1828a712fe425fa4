"""The seam to whoever tells readers how fresh the data is."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource


class FreshnessSink(Protocol):
    """Hears signs of life as they come; plain calls, quick, and not part of the ledger's order."""

    def seen(self, cluster_id: ClusterID) -> None:
        """The cluster's agent was heard just now."""
        ...

    def proved(self, cluster_id: ClusterID, resource: GroupResource, age_seconds: float) -> None:
        """The cluster's apiserver gave a sign for a type, so many seconds ago."""
        ...

    def unread_groups(self, cluster_id: ClusterID, groups: Collection[str]) -> None:
        """The cluster's agent cannot discover the types of these API groups, and of no others; unchecked."""
        ...
