"""The factory: one informer for all who want the same."""

from __future__ import annotations

import asyncio
import gc
import weakref

import msgspec
import pytest
from structlog.typing import EventDict

from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache.factory import SharedInformerFactory
from federator.cache.indexer import NAMESPACE_INDEX
from federator.cache.list_watch import ListWatch
from federator.cache.resync import AdaptiveResync
from federator.cache.shared_informer import InformerStopped
from federator.cache.wait import CacheNotSynced
from federator.errors import InvalidInput, MalformedSelector
from tests.unit.cache.doubles import FOREVER, FakeSource, RecordingHandler, pod, refused, settle

pytestmark = pytest.mark.looptime

PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)
JOBS = ResourceType(group="batch", version="v1", resource="jobs", kind="Job", namespaced=True)
NODES = ResourceType(group="", version="v1", resource="nodes", kind="Node", namespaced=False)


class Sources:
    """Makes a source for each narrowing that is asked for."""

    def __init__(self) -> None:
        self.made: list[tuple[ResourceType, dict[str, object]]] = []
        self.by_resource = {"pods": FakeSource(pod("a", 1)), "jobs": FakeSource(), "nodes": FakeSource()}

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
        "batch/v1 jobs [labels=app=web fields=status.phase=Running]"
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


async def test_from_start_to_shutdown(sources: Sources, logs: list[EventDict]) -> None:
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
    assert not [entry for entry in logs if entry["log_level"] != "debug"], "none is started twice"


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


class Fatal(BaseException):
    """What no informer catches of its handlers."""


class FatalHandler(RecordingHandler):
    def on_add(self, obj: KubeObject, is_initial: bool) -> None:
        raise Fatal(obj.key)


class StubbornHandler(RecordingHandler):
    """Takes its time to be cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled = 0
        self.ended = 0

    async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
        try:
            await asyncio.sleep(FOREVER)
        except asyncio.CancelledError:
            self.cancelled += 1
            await asyncio.sleep(5)
            self.ended += 1
            raise


async def test_one_that_ends_by_an_exception_is_told_of_and_concerns_no_other(
    sources: Sources, logs: list[EventDict]
) -> None:
    factory = SharedInformerFactory(sources, cluster="eu-1")
    failing = factory.informer(PODS)
    failing.add_event_handler(FatalHandler())
    jobs = RecordingHandler()
    factory.informer(JOBS).add_event_handler(jobs)
    factory.start()
    await settle()
    assert failing.is_stopped
    assert [(entry["event"], entry["informer"]) for entry in logs] == [("informer failed", "eu-1 v1 pods")]
    assert {name: told["state"] for name, told in factory.statistics().items()} == {
        "eu-1 v1 pods": "failed",
        "eu-1 batch/v1 jobs": "running",
    }
    assert list(factory.failed()) == ["eu-1 v1 pods"]

    sources.by_resource["jobs"].put("b")
    await settle()
    assert jobs.events == [("add", "default/b", "101")]
    assert factory.informer(PODS) is failing, "until it is removed: others have it too"

    with pytest.raises(BaseExceptionGroup, match="informers failed: eu-1 v1 pods") as raised:
        await factory.shutdown()
    assert raised.group_contains(Fatal)
    await factory.shutdown()
    assert list(factory.failed()) == ["eu-1 v1 pods"]


class TestRemove:
    async def test_st20_one_informer_stops_and_its_name_is_free(self, sources: Sources) -> None:
        """ST20: names are unique, and released."""
        factory = SharedInformerFactory(sources)
        first, jobs = factory.informer(PODS), factory.informer(JOBS)
        async with factory:
            await factory.wait_for_cache_sync(timeout=5)
            await factory.remove(first)
            assert first.is_stopped
            assert set(factory.statistics()) == {"batch/v1 jobs"}
            assert not jobs.is_stopped

            second = factory.informer(PODS)
            assert second is not first
            assert second.name == first.name
            factory.start()
            await factory.wait_for_cache_sync(timeout=5)
            assert second.indexer.list() == [pod("a", 1)]
            await factory.remove(first)
            assert factory.informers() == [jobs, second], "one that is not here any more is ignored"

    async def test_whoever_asks_while_it_stops_gets_a_new_one(self, sources: Sources) -> None:
        factory = SharedInformerFactory(sources)
        handler = StubbornHandler()
        first = factory.informer(PODS)
        first.add_event_handler(handler)
        factory.start()
        await settle()
        removing = asyncio.create_task(factory.remove(first))
        await settle()
        assert factory.informer(PODS) is not first
        removing.cancel()
        await asyncio.wait([removing])
        assert removing.cancelled()
        await factory.shutdown()
        assert handler.ended == 1, "shutdown waits for what was being removed"

    async def test_of_one_that_had_failed_it_raises_what_and_forgets_it(self, sources: Sources) -> None:
        factory = SharedInformerFactory(sources)
        failing = factory.informer(PODS)
        failing.add_event_handler(FatalHandler())
        factory.start()
        await settle()
        with pytest.raises(BaseExceptionGroup, match="informer failed: v1 pods") as raised:
            await factory.remove(failing)
        assert raised.group_contains(Fatal)
        assert not factory.failed()
        await factory.shutdown()


class TestShutdown:
    async def test_cancelled_it_stops_all_and_another_waits_for_the_rest(self, sources: Sources) -> None:
        factory = SharedInformerFactory(sources)
        handler = StubbornHandler()
        factory.informer(PODS).add_event_handler(handler)
        factory.start()
        await settle()
        first = asyncio.create_task(factory.shutdown())
        await settle()
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        assert handler.ended == 0
        assert (factory.is_shut_down, factory.is_stopped) == (True, False)
        with pytest.raises(InformerStopped):
            factory.start()
        await factory.shutdown()
        assert handler.ended == 1
        assert handler.cancelled == 1, "what ends is not cut short"
        assert factory.is_stopped

    async def test_st20_nothing_is_kept(self, sources: Sources) -> None:
        """ST20: statistics, which metrics are made of, end with the informers."""
        factory = SharedInformerFactory(sources)
        gone = weakref.ref(factory.informer(PODS))
        async with factory:
            await factory.wait_for_cache_sync(timeout=5)
        assert not factory.statistics()
        assert not factory.informers()
        gc.collect()
        assert gone() is None
        with pytest.raises(InformerStopped):
            await factory.wait_for_cache_sync()

    async def test_stop_does_not_wait(self, sources: Sources) -> None:
        factory = SharedInformerFactory(sources)
        factory.informer(PODS)
        factory.start()
        await settle()
        factory.stop()
        assert (factory.is_shut_down, factory.is_stopped) == (True, False)
        await settle()
        assert (factory.is_shut_down, factory.is_stopped) == (True, True)
        await factory.shutdown()


class TestNarrowed:
    async def test_it_shares_informers_start_and_shutdown(self, sources: Sources) -> None:
        factory = SharedInformerFactory(sources)
        shop = factory.narrowed(namespace="shop")
        web = shop.narrowed(label_selector="app=web")
        pods = web.informer(PODS)
        assert pods.name == "v1 pods [namespace=shop labels=app=web]"
        assert factory.informer(PODS, namespace="shop", label_selector="app = web") is pods
        assert factory.narrowed(label_selector="app in (web)").informer(PODS, namespace="shop") is pods
        assert shop.informer(PODS) is not pods
        assert shop.informer(PODS) is not factory.informer(PODS)
        async with web:
            assert factory.informer(PODS) in factory.started()
            assert shop.statistics().keys() == factory.statistics().keys()
            await factory.wait_for_cache_sync(timeout=5)
        with pytest.raises(InformerStopped):
            factory.informer(PODS)
        with pytest.raises(InformerStopped):
            shop.start()

    def test_narrowings_add_up(self, sources: Sources) -> None:
        web = SharedInformerFactory(sources).narrowed(namespace="shop", label_selector="tier=front,app=web")
        pods = web.informer(PODS, namespace="shop", label_selector="app=web,track notin (canary)", metadata_only=True)
        assert pods.name == "v1 pods [namespace=shop labels=app=web,tier=front,track!=canary metadata]"
        assert sources.made[-1][1] == {
            "namespace": "shop",
            "label_selector": "app=web,tier=front,track!=canary",
            "field_selector": "",
            "metadata_only": True,
        }
        assert web.narrowed(label_selector="app=web").informer(PODS) is web.informer(PODS)

    def test_namespaces_that_contradict_are_refused(self, sources: Sources) -> None:
        shop = SharedInformerFactory(sources).narrowed(namespace="shop")
        assert shop.narrowed(namespace="shop").informer(PODS) is shop.informer(PODS)
        with pytest.raises(InvalidInput, match="'billing' is not allowed; allowed: 'shop', to which the factory is"):
            shop.narrowed(namespace="billing")
        with pytest.raises(InvalidInput):
            shop.informer(PODS, namespace="billing")
        with pytest.raises(InvalidInput):
            shop.lister(PODS, namespace="billing")

    @pytest.mark.parametrize("selector", ["app in (web", "app=web)", "=", ","])
    def test_each_selector_has_to_stand_by_itself(self, sources: Sources, selector: str) -> None:
        factory = SharedInformerFactory(sources)
        with pytest.raises(MalformedSelector):
            factory.narrowed(label_selector=selector)
        with pytest.raises(MalformedSelector):
            factory.narrowed(label_selector="tier=front").informer(PODS, label_selector=selector)
        assert not factory.informers()

    def test_cluster_scoped_types_know_no_namespace(self, sources: Sources) -> None:
        factory = SharedInformerFactory(sources)
        nodes = factory.narrowed(namespace="shop").informer(NODES)
        assert nodes.name == "v1 nodes"
        assert factory.informer(NODES, namespace="billing") is nodes


def test_a_type_is_its_group_version_and_name(sources: Sources) -> None:
    factory = SharedInformerFactory(sources)
    pods = factory.informer(PODS)
    assert factory.informer(msgspec.structs.replace(PODS, short_names=("po",), singular="pod")) is pods
    assert factory.informer(msgspec.structs.replace(PODS, version="v2")) is not pods


def test_what_cannot_be_made_is_not_there(sources: Sources) -> None:
    factory = SharedInformerFactory(sources)
    unknown = msgspec.structs.replace(PODS, resource="unknown")
    with pytest.raises(KeyError):
        factory.informer(unknown)
    assert not factory.informers()


async def test_before_a_start_nothing_is_asked_of_the_server(sources: Sources) -> None:
    factory = SharedInformerFactory(sources)
    factory.informer(PODS)
    assert not factory.started()
    assert factory.statistics()["v1 pods"]["state"] == "made"
    await factory.wait_for_cache_sync(timeout=5)
    await settle()
    assert sources.by_resource["pods"].watches == 0
    await factory.shutdown()


async def test_resync_and_transform_hold_for_all(sources: Sources) -> None:
    handler = RecordingHandler()
    factory = SharedInformerFactory(sources, resync_period=2.0, transform=lambda obj: obj.without_raw())
    factory.informer(PODS).add_event_handler(handler)
    async with factory:
        await asyncio.sleep(4.5)
        assert factory.informer(PODS).indexer.list() == [pod("a", 1).without_raw()]
    assert len(handler.events) == 3


@pytest.mark.parametrize("compress", [True, False])
async def test_compression_and_adaptive_resync_hold_for_all(sources: Sources, compress: bool) -> None:
    factory = SharedInformerFactory(sources, resync_period=AdaptiveResync(minimum=2, maximum=20), compress=compress)
    pods = factory.narrowed(namespace="default").informer(PODS)
    handler = RecordingHandler()
    registration = pods.add_event_handler(handler)
    async with factory:
        await asyncio.sleep(100)
        assert 3 < len(handler.events) < 20, "seldom, since nothing is amiss"
        assert registration.statistics()["resync_period"] == 20
        held = pods.indexer.list()[0]
        assert held == pod("a", 1)
        assert (pods.indexer.list()[0] is held) != compress, "made anew for each who asks"


async def test_who_waits_for_an_informer_that_was_never_started_is_told_at_the_shutdown() -> None:
    factory = SharedInformerFactory(lambda *_, **__: FakeSource())
    pods, nodes = factory.informer(PODS), factory.informer(PODS, namespace="shop")
    waiting = [asyncio.create_task(each.wait_synced()) for each in (pods, nodes)]
    await factory.remove(nodes)
    await factory.shutdown()
    for task in waiting:
        with pytest.raises(InformerStopped):
            await task
