"""What client-go's controller tests check: queue, store and handlers behind a Reflector, over HTTP and step by step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.typing import EventDict

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache import (
    Backoff,
    Indexer,
    Reflector,
    SharedInformer,
    meta_namespace_key,
    split_meta_namespace_key,
)
from federator.cache.controller import Controller
from federator.cache.delta_fifo import DeltaFIFO, Transform
from federator.cache.delta_sink import DeltaSink
from federator.cache.processor import SharedProcessor
from federator.errors import InvalidInput
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer
from tests.conformance.rig import CONFIG_MAPS, no_jitter, settle
from tests.unit.cache.doubles import RecordingSink

pytestmark = pytest.mark.looptime

both_modes = pytest.mark.parametrize("atomic", [False, True], ids=["classic", "atomic"])
both_ways = pytest.mark.parametrize("use_watch_list", [True, False], ids=["watch-list", "list"])


def obj(name: str, version: int | str, *, uid: str = "") -> KubeObject:
    return KubeObject("default", name, uid or f"uid-{name}", str(version))


class History:
    """A handler that remembers, and checks that what it is told of each object follows from what it was told before.

    Attributes:
        told: what it was told, in short words, since `take`.
        known: the newest state of each object that it was told of and is not gone.
        tombstones: those among the deletions.
        look: called with the key each time.
    """

    def __init__(self) -> None:
        self.told: list[str] = []
        self.known: dict[str, KubeObject] = {}
        self.tombstones: list[Tombstone] = []
        self.look: Callable[[str], None] = lambda key: None
        self.wrong: list[str] = []

    def on_add(self, obj: KubeObject, is_initial: bool) -> None:
        self._check(obj.key not in self.known, f"added twice: {obj.key}")
        self.known[obj.key] = obj
        self._note(obj.key, f"{'initial' if is_initial else 'add'} {obj.name}")

    def on_update(self, old: KubeObject, new: KubeObject) -> None:
        self._check(self.known.get(old.key) == old, f"updated from another state than the last: {old.key}")
        is_resync = old.resource_version == new.resource_version
        self.known[new.key] = new
        self._note(new.key, f"{'resync' if is_resync else 'update'} {new.name}")

    def on_delete(self, obj: KubeObject | Tombstone) -> None:
        self._check(obj.key in self.known, f"deleted and never added: {obj.key}")
        self.known.pop(obj.key, None)
        if isinstance(obj, Tombstone):
            self.tombstones.append(obj)
        self._note(obj.key, f"delete {split_meta_namespace_key(obj.key)[1]}")

    @property
    def versions(self) -> Mapping[str, str]:
        return {state.name: state.resource_version for state in self.known.values()}

    def take(self) -> list[str]:
        told, self.told = self.told, []
        return told

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)

    def _note(self, key: str, event: str) -> None:
        self.told.append(event)
        self.look(key)


@asynccontextmanager
async def while_running(run: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Runs what should run as long as the body does."""
    task = asyncio.create_task(run)
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Parts:
    """Everything behind the Reflector, with either kind of queue and one handler."""

    def __init__(
        self,
        *,
        atomic: bool = True,
        transform: Transform | None = None,
        sink: DeltaSink | None = None,
        resync_period: float = 0.0,
        buffer_size: int = 100_000,
    ) -> None:
        self.indexer = Indexer()
        self.fifo = DeltaFIFO(self.indexer, atomic=atomic, transform=transform)
        self.processor = SharedProcessor(name="parts", resync_check_period=resync_period, buffer_size=buffer_size)
        self.handler = History()
        self.listener = self.processor.add_listener(self.handler, resync_period=resync_period, cached=())
        self.controller = Controller(self.fifo, self.indexer, self.processor, sink=sink)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.processor.running(), while_running(self.controller.run()):
            yield

    async def told(self) -> list[str]:
        """What the handler is told once all that is queued is processed."""
        await settle()
        return self.handler.take()

    @property
    def held(self) -> Mapping[str, str]:
        return {each.name: each.resource_version for each in self.indexer.list()}


class Assembly(Parts):
    """An informer joined by hand, since SharedInformer has one kind of queue and resyncs at most once a second."""

    def __init__(
        self,
        client: MemberClient,
        *,
        use_watch_list: bool = True,
        resync_period: float = 0.0,
        atomic: bool = True,
        transform: Transform | None = None,
    ) -> None:
        super().__init__(atomic=atomic, transform=transform, resync_period=resync_period)
        self.reflector = Reflector(
            ResourceListWatch(client, CONFIG_MAPS),
            self.fifo,
            name="assembly",
            use_watch_list=use_watch_list,
            resync_period=lambda: resync_period,
            should_resync=self.processor.should_resync,
            backoff=Backoff(uniform=no_jitter),
            uniform=no_jitter,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with super().running(), while_running(self.reflector.run()):
            yield

    async def caught_up(self, server: FakeApiServer) -> None:
        """Waits until store and handler have what the server has; the test's time limit is the only one."""
        while not self.held == self.handler.versions == truth(server):  # noqa: ASYNC110 - a time that jumps
            await asyncio.sleep(0.05)


def truth(server: FakeApiServer) -> Mapping[str, str]:
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in server.list("configmaps")}


# ---------------------------------------------------------------- under load


@both_modes
@both_ways
async def test_ct01_writers_resyncs_and_lists_never_lock_each_other(
    server: FakeApiServer, client: MemberClient, atomic: bool, use_watch_list: bool
) -> None:
    """CT01 HammerController: three writers of 100 operations each, a resync every 100 ms.

    Here watches end and histories go as well. All comes to rest in the state of the server.
    """
    informer = Assembly(client, atomic=atomic, use_watch_list=use_watch_list, resync_period=0.1)
    assert not informer.fifo.has_synced()
    kinds: set[str] = set()
    informer.handler.look = lambda _: kinds.add(informer.handler.told[-1].split()[0])

    async def write(seed: int) -> None:
        dice = random.Random(seed)
        names: list[str] = []
        for number in range(100):
            if not names or dice.randrange(3) == 1:
                names.append(f"w{seed}-{number}")
                server.put("configmaps", names[-1])
            elif dice.randrange(2):
                server.touch("configmaps", dice.choice(names))
            else:
                server.delete("configmaps", names.pop(dice.randrange(len(names))))
            if dice.randrange(25) == 0:
                server.end_watches()
                if dice.randrange(2):
                    server.compact()
            await asyncio.sleep(dice.random() * 0.05)

    async with informer.running():
        await informer.fifo.wait_synced()
        await asyncio.gather(*(write(seed) for seed in range(3)))
        await informer.caught_up(server)
        await asyncio.sleep(0.25)
        assert informer.held == informer.handler.versions == truth(server)
    assert informer.handler.wrong == []
    assert informer.listener.failed == 0
    assert kinds >= {"add", "update", "delete", "resync"}


@both_modes
async def test_ct02_only_transitions_that_were_are_told(
    server: FakeApiServer, client: MemberClient, atomic: bool
) -> None:
    """CT02 Update: each object goes from `from` to `to` and is deleted then; a resync tells either state as it is."""
    informer = Assembly(client, atomic=atomic, resync_period=0.1)
    labels: list[tuple[str, str]] = []
    gone: list[str] = []

    class Deleting(History):
        def on_update(self, old: KubeObject, new: KubeObject) -> None:
            super().on_update(old, new)
            states = [(each.meta().labels or {})["check"] for each in (old, new)]
            labels.append((states[0], states[1]))
            if states[0] != states[1]:
                server.delete("configmaps", new.name)

        def on_delete(self, obj: KubeObject | Tombstone) -> None:
            super().on_delete(obj)
            gone.append(obj.key)

    handler = Deleting()
    listener = informer.processor.add_listener(handler, resync_period=0.1, cached=())

    async def write(writer: int) -> None:
        for number in range(10):
            server.put("configmaps", f"w{writer}-{number}", labels={"check": "from"})
            await asyncio.sleep(0.07 * writer)
            server.put("configmaps", f"w{writer}-{number}", labels={"check": "to"})

    async with informer.running():
        await informer.fifo.wait_synced()
        await server.wait_for_watch()
        await asyncio.gather(*(write(writer) for writer in range(4)))
        await informer.caught_up(server)
    assert sorted(gone) == sorted(f"default/w{writer}-{number}" for writer in range(4) for number in range(10))
    assert labels.count(("from", "to")) == 40
    assert set(labels) <= {("from", "to"), ("from", "from"), ("to", "to")}
    assert ("from", "from") in labels
    assert handler.wrong == []
    assert listener.failed == 0


# ---------------------------------------------------------------- failures


class FailingSink(RecordingSink):
    """Raises for objects of one name."""

    def upserted(self, obj: KubeObject, before: KubeObject | None) -> None:
        super().upserted(obj, before)
        if obj.name == "bad":
            raise ZeroDivisionError(obj.name)


async def test_ct03_what_the_sink_raises_ends_the_run(server: FakeApiServer, client: MemberClient) -> None:
    """CT03 PanicPropagated: in the pop loop's own code a defect is not survived, and comes out of `run`."""
    informer = SharedInformer(ResourceListWatch(client, CONFIG_MAPS), name="informer", sink=FailingSink())
    run = asyncio.create_task(informer.run())
    await informer.wait_synced()
    await server.wait_for_watch()
    server.put("configmaps", "good")
    await settle()
    assert not run.done()
    server.put("configmaps", "bad")
    with pytest.raises(ExceptionGroup) as raised:
        await run
    assert raised.group_contains(ZeroDivisionError, match="bad")
    assert informer.is_stopped


async def test_ct03_what_a_handler_raises_does_not(server: FakeApiServer, client: MemberClient) -> None:
    """CT03, otherwise than client-go: a handler's exception is that handler's."""
    informer = Assembly(client)

    def explode(key: str) -> None:
        raise ZeroDivisionError(key)

    informer.handler.look = explode
    server.put("configmaps", "a")
    async with informer.running():
        await asyncio.sleep(2.0)
        server.put("configmaps", "b")
        await informer.caught_up(server)
    assert informer.listener.failed == 2


@pytest.mark.parametrize(
    ("names", "told"),
    [("good", ["good"]), ("bad", []), ("good bad", ["good"]), ("good bad new", ["good", "new"])],
)
@both_modes
async def test_ct08_of_several_only_what_succeeded_is_told(atomic: bool, names: str, told: list[str]) -> None:
    """CT08 ProcessDeltasInBatch, without batches: what fails is consumed and told to no handler, the others go on.

    What can fail is the sink. That ends the loop; it is begun anew here, to see what it left.
    """
    sink = FailingSink()
    parts = Parts(atomic=atomic, sink=sink)
    for version, name in enumerate(names.split(), 1):
        await parts.fifo.add(obj(name, version))
    parts.fifo.close()
    failed = 0
    async with parts.processor.running():
        while parts.fifo.statistics()["entries"]:
            (result,) = await asyncio.gather(parts.controller.run(), return_exceptions=True)
            failed += isinstance(result, ZeroDivisionError)
        assert await parts.told() == [f"add {name}" for name in told]
    assert failed == names.split().count("bad")
    assert [call[1] for call in sink.calls] == [f"default/{name}" for name in names.split()]
    assert parts.fifo.statistics()["backlog"] == 0


@both_modes
async def test_ct08_no_foreign_function_fails_more_than_its_object(atomic: bool, logs: list[EventDict]) -> None:
    """CT08: a transform that raises withholds that object, an index function leaves it out of that index."""

    def picky(each: KubeObject) -> KubeObject:
        if each.name == "bad":
            raise ZeroDivisionError
        return each

    def index(each: KubeObject) -> Sequence[str]:
        if each.name == "odd":
            raise ZeroDivisionError
        return ["there"]

    parts = Parts(atomic=atomic, transform=picky)
    parts.indexer.add_indexers({"index": index})
    await parts.fifo.replace([obj("a", 1), obj("bad", 2), obj("odd", 3)], "3")
    for name, version in [("bad", 4), ("b", 5), ("odd", 6)]:
        await parts.fifo.update(obj(name, version))
    async with parts.running():
        assert sorted(await parts.told()) == ["add b", "initial a", "initial odd", "update odd"]
    assert parts.held == {"a": "1", "odd": "6", "b": "5"}
    assert {each.name for each in parts.indexer.by_index("index", "there")} == {"a", "b"}
    assert parts.indexer.statistics()["quarantined"] == 1
    assert list(parts.fifo.withheld) == ["default/bad"]
    assert {event["log_level"] for event in logs} == {"warning"}


# ---------------------------------------------------------------- transforms


MARK = b'{"transformed":true}'


class Marking:
    """A transform that knows its own work when it sees it again."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.again: list[str] = []

    def __call__(self, each: KubeObject) -> KubeObject:
        self.seen.append(f"{each.name}@{each.resource_version}")
        if each.raw == MARK:
            self.again.append(each.key)
        return KubeObject(each.namespace, each.name, each.uid, each.resource_version, MARK)


@both_modes
@both_ways
async def test_ct04_events_and_store_are_transformed(
    server: FakeApiServer, client: MemberClient, atomic: bool, use_watch_list: bool
) -> None:
    """CT04 TransformingInformer: adds, both states of an update, deletions; each state once, by a watch-list too."""
    transform = Marking()
    informer = Assembly(client, atomic=atomic, use_watch_list=use_watch_list, transform=transform)
    told: list[KubeObject | Tombstone] = []

    class Keeping(History):
        def on_add(self, obj: KubeObject, is_initial: bool) -> None:
            super().on_add(obj, is_initial)
            told.append(obj)

        def on_update(self, old: KubeObject, new: KubeObject) -> None:
            super().on_update(old, new)
            told.extend((old, new))

        def on_delete(self, obj: KubeObject | Tombstone) -> None:
            super().on_delete(obj)
            told.append(obj)

    handler = Keeping()
    informer.processor.add_listener(handler, resync_period=0.0, cached=())
    server.put("configmaps", "one", data={"n": "1"})
    server.put("configmaps", "one", data={"n": "2"})
    async with informer.running():
        await informer.caught_up(server)
        await server.wait_for_watch()
        for name in ("two", "three"):
            server.put("configmaps", name)
            await informer.caught_up(server)
        server.touch("configmaps", "two")
        await informer.caught_up(server)
        server.delete("configmaps", "one")
        await informer.caught_up(server)
        assert [each.raw for each in informer.indexer.list()] == [MARK] * 2
    assert handler.take() == ["initial one", "add two", "add three", "update two", "delete one"]
    assert handler.wrong == []
    assert [isinstance(each, KubeObject) and each.raw == MARK for each in told] == [True] * 6
    assert len(transform.seen) == len(set(transform.seen)) == 5
    assert transform.again == []


@both_modes
async def test_ct04_the_last_state_in_a_tombstone_is_transformed(
    server: FakeApiServer, client: MemberClient, atomic: bool
) -> None:
    """CT04: also of a deletion that a list finds."""
    transform = Marking()
    informer = Assembly(client, atomic=atomic, transform=transform)
    server.put("configmaps", "gone")
    async with informer.running():
        await informer.caught_up(server)
        server.end_watches()
        server.delete("configmaps", "gone")
        server.compact()
        await informer.caught_up(server)
    (tombstone,) = informer.handler.tombstones
    assert tombstone.object is not None
    assert tombstone.object.raw == MARK
    assert transform.again == []


async def test_ct05_neither_resyncs_nor_lists_transform_again(server: FakeApiServer, client: MemberClient) -> None:
    """CT05 TransformingInformerRace: lists give known objects as they are stored, and these were transformed."""
    transform = Marking()
    for number in range(5):
        server.put("configmaps", f"c{number}")
    informer = SharedInformer(
        ResourceListWatch(client, CONFIG_MAPS), name="informer", transform=transform, resync_period=1.0
    )
    handler = History()
    informer.add_event_handler(handler)
    async with while_running(informer.run()):
        for round_ in range(20):
            await asyncio.sleep(0.7)
            if round_ % 5 == 4:
                informer.request_relist()
            if round_ % 7 == 6:
                server.touch("configmaps", "c0")
            assert [each.raw for each in informer.indexer.list()] == [MARK] * 5
    assert transform.again == []
    assert len(transform.seen) == len(set(transform.seen)) == 7
    assert handler.take().count("resync c1") > 10
    assert handler.wrong == []


# ---------------------------------------------------------------- names of what is gone


async def test_ct06_a_deletion_that_a_list_found_has_the_objects_name(
    server: FakeApiServer, client: MemberClient
) -> None:
    """CT06 DeletionHandlingObjectToName."""
    informer = Assembly(client)
    server.put("configmaps", "gone", namespace="kube-system")
    async with informer.running():
        await informer.caught_up(server)
        (stored,) = informer.indexer.list()
        server.end_watches()
        server.delete("configmaps", "gone", namespace="kube-system")
        server.compact()
        await informer.caught_up(server)
    (tombstone,) = informer.handler.tombstones
    assert tombstone == Tombstone("kube-system/gone", stored)
    assert meta_namespace_key(tombstone) == meta_namespace_key(stored)
    assert split_meta_namespace_key(tombstone.key) == (stored.namespace, stored.name)


@pytest.mark.parametrize("last_state", [True, False], ids=["with its state", "without"])
@pytest.mark.parametrize(
    ("key", "name"),
    [("ns/name", ("ns", "name")), ("name", ("", "name")), ("a/b/c", None), ("", None), ("ns/", None)],
)
def test_ct07_the_key_of_a_tombstone_is_what_counts(last_state: bool, key: str, name: tuple[str, str] | None) -> None:
    """CT07 DeletedObject: whatever object is in it, or none. A key of no object is told as it is, and not split."""
    tombstone = Tombstone(key, obj("stale", 1) if last_state else None)
    assert meta_namespace_key(tombstone) == key
    if name is None:
        with pytest.raises(InvalidInput):
            split_meta_namespace_key(tombstone.key)
    else:
        assert split_meta_namespace_key(tombstone.key) == name


@pytest.mark.parametrize("last_state", [obj("stale", 1), None])
async def test_ct07_a_tombstone_deletes_what_its_key_names(last_state: KubeObject | None) -> None:
    """CT07, K1: in queue, store, sink and handler; where it has no state, the handler gets the stored one."""
    sink = RecordingSink()
    parts = Parts(sink=sink)
    parts.indexer.add_indexers({"name": lambda each: [each.name]})
    await parts.fifo.replace([obj("a", 1), obj("stale", 2)], "2")
    await parts.fifo.delete(Tombstone("default/a", last_state))
    async with parts.running():
        assert await parts.told() == ["initial a", "initial stale", "delete a"]
    assert parts.held == {"stale": "2"}
    assert parts.indexer.list_index_func_values("name") == ["stale"]
    assert parts.handler.tombstones == [Tombstone("default/a", last_state or obj("a", 1))]
    assert sink.calls[-1][:2] == ("deleted", "default/a")


# ---------------------------------------------------------------- lists


@both_modes
@pytest.mark.parametrize(
    ("initial", "listed", "expected"),
    [
        ({}, {"a": 1}, ["add a 1"]),
        ({"a": 1, "c": 2}, {}, ["delete a -", "delete c -"]),
        (
            {"a": 1, "b": 2, "c": 3},
            {"a": 4, "b": 5, "d": 6},
            ["delete c -", "update a 4", "update b 5", "add d 6"],
        ),
    ],
    ids=["create", "delete all", "create, update, delete"],
)
async def test_ct09_lists_are_told_alike_whether_atomic_or_not(
    atomic: bool, initial: dict[str, int], listed: dict[str, int], expected: list[str]
) -> None:
    """CT09 ReplaceEvents: deletions first, then the list in its order; the store has it when the handler is told."""
    parts = Parts(atomic=atomic)
    handler, history = parts.handler, []

    def look(key: str) -> None:
        stored = parts.indexer.get_by_key(key)
        history.append(f"{handler.told[-1]} {stored.resource_version if stored else '-'}")

    async with parts.running():
        await parts.fifo.replace([], "0")
        for name, version in initial.items():
            await parts.fifo.add(obj(name, version))
        assert await parts.told() == [f"add {name}" for name in initial]
        handler.look = look
        await parts.fifo.replace([obj(name, version) for name, version in listed.items()], "6")
        await parts.told()
    assert history == expected
    assert handler.wrong == []
    assert [each.object for each in handler.tombstones] == [
        obj(name, version) for name, version in initial.items() if name not in listed
    ]
    assert parts.held == {name: str(version) for name, version in listed.items()}
    assert parts.indexer.last_resource_version == "6"


async def test_ct09_nobody_sees_a_list_half_taken_over() -> None:
    """CT09, Q5: store and indexes go over in one step, before anybody is told; also the sink sees them whole."""
    views: list[tuple[list[str], list[str]]] = []

    class Looking(RecordingSink):
        def replaced_all(
            self, resource_version: str, objects: Sequence[KubeObject], withheld: Mapping[str, KubeObject | None]
        ) -> None:
            look()

    parts = Parts(sink=Looking())
    parts.indexer.add_indexers({"name": lambda each: [each.name]})

    def look(key: str = "") -> None:
        views.append((sorted(parts.held), sorted(parts.indexer.list_index_func_values("name"))))

    parts.handler.look = look
    async with parts.running():
        await parts.fifo.replace([obj("a", 1), obj("b", 2)], "2")
        await parts.told()
    assert views == [(["a", "b"], ["a", "b"])] * 3


@both_modes
async def test_ct10_what_changed_in_a_gap_is_told_and_not_as_initial(
    server: FakeApiServer, client: MemberClient, atomic: bool
) -> None:
    """CT10 ResetWatch."""
    informer = Assembly(client, atomic=atomic)
    server.put("configmaps", "one")
    async with informer.running():
        await informer.caught_up(server)
        assert informer.handler.take() == ["initial one"]
        server.end_watches()
        server.touch("configmaps", "one")
        server.put("configmaps", "two")
        server.compact()
        await informer.caught_up(server)
        assert sorted(informer.handler.take()) == ["add two", "update one"]
    assert informer.handler.wrong == []


# ---------------------------------------------------------------- the store's version


@both_modes
async def test_ct11_the_stores_version_follows_updates_and_deletions(
    server: FakeApiServer, client: MemberClient, atomic: bool
) -> None:
    """CT11 StoreResourceVersion: of a deletion its own, which no stored object has."""
    informer = Assembly(client, atomic=atomic)
    server.put("configmaps", "one")
    async with informer.running():
        await informer.caught_up(server)
        for write in (server.touch, server.delete):
            await server.wait_for_watch()
            write("configmaps", "one")
            await informer.caught_up(server)
            assert informer.indexer.last_resource_version == server.resource_version
        assert informer.held == {}


async def test_ct12_a_transform_may_drop_the_version_bookmarks_still_move_the_stores(
    server: FakeApiServer, client: MemberClient
) -> None:
    """CT12."""
    informer = Assembly(client, transform=lambda each: KubeObject(each.namespace, each.name, each.uid, ""))
    server.put("configmaps", "one")
    async with informer.running():
        await informer.fifo.wait_synced()
        await server.wait_for_watch()
        listed = server.resource_version
        server.touch("configmaps", "one")
        await settle()
        assert informer.reflector.last_sync_resource_version == server.resource_version != listed
        assert informer.indexer.last_resource_version == listed
        server.bookmark()
        await settle()
        assert informer.indexer.last_resource_version == server.resource_version


# ---------------------------------------------------------------- the queue's promises, seen from behind it


@both_modes
async def test_rq13_rq23_a_resync_tells_what_is_stored_when_its_turn_comes(atomic: bool) -> None:
    """RQ13, RQ23, Q6: never the state from before an update that was queued, nor an object that is deleted by then."""
    parts = Parts(atomic=atomic, resync_period=60.0)
    async with parts.running():
        await parts.fifo.replace([obj("a", 1), obj("b", 2), obj("c", 3)], "3")
        assert await parts.told() == ["initial a", "initial b", "initial c"]
        await parts.fifo.update(obj("a", 4))
        await parts.fifo.delete(obj("b", 5))
        parts.listener.due_for_resync = True
        parts.fifo.resync()
        expected = ["update a", "delete b", *(["resync a", "resync c"] if atomic else ["resync c"])]
        assert sorted(await parts.told()) == sorted(expected)
    assert parts.handler.wrong == []
    assert parts.held == {"a": "4", "c": "3"}


async def test_rq19_other_tasks_have_their_turns_while_a_long_queue_is_worked_off() -> None:
    """RQ19, Q7: in place of a batch's bound of 1,000, the loop is given away every 128 pops."""
    parts = Parts()
    for number in range(1280):
        await parts.fifo.add(obj(f"o{number}", number + 1))
    run = asyncio.create_task(parts.controller.run())
    sizes = []
    while parts.fifo.statistics()["entries"]:
        await asyncio.sleep(0)
        sizes.append(len(parts.held))
    assert sizes == [128 * turn for turn in range(1, 11)]
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


async def test_another_object_of_the_same_name_and_version_is_no_resync() -> None:
    """S4: after a cluster was restored, versions are given out again."""
    parts = Parts()
    await parts.fifo.replace([obj("a", 5, uid="before")], "5")
    await parts.fifo.replace([obj("a", 5, uid="after")], "5")
    async with parts.running():
        await parts.told()
    assert parts.handler.known["default/a"].uid == "after"


# A script of what a server and its watch do, and of when the queue is popped.
_NAMES = st.sampled_from("abc")
_STEPS = st.one_of(
    st.tuples(st.just("put"), _NAMES),
    st.tuples(st.just("delete"), _NAMES),
    st.tuples(st.just("gap"), st.lists(st.tuples(st.sampled_from(["put", "delete"]), _NAMES), max_size=4)),
    st.tuples(st.sampled_from(["bookmark", "resync"]), st.none()),
    st.tuples(st.just("pop"), st.integers(1, 4)),
)


class Source:
    """A server's history of a few names, and the Reflector's part: what it tells the queue."""

    def __init__(self, parts: Parts) -> None:
        self.version = 0
        self.states: dict[str, list[tuple[int, bool]]] = {name: [(0, False)] for name in "abc"}
        self._parts = parts

    def there(self) -> list[KubeObject]:
        return [obj(name, states[-1][0]) for name, states in self.states.items() if states[-1][1]]

    async def write(self, verb: str, name: str, *, told: bool = True) -> None:
        existed = self.states[name][-1][1]
        if verb == "delete" and not existed:
            return
        self.version += 1
        self.states[name].append((self.version, verb == "put"))
        if told and verb == "delete":
            await self._parts.fifo.delete(obj(name, self.version))
        elif told:
            put = self._parts.fifo.update if existed else self._parts.fifo.add
            await put(obj(name, self.version))

    async def gap(self, writes: Sequence[tuple[str, str]]) -> None:
        """What is written unseen is made up for by a list."""
        for verb, name in writes:
            await self.write(verb, name, told=False)
        await self._parts.fifo.replace(self.there(), str(self.version))

    def check_low_water(self) -> None:
        """Whatever happened up to the store's version is in the store: it has that state of each object or a later."""
        mark = int(self._parts.indexer.last_resource_version or 0)
        for name, states in self.states.items():
            stored = self._parts.indexer.get_by_key(f"default/{name}")
            at_mark = [state for state in states if state[0] <= mark][-1]
            if stored is None:
                assert not at_mark[1] or any(not exists for version, exists in states if version > mark), (name, mark)
            else:
                assert int(stored.resource_version) >= at_mark[0], (name, mark)


@both_modes
@given(steps=st.lists(_STEPS, max_size=40))
async def test_whatever_waits_states_come_in_order_and_the_stores_version_is_covered(
    atomic: bool, steps: list[tuple[str, object]]
) -> None:
    """S3, R6: handlers see real states of each object, in order, some left out, the last one never.

    Nor does the store say that it is further than it is.
    """
    parts = Parts(atomic=atomic)
    source = Source(parts)
    await source.gap([])
    for step, argument in [*steps, ("pop", 1000)]:
        match step:
            case "put" | "delete":
                await source.write(step, str(argument))
            case "gap":
                assert isinstance(argument, list)
                await source.gap(argument)
            case "bookmark":
                await parts.fifo.bookmark(str(source.version))
            case "resync":
                parts.fifo.resync()
            case _:
                assert isinstance(argument, int)
                for _ in range(argument):
                    if parts.fifo.statistics()["entries"]:
                        await parts.fifo.pop(parts.controller.process)
                        source.check_low_water()
    seen: dict[str, list[int]] = {}
    parts.handler.look = lambda key: (
        seen.setdefault(key, []).append(int(parts.handler.known[key].resource_version))
        if key in parts.handler.known
        else None
    )
    async with parts.running():
        await parts.told()
    assert parts.handler.wrong == []
    for versions in seen.values():
        assert versions == sorted(versions)
    expected = {each.key: each for each in source.there()}
    assert parts.handler.known == {each.key: each for each in parts.indexer.list()} == expected
    assert int(parts.indexer.last_resource_version or 0) <= source.version
