"""Deletions that were only seen by an absence: everything that handles a deletion must take a tombstone, full or empty.

A key function that did not know them once dropped such deletions without a word. Here each of three deletions (the
object, a tombstone with it, one without) goes through every function that takes one, and a deletion that a list brings
goes from one of two clusters with objects of the same names to clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from federator.agent.frame import Change, Deltas
from federator.agent.outbox import Outbox
from federator.aggregator.merge.merged_object import MergedObject
from federator.aggregator.merge.merged_store import MergedStore
from federator.api.cluster import ClusterID
from federator.api.delta import Tombstone
from federator.api.key import ObjectKey, split_local_key
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache import (
    NAMESPACE_INDEX,
    FilteringResourceEventHandler,
    Indexer,
    Lister,
    ResourceEventHandler,
    ResourceEventHandlerFuncs,
    meta_namespace_index_func,
    meta_namespace_key,
    split_meta_namespace_key,
)
from federator.cache.batching import BatchingEventHandler
from federator.cache.controller import Controller
from federator.cache.delta_fifo import DeltaFIFO
from federator.cache.notification import AddNotification, DeleteNotification, Notification, UpdateNotification, coalesce
from federator.cache.predicates import PredicateHandler
from federator.cache.processor import SharedProcessor
from federator.v1 import ingest_pb2
from tests.robustness.linked_bed import LinkedBed, changes, eventually, recorded, snapshots
from tests.unit.agent.scripted_informer import ScriptedInformer
from tests.unit.cache.doubles import RecordingHandler, RecordingSink, pod

PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)

Deletion = KubeObject | Tombstone

names = st.text(st.characters(blacklist_characters="/", blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=12)
objects = st.builds(lambda namespace, name: pod(name, 7, namespace=namespace), names | st.just(""), names)
FORMS: dict[str, Callable[[KubeObject], Deletion]] = {
    "object": lambda obj: obj,
    "tombstone with object": lambda obj: Tombstone(obj.key, obj),
    "tombstone without object": lambda obj: Tombstone(obj.key, None),
}
in_every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
on_a_loop = settings(
    max_examples=settings().max_examples // 3, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
"""Of the parameters, there are so many that few examples of each make many."""


def by_name(obj: KubeObject) -> Sequence[str]:
    return (obj.name,)


def beside(obj: KubeObject) -> list[KubeObject]:
    """Objects that a wrong key would be mistaken for: of the same name elsewhere, of the same place otherwise named."""
    places = {(f"{obj.namespace}2", obj.name), (obj.namespace, f"{obj.name}2"), ("", obj.name), (obj.name, obj.name)}
    return [pod(name, 3, namespace=namespace) for namespace, name in places - {(obj.namespace, obj.name)}]


@in_every_form
@given(obj=objects)
def test_bug31_every_key_function(form: Callable[[KubeObject], Deletion], obj: KubeObject) -> None:
    deletion = form(obj)
    assert meta_namespace_key(deletion) == deletion.key == obj.key
    assert split_meta_namespace_key(deletion.key) == split_local_key(deletion.key) == (obj.namespace, obj.name)
    change = Change.delete(deletion.key)
    assert (change.namespace, change.name, change.key) == (obj.namespace, obj.name, obj.key)
    key = ObjectKey(ClusterID("eu-1"), "", "pods", *split_local_key(deletion.key))
    assert ObjectKey.parse(str(key)) == key


@in_every_form
@pytest.mark.parametrize("compress", [False, True])
@given(obj=objects)
def test_bug31_the_store_its_indexes_and_its_listers(
    form: Callable[[KubeObject], Deletion], compress: bool, obj: KubeObject
) -> None:
    store = Indexer({NAMESPACE_INDEX: meta_namespace_index_func, "name": by_name}, compress=compress)
    others = beside(obj)
    store.replace([obj, *others], "7")
    assert store.get(form(obj)) == obj
    store.delete(form(obj))
    assert store.get(form(obj)) is None
    assert sorted(store.list_keys()) == sorted(each.key for each in others)
    assert obj.key not in store.index_keys(NAMESPACE_INDEX, obj.namespace)
    assert obj.key not in store.index_keys("name", obj.name)
    assert len(store.by_index("name", obj.name)) == sum(each.name == obj.name for each in others)
    assert obj not in Lister(store, resource="pods").namespace(obj.namespace).list()
    store.delete(form(obj))


class Informer:
    """The inner half of an informer, its queue in either mode, with a sink and a handler of each kind."""

    def __init__(self, *, atomic: bool, transform: bool) -> None:
        self.indexer = Indexer({"name": by_name})
        self.fifo = DeltaFIFO(self.indexer, atomic=atomic, transform=self._transform if transform else None)
        self.sink = RecordingSink()
        self.processor = SharedProcessor(name="pods", resync_check_period=0, buffer_size=100)
        self.controller = Controller(self.fifo, self.indexer, self.processor, sink=self.sink)
        self.transformed: list[KubeObject] = []
        self.told: list[tuple[str, Deletion]] = []
        self.batches: list[Notification] = []
        self.batching = BatchingEventHandler(self.batches.extend, window=0)
        everything: dict[str, Callable[[ResourceEventHandler], ResourceEventHandler]] = {
            "plain": lambda handler: handler,
            "filter": lambda handler: FilteringResourceEventHandler(lambda obj: True, handler),
            "predicate": lambda handler: PredicateHandler(handler, lambda notification: True),
        }
        for name, wrap in everything.items():
            self._add(wrap(ResourceEventHandlerFuncs(delete=lambda obj, name=name: self.told.append((name, obj)))))  # type: ignore[misc]
        self._add(self.batching)

    def _transform(self, obj: KubeObject) -> KubeObject:
        self.transformed.append(obj)
        return obj

    def _add(self, handler: ResourceEventHandler) -> None:
        self.processor.add_listener(handler, resync_period=0, cached=())

    async def run_until_empty(self) -> None:
        while self.fifo.statistics()["entries"]:
            await self.fifo.pop(self.controller.process)
        for _ in range(5):
            await asyncio.sleep(0)


@in_every_form
@pytest.mark.parametrize("transform", [False, True])
@pytest.mark.parametrize("atomic", [True, False])
@on_a_loop
@given(obj=objects)
async def test_bug31_the_queue_the_sink_and_every_kind_of_handler(
    form: Callable[[KubeObject], Deletion], transform: bool, atomic: bool, obj: KubeObject
) -> None:
    informer = Informer(atomic=atomic, transform=transform)
    others = beside(obj)
    async with informer.batching, informer.processor.running():
        await informer.fifo.replace([obj, *others], "7")
        await informer.run_until_empty()
        await informer.batching.flush()
        informer.sink.calls.clear()
        informer.batches.clear()
        await informer.fifo.delete(form(obj))
        await informer.run_until_empty()
        await informer.batching.flush()
    assert sorted(informer.indexer.list_keys()) == sorted(each.key for each in others)
    assert {type(each) for each in informer.transformed} <= {KubeObject}
    # The store had the last state, so that an empty tombstone is told with it.
    assert informer.sink.calls == [("deleted", obj.key, "7")]
    expected = Tombstone(obj.key, obj) if isinstance(form(obj), Tombstone) else obj
    assert sorted(name for name, _ in informer.told) == ["filter", "plain", "predicate"]
    assert dict(informer.told) == dict.fromkeys(("filter", "plain", "predicate"), expected)
    assert informer.batches == [DeleteNotification(obj.key, expected)]


@pytest.mark.parametrize("transform", [False, True])
@pytest.mark.parametrize("atomic", [True, False])
@on_a_loop
@given(obj=objects)
async def test_bug31_what_a_list_does_not_have(atomic: bool, transform: bool, obj: KubeObject) -> None:
    """The queue, or the controller, makes the tombstone: of this key, with the last state, and of nothing else."""
    informer = Informer(atomic=atomic, transform=transform)
    others = beside(obj)
    async with informer.batching, informer.processor.running():
        await informer.fifo.replace([obj, *others], "7")
        await informer.run_until_empty()
        await informer.batching.flush()
        informer.batches.clear()
        await informer.fifo.replace(others, "8")
        await informer.run_until_empty()
        await informer.batching.flush()
    tombstone = Tombstone(obj.key, obj)
    assert sorted(informer.indexer.list_keys()) == sorted(each.key for each in others)
    assert sorted(informer.indexer.list_index_func_values("name")) == sorted({each.name for each in others})
    assert sorted(name for name, _ in informer.told) == ["filter", "plain", "predicate"]
    assert dict(informer.told) == dict.fromkeys(("filter", "plain", "predicate"), tombstone)
    assert [each for each in informer.batches if each.key == obj.key] == [DeleteNotification(obj.key, tombstone)]


@in_every_form
@given(obj=objects)
def test_bug31_handlers_and_filters_by_themselves(form: Callable[[KubeObject], Deletion], obj: KubeObject) -> None:
    """What is told where nobody knew the last state; a filter that says no to all it can see."""
    deletion = form(obj)
    for matches in (True, False):
        handler = RecordingHandler()
        FilteringResourceEventHandler(lambda _, matches=matches: matches, handler).on_delete(deletion)  # type: ignore[misc]
        is_known = isinstance(deletion, KubeObject) or deletion.object is not None
        assert handler.deletes == ([deletion] if matches or not is_known else [])
    told = RecordingHandler()
    DeleteNotification(obj.key, deletion).deliver(told)
    ResourceEventHandlerFuncs().on_delete(deletion)
    assert told.deletes == [deletion]


@in_every_form
@given(obj=objects)
def test_bug31_what_merges_notifications(form: Callable[[KubeObject], Deletion], obj: KubeObject) -> None:
    deletion = DeleteNotification(obj.key, form(obj))
    newer = pod(obj.name, 9, namespace=obj.namespace)
    assert coalesce(AddNotification(obj.key, obj, False), deletion) == ()
    (merged,) = coalesce(UpdateNotification(obj.key, obj, newer), deletion)
    assert merged == DeleteNotification(obj.key, Tombstone(obj.key, obj))
    again = AddNotification(obj.key, newer, False)
    if deletion.last_state is None:
        assert coalesce(deletion, again) == (deletion, again)
    else:
        assert coalesce(deletion, again) == (UpdateNotification(obj.key, obj, newer),)


@in_every_form
@given(obj=objects)
async def test_bug31_what_an_agent_sends(form: Callable[[KubeObject], Deletion], obj: KubeObject) -> None:
    """The `DeltaSink` of the agent: a deletion of this key of this type, whatever is known of the object."""
    outbox = Outbox()
    informer = ScriptedInformer(outbox, PODS)
    outbox.resume(0, snapshot_all=True, window_bytes=1 << 20)
    informer.replaced_all("7", [obj, *beside(obj)])
    while outbox.take() is not None:
        pass
    deletion = form(obj)
    informer.deleted(deletion.key, deletion.object if isinstance(deletion, Tombstone) else deletion)
    frame = outbox.take()
    assert frame is not None
    assert isinstance(frame.content, Deltas)
    (change,) = frame.content.changes
    assert (change.namespace, change.name, change.body) == (obj.namespace, obj.name, None)
    message = frame.to_message()
    (delta,) = message.deltas.deltas
    assert delta.operation == ingest_pb2.Delta.OPERATION_DELETE
    assert (delta.object.namespace, delta.object.name) == (obj.namespace, obj.name)


def _names(obj: MergedObject) -> Sequence[str]:
    return (obj.name,)


@pytest.mark.timeout(120)
async def test_bug31_a_deletion_found_by_a_list_is_of_the_right_cluster_only(tmp_path: Path) -> None:
    """Two clusters hold the same names; one loses an object of each type while nobody sees it."""
    lost = {"pods": "web", "configmaps": "web", "deployments.apps": "web", "nodes": "n1"}
    async with LinkedBed(tmp_path, ("c0", "c1"), field_indexes=("metadata.labels.app@pods",)) as bed:
        for member in bed.members.values():
            for resource, name in lost.items():
                for each in (name, f"{name}-2"):
                    member.apiserver.put(resource, each, labels={"app": "shop"})
            member.apiserver.put("pods", "web", "other", labels={"app": "shop"})
        await bed.start_agents()
        await bed.equal()
        parts = bed.aggregator._parts
        assert parts is not None
        store = MergedStore(parts.view.indexer, parts.ledger)
        store.add_indexers({"name": _names})

        def stored(value: str) -> set[str]:
            found = {str(key) for key in store.index_keys("name", value)}
            assert found == {str(key) for key in store.list_keys() if key.name == value}
            return found

        async def listed(**selected: Any) -> set[str]:
            answer = await bed.fed.list(tuple(lost), **selected)
            assert answer.complete
            return {
                f"{item.cluster_id}/{item.group}/{item.resource}/{item.namespace}/{item.name}" for item in answer.items
            }

        before = {value: stored(value) for value in ("web", "n1")}
        assert before["web"] == await listed(name="web")
        gone = {
            "c0//pods/default/web",
            "c0//configmaps/default/web",
            "c0/apps/deployments/default/web",
            "c0//nodes//n1",
        }
        assert gone < before["web"] | before["n1"]
        labelled = await bed.fed.list("pods", fields="metadata.labels.app=shop")
        listings = snapshots(bed, "c0")
        async with recorded(bed) as recorder:
            apiserver = bed["c0"].apiserver
            with apiserver.losing_events():
                for resource, name in lost.items():
                    apiserver.delete(resource, name)
            apiserver.compact()
            apiserver.end_watches()
            deleted = {"pods": "web", "configmaps": "web", "deployments": "web", "nodes": "n1"}
            await eventually(lambda: all(changes(recorder.events, "c0", resource=each) for each in deleted), timeout=60)
            await bed.equal()
            for resource, name in deleted.items():
                assert changes(recorder.events, "c0", resource=resource) == [("DELETED", name)]
                assert changes(recorder.events, "c1", resource=resource) == []
        assert snapshots(bed, "c0").total() >= listings.total() + len(lost), "nothing but a list could tell"
        for value, keys in before.items():
            assert stored(value) == await listed(name=value) == keys - gone
        left = await bed.fed.list("pods", fields="metadata.labels.app=shop")
        assert {(item.cluster_id, item.namespace, item.name) for item in labelled.items} - {
            (item.cluster_id, item.namespace, item.name) for item in left.items
        } == {("c0", "default", "web")}
