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
    (
        "federator_agent_left_out_objects",
        "Objects that were refused or cannot be sent.",
        "left_out",
    ),
)
_OUTBOX_COUNTERS = (
    ("federator_agent_outbox_coalesced", "Changes that replaced an unsent one of the same object.", "coalesced"),
    (
        "federator_agent_outbox_overflows",
        "Times the unsent changes of a type were dropped for a new list.",
        "overflows",
    ),
    ("federator_agent_snapshots", "Full listings put on the way.", "snapshots"),
    ("federator_agent_rechecks", "Times a type was compared since what was sent did not add up.", "rechecks"),
    ("federator_agent_pushed_bytes", "Bytes of frames sent.", "bytes"),
)
_SPOOL_GAUGES = (
    ("federator_agent_spool_on", "Whether unacknowledged changes are kept in a file.", "is_on"),
    ("federator_agent_spool_bytes", "Bytes of the file's pages in use.", "bytes"),
)
_SPOOL_COUNTERS = (
    ("federator_agent_spool_overflows", "Times the spooled changes of a type were dropped to make room.", "overflows"),
    ("federator_agent_spool_failures", "Times the file could not be written to, and was given up.", "failures"),
    ("federator_agent_spool_set_aside", "Files that could not be used, and were set aside.", "set_aside"),
)
_REFLECTOR_COUNTERS = (
    ("reflector_lists", "Lists made.", "lists"),
    ("reflector_watches", "Watches opened.", "watches"),
    ("reflector_failures", "Lists and watches that failed.", "failures"),
)


def agent_metrics(statistics: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[Metric]:
    """Families over the statistics of agents by ClusterID; counts of informers are summed over types.

    Agents without a spool are missing in its families.
    """
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
    proofs = GaugeMetricFamily(
        "federator_agent_type_proof_age_seconds",
        "Seconds since the apiserver last gave a sign for a type: event, bookmark, list or clean end of a watch.",
        labels=(MEMBER, "resource"),
    )
    for cluster_id, agent in statistics.items():
        for resource, age in agent["informers"]["proof_ages"].items():
            proofs.add_metric((cluster_id, resource), age)
    yield proofs
    yield from _audit_metrics({cluster_id: agent["audit"] for cluster_id, agent in statistics.items()})
    spools = {cluster_id: agent["spool"] for cluster_id, agent in statistics.items()}
    yield from _spool_metrics({cluster_id: spool for cluster_id, spool in spools.items() if spool})


def _audit_metrics(audits: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    compared = CounterMetricFamily(
        "federator_agent_audits",
        "Comparisons of a type with what its apiserver lists, by what came of them.",
        labels=(MEMBER, "outcome"),
    )
    differences = CounterMetricFamily(
        "federator_agent_audit_differences",
        "Objects that an informer did not hold as its apiserver has them.",
        labels=(MEMBER, "kind"),
    )
    ages = GaugeMetricFamily(
        "federator_agent_audit_age_seconds", "Seconds since a type was last compared.", labels=(MEMBER, "resource")
    )
    for cluster_id, audit in audits.items():
        for outcome, number in audit["outcomes"].items():
            compared.add_metric((cluster_id, outcome), number)
        for kind, number in audit["differences"].items():
            differences.add_metric((cluster_id, kind), number)
        for resource, age in audit["ages"].items():
            ages.add_metric((cluster_id, resource), age)
    yield from (compared, differences, ages)


def _spool_metrics(spools: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    for family, kind in ((GaugeMetricFamily, _SPOOL_GAUGES), (CounterMetricFamily, _SPOOL_COUNTERS)):
        for name, meaning, key in kind:
            metric = family(name, meaning, labels=(MEMBER,))
            for cluster_id, spool in spools.items():
                metric.add_metric((cluster_id,), spool[key])
            yield metric
