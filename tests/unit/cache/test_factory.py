"""The factory: one informer for all who want the same."""

from __future__ import annotations

import asyncio

import pytest

from federator.api.resource import ResourceType
from federator.cache.factory import SharedInformerFactory
from federator.cache.indexer import NAMESPACE_INDEX
from federator.cache.list_watch import ListWatch
from federator.cache.shared_informer import InformerStopped
from federator.cache.wait import CacheNotSynced
from tests.unit.cache.doubles import FakeSource, RecordingHandler, pod, refused, settle

pytestmark = pytest.mark.looptime

PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)
JOBS = ResourceType(group="batch", version="v1", resource="jobs", kind="Job", namespaced=True)


class Sources:
    """Makes a source for each narrowing that is asked for."""

    def __init__(self) -> None:
        self.made: list[tuple[ResourceType, dict[str, object]]] = []
        self.by_resource = {"pods": FakeSource(pod("a", 1)), "jobs": FakeSource()}

    def __call__(self, resource_type: ResourceType, /, **narrowing: object) -> ListWatch:
        self.made.append((resource_type, narrowing))
        return self.by_resource[resource_type.resource]


@pytest.fixture
def sources() -> Sources:
    return Sources()


async def test_all_who_ask_for_the_same_share_one_informer(sources: Sources) -> None:
    factory = SharedInformerFactory(sources)
    pods = factory.informer(PODS)
    assert factory.informer(PODS) is pods
    assert factory.informer(PODS, namespace="kube-system") is not pods
    assert factory.informer(PODS, metadata_only=True) is not pods
    assert factory.informer(JOBS, label_selector="app=web", field_selector="status.phase=Running").name == (
        "batch/v1 jobs [app=web status.phase=Running]"
    )
    everything: dict[str, object] = {
        "namespace": "",
        "label_selector": "",
        "field_selector": "",
        "metadata_only": False,
    }
    assert sources.made == [
        (PODS, everything),
        (PODS, {**everything, "namespace": "kube-system"}),
        (PODS, {**everything, "metadata_only": True}),
        (JOBS, {**everything, "label_selector": "app=web", "field_selector": "status.phase=Running"}),
    ]


async def test_from_start_to_shutdown(sources: Sources) -> None:
    factory = SharedInformerFactory(sources)
    lister = factory.lister(PODS)
    handler = RecordingHandler()
    factory.informer(PODS).add_event_handler(handler)
    async with factory:
        await factory.wait_for_cache_sync(timeout=5)
        assert lister.namespace("default").get("a") == pod("a", 1)
        assert factory.informer(PODS).indexer.index_keys(NAMESPACE_INDEX, "default") == ["default/a"]
        factory.start()
        assert sources.by_resource["pods"].watches == 1
        late = factory.informer(JOBS)
        assert not late.has_synced()
        factory.start()
        await factory.wait_for_cache_sync(timeout=5)
        assert late.has_synced()
        assert set(factory.statistics()) == {"v1 pods", "batch/v1 jobs"}
    assert handler.events == [("initial", "default/a", "1")]


async def test_si20_shutdown_leaves_no_task_and_may_come_twice(sources: Sources) -> None:
    """SI20 Shutdown: the fixture looks for what is left."""
    factory = SharedInformerFactory(sources)
    factory.informer(PODS)
    factory.start()
    await settle()
    await factory.shutdown()
    await factory.shutdown()
    with pytest.raises(InformerStopped):
        factory.informer(JOBS)
    with pytest.raises(InformerStopped):
        factory.start()


async def test_shutdown_without_a_start(sources: Sources) -> None:
    factory = SharedInformerFactory(sources)
    factory.informer(PODS)
    await factory.shutdown()


async def test_st13_the_unsynced_are_named(sources: Sources) -> None:
    sources.by_resource["jobs"].failure = refused()
    factory = SharedInformerFactory(sources)
    factory.informer(PODS)
    factory.informer(JOBS)
    async with factory:
        with pytest.raises(CacheNotSynced) as raised:
            await factory.wait_for_cache_sync(timeout=5)
        assert raised.value.unsynced == ("batch/v1 jobs",)


async def test_shutdown_tells_of_informers_that_had_died(sources: Sources) -> None:
    factory = SharedInformerFactory(sources)
    informer = factory.informer(PODS)

    async def dies() -> None:
        raise ZeroDivisionError

    informer.run = dies  # type: ignore[method-assign]
    factory.informer(JOBS)
    factory.start()
    await settle()
    with pytest.raises(BaseExceptionGroup) as raised:
        await factory.shutdown()
    assert raised.group_contains(ZeroDivisionError)


async def test_resync_and_transform_hold_for_all(sources: Sources) -> None:
    handler = RecordingHandler()
    factory = SharedInformerFactory(sources, resync_period=2.0, transform=lambda obj: obj.without_raw())
    factory.informer(PODS).add_event_handler(handler)
    async with factory:
        await asyncio.sleep(4.5)
        assert factory.informer(PODS).indexer.list() == [pod("a", 1).without_raw()]
    assert len(handler.events) == 3
