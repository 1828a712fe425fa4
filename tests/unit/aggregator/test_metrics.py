"""Families of an aggregator: from the statistics of real parts, read back as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric

from federator.aggregator.ingest.lifecycle import ClusterLifecycle
from federator.aggregator.ingest.servicer import IngestServicer
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.merge.merged_store import MergedStore
from federator.aggregator.metrics import aggregator_metrics
from federator.api.cluster import ClusterID, ClusterState
from federator.observability.metrics import StatisticsCollector
from tests.exposition import parsed
from tests.unit.aggregator.federation import NODES, PODS, Federation, delete, put, raw_put

BERLIN, PARIS = ClusterID("berlin"), ClusterID("paris")

PUSHED: Mapping[str, Any] = {
    "sessions": 2,
    "session_ends": {"goodbye": 3, "broken": 1},
    "refusals": {"CLUSTER_HELD": 4},
    "deltas": {
        (BERLIN, PODS.group_resource, "ADDED"): 5,
        (BERLIN, NODES.group_resource, "ADDED"): 2,
        (PARIS, PODS.group_resource, "DELETED"): 1,
    },
    "bytes": {BERLIN: 1000, PARIS: 10},
    "rejected": {(BERLIN, "MALFORMED"): 6, (PARIS, "TOO_LARGE"): 1},
    "snapshots": {(BERLIN, "completed"): 7, (PARIS, "broken"): 1},
    "plans": {(BERLIN, "nothing"): 8, (BERLIN, "all"): 1},
    "comparisons": {(BERLIN, "equal"): 9, (PARIS, "different"): 2},
    "repaired": {(PARIS, "pods", "changed"): 3, (PARIS, "pods", "extra"): 1},
    "mismatches": 1,
    "snapshots_waiting": 5,
    "snapshots_holding": 4,
    "snapshots_waited_seconds": 1.5,
    "snapshots_overdue": 1,
}
"""What IngestServicer would count."""


def statistics(federation: Federation, ingest: Mapping[str, Any] = PUSHED) -> dict[str, Mapping[str, Any]]:
    return {
        "ledger": federation.ledger.statistics(),
        "merge": federation.view.statistics(),
        "serve": federation.servicer.statistics(),
        "ingest": ingest,
    }


def scraped(federation: Federation, ingest: Mapping[str, Any] = PUSHED) -> dict[str, Metric]:
    """The families after their way through a registry, the text format and a parser."""

    def read() -> Iterator[Metric]:
        ledger = federation.ledger
        return aggregator_metrics(
            statistics(federation, ingest), ledger.clusters(), federation.view, ledger.commit_durations
        )

    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatisticsCollector(read))
    return parsed(generate_latest(registry).decode())


def values(family: Metric) -> dict[tuple[str, ...], float]:
    """Values by the values of the labels."""
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


@pytest.fixture
async def federation() -> Federation:
    made = Federation()
    await made.join("berlin")
    await made.join("paris", state=ClusterState.STALE)
    await made.commit("berlin", put("web"), put("db"))
    await made.commit("berlin", put("n1", namespace=""), type=NODES)
    await made.commit("paris", put("web"))
    return made


async def test_members_and_their_states(federation: Federation) -> None:
    families = scraped(federation)
    assert {
        (s.labels["member_cluster"], s.labels["cluster_uid"]) for s in families["federator_cluster_info"].samples
    } == {
        ("berlin", "uid-of-berlin"),
        ("paris", "uid-of-paris"),
    }
    states = values(families["federator_cluster_state"])
    assert {key for key, value in states.items() if value} == {("berlin", "LIVE"), ("paris", "STALE")}
    assert len(states) == 2 * (len(ClusterState) - 1)
    proved = values(families["federator_cluster_last_proved_timestamp_seconds"])
    assert proved[BERLIN,] == pytest.approx(federation.ledger.clusters()[BERLIN].since_ms / 1000, abs=30)


async def test_a_member_that_was_never_proved_has_no_time_of_it() -> None:
    federation = Federation()
    await federation.join("berlin", types=())
    families = scraped(federation)
    assert values(families["federator_cluster_last_proved_timestamp_seconds"]) == {}


async def test_content_by_member_and_type(federation: Federation) -> None:
    families = scraped(federation)
    counted = {key: value for key, value in values(families["federator_objects"]).items() if value}
    assert counted == {("berlin", "pods"): 2, ("berlin", "nodes"): 1, ("paris", "pods"): 1}


async def test_indexes_by_name_with_the_memory_of_each(federation: Federation) -> None:
    indexer = federation.view.indexer
    indexer.fields.add(("status", "phase"))
    for _ in indexer.building_fields():
        pass
    MergedStore(indexer, federation.ledger).add_indexers({"name": lambda obj: (obj.content["metadata"]["name"],)})
    await federation.commit("berlin", put("up", status={"phase": "R"}), raw_put("bad", b"\x00"))
    families = scraped(federation)
    told = federation.view.statistics()
    for kind in ("entries", "bytes"):
        shown = values(families[f"federator_index_{kind}"])
        assert shown == {
            (name.removeprefix(f"index_{kind}_"),): number
            for name, number in told.items()
            if name.startswith(f"index_{kind}_") and name not in {"index_bytes_fields", "index_bytes_functions"}
        }
        assert shown["field:status.phase",] > 0
        assert shown["function:name",] > 0
    # Each part is there once, so that the sum is the whole.
    assert sum(values(families["federator_index_bytes"]).values()) == sum(indexer.bytes().values())
    assert values(families["federator_quarantined_objects"]) == {
        ("field:status.phase",): 1,
        ("function:name",): 1,
    }


async def test_what_was_pushed_is_summed_over_types(federation: Federation) -> None:
    families = scraped(federation)
    assert values(families["federator_ingest_deltas"]) == {("berlin", "ADDED"): 7, ("paris", "DELETED"): 1}
    assert values(families["federator_ingest_rejected"]) == {("berlin", "MALFORMED"): 6, ("paris", "TOO_LARGE"): 1}
    assert values(families["federator_snapshots"]) == {("berlin", "completed"): 7, ("paris", "broken"): 1}
    assert values(families["federator_snapshot_plans"]) == {("berlin", "nothing"): 8, ("berlin", "all"): 1}
    comparisons = values(families["federator_ingest_digest_comparisons"])
    assert comparisons == {("berlin", "equal"): 9, ("paris", "different"): 2}
    repaired = values(families["federator_ingest_repaired_objects"])
    assert repaired == {("changed", "paris", "pods"): 3, ("extra", "paris", "pods"): 1}
    assert values(families["federator_ingest_digest_mismatches"]) == {(): 1}
    assert values(families["federator_snapshots_open"]) == {("waiting",): 5, ("admitted",): 4}
    assert values(families["federator_snapshots_waited_seconds"]) == {(): 1.5}
    assert values(families["federator_snapshots_overdue"]) == {(): 1}
    assert values(families["federator_ingest_bytes"]) == {("berlin",): 1000, ("paris",): 10}
    assert values(families["federator_ingest_session_ends"]) == {("goodbye",): 3, ("broken",): 1}
    assert values(families["federator_ingest_refusals"]) == {("CLUSTER_HELD",): 4}
    assert values(families["federator_ingest_sessions"]) == {(): 2}


async def test_the_statistics_of_a_real_servicer_are_what_is_read(federation: Federation) -> None:
    lifecycle = ClusterLifecycle(federation.ledger, federation.view.freshness, IngestSettings())
    servicer = IngestServicer(federation.ledger, lifecycle, federation.view.freshness, digests=federation.view.digests)
    assert set(PUSHED) <= set(servicer.statistics())
    families = scraped(federation, servicer.statistics())
    assert values(families["federator_ingest_sessions"]) == {(): 0}
    assert values(families["federator_ingest_deltas"]) == {}


async def test_the_ledger(federation: Federation) -> None:
    families = scraped(federation)
    told = federation.ledger.statistics()
    assert values(families["federator_ledger_revision"]) == {(): told["revision"]}
    assert values(families["federator_ledger_oldest_revision"]) == {(): told["oldest_revision"]}
    assert values(families["federator_ledger_bytes"]) == {
        ("file",): told["bytes"],
        ("used",): told["bytes"],
        ("limit",): told["max_bytes"],
    }
    durations = families["federator_ledger_commit_duration_seconds"]
    by_name = {sample.name.rpartition("_")[2]: sample.value for sample in durations.samples}
    assert durations.type == "histogram"
    assert by_name["count"] == told["commits"] > 0
    assert by_name["sum"] == pytest.approx(told["commit_seconds"])
    buckets = [sample for sample in durations.samples if sample.name.endswith("_bucket")]
    assert [float(sample.labels["le"]) for sample in buckets] == sorted(float(each.labels["le"]) for each in buckets)
    assert buckets[-1].labels["le"] == "+Inf"


async def test_used_bytes_are_told_where_the_ledger_knows_them(federation: Federation) -> None:
    told = statistics(federation)
    told["ledger"] = {**told["ledger"], "used_bytes": 42}
    families = aggregator_metrics(told, {}, federation.view, federation.ledger.commit_durations)
    (sizes,) = [family for family in families if family.name == "federator_ledger_bytes"]
    assert values(sizes)["used",] == 42


async def test_reading(federation: Federation) -> None:
    told = statistics(federation)
    told["serve"] = {
        **told["serve"],
        "answers_get_complete": 3,
        "answers_list_partial": 2,
        "watch_events_ADDED": 9,
        "watch_ends_WATCH_TOO_SLOW": 1,
    }
    families = {
        family.name: family
        for family in aggregator_metrics(
            told, federation.ledger.clusters(), federation.view, federation.ledger.commit_durations
        )
    }
    assert values(families["federator_answers"]) == {("get", "complete"): 3, ("list", "partial"): 2}
    assert values(families["federator_watch_events"]) == {("ADDED",): 9}
    assert values(families["federator_watch_ends"]) == {("WATCH_TOO_SLOW",): 1}
    assert values(families["federator_watchers"]) == {("live",): 0, ("lagging",): 0}
    depth, capacity = families["federator_queue_depth"], families["federator_queue_capacity"]
    assert values(depth)["watch_ring",] == told["serve"]["ring_entries"] > 0
    assert values(capacity)["watch_ring",] == told["serve"]["ring_max_entries"]


async def test_a_removed_cluster_leaves_no_series(federation: Federation) -> None:
    await federation.ledger.set_cluster_state(PARIS, ClusterState.REMOVED)
    assert of_cluster(scraped(federation), "paris") == []  # also before its objects have left
    await federation.commit("paris", delete("web"))
    families = scraped(federation)
    assert of_cluster(families, "paris") == []
    assert of_cluster(families, "berlin")


async def test_no_series_uses_the_label_that_belongs_to_prometheus_users(federation: Federation) -> None:
    labels = {label for family in scraped(federation).values() for sample in family.samples for label in sample.labels}
    assert "member_cluster" in labels
    assert "cluster" not in labels


def of_cluster(families: Mapping[str, Metric], cluster: str) -> list[str]:
    """Names of the series that any label ties to a cluster."""
    return [
        sample.name
        for family in families.values()
        for sample in family.samples
        if any(cluster in value for value in sample.labels.values())
    ]
