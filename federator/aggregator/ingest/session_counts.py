"""Totals of what agents push."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from federator.aggregator.ledger.records import Commit, ObjectEntry
from federator.api.cluster import ClusterID
from federator.api.resource import ResourceType


class SessionCounts:
    """Totals over all sessions of one process, by cluster.

    Attributes:
        deltas: changes committed, by (cluster, type, ADDED | MODIFIED | DELETED).
        bytes: of frames, by cluster.
        frames: by cluster.
        rejected: frames and items, by (cluster, reason).
        snapshots: listings, by (cluster, "completed" | "restarted" | "broken").
        plans: answers to the begin of a listing, by (cluster, "nothing" | "differing" | "all").
        comparisons: digests of bookmarks, by (cluster, "equal" | "different").
        repaired: objects that were not as their agent had sent them, by (cluster, type, "changed" | "missing" |
            "extra").
    """

    def __init__(self) -> None:
        self.deltas: Counter[tuple[ClusterID, str, str]] = Counter()
        self.bytes: Counter[ClusterID] = Counter()
        self.frames: Counter[ClusterID] = Counter()
        self.rejected: Counter[tuple[ClusterID, str]] = Counter()
        self.snapshots: Counter[tuple[ClusterID, str]] = Counter()
        self.plans: Counter[tuple[ClusterID, str]] = Counter()
        self.comparisons: Counter[tuple[ClusterID, str]] = Counter()
        self.repaired: Counter[tuple[ClusterID, str, str]] = Counter()

    def committed(self, resource_type: ResourceType, commit: Commit) -> None:
        """Counts the object changes of a commit."""
        name = str(resource_type.group_resource)
        for entry in commit.entries:
            if isinstance(entry, ObjectEntry):
                self.deltas[entry.key.cluster_id, name, entry.type.name] += 1

    def forget(self, cluster_id: ClusterID) -> None:
        """Drops what was counted of a cluster."""
        for by_cluster in (self.bytes, self.frames):
            by_cluster.pop(cluster_id, None)
        for by_labels in (self.deltas, self.repaired):
            for labels in [one for one in by_labels if one[0] == cluster_id]:
                del by_labels[labels]
        for by_label in (self.rejected, self.snapshots, self.plans, self.comparisons):
            for label in [one for one in by_label if one[0] == cluster_id]:
                del by_label[label]

    def statistics(self) -> Mapping[str, object]:
        """A copy of all of them, by the attributes' names."""
        return {name: dict(total) for name, total in vars(self).items()}
