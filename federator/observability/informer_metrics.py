"""Prometheus metrics of informers, for programs that use `federator.cache` by itself.

    registry.register(InformerCollector(factory))

Names are client-go's where they mean the same. Histograms are read from the informers' own counts at each scrape, so
metrics of an informer end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from federator.api.duration_histogram import DurationHistogram
from federator.cache.cluster_factories import ClusterInformerFactories
from federator.cache.factory import SharedInformerFactory
from federator.cache.shared_informer import SharedInformer
from federator.cache.work_queue import RateLimitingQueue
from federator.observability.metrics import buckets_of

Statistics = Mapping[str, Any]
"""What `SharedInformer.statistics` returns."""

_RUNNING = "running"
_NEVER = float("inf")

_GAUGES: tuple[tuple[str, str, Callable[[Statistics], float]], ...] = (
    (
        "informer_up",
        "Whether it runs; 0 before it was started, and when it has stopped or failed.",
        lambda each: float(each.get("state", _RUNNING) == _RUNNING),
    ),
    (
        "reflector_last_proof_age_seconds",
        "Since the apiserver last proved what is held; infinite if it never did.",
        lambda each: _NEVER if (age := each["status"]["last_proof_age"]) is None else age,
    ),
    (
        "reflector_failing_seconds",
        "For how long nothing has worked, since the first failure; 0 while it is healthy.",
        lambda each: each["status"]["failing_for"] or 0.0,
    ),
    ("informer_queued_items", "Changes that wait for the Indexer.", lambda each: each["queue"]["backlog"]),
    ("informer_store_objects", "Objects in the Indexer.", lambda each: each["indexer"]["objects"]),
    ("informer_store_bytes", "What the objects in the Indexer take, about.", lambda each: each["indexer"]["bytes"]),
    (
        "informer_store_resource_version",
        "Version up to which the Indexer has everything; 0 where it is no number.",
        lambda each: _number(each["indexer"]["resource_version"]),
    ),
    (
        "reflector_last_resource_version",
        "Version up to which the apiserver has been read; 0 where it is no number.",
        lambda each: _number(each["reflector"]["resource_version"]),
    ),
)

_COUNTERS: tuple[tuple[str, str, Callable[[Statistics], float]], ...] = (
    (
        "reflector_requests",
        "Requests to the apiserver, each page and each watch.",
        lambda each: each["reflector"]["requests"],
    ),
    ("reflector_lists", "Lists that were begun.", lambda each: each["reflector"]["lists"]),
    (
        "reflector_watches",
        "Watches that were begun, watch-lists among them.",
        lambda each: each["reflector"]["watches"],
    ),
    ("reflector_events", "Events that watches brought.", lambda each: each["reflector"]["events"]),
    ("reflector_failures", "Lists and watches that failed.", lambda each: each["reflector"]["failures"]),
    ("informer_resyncs", "Resyncs that were due.", lambda each: each["reflector"]["resyncs"]),
    (
        "informer_producer_waits",
        "Times that reading waited for room in the queue.",
        lambda each: each["queue"]["producer_waits"],
    ),
)

_HANDLER_COUNTERS = (
    ("informer_notifications_delivered", "Notifications that a handler was given.", "delivered"),
    ("informer_notifications_failed", "Notifications that a handler raised for.", "failed"),
    ("informer_notifications_coalesced", "Notifications merged away since the handler was slow.", "coalesced"),
)


class InformerCollector(Collector):
    """Gives the statistics of informers, labelled `informer` by their names, and `handler` where they are of one."""

    def __init__(self, *sources: SharedInformer | SharedInformerFactory | ClusterInformerFactories) -> None:
        """Takes informers, or what has some.

        They are read on the thread that scrapes: expose the registry on the informers' own event loop.
        """
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        """Reads the statistics."""
        informers: dict[str, Statistics] = {}
        for source in self._sources:
            informers.update(_statistics_of(source))
        for name, meaning, read in _GAUGES:
            gauge = GaugeMetricFamily(name, meaning, labels=("informer",))
            for informer, each in informers.items():
                gauge.add_metric((informer,), read(each))
            yield gauge
        for name, meaning, read in _COUNTERS:
            counter = CounterMetricFamily(name, meaning, labels=("informer",))
            for informer, each in informers.items():
                counter.add_metric((informer,), read(each))
            yield counter
        yield _relists(informers)
        yield _quarantined(informers)
        yield _lookups(informers)
        yield _histogram(
            "informer_processing_latency_seconds",
            "From a change's arrival until the Indexer has it.",
            (((informer,), each["queue"]["latencies"]) for informer, each in informers.items()),
        )
        yield _histogram(
            "reflector_list_duration_seconds",
            "From asking what exists until it is known.",
            (((informer,), each["reflector"]["list_durations"]) for informer, each in informers.items()),
        )
        yield from _of_handlers(informers)

    def describe(self) -> Iterable[Metric]:
        """Nothing: what there is to describe depends on what is there to read."""
        return ()


def _statistics_of(source: SharedInformer | SharedInformerFactory | ClusterInformerFactories) -> dict[str, Statistics]:
    match source:
        case SharedInformer():
            return {source.name: source.statistics()}
        case SharedInformerFactory():
            return dict(source.statistics())
        case _:
            by_cluster: Iterable[Mapping[str, Statistics]] = source.statistics().values()
            return {name: each for informers in by_cluster for name, each in informers.items()}


def _relists(informers: Mapping[str, Statistics]) -> Metric:
    relists = CounterMetricFamily(
        "reflector_relists", "Times that everything was read, by cause.", labels=("informer", "cause")
    )
    for informer, each in informers.items():
        for cause, number in each["reflector"]["relists"].items():
            relists.add_metric((informer, cause), number)
    return relists


def _quarantined(informers: Mapping[str, Statistics]) -> Metric:
    quarantined = GaugeMetricFamily(
        "informer_quarantined_objects",
        "Objects whose transform failed, or that an index function failed for.",
        labels=("informer", "stage"),
    )
    for informer, each in informers.items():
        quarantined.add_metric((informer, "transform"), each["queue"]["quarantined"])
        quarantined.add_metric((informer, "index"), each["indexer"]["quarantined"])
    return quarantined


def _lookups(informers: Mapping[str, Statistics]) -> Metric:
    lookups = CounterMetricFamily(
        "informer_store_lookups", "Lookups by key, by whether the Indexer had it.", labels=("informer", "result")
    )
    for informer, each in informers.items():
        lookups.add_metric((informer, "hit"), each["indexer"]["hits"])
        lookups.add_metric((informer, "miss"), each["indexer"]["misses"])
    return lookups


def _of_handlers(informers: Mapping[str, Statistics]) -> Iterator[Metric]:
    handlers = [
        ((informer, handler.removeprefix(f"{informer} ")), statistics)
        for informer, each in informers.items()
        for handler, statistics in each["handlers"].items()
    ]
    labels = ("informer", "handler")
    pending = GaugeMetricFamily(
        "informer_pending_notifications", "Notifications that wait for a handler.", labels=labels
    )
    for names, statistics in handlers:
        pending.add_metric(names, statistics["pending"])
    yield pending
    for name, meaning, key in _HANDLER_COUNTERS:
        counter = CounterMetricFamily(name, meaning, labels=labels)
        for names, statistics in handlers:
            counter.add_metric(names, statistics[key])
        yield counter
    yield _histogram(
        "informer_event_handling_seconds",
        "From a change's arrival until the handler returned.",
        ((names, statistics["latencies"]) for names, statistics in handlers),
        labels,
    )
    yield _histogram(
        "informer_handler_duration_seconds",
        "What the handler itself took.",
        ((names, statistics["durations"]) for names, statistics in handlers),
        labels,
    )


def _histogram(
    name: str,
    meaning: str,
    histograms: Iterable[tuple[tuple[str, ...], DurationHistogram]],
    labels: tuple[str, ...] = ("informer",),
) -> Metric:
    family = HistogramMetricFamily(name, meaning, labels=labels)
    for values, histogram in histograms:
        family.add_metric(values, buckets_of(histogram), histogram.sum)
    return family


def _number(resource_version: object) -> float:
    text = str(resource_version)
    return float(text) if text.isdecimal() else 0.0


_QUEUE_GAUGES = {
    "depth": "Items that wait.",
    "unfinished_work_seconds": "How long what is in process has been, summed up.",
    "longest_running_processor_seconds": "How long the item that is longest in process has been.",
}
_QUEUE_COUNTERS = {"adds_total": "Items added.", "retries_total": "Items that are to come back."}
_QUEUE_HISTOGRAMS = {
    "queue_duration_seconds": "How long items waited.",
    "work_duration_seconds": "How long items were in process.",
}


class WorkQueueCollector(Collector):
    """Gives the statistics of work queues under client-go's names, labelled `name`."""

    def __init__(self, *queues: RateLimitingQueue[Any]) -> None:
        """Takes the queues; they are read as `InformerCollector`'s sources are."""
        self._queues = queues

    def collect(self) -> Iterator[Metric]:
        """Reads the statistics."""
        queues: dict[str, Statistics] = {queue.name: queue.statistics() for queue in self._queues}
        for key, meaning in _QUEUE_GAUGES.items():
            gauge = GaugeMetricFamily(f"workqueue_{key}", meaning, labels=("name",))
            for name, each in queues.items():
                gauge.add_metric((name,), each[key])
            yield gauge
        for key, meaning in _QUEUE_COUNTERS.items():
            counter = CounterMetricFamily(f"workqueue_{key}", meaning, labels=("name",))
            for name, each in queues.items():
                counter.add_metric((name,), each[key])
            yield counter
        for key, meaning in _QUEUE_HISTOGRAMS.items():
            yield _histogram(
                f"workqueue_{key}", meaning, (((name,), each[key]) for name, each in queues.items()), ("name",)
            )

    def describe(self) -> Iterable[Metric]:
        """Nothing, as of `InformerCollector`."""
        return ()
