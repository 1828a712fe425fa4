"""DeltaFIFO: the legacy contract, segments between barriers, the low-water mark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest

from federator.api.delta import Delta, DeltaType, Tombstone
from federator.api.object import KubeObject
from federator.cache.delta_fifo import Bookmark, DeltaFIFO, Deltas, FIFOClosed, Popped, ReplacedAll, SyncAll
from tests.turns import counted_turns
from tests.unit.cache.doubles import pod, settle

pytestmark = pytest.mark.looptime

Seen = list[tuple[str, str]]


class Known:
    """What a store would hold."""

    def __init__(self, *objects: KubeObject) -> None:
        self.objects: Mapping[str, KubeObject] = {obj.key: obj for obj in objects}

    def list_keys(self) -> Sequence[str]:
        return list(self.objects)

    def get_by_key(self, key: str) -> KubeObject | None:
        return self.objects.get(key)

    def kept(self, key: str) -> KubeObject | None:
        return self.objects.get(key)


def classic(*known: KubeObject, transform: Callable[[KubeObject], KubeObject] | None = None) -> DeltaFIFO:
    return DeltaFIFO(Known(*known), atomic=False, transform=transform)


def atomic(**options: object) -> DeltaFIFO:
    return DeltaFIFO(Known(), **options)  # type: ignore[arg-type]


async def pop(fifo: DeltaFIFO) -> Popped:
    popped: list[Popped] = []
    await fifo.pop(lambda item, _: popped.append(item))
    return popped[0]


async def drain(fifo: DeltaFIFO) -> list[Popped]:
    return [await pop(fifo) for _ in range(entries(fifo))]


async def drain_deltas(fifo: DeltaFIFO) -> list[tuple[str, list[str]]]:
    """Key and delta types of everything queued."""
    return [(item.key, types(item)) for item in await drain(fifo) if isinstance(item, Deltas)]


def types(item: Popped) -> list[str]:
    assert isinstance(item, Deltas)
    return [str(delta.type) for delta in item.deltas]


def entries(fifo: DeltaFIFO) -> int:
    value = fifo.statistics()["entries"]
    assert isinstance(value, int)
    return value


async def test_rq01_keys_leave_in_order_of_arrival_from_two_producers() -> None:
    """RQ01 basic."""
    fifo = classic()

    async def produce(prefix: str) -> None:
        for n in range(100):
            await fifo.add(pod(f"{prefix}{n}", n + 1))
            await asyncio.sleep(0)

    await asyncio.gather(produce("a"), produce("b"))
    keys = [key for key, _ in await drain_deltas(fifo)]
    for prefix in "ab":
        assert [key for key in keys if f"/{prefix}" in key] == [f"default/{prefix}{n}" for n in range(100)]


async def test_rq02_a_replace_keeps_the_queued_delete() -> None:
    """RQ02 replaceWithDeleteDeltaIn."""
    fifo = classic(pod("foo", 1))
    await fifo.delete(pod("foo", 2))
    await fifo.replace([pod("foo", 3)], "3")
    assert await drain_deltas(fifo) == [("default/foo", ["Deleted", "Replaced"])]


FOO = "default/foo"


@pytest.mark.parametrize(
    ("known", "deltas", "expected"),
    [
        ((), [(DeltaType.ADDED, pod("foo", 1))], pod("foo", 1)),
        ((), [(DeltaType.ADDED, pod("foo", 1)), (DeltaType.UPDATED, pod("foo", 2))], pod("foo", 2)),
        ((), [(DeltaType.ADDED, pod("foo", 1)), (DeltaType.DELETED, pod("foo", 2))], None),
        ((pod("foo", 1),), [(DeltaType.UPDATED, pod("foo", 2))], pod("foo", 2)),
        ((pod("foo", 1),), [(DeltaType.DELETED, pod("foo", 2))], None),
        ((pod("foo", 1),), [(DeltaType.DELETED, pod("foo", 2)), (DeltaType.ADDED, pod("foo", 3))], pod("foo", 3)),
    ],
)
async def test_rq03_bug29_a_replace_deletes_what_is_only_queued(
    known: tuple[KubeObject, ...], deltas: list[tuple[DeltaType, KubeObject]], expected: KubeObject | None
) -> None:
    """RQ03 ReplaceMakesDeletionsForObjectsOnlyInQueue, bug 29: six cases; None where the queue ends in a delete."""
    fifo = classic(*known)
    put = {DeltaType.ADDED: fifo.add, DeltaType.UPDATED: fifo.update, DeltaType.DELETED: fifo.delete}
    for delta_type, obj in deltas:
        await put[delta_type](obj)
    await fifo.replace([], "9")
    (item,) = await drain(fifo)
    assert isinstance(item, Deltas)
    told = [Delta(delta_type, obj) for delta_type, obj in deltas]
    tombstone = [Delta(DeltaType.DELETED, Tombstone(FOO, expected))] if expected else []
    assert item.deltas == told + tombstone


async def test_rq04_all_deltas_of_a_key_are_popped_together() -> None:
    """RQ04 addUpdate, in the per-key form of DeltaFIFO."""
    fifo = classic()
    await fifo.add(pod("foo", 1))
    await fifo.add(pod("bar", 2))
    await fifo.update(pod("foo", 3))
    await fifo.delete(pod("foo", 4))
    assert await drain_deltas(fifo) == [(FOO, ["Added", "Updated", "Deleted"]), ("default/bar", ["Added"])]


@pytest.mark.parametrize("is_atomic", [False, True])
async def test_rq05_the_transform_sees_every_object_once_and_no_tombstone(is_atomic: bool) -> None:
    """RQ05 transformer, T1."""
    seen: list[str] = []

    def transform(obj: KubeObject) -> KubeObject:
        seen.append(obj.resource_version)
        return pod(obj.name, obj.resource_version + "0")

    fifo = DeltaFIFO(Known(pod("gone", 1)), atomic=is_atomic, transform=transform)
    await fifo.add(pod("foo", 2))
    await fifo.update(pod("foo", 3))
    await fifo.delete(pod("foo", 4))
    await fifo.replace([pod("foo", 5)], "5")
    fifo.resync()
    await fifo.delete(Tombstone("default/bar", pod("bar", 6)))
    assert seen == ["2", "3", "4", "5"]
    for item in await drain(fifo):
        match item:
            case Deltas(deltas=deltas):
                objects = [delta.object for delta in deltas]
            case ReplacedAll(objects=listed):
                objects = list(listed)
            case _:
                objects = []
        for obj in objects:
            assert isinstance(obj, Tombstone) or obj.resource_version.endswith("0")


@pytest.mark.parametrize("known", [(), (pod("foo", 1),)])
async def test_rq06_changes_are_queued_whether_the_object_is_known_or_not(known: tuple[KubeObject, ...]) -> None:
    """RQ06 enqueueing with and without known objects."""
    fifo = classic(*known)
    await fifo.update(pod("foo", 2))
    await fifo.delete(pod("foo", 3))
    assert await drain_deltas(fifo) == [(FOO, ["Updated", "Deleted"])]


async def test_rq07_add_then_replace() -> None:
    """RQ07 addReplace."""
    fifo = classic()
    await fifo.add(pod("foo", 10))
    await fifo.replace([pod("foo", 15)], "15")
    (item,) = await drain(fifo)
    assert isinstance(item, Deltas)
    assert item.deltas[-1] == Delta(DeltaType.REPLACED, pod("foo", 15))


async def test_rq08_a_queued_delete_suppresses_the_sync() -> None:
    """RQ08 ResyncNonExisting."""
    fifo = classic(pod("foo", 5))
    await fifo.delete(pod("foo", 10))
    fifo.resync()
    assert await drain_deltas(fifo) == [(FOO, ["Deleted"])]


async def test_rq09_resync_tells_what_is_known() -> None:
    """RQ09 Resync."""
    fifo = classic(pod("foo", 5))
    await fifo.replace([pod("foo", 5)], "5")
    await drain(fifo)
    fifo.resync()
    assert await drain_deltas(fifo) == [(FOO, ["Sync"])]


async def test_rq10_an_object_deleted_before_anybody_saw_it_leaves_both_deltas() -> None:
    """RQ10 DeleteExistingNonPropagated."""
    fifo = classic()
    await fifo.add(pod("foo", 5))
    await fifo.delete(pod("foo", 6))
    assert await drain_deltas(fifo) == [(FOO, ["Added", "Deleted"])]


@pytest.mark.parametrize(
    ("queued", "newest"),
    [
        ([], 5),
        ([("add", 6)], 6),
        ([("update", 7), ("update", 8)], 8),
        ([("delete", 6), ("add", 9)], 9),
        ([("delete", 6)], None),
    ],
)
async def test_rq11_rq12_tombstones_hold_the_newest_state_and_precede_the_replaced(
    queued: list[tuple[str, int]], newest: int | None
) -> None:
    """RQ11 ReplaceMakesDeletions (five variants), RQ12 ReplaceMakesDeletionsReplaced."""
    fifo = classic(pod("gone", 5), pod("stays", 5))
    for method, version in queued:
        await getattr(fifo, method)(pod("gone", version))
    await fifo.replace([pod("stays", 10)], "10")
    items = await drain(fifo)
    assert [item.key for item in items if isinstance(item, Deltas)] == ["default/gone", "default/stays"]
    gone, stays = items
    assert isinstance(gone, Deltas)
    last = gone.deltas[-1].object
    assert last == (pod("gone", 6) if newest is None else Tombstone("default/gone", pod("gone", newest)))
    assert types(stays) == ["Replaced"]


async def test_rq13_a_resync_never_goes_back_behind_a_queued_update() -> None:
    """RQ13 UpdateResyncRace."""
    fifo = classic(pod("foo", 5))
    await fifo.update(pod("foo", 6))
    fifo.resync()
    assert await drain_deltas(fifo) == [(FOO, ["Updated"])]


async def test_rq14_tombstones_of_the_first_replace_count_as_initial() -> None:
    """RQ14 HasSyncedCorrectOnDeletion."""
    fifo = classic(pod("foo", 1), pod("bar", 1))
    await fifo.replace([], "5")
    assert not fifo.has_synced()
    await pop(fifo)
    assert not fifo.has_synced()
    await pop(fifo)
    assert fifo.has_synced()


async def test_rq15_nothing_jumps_the_line() -> None:
    """RQ15 detectLineJumpers: a key that is popped and comes again queues at the end."""
    fifo = classic()
    for name, version in [("foo", 1), ("bar", 2), ("foo", 3), ("foo", 4)]:
        await fifo.add(pod(name, version))
    first = await pop(fifo)
    assert isinstance(first, Deltas)
    assert first.key == FOO
    await fifo.add(pod("foo", 5))
    assert [key for key, _ in await drain_deltas(fifo)] == ["default/bar", FOO]


async def test_rq16_bug31_objects_and_tombstones_have_one_key() -> None:
    """RQ16 KeyOf, bug 31."""
    fifo = classic()
    await fifo.add(pod("foo", 1))
    await fifo.delete(Tombstone(FOO, None))
    assert await drain_deltas(fifo) == [(FOO, ["Added", "Deleted"])]


async def _add(fifo: DeltaFIFO) -> None:
    await fifo.add(pod("a", 1))


async def _add_pop(fifo: DeltaFIFO) -> None:
    await _add(fifo)
    await pop(fifo)


async def _nothing(fifo: DeltaFIFO) -> None:
    pass


async def _replace_none(fifo: DeltaFIFO) -> None:
    await fifo.replace([], "1")


async def _replace_two(fifo: DeltaFIFO) -> None:
    await fifo.replace([pod("a", 1), pod("b", 2)], "2")


async def _replace_two_pop_one(fifo: DeltaFIFO) -> None:
    await _replace_two(fifo)
    await pop(fifo)


async def _replace_two_pop_all(fifo: DeltaFIFO) -> None:
    await _replace_two(fifo)
    await drain(fifo)


@pytest.mark.parametrize(
    ("actions", "classic_synced", "atomic_synced"),
    [
        (_nothing, False, False),
        (_add, True, True),
        (_add_pop, True, True),
        (_replace_none, True, False),
        (_replace_two, False, False),
        (_replace_two_pop_one, False, True),
        (_replace_two_pop_all, True, True),
    ],
)
async def test_rq17_has_synced(
    actions: Callable[[DeltaFIFO], object], classic_synced: bool, atomic_synced: bool
) -> None:
    """RQ17 HasSynced table, Q3."""
    for fifo, expected in ((classic(), classic_synced), (atomic(), atomic_synced)):
        result = actions(fifo)
        assert asyncio.iscoroutine(result)
        await result
        assert fifo.has_synced() is expected


async def test_q3_synced_only_once_the_first_replace_is_processed_not_popped() -> None:
    """Q3: decremented after the handler, also when that raises."""
    fifo = atomic()
    await fifo.replace([pod("a", 1)], "1")
    waiting = asyncio.create_task(fifo.wait_synced())
    during: list[bool] = []

    def process(item: Popped, low_water: str) -> None:
        during.append(fifo.has_synced())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fifo.pop(process)
    assert during == [False]
    assert fifo.has_synced()
    await waiting


async def test_rq18_close_wakes_all_who_wait() -> None:
    """RQ18 PopShouldUnblockWhenClosed, Q8: ten waiters; also those who wait for the sync."""
    fifo = atomic()
    waiting = [asyncio.create_task(pop(fifo)) for _ in range(10)] + [asyncio.create_task(fifo.wait_synced())]
    await settle()
    fifo.close()
    assert all(isinstance(e, FIFOClosed) for e in await asyncio.gather(*waiting, return_exceptions=True))


async def test_q8_what_is_queued_at_close_is_drained_and_nothing_more_is_taken() -> None:
    fifo = atomic()
    await fifo.add(pod("a", 1))
    fifo.close()
    with pytest.raises(FIFOClosed):
        await fifo.add(pod("b", 2))
    assert types(await pop(fifo)) == ["Added"]
    with pytest.raises(FIFOClosed):
        await pop(fifo)


async def test_rq21_rq24_barriers_keep_their_place() -> None:
    """RQ21 ReplaceAtomic: order with Added and Bookmark; RQ24: bookmarks pass where the queue is atomic."""
    fifo = atomic()
    await fifo.add(pod("a", 1))
    await fifo.replace([pod("a", 2), pod("b", 3)], "5")
    await fifo.bookmark("6")
    await fifo.update(pod("a", 7))
    first, replaced, mark, last = await drain(fifo)
    assert types(first) == ["Added"]
    assert replaced == ReplacedAll("5", [pod("a", 2), pod("b", 3)])
    assert mark == Bookmark("6")
    assert types(last) == ["Updated"]


async def test_rq24_bookmarks_are_dropped_where_the_queue_is_classic() -> None:
    """RQ24."""
    fifo = classic()
    await fifo.bookmark("6")
    assert entries(fifo) == 0


async def test_rq22_an_atomic_replace_is_one_item() -> None:
    """RQ22 ReplaceAtomicPop: known and queued objects get no deletes of their own."""
    fifo = DeltaFIFO(Known(pod("old", 1)))
    await fifo.replace([pod("a", 2), pod("b", 3)], "5")
    assert fifo.statistics()["backlog"] == 1
    assert await drain(fifo) == [ReplacedAll("5", [pod("a", 2), pod("b", 3)])]


async def test_rq23_an_atomic_resync_is_one_item_and_never_queued_twice() -> None:
    """RQ23 ResyncAtomic."""
    fifo = DeltaFIFO(Known(pod("a", 1), pod("b", 1)))
    fifo.resync()
    assert entries(fifo) == 0, "nothing to tell before the first list"
    await fifo.add(pod("a", 2))
    fifo.resync()
    fifo.resync()
    assert [type(item) for item in await drain(fifo)] == [Deltas, SyncAll]
    fifo.resync()
    assert entries(fifo) == 1


@pytest.mark.parametrize("is_atomic", [False, True])
@pytest.mark.parametrize("state_first", [False, True])
async def test_of_two_deletes_the_one_with_the_state_stays(is_atomic: bool, state_first: bool) -> None:
    """Legacy: duplicate deletes."""
    fifo = DeltaFIFO(Known(), atomic=is_atomic)
    deletes: list[KubeObject | Tombstone] = [pod("foo", 5), Tombstone(FOO, None)]
    for delete in deletes if state_first else reversed(deletes):
        await fifo.delete(delete)
    (item,) = await drain(fifo)
    assert isinstance(item, Deltas)
    assert item.deltas == [Delta(DeltaType.DELETED, pod("foo", 5))]
    assert fifo.statistics()["backlog"] == 0


async def test_deltas_from_before_a_barrier_are_not_joined() -> None:
    """K@20 after ReplacedAll@18 must not be popped ahead of it with K@17."""
    fifo = atomic()
    await fifo.update(pod("k", 17))
    await fifo.replace([pod("k", 18)], "18")
    await fifo.update(pod("k", 20))
    first, replaced, last = await drain(fifo)
    assert isinstance(first, Deltas)
    assert isinstance(last, Deltas)
    assert isinstance(replaced, ReplacedAll)
    assert [delta.object for delta in first.deltas] == [pod("k", 17)]
    assert [delta.object for delta in last.deltas] == [pod("k", 20)]


async def test_popping_an_old_segment_leaves_the_newest_ones_list_of_the_same_key_alone() -> None:
    fifo = atomic()
    await fifo.update(pod("k", 1))
    await fifo.bookmark("2")
    await fifo.update(pod("k", 3))
    await pop(fifo)
    await fifo.update(pod("k", 4))
    assert [types(item) for item in await drain(fifo) if isinstance(item, Deltas)] == [["Updated", "Updated"]]


async def test_low_water_is_the_newest_version_with_nothing_queued_from_before_it() -> None:
    """a@1 b@2 a@3 c@4 | Bookmark 5 | a@6: popping a tells 1 and 3 but only 1 is covered, as b@2 still waits."""
    fifo = atomic()
    for name, version in [("a", 1), ("b", 2), ("a", 3), ("c", 4)]:
        await fifo.update(pod(name, version))
    await fifo.bookmark("5")
    await fifo.update(pod("a", 6))
    marks: list[str] = []
    while entries(fifo):
        await fifo.pop(lambda _, low_water: marks.append(low_water))
    assert marks == ["1", "3", "4", "5", "6"]


async def test_tombstones_and_objects_without_a_version_leave_the_low_water_mark() -> None:
    """R6."""
    fifo = atomic()
    await fifo.add(pod("a", 1))
    await fifo.delete(Tombstone("default/b", pod("b", 9)))
    await fifo.add(pod("c", ""))
    marks: list[str] = []
    while entries(fifo):
        await fifo.pop(lambda _, low_water: marks.append(low_water))
    assert marks == ["1", "1", "1"]


async def test_a_classic_replace_moves_the_low_water_mark_with_its_last_object_and_a_resync_never() -> None:
    fifo = classic(pod("a", 1))
    await fifo.update(pod("a", 2))
    await fifo.replace([pod("b", 9), pod("a", 3)], "10")
    marks: list[str] = []
    while entries(fifo):
        await fifo.pop(lambda _, low_water: marks.append(low_water))
    assert marks == ["2", "10"]
    fifo.resync()
    await fifo.pop(lambda _, low_water: marks.append(low_water))
    assert marks[2:] == ["10"]


async def test_the_producer_waits_at_the_bound_which_counts_deltas_not_keys() -> None:
    """Q8: a storm on one key is one key but many deltas."""
    fifo = atomic(max_backlog=3)
    for version in range(3):
        await fifo.update(pod("a", version + 1))
    blocked = asyncio.create_task(fifo.update(pod("b", 4)))
    await settle()
    assert not blocked.done()
    assert fifo.statistics()["producer_waits"] == 1
    assert types(await pop(fifo)) == ["Updated"] * 3
    await blocked
    assert fifo.statistics()["backlog"] == 1


@pytest.mark.parametrize("method", ["add", "update", "delete", "bookmark", "replace"])
async def test_a_producer_cancelled_while_waiting_has_queued_nothing(method: str) -> None:
    fifo = atomic(max_backlog=1)
    await fifo.add(pod("a", 1))
    arguments = {"bookmark": ("2",), "replace": ([pod("b", 2)], "2")}.get(method, (pod("b", 2),))
    blocked = asyncio.create_task(getattr(fifo, method)(*arguments))
    await settle()
    blocked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await blocked
    assert entries(fifo) == 1


async def test_close_wakes_a_waiting_producer() -> None:
    fifo = atomic(max_backlog=1)
    await fifo.add(pod("a", 1))
    blocked = asyncio.create_task(fifo.add(pod("b", 2)))
    await settle()
    fifo.close()
    with pytest.raises(FIFOClosed):
        await blocked


def picky(obj: KubeObject) -> KubeObject:
    if obj.name == "bad" and int(obj.resource_version) % 2:
        raise ValueError("odd")
    return obj


async def test_an_object_the_transform_raises_for_is_withheld_and_named_until_it_is_mended() -> None:
    """Bug 18, the queue's part."""
    fifo = atomic(transform=picky)
    await fifo.replace([pod("good", 1), pod("bad", 1)], "2")
    assert await drain(fifo) == [ReplacedAll("2", [pod("good", 1)], frozenset({"default/bad"}))]
    assert fifo.has_synced()
    await fifo.update(pod("bad", 3))
    assert entries(fifo) == 0
    assert fifo.statistics()["quarantined_keys"] == ("default/bad",)
    await fifo.update(pod("bad", 4))
    assert types(await pop(fifo)) == ["Updated"]
    assert fifo.statistics()["quarantined"] == 0
    await fifo.update(pod("bad", 5))
    await fifo.replace([], "6")
    assert fifo.statistics()["quarantined"] == 0


@pytest.mark.parametrize("deleted", [pod("bad", 5), Tombstone("default/bad", None)])
async def test_a_delete_is_never_withheld_but_tells_nothing_untransformed(deleted: KubeObject | Tombstone) -> None:
    fifo = atomic(transform=picky)
    await fifo.update(pod("bad", 3))
    await fifo.delete(deleted)
    (item,) = await drain(fifo)
    assert isinstance(item, Deltas)
    assert item.deltas == [Delta(DeltaType.DELETED, Tombstone("default/bad", None))]
    assert fifo.statistics()["quarantined"] == 0


async def test_transforming_a_long_list_lets_others_have_the_loop() -> None:
    with counted_turns() as turns:
        await atomic(transform=lambda obj: obj).replace([pod("a", 1)] * 2000, "1")
    assert turns.taken >= 7
