"""The factories of many clusters: names, coming and going, and what is told of them."""

from __future__ import annotations

import asyncio

import pytest

from federator.api.object import KubeObject
from federator.cache.cluster_factories import ClusterInformerFactories
from federator.cache.shared_informer import InformerStopped
from federator.cache.wait import CacheNotSynced
from federator.errors import InvalidInput, UnknownCluster
from tests.unit.cache.doubles import RecordingHandler, pod, refused, settle
from tests.unit.cache.test_factory import JOBS, PODS, Fatal, FatalHandler, Sources, StubbornHandler

pytestmark = pytest.mark.looptime


def task_names() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def test_clusters_have_informers_of_their_own() -> None:
    factories = ClusterInformerFactories()
    eu, us = Sources(), Sources()
    us.by_resource["pods"].put("b")
    assert factories.add("eu-1", eu) is factories.cluster("eu-1")
    factories.add("us-1", us)
    assert factories.clusters == ("eu-1", "us-1")
    told = RecordingHandler()
    eu_pods, us_pods = (factories.cluster(cluster).informer(PODS) for cluster in factories.clusters)
    us_pods.add_event_handler(told)
    assert factories.cluster("us-1").informer(PODS) is us_pods
    assert us_pods is not eu_pods
    async with factories:
        await factories.wait_for_cache_sync(timeout=5)
        assert [obj.name for obj in eu_pods.indexer.list()] == ["a"]
        assert [obj.name for obj in us_pods.indexer.list()] == ["a", "b"]
        narrowed = factories.cluster("eu-1").narrowed(namespace="shop").informer(PODS)
        assert {cluster: list(of_cluster) for cluster, of_cluster in factories.statistics().items()} == {
            "eu-1": ["eu-1 v1 pods", "eu-1 v1 pods [namespace=shop]"],
            "us-1": ["us-1 v1 pods"],
        }
        assert not narrowed.has_synced()
        factories.start()
        await factories.wait_for_cache_sync(timeout=5)
        assert narrowed.has_synced()
    assert told.events == [("initial", "default/a", "1"), ("initial", "default/b", "101")]
    with pytest.raises(InformerStopped):
        factories.add("ap-1", Sources())
    with pytest.raises(InformerStopped):
        factories.start()
    with pytest.raises(InformerStopped):
        await factories.wait_for_cache_sync()


def test_names_of_clusters_are_names() -> None:
    factories = ClusterInformerFactories()
    factories.add("eu-1", Sources())
    with pytest.raises(InvalidInput, match="a name that no other cluster has"):
        factories.add("eu-1", Sources())
    with pytest.raises(InvalidInput):
        factories.add("", Sources())
    with pytest.raises(UnknownCluster, match="eu-1"):
        factories.cluster("us-1")


async def test_options_hold_for_all() -> None:
    def changed(obj: KubeObject) -> KubeObject:
        return pod(obj.name, obj.resource_version, labels={"changed": "yes"})

    factories = ClusterInformerFactories(resync_period=2.0, transform=changed, compress=True)
    told = RecordingHandler()
    pods = factories.add("eu-1", Sources()).informer(PODS)
    pods.add_event_handler(told)
    async with factories:
        await asyncio.sleep(4.5)
        assert pods.indexer.list() == [pod("a", 1, labels={"changed": "yes"})]
        assert pods.indexer.list()[0] is not pods.indexer.list()[0], "compressed"
    assert len(told.events) == 3


class TestRemove:
    async def test_st20_nothing_of_it_is_left_and_its_names_are_free(self) -> None:
        """ST20."""
        factories = ClusterInformerFactories()
        for cluster in ("eu-1", "us-1"):
            factories.add(cluster, Sources()).informer(PODS)
        removed = factories.cluster("eu-1").informer(PODS)
        async with factories:
            await factories.wait_for_cache_sync(timeout=5)
            await factories.remove("eu-1")
            assert removed.is_stopped
            assert {name for name in task_names() if name.startswith("eu-1")} == set()
            assert {name for name in task_names() if name.startswith("us-1")} != set()
            assert factories.clusters == ("us-1",)
            assert set(factories.statistics()) == {"us-1"}
            with pytest.raises(UnknownCluster):
                await factories.remove("eu-1")

            again = factories.add("eu-1", Sources()).informer(PODS)
            assert again.name == removed.name
            factories.start()
            await factories.wait_for_cache_sync(timeout=5)
            assert again.has_synced()

    async def test_cancelled_it_stops_nevertheless_and_shutdown_waits(self) -> None:
        factories = ClusterInformerFactories()
        handler = StubbornHandler()
        factories.add("eu-1", Sources()).informer(PODS).add_event_handler(handler)
        factories.start()
        await settle()
        removing = asyncio.create_task(factories.remove("eu-1"))
        await settle()
        factories.add("eu-1", Sources())
        removing.cancel()
        await asyncio.wait([removing])
        assert handler.ended == 0
        await factories.shutdown()
        assert handler.ended == 1
        assert handler.cancelled == 1

    async def test_what_had_failed_is_raised(self) -> None:
        factories = ClusterInformerFactories()
        factories.add("eu-1", Sources()).informer(PODS).add_event_handler(FatalHandler())
        factories.add("us-1", Sources()).informer(PODS)
        async with factories:
            await settle()
            assert list(factories.failed()) == ["eu-1 v1 pods"]
            with pytest.raises(BaseExceptionGroup, match="eu-1 v1 pods") as raised:
                await factories.remove("eu-1")
            assert raised.group_contains(Fatal)
            assert not factories.failed()
            assert factories.statistics()["us-1"]["us-1 v1 pods"]["state"] == "running"


class TestSync:
    async def test_those_that_have_not_synced_are_named_with_their_cluster(self) -> None:
        factories = ClusterInformerFactories()
        eu, us = Sources(), Sources()
        eu.by_resource["jobs"].failure = us.by_resource["pods"].failure = refused()
        for cluster, sources in (("eu-1", eu), ("us-1", us)):
            factories.add(cluster, sources).informer(PODS)
            factories.cluster(cluster).informer(JOBS)
        async with factories:
            began = asyncio.get_running_loop().time()
            with pytest.raises(CacheNotSynced, match="eu-1 batch/v1 jobs, us-1 v1 pods") as raised:
                await factories.wait_for_cache_sync(timeout=5)
            assert raised.value.unsynced == ("eu-1 batch/v1 jobs", "us-1 v1 pods")
            assert asyncio.get_running_loop().time() - began == pytest.approx(5), "for all together"

    async def test_a_cluster_that_is_removed_meanwhile_does_not_count(self) -> None:
        factories = ClusterInformerFactories()
        eu, us = Sources(), Sources()
        eu.by_resource["pods"].failure = us.by_resource["pods"].failure = refused()
        for cluster, sources in (("eu-1", eu), ("us-1", us)):
            factories.add(cluster, sources).informer(PODS)
        async with factories:
            waiting = asyncio.create_task(factories.wait_for_cache_sync(timeout=600))
            await settle()
            await factories.remove("eu-1")
            await settle()
            assert not waiting.done()
            us.by_resource["pods"].failure = None
            await waiting

    async def test_a_cluster_that_shuts_down_by_itself_meanwhile_does(self) -> None:
        factories = ClusterInformerFactories()
        eu = Sources()
        eu.by_resource["pods"].failure = refused()
        factories.add("eu-1", eu).informer(PODS)
        async with factories:
            waiting = asyncio.create_task(factories.wait_for_cache_sync())
            await settle()
            await factories.cluster("eu-1").shutdown()
            with pytest.raises(CacheNotSynced, match="eu-1 v1 pods"):
                await waiting
            factories.add("us-1", Sources()).informer(PODS)
            factories.start()
            await factories.wait_for_cache_sync(timeout=5)

    async def test_cancelled_it_leaves_everything_as_it_is(self) -> None:
        factories = ClusterInformerFactories()
        eu = Sources()
        eu.by_resource["pods"].failure = refused()
        factories.add("eu-1", eu).informer(PODS)
        async with factories:
            await settle()
            before = task_names()
            waiting = asyncio.create_task(factories.wait_for_cache_sync())
            await settle()
            waiting.cancel()
            await asyncio.wait([waiting])
            assert task_names() == before


class TestShutdown:
    async def test_clusters_stop_at_the_same_time(self) -> None:
        factories = ClusterInformerFactories()
        handlers = [StubbornHandler() for _ in range(3)]
        for number, handler in enumerate(handlers):
            factories.add(f"c{number}", Sources()).informer(PODS).add_event_handler(handler)
        factories.start()
        await settle()
        began = asyncio.get_running_loop().time()
        await factories.shutdown()
        assert asyncio.get_running_loop().time() - began == pytest.approx(5), "as long as each takes"
        assert all(handler.ended for handler in handlers)
        assert task_names() == set()
        await factories.shutdown()

    async def test_cancelled_it_stops_all_and_another_waits_for_the_rest(self) -> None:
        factories = ClusterInformerFactories()
        handlers = [StubbornHandler() for _ in range(3)]
        for number, handler in enumerate(handlers):
            factories.add(f"c{number}", Sources()).informer(PODS).add_event_handler(handler)
        factories.add("failed", Sources()).informer(PODS).add_event_handler(FatalHandler())
        factories.start()
        await settle()
        first = asyncio.create_task(factories.shutdown())
        await settle()
        first.cancel()
        await asyncio.wait([first])
        assert [handler.cancelled for handler in handlers] == [1, 1, 1]
        assert not any(handler.ended for handler in handlers)
        with pytest.raises(BaseExceptionGroup) as raised:
            await factories.shutdown()
        assert raised.group_contains(Fatal)
        assert [handler.cancelled for handler in handlers] == [1, 1, 1]
        assert all(handler.ended for handler in handlers)
        await factories.shutdown()
        assert list(factories.failed()) == ["failed v1 pods"]

    async def test_what_had_failed_is_named_for_each_cluster(self) -> None:
        factories = ClusterInformerFactories()
        for cluster in ("eu-1", "us-1", "ap-1"):
            pods = factories.add(cluster, Sources()).informer(PODS)
            if cluster != "ap-1":
                pods.add_event_handler(FatalHandler())
        factories.start()
        await settle()
        with pytest.raises(BaseExceptionGroup) as raised:
            await factories.shutdown()
        assert [str(error) for error in raised.value.exceptions] == [
            "informers failed: eu-1 v1 pods (1 sub-exception)",
            "informers failed: us-1 v1 pods (1 sub-exception)",
        ]
