"""ST20, names of informers, and ST21, what the tests' apiserver must do: else it hides the faults they look for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import pytest
from prometheus_client import CollectorRegistry

from federator.api.list_watch import ListOptions, WatchEvent
from federator.api.resource import ResourceType
from federator.cache import SharedInformerFactory
from federator.cache.cluster_factories import ClusterInformerFactories
from federator.errors import InvalidInput, KubeStatusError
from federator.kube import MemberClient, ResourceListWatch
from federator.observability.informer_metrics import InformerCollector
from federator.testing import FakeApiServer
from tests.conformance.rig import CONFIG_MAPS, settle

SECRETS = ResourceType(group="", version="v1", resource="secrets", kind="Secret", namespaced=True)


def version_of(obj: dict[str, dict[str, str]]) -> int:
    return int(obj["metadata"]["resourceVersion"])


@asynccontextmanager
async def watched(client: MemberClient, resource_version: int) -> AsyncIterator[list[WatchEvent | Exception]]:
    """The events of a watch from a version, as they come; what ended it is the last."""
    events: list[WatchEvent | Exception] = []

    async def watch() -> None:
        options = ListOptions(resource_version=str(resource_version), timeout_seconds=300)
        try:
            async with ResourceListWatch(client, CONFIG_MAPS).watch(options) as stream:
                async for event in stream:
                    events.append(event)  # noqa: PERF401 - each as it comes
        except KubeStatusError as error:
            events.append(error)

    task = asyncio.create_task(watch())
    await settle()
    try:
        yield events
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def told(events: Sequence[WatchEvent | Exception]) -> list[tuple[str, str, int]]:
    return [
        (str(event.type), event.object.name, int(event.object.resource_version))
        for event in events
        if isinstance(event, WatchEvent)
    ]


@pytest.mark.looptime
async def test_st21_every_write_counts_and_a_watch_brings_what_came_after_its_version(
    server: FakeApiServer, client: MemberClient
) -> None:
    """ST21 TestRCNumber: one watch from each version, the newest too; a list has the newest."""
    first = version_of(server.put("configmaps", "foo"))
    second = version_of(server.touch("configmaps", "foo"))
    third = version_of(server.touch("configmaps", "foo"))
    assert (second, third) == (first + 1, first + 2)
    page = await ResourceListWatch(client, CONFIG_MAPS).list(ListOptions())
    assert page.resource_version == str(third)
    assert [obj.resource_version for obj in page.objects] == [str(third)]
    for since, expected in ((first, [second, third]), (second, [third]), (third, [])):
        async with watched(client, since) as events:
            assert told(events) == [("MODIFIED", "foo", version) for version in expected]


@pytest.mark.looptime
async def test_st21_deletions_between_list_and_watch_are_replayed(server: FakeApiServer, client: MemberClient) -> None:
    """ST21: also of objects that nobody saw, and of one that is there again."""
    for name in ("gone", "again"):
        server.put("configmaps", name)
    page = await ResourceListWatch(client, CONFIG_MAPS).list(ListOptions())
    listed = int(page.resource_version)
    for name in ("gone", "again"):
        server.delete("configmaps", name)
    for name in ("again", "unseen"):
        server.put("configmaps", name)
    server.delete("configmaps", "unseen")
    expected = [
        ("DELETED", "gone"),
        ("DELETED", "again"),
        ("ADDED", "again"),
        ("ADDED", "unseen"),
        ("DELETED", "unseen"),
    ]
    async with watched(client, listed) as events:
        assert told(events) == [(*event, listed + number) for number, event in enumerate(expected, 1)]


@pytest.mark.looptime
async def test_st21_watches_are_reset_and_the_history_is_gone(server: FakeApiServer, client: MemberClient) -> None:
    """ST21 TestResetWatch: an old version is refused, the newest is not, and goes on."""
    first = version_of(server.put("configmaps", "foo"))
    newest = version_of(server.touch("configmaps", "foo"))
    async with watched(client, newest) as before:
        server.end_watches()
        server.compact()
        await settle()
        assert not server.watches()
        assert before == []
    async with watched(client, first) as expired:
        (error,) = expired
        assert isinstance(error, KubeStatusError)
        assert error.code == 410
    async with watched(client, newest) as events:
        later = version_of(server.touch("configmaps", "foo"))
        await settle()
        assert told(events) == [("MODIFIED", "foo", later)]


@pytest.mark.looptime
async def test_st20_informers_have_names_of_their_own_and_give_them_back(
    server: FakeApiServer, client: MemberClient
) -> None:
    """ST20: whatever is asked of one server has one name; what is removed has no statistics and no metrics any more."""
    registry = CollectorRegistry()

    def measured(metric: str) -> list[str]:
        return sorted(
            sample.labels["informer"]
            for family in registry.collect()
            for sample in family.samples
            if sample.name == metric
        )

    async with SharedInformerFactory(partial(ResourceListWatch, client)) as factory:
        registry.register(InformerCollector(factory))
        assert not any(family.samples for family in registry.collect())
        shop = factory.narrowed(namespace="shop")
        informers = [
            factory.informer(CONFIG_MAPS),
            factory.informer(SECRETS),
            shop.informer(CONFIG_MAPS),
            shop.informer(CONFIG_MAPS, label_selector="app=web"),
            factory.informer(CONFIG_MAPS, label_selector="app=web"),
            factory.informer(CONFIG_MAPS, field_selector="metadata.name=a"),
            factory.informer(CONFIG_MAPS, metadata_only=True),
            factory.informer(CONFIG_MAPS, namespace="app"),
            factory.informer(CONFIG_MAPS, label_selector="app"),
            factory.informer(CONFIG_MAPS, namespace="metadata"),
        ]
        names = [informer.name for informer in informers]
        assert len(set(names)) == len(names)
        assert factory.informer(CONFIG_MAPS, namespace="shop") is informers[2]
        assert list(factory.statistics()) == names
        factory.start()
        await factory.wait_for_cache_sync(timeout=60)
        for metric in ("informer_up", "informer_store_objects", "reflector_watches_total"):
            assert measured(metric) == sorted(names), "each once"
        await factory.remove(informers[0])
        assert list(factory.statistics()) == names[1:]
        assert measured("informer_up") == sorted(names[1:])
        assert not [
            family.name
            for family in registry.collect()
            for sample in family.samples
            if sample.labels["informer"] == names[0]
        ]
        renewed = factory.informer(CONFIG_MAPS)
        assert renewed is not informers[0]
        assert renewed.name == names[0]
        assert list(factory.statistics()) == [*names[1:], names[0]]
        assert measured("informer_up") == sorted(names)


@pytest.mark.looptime
async def test_st20_clusters_have_informers_of_their_own_names(server: FakeApiServer, client: MemberClient) -> None:
    """ST20: a name is taken by one cluster at a time, and is free once that was removed."""
    registry = CollectorRegistry()
    async with ClusterInformerFactories() as factories:
        registry.register(InformerCollector(factories))
        for cluster in ("eu-1", "us-1"):
            factories.add(cluster, partial(ResourceListWatch, client)).informer(CONFIG_MAPS)
        with pytest.raises(InvalidInput, match="eu-1"):
            factories.add("eu-1", partial(ResourceListWatch, client))
        factories.start()
        await factories.wait_for_cache_sync(timeout=60)

        def up() -> dict[str, float]:
            return {
                sample.labels["informer"]: sample.value
                for family in registry.collect()
                for sample in family.samples
                if sample.name == "informer_up"
            }

        eu, us = (factories.cluster(cluster).informer(CONFIG_MAPS).name for cluster in ("eu-1", "us-1"))
        assert eu != us
        assert up() == {eu: 1, us: 1}
        await factories.remove("eu-1")
        assert up() == {us: 1}
        factories.add("eu-1", partial(ResourceListWatch, client)).informer(CONFIG_MAPS)
        assert up() == {us: 1, eu: 0}
