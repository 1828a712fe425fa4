"""Mismatches: what is done about types whose digests differ, and how often."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource

PATIENCE = 60.0
"""Seconds in which what was asked for may begin and end; a digest that differs meanwhile says nothing new."""

PAUSE = 600.0
"""Seconds between two listings of a type that no listing mends: it is something else that is wrong, and each costs the
apiserver a list."""


class Remedy(Enum):
    """What an agent is asked for."""

    RECHECK = "recheck"
    LISTING = "listing"


class _Mismatch(msgspec.Struct):
    asked: int = 0
    asked_at: float = 0.0
    is_open: bool = True


class Mismatches:
    """Types whose digests differ, by cluster, over all its sessions; those that fit take no memory.

    The first mismatch asks for a recheck, one that follows it for a listing, and every later one for another listing,
    with a pause in between.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Knows of none.

        Args:
            clock: monotonic seconds.
        """
        self._clock = clock
        self._known: dict[ClusterID, dict[GroupResource, _Mismatch]] = {}

    def differs(self, cluster_id: ClusterID, resource: GroupResource) -> Remedy | None:
        """A digest differs; returns what to ask for, or None where that would be too soon."""
        now = self._clock()
        known = self._known.setdefault(cluster_id, {}).setdefault(resource, _Mismatch())
        if known.asked and known.is_open and now - known.asked_at < PATIENCE:
            return None
        known.is_open = True
        if known.asked >= 2 and now - known.asked_at < PAUSE:
            return None
        known.asked += 1
        known.asked_at = now
        return Remedy.RECHECK if known.asked == 1 else Remedy.LISTING

    def listed(self, cluster_id: ClusterID, resource: GroupResource) -> None:
        """A listing or a recheck has ended; whether it has mended anything the next digest tells."""
        known = self._find(cluster_id, resource)
        if known is not None:
            known.is_open = False

    def is_open(self, cluster_id: ClusterID, resource: GroupResource) -> bool:
        """Whether a digest has differed, and no listing has ended since."""
        known = self._find(cluster_id, resource)
        return known is not None and known.is_open

    def is_known(self, cluster_id: ClusterID, resource: GroupResource) -> bool:
        """Whether a digest has differed, and none was equal since."""
        return self._find(cluster_id, resource) is not None

    def equal(self, cluster_id: ClusterID, resource: GroupResource) -> None:
        """A digest is equal: all is well again."""
        of_cluster = self._known.get(cluster_id, {})
        of_cluster.pop(resource, None)
        if not of_cluster:
            self._known.pop(cluster_id, None)

    def reopened(self, cluster_id: ClusterID) -> None:
        """Another session begins: what was asked of the one before may be lost, and is asked again."""
        for known in self._known.get(cluster_id, {}).values():
            if known.is_open and 0 < known.asked <= 2:
                known.asked -= 1
                known.asked_at = 0.0

    def forget(self, cluster_id: ClusterID) -> None:
        """Drops what is known of a cluster."""
        self._known.pop(cluster_id, None)

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def _find(self, cluster_id: ClusterID, resource: GroupResource) -> _Mismatch | None:
        return self._known.get(cluster_id, {}).get(resource)
