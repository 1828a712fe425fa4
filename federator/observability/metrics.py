"""Prometheus metrics: one registry a process, filled from `statistics()` when it is scraped.

A metric is never labelled `cluster`: Prometheus users own that label. Members are told apart by `member_cluster`.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from federator import __version__
from federator.api.duration_histogram import DurationHistogram

MEMBER: Final = "member_cluster"
"""The label that names a member cluster."""


class StatisticsCollector(Collector):
    """Turns the present statistics of a process into metric families at each scrape."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        """`read` is called on the event loop's thread, and returns each family once."""
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Reads the statistics."""
        return self._read()

    def describe(self) -> Sequence[Metric]:
        """Nothing: what there is to describe depends on what is there to read."""
        return ()


def buckets_of(histogram: DurationHistogram) -> list[tuple[str, float]]:
    """The buckets of a histogram as a HistogramMetricFamily takes them."""
    return [("+Inf" if bound == float("inf") else str(bound), number) for bound, number in histogram.buckets()]


def new_registry(component: str) -> CollectorRegistry:
    """Returns a registry with the process's own metrics and `federator_build_info`."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    build = Gauge(
        "federator_build_info",
        "Version of the program; always 1.",
        ("version", "component", "python"),
        registry=registry,
    )
    build.labels(__version__, component, platform.python_version()).set(1)
    return registry


class LoopLag:
    """Measures how late the event loop runs what is due: the first sign of a call that blocks."""

    INTERVAL: Final = 0.5
    """Seconds between probes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Registers `federator_event_loop_lag_seconds`."""
        self._histogram = Histogram(
            "federator_event_loop_lag_seconds",
            "How late the event loop ran a callback that was due.",
            buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
            registry=registry,
        )

    async def run(self) -> None:
        """Probes until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self.INTERVAL
            await asyncio.sleep(self.INTERVAL)
            self._histogram.observe(max(0.0, loop.time() - due))
