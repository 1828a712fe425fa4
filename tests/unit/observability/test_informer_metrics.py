from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry

from federator.api.object import KubeObject
from federator.cache.cluster_factories import ClusterInformerFactories
from federator.cache.factory import SharedInformerFactory
from federator.cache.reflector import RelistCause
from federator.cache.shared_informer import SharedInformer
from federator.cache.work_queue import RateLimitingQueue
from federator.observability.informer_metrics import InformerCollector, WorkQueueCollector
from tests.unit.aggregator.federation import NODES, PODS
from tests.unit.cache.doubles import FakeSource, RecordingHandler, expired, pod, running, settle

pytestmark = pytest.mark.looptime


class Slow(RecordingHandler):
    """Takes three seconds, and fails at what is called bad."""

    async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
        await asyncio.sleep(3)
        if obj.name == "bad":
            raise ValueError("bad")


def samples(registry: CollectorRegistry) -> Mapping[tuple[str, ...], float]:
    """Values by name and labels' values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


async def test_what_an_informer_does_is_exposed() -> None:
    source = FakeSource(pod("a", 90), pod("bad", 95))
    informer = SharedInformer(source, name="eu-1 v1 pods", indexers={"bad": lambda obj: [obj.meta().labels["x"]]})  # type: ignore[index]
    informer.add_event_handler(Slow())
    registry = CollectorRegistry()
    registry.register(InformerCollector(informer))
    async with running(informer):
        await informer.wait_synced()
        await settle()
        early = samples(registry)
        assert early["informer_pending_notifications", "eu-1 v1 pods", "handler 1"] == 1
        assert early["reflector_failing_seconds", "eu-1 v1 pods"] == 0
        await asyncio.sleep(10)
        source.put("c")
        await settle()
        source.compact()
        source.cut(expired(in_stream=True))
        await asyncio.sleep(100)
        informer.indexer.get_by_key("default/a")
        informer.indexer.get_by_key("default/nobody")
        found = samples(registry)
    one = "eu-1 v1 pods"
    assert found["informer_store_objects", one] == 3
    assert found["informer_store_bytes", one] > 1800
    assert found["reflector_last_proof_age_seconds", one] < 101
    assert (
        found["reflector_requests_total", one]
        == found["reflector_lists_total", one] + found["reflector_watches_total", one]
    )
    assert found["informer_queued_items", one] == 0
    assert found["informer_store_resource_version", one] == found["reflector_last_resource_version", one] > 100
    assert found["informer_quarantined_objects", one, "index"] == 3
    assert found["informer_quarantined_objects", one, "transform"] == 0
    assert (found["informer_store_lookups_total", one, "hit"], found["informer_store_lookups_total", one, "miss"]) == (
        1,
        1,
    )
    assert found["reflector_relists_total", one, "initial"] == 1
    assert found["reflector_relists_total", one, "expired"] == 1
    assert found["reflector_list_duration_seconds_count", one] == 2
    assert found["informer_processing_latency_seconds_count", one] >= 3
    assert found["informer_notifications_delivered_total", one, "handler 1"] == 3
    assert found["informer_notifications_failed_total", one, "handler 1"] == 1
    assert found["informer_handler_duration_seconds_sum", one, "handler 1"] == pytest.approx(9)
    # The second of the first two waited for the first, and for the pause after it where that had failed.
    assert found["informer_event_handling_seconds_sum", one, "handler 1"] == pytest.approx(3 + 6 + 3)
    assert found["informer_event_handling_seconds_bucket", one, "handler 1", "+Inf"] == 3


async def test_factories_are_read_informer_by_informer_and_forgotten_with_them() -> None:
    factories = ClusterInformerFactories()
    for cluster in ("eu-1", "us-1"):
        factory = factories.add(cluster, lambda *_, **__: FakeSource(pod("a", 90)))
        factory.informer(PODS)
    alone = SharedInformerFactory(lambda *_, **__: FakeSource())
    alone.informer(NODES)
    registry = CollectorRegistry()
    registry.register(InformerCollector(factories, alone))
    async with factories:
        assert samples(registry)["reflector_last_proof_age_seconds", "v1 nodes"] == float("inf")
        await factories.wait_for_cache_sync()
        found = samples(registry)
        assert {names[1]: value for names, value in found.items() if names[0] == "informer_up"} == {
            "eu-1 v1 pods": 1,
            "us-1 v1 pods": 1,
            "v1 nodes": 0,
        }
        assert found["informer_store_objects", "us-1 v1 pods"] == 1
        await factories.remove("us-1")
        assert not any("us-1 v1 pods" in names for names in samples(registry))


def test_causes_have_the_names_that_the_manual_gives() -> None:
    assert {str(cause) for cause in RelistCause} == {
        "initial", "expired", "short_watch", "unresumable", "restored", "requested", "error",
    }  # fmt: skip


async def test_what_a_work_queue_does_is_exposed() -> None:
    queue: RateLimitingQueue[str] = RateLimitingQueue(name="pods")
    registry = CollectorRegistry()
    registry.register(WorkQueueCollector(queue))
    for item in ("a", "b", "a"):
        queue.add(item)
    await asyncio.sleep(2)
    queue.done(await queue.get())
    taken = await queue.get()
    queue.add_rate_limited(taken)
    await asyncio.sleep(3)
    found = samples(registry)
    assert found["workqueue_depth", "pods"] == 1  # added again while it is in process
    assert found["workqueue_adds_total", "pods"] == 3
    assert found["workqueue_retries_total", "pods"] == 1
    assert found["workqueue_queue_duration_seconds_sum", "pods"] == pytest.approx(4)
    assert found["workqueue_work_duration_seconds_count", "pods"] == 1
    assert found["workqueue_unfinished_work_seconds", "pods"] == pytest.approx(3)
    assert found["workqueue_longest_running_processor_seconds", "pods"] == pytest.approx(3)
