"""What /metrics tells, read as Prometheus reads it."""

from __future__ import annotations

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


def parsed(text: str) -> dict[str, Metric]:
    """The families of a scrape by name; each may be there only once."""
    families = list(text_string_to_metric_families(text))
    by_name = {family.name: family for family in families}
    assert len(by_name) == len(families)
    return by_name
