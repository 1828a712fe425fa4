"""What client-go's tests of its queues check: RealFIFO's where DeltaFIFO's promises allow it, else DeltaFIFO's own.

Cases are written as a script of what a producer does and as what is popped. `foo@5` is an object with its version,
`?foo@5` a tombstone that holds that state, `?foo` one that holds none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from federator.api.delta import Delta, DeltaType, Tombstone
from federator.api.object import KubeObject
from federator.cache import Indexer, meta_namespace_key
from federator.cache.delta_fifo import (
    Bookmark,
    DeltaFIFO,
    Deltas,
    FIFOClosed,
    Popped,
    ReplacedAll,
    SyncAll,
    Transform,
)
from tests.conformance.rig import settle

pytestmark = pytest.mark.looptime

both_modes = pytest.mark.parametrize("atomic", [False, True], ids=["classic", "atomic"])


def parsed(text: str) -> KubeObject:
    name, _, version = text.partition("@")
    return KubeObject("", name, f"uid-{name}", version)


def parsed_deleted(text: str) -> KubeObject | Tombstone:
    if not text.startswith("?"):
        return parsed(text)
    name, _, version = text[1:].partition("@")
    return Tombstone(name, parsed(text[1:]) if version else None)


def written(obj: KubeObject | Tombstone) -> str:
    if isinstance(obj, KubeObject):
        return f"{obj.name}@{obj.resource_version}"
    return f"?{written(obj.object)}" if obj.object else f"?{obj.key}"


def written_item(item: Popped) -> list[str]:
    """All deltas of a key, or the one of a barrier."""
    match item:
        case Deltas(deltas=deltas):
            assert {delta.object.key for delta in deltas} == {item.key}
            return [f"{delta.type} {written(delta.object)}" for delta in deltas]
        case ReplacedAll():
            return [f"{item.type} {item.resource_version}: {' '.join(map(written, item.objects))}".rstrip()]
        case Bookmark():
            return [f"{item.type} {item.resource_version}"]
        case SyncAll():
            return [str(item.type)]


def store(*objects: str) -> Indexer:
    """What is known; in these tests nothing that is popped changes it."""
    indexer = Indexer()
    indexer.replace([*map(parsed, objects)], "")
    return indexer


def classic(*known: str, transform: Transform | None = None) -> DeltaFIFO:
    return DeltaFIFO(store(*known), atomic=False, transform=transform)


def atomic_fifo(*known: str) -> DeltaFIFO:
    return DeltaFIFO(store(*known))


async def produce(fifo: DeltaFIFO, *script: str) -> None:
    """Does what is written: `add foo@1`, `delete ?foo`, `replace 5: foo@4 bar@5`, `bookmark 6`, `resync`."""
    for line in script:
        verb, _, rest = line.partition(" ")
        match verb:
            case "add" | "update":
                await getattr(fifo, verb)(parsed(rest))
            case "delete":
                await fifo.delete(parsed_deleted(rest))
            case "replace":
                version, _, objects = rest.partition(":")
                await fifo.replace([parsed(each) for each in objects.split()], version)
            case "bookmark":
                await fifo.bookmark(rest)
            case "resync":
                fifo.resync()
            case _:
                raise AssertionError(line)


async def pop(fifo: DeltaFIFO) -> list[str]:
    popped: list[Popped] = []
    await fifo.pop(lambda item, _: popped.append(item))
    return written_item(popped[0])


async def drain(fifo: DeltaFIFO) -> list[list[str]]:
    """Pops until a pop waits; what is left then would be a queue that lost count."""
    popped = []
    while fifo.statistics()["entries"]:
        popped.append(await pop(fifo))
    waiting = asyncio.create_task(pop(fifo))
    await settle()
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert fifo.statistics()["backlog"] == 0
    return popped


# ---------------------------------------------------------------- order, and all deltas of a key


@both_modes
async def test_rq01_two_producers_and_a_consumer(atomic: bool) -> None:
    """RQ01 basic: of each producer's 500 objects none overtakes another."""
    fifo = DeltaFIFO(store(), atomic=atomic, max_backlog=50)
    seen: dict[str, list[int]] = {"a": [], "b": []}

    async def write(prefix: str) -> None:
        for number in range(1, 501):
            await produce(fifo, f"add {prefix}{number}@{number}")
            if number % 7 == 0:
                await asyncio.sleep(0)

    def take(item: Popped, _: str) -> None:
        assert isinstance(item, Deltas)
        seen[item.key[0]].append(int(item.deltas[0].object.key[1:]))

    async def read() -> None:
        for _ in range(1000):
            await fifo.pop(take)

    await asyncio.gather(write("a"), write("b"), read())
    assert seen == {"a": list(range(1, 501)), "b": list(range(1, 501))}


async def test_rq02_an_object_deleted_and_listed_again_is_told_as_both() -> None:
    """RQ02 replaceWithDeleteDeltaIn."""
    for fifo, expected in (
        (classic("foo@1"), [["Deleted foo@1", "Replaced foo@2"]]),
        (atomic_fifo("foo@1"), [["Deleted foo@1"], ["ReplacedAll 2: foo@2"]]),
    ):
        await produce(fifo, "delete foo@1", "replace 2: foo@2")
        assert await drain(fifo) == expected


@pytest.mark.parametrize("known", [(), ("foo@1",)], ids=["unknown", "known"])
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (["add foo@2", "replace 9:"], ["Added foo@2", "Deleted ?foo@2"]),
        (
            ["add foo@2", "replace 8: foo@2", "replace 9:"],
            ["Added foo@2", "Replaced foo@2", "Deleted ?foo@2"],
        ),
        (["add foo@2", "delete foo@2", "replace 9:"], ["Added foo@2", "Deleted foo@2"]),
        (
            ["add foo@2", "replace 7: foo@2", "replace 8: foo@2", "replace 9:"],
            ["Added foo@2", "Replaced foo@2", "Replaced foo@2", "Deleted ?foo@2"],
        ),
        (["add foo@2", "replace 8:", "replace 9:"], ["Added foo@2", "Deleted ?foo@2"]),
        (
            ["add foo@2", "delete foo@2", "add foo@3", "replace 9:"],
            ["Added foo@2", "Deleted foo@2", "Added foo@3", "Deleted ?foo@3"],
        ),
    ],
    ids=["added", "replaced", "deleted", "replaced twice", "two empty replaces", "added again"],
)
async def test_rq03_replace_makes_deletions_of_objects_only_in_queue(
    known: tuple[str, ...], script: list[str], expected: list[str]
) -> None:
    """RQ03 ReplaceMakesDeletionsForObjectsOnlyInQueue: one deletion each, with the newest queued state.

    The queue is asked before the store: where the store has the object too, it has an older state of it.
    """
    fifo = classic(*known)
    await produce(fifo, *script)
    assert await drain(fifo) == [expected]


async def test_rq04_all_deltas_of_a_key_are_handed_over_at_once() -> None:
    """RQ04 addUpdate, the way of DeltaFIFO: one pop, and nothing is left for another."""
    for fifo in (classic(), atomic_fifo()):
        await produce(fifo, "add foo@10", "update foo@12", "delete foo@15")
        assert fifo.statistics()["entries"] == 1
        assert await drain(fifo) == [["Added foo@10", "Updated foo@12", "Deleted foo@15"]]


def counting_transform(obj: KubeObject) -> KubeObject:
    """Counts in the UID how often an object came by."""
    assert isinstance(obj, KubeObject)
    return KubeObject(obj.namespace, obj.name, obj.uid + "+", obj.resource_version)


async def test_rq05_each_object_is_transformed_once_and_tombstones_are_not() -> None:
    """RQ05 transformer: also the state in a tombstone was transformed once, when it was queued."""
    fifo = classic(transform=counting_transform)
    script = ["add foo@10", "add bar@11", "update foo@12", "delete foo@15", "replace 15:", "add bar@16", "replace 16:"]
    await produce(fifo, *script)
    objects: list[KubeObject | Tombstone] = []

    def take(item: Popped, _: str) -> None:
        assert isinstance(item, Deltas)
        objects.extend(delta.object for delta in item.deltas)

    while fifo.statistics()["entries"]:
        await fifo.pop(take)
    assert list(map(written, objects)) == [
        *("foo@10", "foo@12", "foo@15"),
        *("bar@11", "?bar@11", "bar@16", "?bar@16"),
    ]
    states = [each.object if isinstance(each, Tombstone) else each for each in objects]
    assert [state.uid.count("+") for state in states if state] == [1] * 7


@both_modes
async def test_rq05_what_is_stored_is_not_transformed_again(atomic: bool) -> None:
    """RQ05, T1: neither by a resync nor by a deletion found by a list, nor by a list that gives the stored object."""
    transformed: list[str] = []

    def note(obj: KubeObject) -> KubeObject:
        transformed.append(written(obj))
        return counting_transform(obj)

    known = store("foo@1", "bar@1")
    foo, bar = known.list()
    fifo = DeltaFIFO(known, atomic=atomic, transform=note)
    await fifo.replace([foo, parsed("new@2")], "2")
    await drain(fifo)
    fifo.resync()
    await fifo.delete(Tombstone("bar", bar))
    await drain(fifo)
    assert transformed == ["new@2"]


@both_modes
async def test_rq05_an_object_the_transform_raises_for_is_withheld_alone(atomic: bool) -> None:
    """RQ05, T1: where client-go fails the whole enqueueing, the object is named and what is stored of it stays."""

    def picky(obj: KubeObject) -> KubeObject:
        if obj.name == "bad":
            raise ValueError("bad")
        return obj

    fifo = DeltaFIFO(store("bad@1", "gone@1"), atomic=atomic, transform=picky)
    await produce(fifo, "replace 2: foo@2 bad@2")
    assert list(fifo.withheld) == ["bad"]
    told = [line for item in await drain(fifo) for line in item]
    assert told == (["ReplacedAll 2: foo@2"] if atomic else ["Deleted ?gone@1", "Replaced foo@2"])
    await produce(fifo, "update bad@3", "update foo@3")
    assert await drain(fifo) == [["Updated foo@3"]]


@pytest.mark.parametrize("known", [(), ("foo@5", "bar@6", "baz@7")], ids=["unknown", "known"])
async def test_rq06_everything_is_queued_whether_the_object_is_known_or_not(known: tuple[str, ...]) -> None:
    """RQ06 enqueueing with and without a lister: as RealFIFO, also deletions of what nobody knows."""
    for fifo in (classic(*known), atomic_fifo(*known)):
        await produce(fifo, "add foo@10", "update bar@15", "add qux@17", "delete qux@18", "delete baz@20")
        assert await drain(fifo) == [
            ["Added foo@10"],
            ["Updated bar@15"],
            ["Added qux@17", "Deleted qux@18"],
            ["Deleted baz@20"],
        ]


async def test_rq07_an_object_added_and_then_listed() -> None:
    """RQ07 addReplace; as a barrier: RQ22."""
    fifo = classic()
    await produce(fifo, "add foo@10", "replace 15: foo@15")
    assert await drain(fifo) == [["Added foo@10", "Replaced foo@15"]]


# ---------------------------------------------------------------- resyncs and deletions


async def test_rq08_what_is_deleted_in_the_queue_is_not_resynced() -> None:
    """RQ08 ResyncNonExisting. As a barrier it comes after the deletion, and the store has nothing to tell by then."""
    for fifo, expected in (
        (classic("foo@5"), [["Deleted foo@10"]]),
        (atomic_fifo("foo@5"), [["Deleted foo@10"], ["SyncAll"]]),
    ):
        await produce(fifo, "delete foo@10", "resync")
        assert await drain(fifo) == expected


async def test_rq09_a_resync_tells_what_is_stored() -> None:
    """RQ09 Resync; here none before the first list, which tells everything."""
    for fifo, listed, expected in (
        (classic("foo@5", "bar@6"), [["Replaced foo@5"], ["Replaced bar@6"]], [["Sync foo@5"], ["Sync bar@6"]]),
        (atomic_fifo("foo@5", "bar@6"), [["ReplacedAll 6: foo@5 bar@6"]], [["SyncAll"]]),
    ):
        await produce(fifo, "resync")
        assert await drain(fifo) == []
        await produce(fifo, "replace 6: foo@5 bar@6")
        assert await drain(fifo) == listed
        await produce(fifo, "resync")
        assert await drain(fifo) == expected


async def test_rq10_an_object_deleted_before_it_was_popped() -> None:
    """RQ10 DeleteExistingNonPropagated."""
    for fifo in (classic(), atomic_fifo()):
        await produce(fifo, "add foo@5", "delete foo@6")
        assert await drain(fifo) == [["Added foo@5", "Deleted foo@6"]]


STORED = ("foo@5", "bar@6", "baz@7")


@pytest.mark.parametrize(
    ("known", "script", "expected"),
    [
        (
            STORED,
            ["delete baz@10", "replace 10: foo@5"],
            [["Deleted baz@10"], ["Deleted ?bar@6"], ["Replaced foo@5"]],
        ),
        (
            STORED,
            ["add baz@10", "replace 10: foo@5"],
            [["Added baz@10", "Deleted ?baz@10"], ["Deleted ?bar@6"], ["Replaced foo@5"]],
        ),
        (
            STORED,
            ["delete bar@6", "add bar@100", "replace 100: foo@5"],
            [["Deleted bar@6", "Added bar@100", "Deleted ?bar@100"], ["Deleted ?baz@7"], ["Replaced foo@5"]],
        ),
        (
            STORED,
            ["replace 100: bar@100 foo@5", "replace 101: foo@5"],
            [["Deleted ?baz@7"], ["Replaced bar@100", "Deleted ?bar@100"], ["Replaced foo@5", "Replaced foo@5"]],
        ),
        (
            (),
            ["add baz@10", "replace 10: foo@5"],
            [["Added baz@10", "Deleted ?baz@10"], ["Replaced foo@5"]],
        ),
    ],
    ids=["deleted", "added", "deleted and added", "listed", "without a store"],
)
async def test_rq11_replace_makes_deletions_with_the_newest_state_before_it_tells_the_list(
    known: tuple[str, ...], script: list[str], expected: list[list[str]]
) -> None:
    """RQ11 ReplaceMakesDeletions: where the queue has the object, the tombstone has the queue's newest state."""
    fifo = classic(*known)
    await produce(fifo, *script)
    assert await drain(fifo) == expected


async def test_rq12_what_is_listed_is_told_as_replaced() -> None:
    """RQ12 ReplaceMakesDeletionsReplaced, and DeltaFIFO's ReplaceDeltaType, which is no option here."""
    fifo = classic(*STORED)
    await produce(fifo, "delete baz@10", "replace 10: foo@6")
    assert await drain(fifo) == [["Deleted baz@10"], ["Deleted ?bar@6"], ["Replaced foo@6"]]
    await produce(fifo, "replace 10: foo@5 bar@6 baz@7")
    assert await drain(fifo) == [["Replaced foo@5"], ["Replaced bar@6"], ["Replaced baz@7"]]


async def test_rq13_a_resync_tells_nothing_older_than_what_is_queued() -> None:
    """RQ13 UpdateResyncRace. As a barrier it is behind the update, and tells what is stored when it is popped."""
    for fifo, expected in (
        (classic("foo@5"), [["Updated foo@6"]]),
        (atomic_fifo("foo@5"), [["Updated foo@6"], ["SyncAll"]]),
    ):
        await produce(fifo, "update foo@6", "resync")
        assert await drain(fifo) == expected


@pytest.mark.parametrize(
    ("deletes", "stays"),
    [
        (["foo@5", "foo@6"], "foo@6"),
        (["foo@5", "?foo"], "foo@5"),
        (["?foo", "foo@5"], "foo@5"),
        (["?foo@4", "foo@5"], "foo@5"),
        (["?foo@4", "?foo"], "?foo@4"),
    ],
)
async def test_of_consecutive_deletions_one_is_told_rather_the_one_with_the_last_state(
    deletes: list[str], stays: str
) -> None:
    """DeltaFIFO's duplicate deletes: only those that follow each other, only deletions, and the backlog knows."""
    for fifo in (classic(), atomic_fifo()):
        await produce(fifo, *(f"delete {each}" for each in deletes))
        assert fifo.statistics()["backlog"] == 1
        assert await drain(fifo) == [[f"Deleted {stays}"]]
        await produce(fifo, "delete foo@7", "add foo@8", "add foo@8", "delete foo@9")
        assert fifo.statistics()["backlog"] == 4
        assert await drain(fifo) == [["Deleted foo@7", "Added foo@8", "Added foo@8", "Deleted foo@9"]]


# ---------------------------------------------------------------- has_synced, keys, closing


async def test_rq14_deletions_of_the_first_replace_are_part_of_what_is_initial() -> None:
    """RQ14 HasSyncedCorrectOnDeletion; a ReplacedAll finds its deletions when it is popped."""
    for fifo, expected in (
        (classic(*STORED), [["Deleted ?bar@6"], ["Deleted ?baz@7"], ["Replaced foo@5"]]),
        (atomic_fifo(*STORED), [["ReplacedAll 7: foo@5"]]),
    ):
        await produce(fifo, "replace 7: foo@5")
        popped = []
        for _ in expected:
            assert not fifo.has_synced()
            popped.append(await pop(fifo))
        assert popped == expected
        assert fifo.has_synced()


async def test_rq15_nothing_jumps_the_line() -> None:
    """RQ15 detectLineJumpers: a key that was popped and comes again waits behind those that waited before."""
    for fifo in (classic(), atomic_fifo()):
        await produce(fifo, "add foo@10", "add bar@1", "add foo@11", "add foo@13", "add zab@30")
        assert await pop(fifo) == ["Added foo@10", "Added foo@11", "Added foo@13"]
        await produce(fifo, "add foo@14")
        assert await drain(fifo) == [["Added bar@1"], ["Added zab@30"], ["Added foo@14"]]


@pytest.mark.parametrize(
    ("thing", "key"),
    [
        (KubeObject("", "A", "", "1"), "A"),
        (KubeObject("ns", "A", "", "1"), "ns/A"),
        (Tombstone("ns/B", None), "ns/B"),
        (Tombstone("ns/B", KubeObject("other", "stale", "", "1")), "ns/B"),
    ],
    ids=["cluster-scoped", "namespaced", "tombstone", "tombstone with a state"],
)
async def test_rq16_everything_has_a_key_and_a_tombstones_is_its_own(thing: KubeObject | Tombstone, key: str) -> None:
    """RQ16 KeyOf, of objects, tombstones, and deltas of either."""
    assert meta_namespace_key(thing) == key
    assert Delta(DeltaType.DELETED, thing).object.key == key
    fifo = atomic_fifo()
    await fifo.delete(thing)
    keys: list[object] = []
    await fifo.pop(lambda item, _: keys.append(isinstance(item, Deltas) and item.key))
    assert keys == [key]


@pytest.mark.parametrize(
    ("script", "pops", "classic_synced", "atomic_synced"),
    [
        ([], 0, False, False),
        (["add a@1"], 0, True, True),
        (["replace 0:"], 0, True, False),
        (["replace 2: a@1 b@2"], 0, False, False),
        (["replace 2: a@1 b@2"], 1, False, True),
        (["replace 2: a@1 b@2"], 2, True, True),
        (["replace 2: a@1 a@2"], 1, True, True),
        (["update a@1"], 0, True, True),
        (["delete a@1"], 0, True, True),
        (["replace 0:"], 1, True, True),
        (["bookmark 1"], 0, False, False),
        (["bookmark 1", "replace 2: a@1"], 1, True, False),
        (["bookmark 1", "replace 2: a@1"], 2, True, True),
        (["replace 2: a@1 b@2", "add c@3"], 0, False, False),
        (["replace 2: a@1", "add c@3"], 1, True, True),
    ],
)
async def test_rq17_has_synced(script: list[str], pops: int, classic_synced: bool, atomic_synced: bool) -> None:
    """RQ17 HasSynced: the seven rows of client-go, and more. A ReplacedAll is one item, also of an empty list."""
    for fifo, synced in ((classic(), classic_synced), (atomic_fifo(), atomic_synced)):
        await produce(fifo, *script)
        entries = fifo.statistics()["entries"]
        assert isinstance(entries, int)
        for _ in range(min(pops, entries)):
            await pop(fifo)
        assert fifo.has_synced() is synced


@both_modes
@pytest.mark.parametrize("raises", [False, True])
async def test_rq17_synced_means_processed_not_popped(atomic: bool, raises: bool) -> None:
    """RQ17, Q3: while the last of the first list is being processed it has not synced; then it has, even by failure."""
    fifo = DeltaFIFO(store(), atomic=atomic)
    await produce(fifo, "replace 1: a@1")
    waiting = asyncio.create_task(fifo.wait_synced())
    during: list[bool] = []

    def process(item: Popped, low_water: str) -> None:
        during.append(fifo.has_synced())
        if raises:
            raise ZeroDivisionError

    (result,) = await asyncio.gather(fifo.pop(process), return_exceptions=True)
    assert isinstance(result, ZeroDivisionError) is raises
    assert during == [False]
    assert fifo.has_synced()
    await waiting


async def test_rq18_close_wakes_whoever_waits_at_once() -> None:
    """RQ18 PopShouldUnblockWhenClosed: ten pops, and here also producers and those who wait for the sync."""
    fifo = atomic_fifo("foo@5")
    full = DeltaFIFO(store(), max_backlog=1)
    await produce(full, "bookmark 1")
    waiting: list[asyncio.Task[Any]] = [asyncio.create_task(pop(fifo)) for _ in range(10)]
    waiting.append(asyncio.create_task(fifo.wait_synced()))
    waiting += [asyncio.create_task(produce(full, line)) for line in ("add a@1", "replace 1:", "bookmark 2")]
    await settle()
    assert not any(task.done() for task in waiting)
    closed = asyncio.get_running_loop().time()
    fifo.close()
    full.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [FIFOClosed] * 14
    assert asyncio.get_running_loop().time() == closed


@both_modes
async def test_rq18_what_was_queued_before_the_close_is_popped_first(atomic: bool) -> None:
    """RQ18, Q8: and nothing is taken any more, a resync neither."""
    fifo = DeltaFIFO(store(), atomic=atomic)
    await produce(fifo, "add a@1", "add b@2", "update a@3")
    fifo.close()
    for line in ("add c@4", "update a@4", "delete a@4", "replace 4:", "bookmark 4"):
        with pytest.raises(FIFOClosed):
            await produce(fifo, line)
    fifo.resync()
    assert [await pop(fifo), await pop(fifo)] == [["Added a@1", "Updated a@3"], ["Added b@2"]]
    for _ in range(2):
        with pytest.raises(FIFOClosed):
            await pop(fifo)


# ---------------------------------------------------------------- in place of batches


@pytest.mark.parametrize(
    ("initial", "updates", "expected"),
    [
        ("a@1 b@2 c@3", [], ["a@1", "b@2", "c@3"]),
        ("a@1 b@2", ["c@3", "d@4"], ["a@1", "b@2", "c@3", "d@4"]),
        ("a@1", ["a@2", "a@3"], ["a@1 a@2 a@3"]),
        ("a@1 b@2", ["b@3", "c@4"], ["a@1", "b@2 b@3", "c@4"]),
        ("a@1 b@2 c@3", ["b@4"], ["a@1", "b@2 b@4", "c@3"]),
        ("a@1 b@2 c@3", ["c@4", "a@5", "c@6"], ["a@1 a@5", "b@2", "c@3 c@4 c@6"]),
        ("", ["a@1", "b@2", "c@3"], ["a@1", "b@2", "c@3"]),
        ("a@1 b@2 c@3", ["d@4"], ["a@1", "b@2", "c@3", "d@4"]),
    ],
)
async def test_rq19_a_pop_is_all_of_one_key_in_order_and_the_list_is_told_apart(
    initial: str, updates: list[str], expected: list[str]
) -> None:
    """RQ19, in place of PopMultipleDeltaInBatch: there are no batches, a pop hands over all deltas of a key.

    What the eight splits are about still holds: order, no key twice in one pop, and what is not of the first list
    comes after it is synced. A list as a barrier travels alone, whatever comes after it.
    """
    fifo = classic()
    await produce(fifo, f"replace 100: {initial}", *(f"update {each}" for each in updates))
    popped, synced = [], []
    while fifo.statistics()["entries"]:
        synced.append(fifo.has_synced())
        popped.append(" ".join(line.partition(" ")[2] for line in await pop(fifo)))
    assert popped == expected
    assert synced.count(False) == len(initial.split())
    assert synced == sorted(synced)

    fifo = atomic_fifo()
    await produce(fifo, f"replace 100: {initial}", *(f"update {each}" for each in updates))
    first, *others = await drain(fifo)
    assert first == [f"ReplacedAll 100: {initial}".rstrip()]
    keys = dict.fromkeys(each[0] for each in updates)
    assert others == [[f"Updated {each}" for each in updates if each[0] == key] for key in keys]


@pytest.mark.parametrize("names", ["x", "a b x", "a b x y", "x a y"], ids=["first", "nth", "several nth", "mixed"])
@both_modes
async def test_rq20_an_item_whose_processing_fails_is_consumed_and_the_others_come(atomic: bool, names: str) -> None:
    """RQ20, in place of PopBrokenItemsInBatch: no key can fail here, processing can. Who processes: CT08."""
    fifo = DeltaFIFO(store(), atomic=atomic)
    for name in names.split():
        await produce(fifo, f"add {name}@1", f"update {name}@2")
    processed: list[str] = []

    def process(item: Popped, _: str) -> None:
        assert isinstance(item, Deltas)
        processed.append(item.key)
        if item.key in {"x", "y"}:
            raise ValueError(item.key)

    failed: list[str] = []
    for _ in names.split():
        try:
            await fifo.pop(process)
        except ValueError as error:
            failed.append(str(error))
    assert processed == names.split()
    assert failed == [name for name in names.split() if name in {"x", "y"}]
    assert await drain(fifo) == []
    assert fifo.has_synced()


# ---------------------------------------------------------------- barriers


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (["replace 123:"], [["ReplacedAll 123:"]]),
        (["add foo@2", "replace 123:"], [["Added foo@2"], ["ReplacedAll 123:"]]),
        (
            ["add foo@2", "replace 10: foo@2", "replace 20: foo@2", "replace 56:"],
            [["Added foo@2"], ["ReplacedAll 10: foo@2"], ["ReplacedAll 20: foo@2"], ["ReplacedAll 56:"]],
        ),
        (["bookmark 123", "replace 1234:"], [["Bookmark 123"], ["ReplacedAll 1234:"]]),
    ],
    ids=["nothing", "after an add", "several", "after a bookmark"],
)
async def test_rq21_a_list_is_one_item_at_its_place(script: list[str], expected: list[list[str]]) -> None:
    """RQ21 ReplaceAtomic."""
    fifo = atomic_fifo()
    await produce(fifo, *script)
    assert await drain(fifo) == expected


async def test_rq22_an_object_added_and_then_listed_atomically() -> None:
    """RQ22 ReplaceAtomicPop: what is only queued, or only stored, gets no deletion of its own."""
    fifo = atomic_fifo("stored@1")
    await produce(fifo, "add foo@10", "add queued@11", "replace 20: foo@15")
    assert await drain(fifo) == [["Added foo@10"], ["Added queued@11"], ["ReplacedAll 20: foo@15"]]


async def test_rq23_a_resync_is_one_item_at_its_place() -> None:
    """RQ23 ResyncAtomic; while one waits, another would tell nothing more."""
    fifo = atomic_fifo()
    await produce(fifo, "replace 1:", "resync")
    assert await drain(fifo) == [["ReplacedAll 1:"], ["SyncAll"]]
    await produce(fifo, "add foo@2", "resync", "update foo@3", "resync")
    assert await drain(fifo) == [["Added foo@2"], ["SyncAll"], ["Updated foo@3"]]
    await produce(fifo, "resync")
    assert await drain(fifo) == [["SyncAll"]]


async def test_rq24_bookmarks_pass_an_atomic_queue_only() -> None:
    """RQ24: elsewhere they would say what is not so, as lists come in pieces there."""
    script = ["bookmark 123", "replace 0:", "replace 1:"]
    fifo = classic()
    await produce(fifo, *script)
    assert await drain(fifo) == []
    fifo = atomic_fifo()
    await produce(fifo, *script)
    assert await drain(fifo) == [["Bookmark 123"], ["ReplacedAll 0:"], ["ReplacedAll 1:"]]


@pytest.mark.parametrize(
    ("barrier", "told"),
    [("replace 18: k@18", "ReplacedAll 18: k@18"), ("bookmark 18", "Bookmark 18"), ("resync", "SyncAll")],
)
async def test_a_delta_never_joins_what_is_queued_before_a_barrier(barrier: str, told: str) -> None:
    """Else k@20 would be popped ahead of the list at 18, which then takes k back to its older state for good."""
    fifo = atomic_fifo()
    await produce(fifo, "update k@16", "update k@17", barrier, "update k@20", "update l@21", "update k@22")
    expected = [["Updated k@16", "Updated k@17"], [told], ["Updated k@20", "Updated k@22"], ["Updated l@21"]]
    assert await pop(fifo) == expected[0]
    await produce(fifo, "update k@23")
    expected[2].append("Updated k@23")
    assert await drain(fifo) == expected[1:]


@pytest.mark.parametrize(
    ("script", "marks"),
    [
        (["add a@1", "add b@2", "add a@3", "add c@4"], ["1", "3", "4"]),
        (["add a@1", "add b@2", "add a@9", "bookmark 9"], ["1", "9", "9"]),
        (["add a@1", "bookmark 1", "add a@5", "bookmark 6", "add b@7"], ["1", "1", "5", "6", "7"]),
        (["add a@55", "add b@32"], ["55", "32"]),
        (["add a@5", "replace 3: a@2", "add b@4"], ["5", "3", "4"]),
        (["add a@1", "add b@2", "delete a@4", "add c@5"], ["1", "4", "5"]),
        (["add a@1", "delete ?b@9", "add c@2"], ["1", "1", "2"]),
        (["replace 5: a@1 b@5", "resync", "add a@6"], ["5", "5", "6"]),
    ],
    ids=["keys", "bookmark", "segments", "no numeric maximum", "restored", "deletions", "tombstones", "resyncs"],
)
async def test_the_low_water_mark_is_behind_everything_that_waits(script: list[str], marks: list[str]) -> None:
    """R6: popping a's deltas applies a@3 before b@2; told is 1. A mark, or a bookmark, may be below a stored object."""
    fifo = atomic_fifo()
    await produce(fifo, *script)
    told: list[str] = []
    process: Callable[[Popped, str], None] = lambda _, low_water: told.append(low_water)  # noqa: E731
    while fifo.statistics()["entries"]:
        await fifo.pop(process)
    assert told == marks


@both_modes
async def test_the_backlog_counts_deltas_not_keys(atomic: bool) -> None:
    """A storm on one key is one key; the producer waits all the same, and one pop makes room for it."""
    fifo = DeltaFIFO(store(), atomic=atomic, max_backlog=100)
    storm = asyncio.create_task(produce(fifo, *(f"update foo@{version}" for version in range(1, 151))))
    await settle()
    assert not storm.done()
    statistics = fifo.statistics()
    assert (statistics["backlog"], statistics["entries"], statistics["producer_waits"]) == (100, 1, 1)
    assert await pop(fifo) == [f"Updated foo@{version}" for version in range(1, 101)]
    await storm
    assert await drain(fifo) == [[f"Updated foo@{version}" for version in range(101, 151)]]
