"""Prometheus families of an aggregator, from the statistics of its parts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from federator.aggregator.ledger.records import ClusterRecord
from federator.aggregator.merge.merged_view import MergedView
from federator.api.cluster import ClusterID, ClusterState
from federator.api.duration_histogram import DurationHistogram
from federator.observability.metrics import MEMBER, buckets_of

Statistics = Mapping[str, Mapping[str, Any]]
"""Statistics by part: `ledger`, `merge`, `serve`, `ingest`."""


def aggregator_metrics(
    statistics: Statistics,
    clusters: Mapping[ClusterID, ClusterRecord],
    view: MergedView,
    commit_durations: DurationHistogram,
) -> Iterator[Metric]:
    """All families of an aggregator. A cluster that was removed leaves no series behind."""
    members = {name: record for name, record in clusters.items() if record.state is not ClusterState.REMOVED}
    yield from _cluster_metrics(members, view)
    yield from _content_metrics(statistics["merge"], members, view)
    yield from _ingest_metrics(statistics["ingest"], members)
    yield from _ledger_metrics(statistics["ledger"], commit_durations)
    yield from _serve_metrics(statistics["serve"])
    yield from _queue_metrics(statistics["serve"])


def _cluster_metrics(members: Mapping[ClusterID, ClusterRecord], view: MergedView) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "federator_cluster_info", "A member; always 1.", labels=(MEMBER, "cluster_uid", "version", "source")
    )
    state = GaugeMetricFamily(
        "federator_cluster_state", "Whether the member is in the state.", labels=(MEMBER, "state")
    )
    proved = GaugeMetricFamily(
        "federator_cluster_last_proved_timestamp_seconds",
        "When the apiserver last gave a sign for the type that waits longest for one.",
        labels=(MEMBER,),
    )
    now = time.time()
    for cluster_id, record in members.items():
        info.add_metric((cluster_id, record.cluster_uid, record.server_version, record.source), 1)
        for each in ClusterState:
            if each is not ClusterState.REMOVED:
                state.add_metric((cluster_id, each), float(record.state is each))
        age = view.freshness.of(cluster_id).proved_age
        if age is not None:
            proved.add_metric((cluster_id,), now - age)
    yield from (info, state, proved)


def _content_metrics(
    merge: Mapping[str, Any], members: Mapping[ClusterID, ClusterRecord], view: MergedView
) -> Iterator[Metric]:
    objects = GaugeMetricFamily("federator_objects", "Objects held.", labels=(MEMBER, "resource"))
    for (cluster_id, resource), number in view.indexer.objects().items():
        if cluster_id in members:
            objects.add_metric((cluster_id, str(resource)), number)
    yield objects
    for name, meaning, prefix in (
        ("federator_index_entries", "Values in an index; of a field index, pairs of a value and an object.", "entries"),
        ("federator_index_bytes", "Memory of a part of the merged index, in part estimated.", "bytes"),
        ("federator_quarantined_objects", "Objects that an index cannot read, and leaves out.", "quarantined"),
    ):
        family = GaugeMetricFamily(name, meaning, labels=("index",))
        for key, number in merge.items():
            if key.startswith(f"index_{prefix}_") and key not in _SUMS:
                family.add_metric((key.removeprefix(f"index_{prefix}_"),), number)
        yield family


_SUMS = frozenset({"index_bytes_fields", "index_bytes_functions"})
"""Statistics that add up others, each of which is shown."""


def _ingest_metrics(ingest: Mapping[str, Any], members: Mapping[ClusterID, ClusterRecord]) -> Iterator[Metric]:
    yield GaugeMetricFamily("federator_ingest_sessions", "Sessions open.", ingest["sessions"])
    ends = CounterMetricFamily("federator_ingest_session_ends", "Sessions that ended.", labels=("reason",))
    for reason, number in ingest["session_ends"].items():
        ends.add_metric((reason,), number)
    yield ends
    refusals = CounterMetricFamily("federator_ingest_refusals", "Sessions that were not let in.", labels=("reason",))
    for reason, number in ingest["refusals"].items():
        refusals.add_metric((reason,), number)
    yield refusals
    for name, meaning, label, key in (
        ("federator_ingest_deltas", "Changes committed.", "type", "deltas"),
        ("federator_ingest_rejected", "Frames and items refused.", "reason", "rejected"),
        ("federator_snapshots", "Full listings taken in.", "result", "snapshots"),
        ("federator_snapshot_plans", "Answers to listings that begin with a digest.", "plan", "plans"),
        ("federator_ingest_digest_comparisons", "Digests of bookmarks compared.", "result", "comparisons"),
    ):
        counter = CounterMetricFamily(name, meaning, labels=(MEMBER, label))
        totals: dict[tuple[str, str], int] = {}
        for (cluster_id, *_, value), number in ingest[key].items():
            if cluster_id in members:
                totals[cluster_id, str(value)] = totals.get((cluster_id, str(value)), 0) + number
        for labels, number in totals.items():
            counter.add_metric(labels, number)
        yield counter
    repaired = CounterMetricFamily(
        "federator_ingest_repaired_objects",
        "Objects that were not as their agent had sent them, and were mended.",
        labels=(MEMBER, "resource", "kind"),
    )
    for (cluster_id, resource, kind), number in ingest["repaired"].items():
        if cluster_id in members:
            repaired.add_metric((cluster_id, resource, kind), number)
    yield repaired
    yield GaugeMetricFamily(
        "federator_ingest_digest_mismatches", "Types whose newest digest differs.", ingest["mismatches"]
    )
    listings = GaugeMetricFamily("federator_snapshots_open", "Listings that wait or are taken in.", labels=("state",))
    listings.add_metric(("waiting",), ingest["snapshots_waiting"])
    listings.add_metric(("admitted",), ingest["snapshots_holding"])
    yield listings
    yield CounterMetricFamily(
        "federator_snapshots_waited_seconds",
        "Seconds for which listings waited for their turn.",
        ingest["snapshots_waited_seconds"],
    )
    yield CounterMetricFamily(
        "federator_snapshots_overdue",
        "Listings that lost their place because nothing of them came.",
        ingest["snapshots_overdue"],
    )
    received = CounterMetricFamily("federator_ingest_bytes", "Bytes of frames taken in.", labels=(MEMBER,))
    for cluster_id, number in ingest["bytes"].items():
        if cluster_id in members:
            received.add_metric((cluster_id,), number)
    yield received


def _ledger_metrics(ledger: Mapping[str, Any], commit_durations: DurationHistogram) -> Iterator[Metric]:
    yield GaugeMetricFamily("federator_ledger_revision", "Newest revision.", ledger["revision"])
    yield GaugeMetricFamily(
        "federator_ledger_oldest_revision", "Oldest revision a cursor may stand at.", ledger["oldest_revision"]
    )
    sizes = GaugeMetricFamily("federator_ledger_bytes", "Bytes of the ledger.", labels=("kind",))
    sizes.add_metric(("file",), ledger["bytes"])
    sizes.add_metric(("used",), ledger.get("used_bytes", ledger["bytes"]))
    sizes.add_metric(("limit",), ledger["max_bytes"])
    yield sizes
    yield GaugeMetricFamily(
        "federator_ledger_full", "Whether the ledger takes nothing more for want of room.", ledger.get("is_full", 0)
    )
    yield GaugeMetricFamily(
        "federator_ledger_lost_objects",
        "Present objects whose state is lost to damage until their agent has listed them.",
        ledger.get("lost_objects", 0),
    )
    damage = CounterMetricFamily(
        "federator_ledger_damage", "Damaged records found since the start, by what became of them.", labels=("result",)
    )
    for result, key in (
        ("repaired", "repaired_heads"),
        ("state_lost", "lost_states"),
        ("history_lost", "damaged_history"),
    ):
        damage.add_metric((result,), ledger.get(key, 0))
    yield damage
    yield HistogramMetricFamily(
        "federator_ledger_commit_duration_seconds",
        "Duration of commits, from the first write to the end of the fsync.",
        buckets=buckets_of(commit_durations),
        sum_value=commit_durations.sum,
    )


def _serve_metrics(serve: Mapping[str, Any]) -> Iterator[Metric]:
    watchers = GaugeMetricFamily("federator_watchers", "Watches open.", labels=("state",))
    watchers.add_metric(("live",), serve["watchers_live"])
    watchers.add_metric(("lagging",), serve["watchers_lagging"])
    yield watchers
    yield GaugeMetricFamily(
        "federator_watch_behind_revisions", "How far the slowest watch is behind.", serve["watch_behind_revisions"]
    )
    for name, meaning, label, prefix in (
        ("federator_watch_events", "Events sent to watches.", "type", "watch_events_"),
        ("federator_watch_ends", "Watches that ended.", "reason", "watch_ends_"),
    ):
        counter = CounterMetricFamily(name, meaning, labels=(label,))
        for key, number in serve.items():
            if key.startswith(prefix):
                counter.add_metric((key.removeprefix(prefix),), number)
        yield counter
    answers = CounterMetricFamily("federator_answers", "Answers given.", labels=("method", "completeness"))
    for key, number in serve.items():
        if key.startswith("answers_"):
            method, _, completeness = key.removeprefix("answers_").rpartition("_")
            answers.add_metric((method, completeness), number)
    yield answers
    yield GaugeMetricFamily(
        "federator_state_cache_bytes", "Objects kept for lists that ask for them again.", serve["cached_state_bytes"]
    )
    lookups = CounterMetricFamily(
        "federator_state_cache_lookups", "Objects of short lists, by whether they were kept.", labels=("result",)
    )
    for result in ("hit", "miss"):
        lookups.add_metric((result,), serve[f"state_cache_{'hits' if result == 'hit' else 'misses'}"])
    yield lookups


def _queue_metrics(serve: Mapping[str, Any]) -> Iterator[Metric]:
    depth = GaugeMetricFamily("federator_queue_depth", "Entries waiting.", labels=("queue",))
    capacity = GaugeMetricFamily("federator_queue_capacity", "Entries that may wait.", labels=("queue",))
    depth.add_metric(("watch_ring",), serve["ring_entries"])
    capacity.add_metric(("watch_ring",), serve["ring_max_entries"])
    yield from (depth, capacity)
