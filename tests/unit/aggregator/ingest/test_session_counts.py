from __future__ import annotations

from federator.aggregator.ingest.session_counts import SessionCounts
from federator.api.cluster import ClusterID


def test_nothing_is_left_of_a_cluster_that_is_forgotten() -> None:
    counts = SessionCounts()
    for cluster_id in map(ClusterID, ("gone", "stays")):
        counts.bytes[cluster_id] += 1
        counts.frames[cluster_id] += 1
        counts.deltas[cluster_id, "pods", "ADDED"] += 1
        counts.repaired[cluster_id, "pods", "extra"] += 1
        for counter in (counts.rejected, counts.snapshots, counts.plans, counts.comparisons):
            counter[cluster_id, "why"] += 1
    before = counts.statistics()
    assert all(before.values()), "every counter is filled above"
    counts.forget(ClusterID("gone"))
    assert "gone" not in str(counts.statistics())
    assert str(counts.statistics()).count("stays") == str(before).count("stays") == len(before)
