"""Prometheus families of agents, from their statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from federator.observability.metrics import MEMBER

_OUTBOX_GAUGES = (
    ("federator_agent_outbox_entries", "Changes not yet sent.", "queued_entries"),
    ("federator_agent_outbox_bytes", "Bytes of changes not yet sent.", "queued_bytes"),
    ("federator_agent_unacked_bytes", "Bytes sent and not yet acknowledged.", "in_flight_bytes"),
)
_OUTBOX_COUNTERS = (
    ("federator_agent_outbox_coalesced", "Changes that replaced an unsent one of the same object.", "coalesced"),
    (
        "federator_agent_outbox_overflows",
        "Times the unsent changes of a type were dropped for a new list.",
        "overflows",
    ),
    ("federator_agent_snapshots", "Full listings put on the way.", "snapshots"),
    ("federator_agent_pushed_bytes", "Bytes of frames sent.", "bytes"),
)
_REFLECTOR_COUNTERS = (
    ("reflector_lists", "Lists made.", "lists"),
    ("reflector_watches", "Watches opened.", "watches"),
    ("reflector_failures", "Lists and watches that failed.", "failures"),
)


def agent_metrics(statistics: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[Metric]:
    """Families over the statistics of agents by ClusterID; counts of informers are summed over types."""
    for name, meaning, key in _OUTBOX_GAUGES:
        gauge = GaugeMetricFamily(name, meaning, labels=(MEMBER,))
        for cluster_id, agent in statistics.items():
            gauge.add_metric((cluster_id,), agent["outbox"][key])
        yield gauge
    for name, meaning, key in _OUTBOX_COUNTERS:
        counter = CounterMetricFamily(name, meaning, labels=(MEMBER,))
        for cluster_id, agent in statistics.items():
            counter.add_metric((cluster_id,), agent["outbox"][key])
        yield counter
    reconnects = CounterMetricFamily(
        "federator_agent_push_reconnects", "Push sessions that ended.", labels=(MEMBER, "reason")
    )
    for cluster_id, agent in statistics.items():
        for reason, number in agent["pusher"]["session_ends"].items():
            reconnects.add_metric((cluster_id, reason), number)
    yield reconnects
    for name, meaning, key in _REFLECTOR_COUNTERS:
        counter = CounterMetricFamily(name, meaning, labels=(MEMBER,))
        for cluster_id, agent in statistics.items():
            total: Counter[str] = Counter()
            for informer in agent["informers"]["types"].values():
                total[key] += informer["reflector"][key]
            counter.add_metric((cluster_id,), total[key])
        yield counter
