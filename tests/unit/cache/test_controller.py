"""The controller: queue to Indexer to sink to handlers."""

from __future__ import annotations

import asyncio

import pytest

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache.controller import Controller
from federator.cache.delta_fifo import DeltaFIFO, Transform
from federator.cache.indexer import Indexer
from federator.cache.processor import SharedProcessor
from tests.unit.cache.doubles import RecordingHandler, RecordingSink, pod, settle

pytestmark = pytest.mark.looptime


class Pipeline:
    """Everything behind the Reflector, run step by step."""

    def __init__(self, *, atomic: bool = True, retain: Transform | None = None, transform: Transform | None = None):
        self.indexer = Indexer()
        self.fifo = DeltaFIFO(self.indexer, atomic=atomic, transform=transform)
        self.processor = SharedProcessor(name="pods", resync_check_period=0.0, buffer_size=1024)
        self.stored_when_told: list[KubeObject | None] = []
        self.handler = RecordingHandler(lambda key: self.stored_when_told.append(self.indexer.get_by_key(key)))
        self.processor.add_listener(self.handler, resync_period=0.0, cached=())
        self.sink = RecordingSink()
        self.controller = Controller(self.fifo, self.indexer, self.processor, retain=retain, sink=self.sink)

    async def drain(self) -> list[tuple[str, ...]]:
        """Processes all that is queued; returns what the handler was told."""
        tasks = [asyncio.create_task(self.controller.run()), asyncio.create_task(self._run_processor())]
        await settle()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self.handler.take()

    async def _run_processor(self) -> None:
        (listener,) = self.processor._listeners
        await listener.run()


@pytest.mark.parametrize("atomic", [False, True])
async def test_ct09_the_history_is_the_same_whether_lists_are_atomic_or_not(atomic: bool) -> None:
    """CT09 ReplaceEvents: deletes first, then the list in its order; the store is updated before the handler runs."""
    pipeline = Pipeline(atomic=atomic)
    await pipeline.fifo.replace([pod("a", 1), pod("b", 2)], "2")
    assert await pipeline.drain() == [("initial", "default/a", "1"), ("initial", "default/b", "2")]
    await pipeline.fifo.replace([pod("d", 5), pod("b", 4)], "5")
    assert await pipeline.drain() == [
        ("delete", "default/a"),
        ("add", "default/d", "5"),
        ("update", "default/b", "2", "4"),
    ]
    assert pipeline.handler.deletes == [Tombstone("default/a", pod("a", 1))]
    assert pipeline.stored_when_told == [pod("a", 1), pod("b", 2), None, pod("d", 5), pod("b", 4)]


async def test_ct11_the_stores_version_follows_updates_and_deletes() -> None:
    """CT11 StoreResourceVersion."""
    pipeline = Pipeline()
    await pipeline.fifo.replace([pod("a", 1)], "10")
    await pipeline.drain()
    assert pipeline.indexer.last_resource_version == "10"
    await pipeline.fifo.update(pod("a", 11))
    await pipeline.drain()
    assert pipeline.indexer.last_resource_version == "11"
    await pipeline.fifo.delete(pod("a", 12))
    await pipeline.drain()
    assert pipeline.indexer.last_resource_version == "12"


async def test_ct12_objects_without_a_version_leave_the_stores_bookmarks_move_it() -> None:
    """CT12."""
    pipeline = Pipeline(transform=lambda obj: KubeObject(obj.namespace, obj.name, obj.uid, ""))
    await pipeline.fifo.replace([pod("a", 1)], "10")
    await pipeline.fifo.update(pod("a", 11))
    await pipeline.drain()
    assert pipeline.indexer.last_resource_version == "10"
    await pipeline.fifo.bookmark("12")
    await pipeline.drain()
    assert pipeline.indexer.last_resource_version == "12"


async def test_r6_inside_a_segment_the_stores_version_is_the_low_water_mark() -> None:
    """Key by key, a@3 is applied before b@2: what is claimed is only 1."""
    pipeline = Pipeline()
    for name, version in [("a", 1), ("b", 2), ("a", 3)]:
        await pipeline.fifo.update(pod(name, version))
    await pipeline.fifo.pop(pipeline.controller.process)
    assert pipeline.indexer.get_by_key("default/a") == pod("a", 3)
    assert pipeline.indexer.last_resource_version == "1"
    assert pipeline.sink.low_water == "1"
    await pipeline.fifo.pop(pipeline.controller.process)
    assert pipeline.indexer.last_resource_version == "3"
    assert pipeline.sink.low_water == "3"


async def test_the_sink_is_told_everything_once_with_whole_objects_in_the_order_of_the_store() -> None:
    pipeline = Pipeline(retain=KubeObject.without_raw)
    whole: list[bool] = []
    pipeline.sink.upserted = lambda obj, before: whole.append(bool(obj.raw))  # type: ignore[method-assign]
    await pipeline.fifo.replace([pod("a", 1), pod("b", 2)], "2")
    await pipeline.fifo.update(pod("a", 3))
    await pipeline.fifo.delete(pod("b", 4))
    await pipeline.fifo.bookmark("5")
    pipeline.fifo.resync()
    await pipeline.fifo.delete(Tombstone("default/a", None))
    await pipeline.drain()
    assert whole == [True]
    assert pipeline.sink.calls == [
        ("replaced_all", "2", ["default/a", "default/b"]),
        ("deleted", "default/b", "4"),
        ("bookmark", "5"),
        ("deleted", "default/a", "3"),
    ]


async def test_the_sink_is_told_between_store_and_handlers() -> None:
    pipeline = Pipeline()
    order: list[str] = []

    def upserted(obj: KubeObject, before: KubeObject | None) -> None:
        stored = pipeline.indexer.get_by_key(obj.key)
        order.append(f"sink: stored {stored is obj}, told {len(pipeline.handler.events)}")

    pipeline.sink.upserted = upserted  # type: ignore[method-assign]
    await pipeline.fifo.add(pod("a", 1))
    await pipeline.drain()
    assert order == ["sink: stored True, told 0"]


async def test_what_is_retained_is_stored_and_handlers_get_new_states_whole() -> None:
    pipeline = Pipeline(retain=KubeObject.without_raw)
    told: list[KubeObject] = []
    pipeline.handler.on_add = lambda obj, is_initial: told.append(obj)  # type: ignore[method-assign]
    await pipeline.fifo.replace([pod("a", 1)], "1")
    await pipeline.fifo.add(pod("b", 2))
    await pipeline.drain()
    assert pipeline.indexer.list() == [pod("a", 1).without_raw(), pod("b", 2).without_raw()]
    assert told == [pod("a", 1), pod("b", 2)]


async def test_a_delete_of_what_was_never_stored_is_told_to_nobody() -> None:
    pipeline = Pipeline()
    await pipeline.fifo.delete(pod("a", 1))
    assert await pipeline.drain() == []
    assert pipeline.sink.calls == []
    assert pipeline.controller.statistics()["unknown_deletes"] == 1
    assert pipeline.indexer.last_resource_version == "1"


async def test_bug29_created_then_gone_from_the_list_while_the_consumer_is_blocked() -> None:
    """Bug 29: add and delete are told, and nothing is left."""
    pipeline = Pipeline()
    await pipeline.fifo.replace([], "1")
    await pipeline.drain()
    await pipeline.fifo.add(pod("a", 2))
    await pipeline.fifo.replace([], "3")
    assert await pipeline.drain() == [("add", "default/a", "2"), ("delete", "default/a")]
    assert pipeline.indexer.list() == []


async def test_bug18_an_object_that_cannot_be_transformed_keeps_its_last_good_state() -> None:
    """Bug 18: a transform that fails is no deletion, neither of an update nor of a list."""

    def transform(obj: KubeObject) -> KubeObject:
        if obj.name == "bad" and obj.resource_version != "1":
            raise ValueError
        return obj

    pipeline = Pipeline(transform=transform)
    await pipeline.fifo.replace([pod("bad", 1), pod("good", 1)], "1")
    await pipeline.drain()
    await pipeline.fifo.update(pod("bad", 2))
    await pipeline.fifo.replace([pod("bad", 2), pod("good", 3), pod("new", 3)], "3")
    assert await pipeline.drain() == [("update", "default/good", "1", "3"), ("add", "default/new", "3")]
    assert {obj.name: obj.resource_version for obj in pipeline.indexer.list()} == {"bad": "1", "good": "3", "new": "3"}


async def test_ct03_an_exception_of_the_sink_ends_the_loop_with_its_delta_handled() -> None:
    """CT03 PanicPropagated."""
    pipeline = Pipeline()

    def explode(obj: KubeObject, before: KubeObject | None) -> None:
        raise ZeroDivisionError

    pipeline.sink.upserted = explode  # type: ignore[method-assign]
    await pipeline.fifo.add(pod("a", 1))
    with pytest.raises(ZeroDivisionError):
        await pipeline.controller.run()
    assert pipeline.fifo.statistics()["backlog"] == 0


async def test_the_loop_ends_when_the_queue_is_closed_and_empty() -> None:
    pipeline = Pipeline()
    await pipeline.fifo.add(pod("a", 1))
    pipeline.fifo.close()
    await pipeline.controller.run()
    assert pipeline.indexer.list_keys() == ["default/a"]


async def test_a_long_queue_lets_others_have_the_loop() -> None:
    pipeline = Pipeline()
    for n in range(1000):
        await pipeline.fifo.add(pod(f"p{n}", n + 1))
    running = asyncio.create_task(pipeline.controller.run())
    await asyncio.sleep(0)
    assert 0 < len(pipeline.indexer.list()) < 1000
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
