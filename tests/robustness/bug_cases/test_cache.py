"""Bugs between queue, store and handlers: deletions that are missed, handlers that fail or cannot keep up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from federator.aggregator.ledger.records import Commit, EntryType, ObjectEntry
from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache.clock import loop_time
from federator.cache.delta_fifo import Popped
from federator.cache.handler import HandlerResult, ResourceEventHandlerFuncs
from federator.cache.processor import BUFFER_SIZE, FAILURE_PAUSE
from federator.cache.shared_informer import SharedInformer
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer
from tests.robustness.bug_cases.follower import CONFIG_MAPS, Follower, both_ways, truth, until
from tests.robustness.linked_bed import LinkedBed, eventually, recorded
from tests.scale import scale, scaled
from tests.unit.cache.doubles import FakeSource, pod

looptime = pytest.mark.looptime


# -------------------------------------------------------------------------- 29: gone before the consumer looked at it


class BlockedConsumer:
    """Keeps an informer's pop loop from taking anything more once it has taken a certain object."""

    def __init__(self, informer: SharedInformer, plug: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self._informer = informer
        self._plug = plug
        self._pop: Callable[[Callable[[Popped, str], None]], Awaitable[None]] = informer._fifo.pop
        monkeypatch.setattr(informer._fifo, "pop", self.pop)

    async def pop(self, process: Callable[[Popped, str], None]) -> None:
        await self.is_open.wait()
        await self._pop(process)
        if self._plug and self._informer.indexer.get_by_key(self._plug):
            self.is_open.clear()
            self._plug = ""


@both_ways
@pytest.mark.parametrize("updates", [0, 3])
@looptime
async def test_bug29_what_came_and_went_while_the_consumer_was_blocked_leaves_nothing(
    server: FakeApiServer,
    client: MemberClient,
    monkeypatch: pytest.MonkeyPatch,
    updates: int,
    *,
    use_watch_list: bool,
) -> None:
    """An object waits in the queue, the watch is lost, the object is deleted, and the list does not have it."""
    server.put("configmaps", "kept")
    async with Follower(client, use_watch_list=use_watch_list) as follower:
        consumer = BlockedConsumer(follower.informer, "default/plug", monkeypatch)
        await follower.synced()
        watch = await server.wait_for_watch("configmaps")
        follower.told.clear()
        server.put("configmaps", "plug")
        await until(lambda: not consumer.is_open.is_set())
        server.put("configmaps", "leaked")
        for _ in range(updates):
            server.touch("configmaps", "leaked")
        await until(lambda: follower.statistics("queue")["backlog"] == 1 + updates)
        begin = server.requests.total
        watch.end()
        server.delete("configmaps", "leaked")
        server.compact()
        await server.wait_for_request("watch" if use_watch_list else "list", since=begin, timeout=60)
        await until(lambda: follower.statistics("queue")["entries"] == 2)
        assert "leaked" not in follower.held
        consumer.is_open.set()
        await until(lambda: ("tombstone", "leaked") in follower.told)
        await asyncio.sleep(5)
        assert follower.told == [
            ("add", "plug"),
            ("add", "leaked"),
            *[("update", "leaked")] * updates,
            ("tombstone", "leaked"),
        ]
        assert follower.held == truth(server)
        assert follower.held.keys() == {"kept", "plug"}


# --------------------------------------------------------------- 33: deleted and created again while nobody looked


@both_ways
@looptime
async def test_bug33_an_informer_tells_it_as_an_update_with_another_uid(
    server: FakeApiServer, client: MemberClient, *, use_watch_list: bool
) -> None:
    """As client-go does, and says so; whoever keeps something per UID has to look at both."""
    uids: list[tuple[str, str]] = []
    others: list[str] = []
    informer = SharedInformer(ResourceListWatch(client, CONFIG_MAPS), name="informer", use_watch_list=use_watch_list)
    informer.add_event_handler(
        ResourceEventHandlerFuncs(
            add=lambda obj, _: others.append(f"add {obj.uid}"),
            update=lambda old, new: uids.append((old.uid, new.uid)),
            delete=lambda obj: others.append(f"delete {obj.key}"),
        )
    )
    first = server.put("configmaps", "x")["metadata"]["uid"]
    async with running(informer):
        await until(lambda: others)
        await server.wait_for_watch("configmaps")
        server.end_watches()
        server.delete("configmaps", "x")
        second = server.put("configmaps", "x")["metadata"]["uid"]
        server.compact()
        await until(lambda: uids)
        await asyncio.sleep(5)
        assert second != first
        assert uids == [(first, second)]
        assert others == [f"add {first}"]
        (stored,) = informer.indexer.list()
        assert stored.uid == second


async def test_bug33_downstream_it_is_a_deletion_and_an_addition_in_one_commit(tmp_path: Path) -> None:
    """From the apiserver to the client's watch: the member's watch is lost, not the link.

    That ledgers split it by themselves: `tests/contract/ledger/test_changes.py`; that a watch has both in one frame:
    `tests/unit/aggregator/serve/test_watch.py`; with the link lost: `tests/integration/push/test_agents.py`.
    """
    async with LinkedBed(tmp_path, ("c0",)) as bed:
        server = bed["c0"].apiserver
        first = server.put("pods", "x")["metadata"]["uid"]
        await bed.start_agents(resources=("pods",))
        commits: list[Commit] = []
        parts = bed.aggregator._parts
        assert parts is not None

        def committed(commit: Commit) -> None:
            commits.append(commit)
            parts._committed(commit)

        parts.ledger.on_commit(committed)
        async with recorded(bed) as recorder:
            server.end_watches("pods")
            server.delete("pods", "x")
            second = server.put("pods", "x")["metadata"]["uid"]
            server.compact()
            await eventually(lambda: len([event for event in recorder.events if event.object]) >= 2, timeout=20)
            deleted, added = (event for event in recorder.events if event.object)
            assert deleted.object is not None
            assert added.object is not None
            assert [(str(event.type), event.object.uid) for event in (deleted, added) if event.object] == [
                ("DELETED", first),
                ("ADDED", second),
            ]
            assert deleted.revision < added.revision
            await bed.equal(types=("pods",))
        (entries,) = [
            [(entry.type, entry.uid, entry.revision) for entry in commit.entries if isinstance(entry, ObjectEntry)]
            for commit in commits
            if any(isinstance(entry, ObjectEntry) for entry in commit.entries)
        ]
        assert entries == [
            (EntryType.DELETED, first, deleted.revision),
            (EntryType.ADDED, second, added.revision),
        ]


# ------------------------------------------------------------------------------------- 34: failing on what is initial


@asynccontextmanager
async def running(informer: SharedInformer) -> AsyncIterator[None]:
    task = asyncio.create_task(informer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("waits", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("is_late", [False, True], ids=["from the start", "late"])
@both_ways
@looptime
async def test_bug34_a_handler_that_raises_on_something_initial_still_syncs(
    server: FakeApiServer, client: MemberClient, waits: bool, is_late: bool, *, use_watch_list: bool
) -> None:
    """Synced, one failure counted, the others neither fail nor wait; and what comes later is told."""
    for name in ("a", "b", "c"):
        server.put("configmaps", name)
    told: dict[str, list[str]] = {"picky": [], "fine": []}

    def picky(obj: KubeObject, is_initial: bool) -> HandlerResult:
        told["picky"].append(obj.name)

        async def fail() -> None:
            await asyncio.sleep(0)
            raise ValueError(obj.name)

        if len(told["picky"]) > 1:
            return None
        if waits:
            return fail()
        raise ValueError(obj.name)

    informer = SharedInformer(ResourceListWatch(client, CONFIG_MAPS), name="informer", use_watch_list=use_watch_list)
    fine = ResourceEventHandlerFuncs(add=lambda obj, _: told["fine"].append(obj.name))
    if not is_late:
        of_picky = informer.add_event_handler(ResourceEventHandlerFuncs(add=picky))
    of_fine = informer.add_event_handler(fine)
    async with running(informer):
        await of_fine.wait_synced()
        if is_late:
            of_picky = informer.add_event_handler(ResourceEventHandlerFuncs(add=picky))
        begin = loop_time()
        assert not of_picky.has_synced()
        await of_picky.wait_synced()
        assert loop_time() - begin == pytest.approx(FAILURE_PAUSE, abs=0.1), "then come the others"
        assert of_picky.has_synced()
        assert informer.has_synced()
        assert (of_picky.failed, of_fine.failed) == (1, 0)
        await server.wait_for_watch("configmaps")
        server.put("configmaps", "later")
        await until(lambda: "later" in told["picky"])
        assert told["picky"] == told["fine"]
        assert sorted(told["fine"]) == ["a", "b", "c", "later"]


# ------------------------------------------------------------------------------------------- 35: slower than what comes


KEYS, ROUNDS = 1_000, scale(100, quick=15)


class Told:
    """A handler that takes its time, and knows of each object what it was told last.

    Attributes:
        newest: the version of each object that it was told last.
        count: notifications.
        behind: seconds of the oldest change it was told, when it was told.
        wrong: what did not follow from what it was told before.
    """

    def __init__(self, written: Mapping[int, float], *, seconds: float = 0.0) -> None:
        self.newest: dict[str, int] = {}
        self.count = 0
        self.behind = 0.0
        self.wrong: list[str] = []
        self._written = written
        self._seconds = seconds

    def on_add(self, obj: KubeObject, is_initial: bool) -> HandlerResult:
        return self._told(obj)

    def on_update(self, old: KubeObject, new: KubeObject) -> HandlerResult:
        if self.newest.get(old.key) != int(old.resource_version):
            self.wrong.append(f"{new.key}: from {old.resource_version}, told was {self.newest.get(old.key)}")
        return self._told(new)

    def on_delete(self, obj: KubeObject | Tombstone) -> None:
        self.wrong.append(f"{obj.key}: nothing is deleted")

    def _told(self, obj: KubeObject) -> HandlerResult:
        version = int(obj.resource_version)
        if version <= self.newest.get(obj.key, 0):
            self.wrong.append(f"{obj.key}: back to {version}")
        self.newest[obj.key] = version
        self.count += 1
        self.behind = max(self.behind, loop_time() - self._written[version])
        return asyncio.sleep(self._seconds) if self._seconds else None


@scaled
@looptime
async def test_bug35_a_handler_that_cannot_keep_up_costs_bounded_memory_and_nobody_else() -> None:
    """Each of 1,000 objects changes every second, for a handler that needs a second for one.

    With a buffer for fewer than there are objects: `tests/unit/cache/test_processor.py`.
    """
    source = FakeSource(*(pod(f"p{number}", number + 1) for number in range(KEYS)), version=KEYS)
    written = dict.fromkeys(range(1, KEYS + 1), loop_time())
    slow, quick = Told(written, seconds=1.0), Told(written)
    informer = SharedInformer(source, name="informer")
    of_slow, of_quick = informer.add_event_handler(slow), informer.add_event_handler(quick)
    dice = random.Random(35)
    waiting: list[int] = []
    async with running(informer):
        await of_quick.wait_synced()
        for _ in range(ROUNDS):
            for number in dice.sample(range(KEYS), KEYS):
                obj = source.put(f"p{number}")
                written[int(obj.resource_version)] = loop_time()
            await asyncio.sleep(1.0)
            waiting.append(_pending(informer, of_slow.name))
            assert _pending(informer, of_quick.name) == 0
        truth = {obj.key: int(obj.resource_version) for obj in source.objects.values()}
        assert quick.newest == truth
        assert {obj.key: int(obj.resource_version) for obj in informer.indexer.list()} == truth
        assert slow.count < 2 * ROUNDS
        assert max(waiting) <= BUFFER_SIZE + 1, "of the object that is being told, another one may wait"
        assert max(waiting) > 0.9 * KEYS, "it was slow enough"
        await asyncio.sleep(2.0 * KEYS)
        assert slow.newest == truth
        assert _pending(informer, of_slow.name) == 0
    assert slow.wrong == quick.wrong == []
    assert quick.behind < 1.0
    assert quick.count == KEYS + ROUNDS * KEYS
    assert slow.count < BUFFER_SIZE + 2 * ROUNDS
    assert slow.count + _number(of_slow.statistics()["coalesced"]) == KEYS + ROUNDS * KEYS


def _pending(informer: SharedInformer, handler: str) -> int:
    handlers = informer.statistics()["handlers"]
    assert isinstance(handlers, Mapping)
    return _number(handlers[handler]["pending"])


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
