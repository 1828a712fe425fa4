from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager

import pytest

from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.merge.selection import Selection
from federator.aggregator.serve import watch_hub
from federator.aggregator.serve.audience import Audience
from federator.aggregator.serve.change import Change
from federator.aggregator.serve.question import Question
from federator.aggregator.serve.segment import SLICE, Segment
from federator.aggregator.serve.watch_hub import MAX_PAUSE, MESSAGE_SECONDS, MIN_PAUSE, WatchHub
from federator.api.cluster import ClusterID, ClusterState
from federator.api.selector import ClusterSelector, FieldSelector, LabelSelector
from federator.errors import CursorExpired, FederatorError, LimitReached, WatchTooSlow
from tests.unit.aggregator.federation import DEPLOYMENTS, PODS, Federation, put

PODS_ONLY = frozenset({PODS.group_resource})


def _segments(hub: WatchHub, position: int) -> list[Segment]:
    """Everything after a position."""
    found = []
    while (segment := hub.segment_after(position)) is not None:
        found.append(segment)
        position = segment.revision
    return found


class Waiter:
    """A watch that only waits, and counts how often it is woken."""

    def __init__(self, hub: WatchHub, selection: Selection) -> None:
        self.position = hub.revision
        self.is_waiting = False
        self.woken_at: list[int] = []
        self._hub = hub
        self._question = Question(selection)

    async def run(self) -> None:
        with self._hub.watching(self), self._hub.audience(self._question) as audience:
            while True:
                await self._hub.wait(self, audience)
                self.woken_at.append(self.position)
                self.position = self._hub.revision


@asynccontextmanager
async def _waiting(hub: WatchHub, *selections: Selection) -> AsyncIterator[Sequence[Waiter]]:
    waiters = [Waiter(hub, selection) for selection in selections]
    tasks = [asyncio.create_task(waiter.run()) for waiter in waiters]
    await _turns()
    try:
        yield waiters
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_committed_comes_in_order_and_none_is_left_out() -> None:
    federation = Federation()
    base = federation.ledger.revision
    await federation.join("a")
    for number in range(5):
        await federation.commit("a", put(f"p{number}"), put(f"q{number}"))
        if number % 2:
            federation.hub.flush()
    federation.hub.flush()
    revisions = [change.revision for segment in _segments(federation.hub, base) for change in segment.changes]
    assert revisions == list(range(base + 1, federation.ledger.revision + 1))
    assert federation.hub.segment_after(federation.ledger.revision) is None
    federation.hub.flush()  # nothing more


async def test_a_large_commit_is_several_segments_and_small_ones_share_one() -> None:
    federation = Federation()
    await federation.join("a")
    federation.hub.flush()
    base = federation.hub.revision
    await federation.commit("a", put("small"), put("little"))
    await federation.commit("a", put("tiny"))
    await federation.commit("a", *(put(f"p{number}") for number in range(SLICE * 2)))
    await federation.commit("a", put("last"))
    federation.hub.flush()
    segments = _segments(federation.hub, base)
    assert [len(segment.changes) for segment in segments] == [3, SLICE, SLICE, 1]
    assert [segment.ends_commit for segment in segments] == [True, False, True, True]
    assert [segment.after for segment in segments] == [base, *(segment.revision for segment in segments[:-1])]


async def test_a_position_inside_a_segment_finds_that_segment() -> None:
    federation = Federation()
    await federation.join("a")
    for _ in range(3):
        federation.hub.flush()
        commit = await federation.commit("a", put("x"), put("y"), put("z", data=str(_)))
    federation.hub.flush()
    segment = federation.hub.segment_after(commit.entries[0].revision - 1)
    assert segment is not None
    assert segment.revision == commit.revision
    for each in _segments(federation.hub, federation.hub.floor):
        for position in range(each.after, each.revision):
            assert federation.hub.segment_after(position) is each


async def test_the_ring_is_bounded_by_entries_and_drops_whole_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{watch_hub.__name__}.SLICE", 2)
    federation = Federation(max_entries=10)
    await federation.join("a")
    commits = []
    for number in range(20):
        federation.hub.flush()
        commits.append(await federation.commit("a", put(f"p{number}"), put(f"q{number}"), put(f"r{number}")))
    federation.hub.flush()
    statistics = federation.hub.statistics()
    assert (statistics["ring_entries"], statistics["ring_segments"]) == (9, 6)
    assert federation.hub.floor == commits[-4].revision
    assert [len(segment.changes) for segment in _segments(federation.hub, federation.hub.floor)] == [2, 1] * 3


async def test_behind_the_ring_the_ledger_is_read() -> None:
    federation = Federation(max_entries=3)
    await federation.join("a")
    base = federation.ledger.revision
    for number in range(200):
        await federation.commit("a", put(f"p{number}"))
        if number % 20 == 0:
            federation.hub.flush()
    federation.hub.flush()
    assert federation.hub.floor > base
    segments = _segments(federation.hub, base)
    assert [change.revision for segment in segments for change in segment.changes] == list(range(base + 1, base + 201))
    assert federation.hub.statistics()["replay_reads"] > 1


async def test_the_newest_commit_stays_however_large() -> None:
    federation = Federation(max_bytes=100)
    await federation.join("a")
    for size in itertools.islice(itertools.count(5000), 2):
        federation.hub.flush()
        commit = await federation.commit("a", put("x", data="x" * size))
        federation.hub.flush()
        (segment,) = _segments(federation.hub, federation.hub.floor)
        assert segment.revision == commit.revision


async def test_what_watchers_decode_counts_against_the_bound_and_is_decoded_and_encoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    federation = Federation(max_bytes=60_000)
    await federation.join("a")
    federation.hub.flush()
    base = federation.ledger.revision
    data = "x" * 20_000  # compresses to next to nothing
    for number in range(5):
        await federation.commit("a", put(f"p{number}", data=data))
        federation.hub.flush()
    decoded: list[int] = []
    decode = federation.ledger.bodies.decode

    def counting(body: bytes) -> bytes:
        decoded.append(1)
        return decode(body)

    monkeypatch.setattr(federation.ledger.bodies, "decode", counting)
    hub = federation.hub
    assert hub.floor <= base
    for segment in _segments(hub, base):
        for change in segment.changes:
            parts = set()
            for selector in ("", "app!=x", "app"):
                for fields in ("", "data!=y", "data!=z,spec.nodeName="):
                    labels, selected = LabelSelector.parse(selector), FieldSelector.parse(fields)
                    event = change.event(Question(Selection(PODS_ONLY, labels=labels, fields=selected)))
                    assert (event is None) == (selector == "app")
                    if event is not None:
                        assert event.size > 20_000
                        parts.add(tuple(map(id, event.parts)))
            assert len(parts) == 1
    assert len(decoded) == 5
    statistics = hub.statistics()
    assert statistics["ring_bytes"] <= 60_000
    assert hub.floor > base
    left = _segments(hub, hub.floor)
    assert sum(segment.bytes for segment in left) == statistics["ring_bytes"]
    assert left[-1].revision == federation.ledger.revision


async def test_a_commit_that_left_the_ring_counts_no_more() -> None:
    federation = Federation(max_entries=1)
    await federation.join("a")
    federation.hub.flush()
    base = federation.hub.revision
    await federation.commit("a", put("x"))
    federation.hub.flush()
    old = federation.hub.segment_after(base)
    assert old is not None
    await federation.commit("a", put("y"))
    federation.hub.flush()
    before = federation.hub.statistics()["ring_bytes"]
    event = old.changes[0].event(Question(Selection(PODS_ONLY)))
    assert event is not None
    assert federation.hub.statistics()["ring_bytes"] == before


async def test_watchers_of_other_types_need_not_look() -> None:
    federation = Federation()
    await federation.join("a")
    federation.hub.flush()
    base = federation.ledger.revision
    for type_ in (PODS, DEPLOYMENTS):
        await federation.commit("a", put("x"), type=type_)
        federation.hub.flush()
    await federation.join("b")
    federation.hub.flush()
    pods, deployments, joining = _segments(federation.hub, base)
    assert pods.may_concern(PODS_ONLY)
    assert not deployments.may_concern(PODS_ONLY)
    assert joining.may_concern(PODS_ONLY)  # a cluster concerns everybody


async def test_a_change_without_its_previous_state_is_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation()
    await federation.join("a")
    first = await federation.commit("a", put("x", labels={"v": "1"}))
    commit = await federation.commit("a", put("x", labels={"v": "2"}))
    (entry,) = commit.entries
    assert isinstance(entry, ObjectEntry)
    assert entry.previous_revision == first.revision
    monkeypatch.setattr(federation.ledger, "entry", lambda _: None)
    change = Change(entry, 1, federation.ledger, federation.view.types, lambda _: None)
    with pytest.raises(CursorExpired):
        change.event(Question(Selection(PODS_ONLY, labels=LabelSelector.parse("v=1"))))
    with pytest.raises(CursorExpired):
        change.event(Question(Selection(PODS_ONLY), with_previous=True))
    assert change.event(Question(Selection(PODS_ONLY))) is not None  # keys alone decide, nothing is missing


# ------------------------------------------------------------------------------------------------------------ waking


async def test_only_those_are_woken_whom_a_commit_may_concern() -> None:
    federation = Federation()
    for cluster in ("a", "b"):
        await federation.join(cluster)
    hub = federation.hub
    hub.flush()
    selections = {
        "pods": Selection(PODS_ONLY),
        "pods of b": Selection(PODS_ONLY, ClusterSelector.parse(["b"])),
        "pods not of a": Selection(PODS_ONLY, ClusterSelector.parse(["!a"])),
        "pods elsewhere": Selection(PODS_ONLY, namespace="elsewhere"),
        "pod y": Selection(PODS_ONLY, name="y"),
        "deployments": Selection(frozenset({DEPLOYMENTS.group_resource})),
    }
    async with _waiting(hub, *selections.values()) as waiters:

        async def woken_by_commit() -> set[str]:
            hub.flush()
            await _turns()
            woken = {name for name, waiter in zip(selections, waiters, strict=True) if waiter.woken_at}
            for waiter in waiters:
                waiter.woken_at.clear()
            return woken

        await federation.commit("a", put("x"))
        assert await woken_by_commit() == {"pods"}
        await federation.commit("b", put("y"))
        assert await woken_by_commit() == {"pods", "pods of b", "pods not of a", "pod y"}
        await federation.commit("a", put("y"), type=DEPLOYMENTS)
        assert await woken_by_commit() == {"deployments"}
        await federation.ledger.set_cluster_state(ClusterID("a"), ClusterState.STALE)
        assert await woken_by_commit() == set(selections) - {"pods of b", "pods not of a"}


async def test_who_is_woken_stands_right_before_what_concerns_it() -> None:
    federation = Federation()
    await federation.join("a")
    hub = federation.hub
    hub.flush()
    async with _waiting(hub, Selection(PODS_ONLY)) as (waiter,):
        for number in range(30):
            await federation.commit("a", put(f"d{number}"), type=DEPLOYMENTS)
            hub.flush()
        before = hub.revision
        await federation.commit("a", put("x"))
        hub.flush()
        await _turns()
        assert waiter.woken_at == [before]
        assert waiter.is_waiting


async def test_who_is_woken_by_the_clock_has_read_everything() -> None:
    federation = Federation()
    await federation.join("a")
    hub = federation.hub
    hub.flush()
    waiter = Waiter(hub, Selection(PODS_ONLY))
    with hub.audience(Question(Selection(PODS_ONLY))) as audience:
        waiting = asyncio.create_task(hub.wait(waiter, audience))
        await _turns()
        await federation.commit("a", put("x"), type=DEPLOYMENTS)
        hub.flush()
        await _turns()
        assert not waiting.done()
        hub.wake(waiter, audience)
        await waiting
        assert waiter.position == hub.revision
        hub.wake(waiter, audience)  # it does not wait any more


async def test_one_that_has_something_to_read_does_not_wait() -> None:
    federation = Federation()
    await federation.join("a")
    federation.hub.flush()
    waiter = Waiter(federation.hub, Selection(PODS_ONLY))
    waiter.position -= 1
    with federation.hub.audience(Question(Selection(PODS_ONLY))) as audience:
        await asyncio.wait_for(federation.hub.wait(waiter, audience), 1)


async def test_a_watch_that_ends_while_it_waits_leaves_nothing() -> None:
    federation = Federation()
    await federation.join("a")
    federation.hub.flush()
    seen: list[Audience] = []
    async with _waiting(federation.hub, Selection(PODS_ONLY), Selection(PODS_ONLY, name="x")):
        seen += federation.hub._audiences
        assert federation.hub.statistics()["watch_audiences"] == 2
        assert all(len(audience.waiting) == 1 for audience in seen)
    assert not any(audience.waiting for audience in seen)
    assert federation.hub.statistics()["watch_audiences"] == 0


# ------------------------------------------------------------------------------------------------------- publication


@pytest.mark.looptime
async def test_at_rest_a_commit_is_published_at_once_and_under_load_with_pauses() -> None:
    federation = Federation()
    await federation.join("a")
    hub, loop = federation.hub, asyncio.get_running_loop()
    number_of = 50
    async with AsyncExitStack() as stack:
        selection = Selection(PODS_ONLY)
        (waiter, *_) = await stack.enter_async_context(_waiting(hub, *[selection] * number_of))
        await asyncio.sleep(10)
        waiter.woken_at.clear()
        began = loop.time()
        await federation.commit("a", put("x"))
        await _turns()
        assert loop.time() == began
        assert len(waiter.woken_at) == 1
        for number in range(250):
            await federation.commit("a", put("x", data=str(number)))
            await asyncio.sleep(0.001)
        pause = 2 * number_of * MESSAGE_SECONDS
        assert MIN_PAUSE < pause < MAX_PAUSE
        publications = len(waiter.woken_at)
        assert 0.8 < publications * pause / 0.25 < 1.1
        await asyncio.sleep(1)
        assert hub.revision == federation.ledger.revision


class _Reader:
    """A watch as the hub sees it."""

    position = 0
    is_waiting = False


@pytest.mark.looptime
async def test_the_longer_watchers_take_the_longer_are_the_pauses() -> None:
    federation = Federation()
    await federation.join("a")
    hub, numbers = federation.hub, itertools.count()
    hub.flush()
    readers = [_Reader() for _ in range(4)]
    waits: dict[_Reader, asyncio.Task[None]] = {}

    async def come_back(*ready: _Reader) -> None:
        for reader in ready:
            reader.position = hub.revision
            waits[reader] = asyncio.create_task(hub.wait(reader, audience))
        await _turns()

    async def publish() -> float:
        await federation.commit("a", put("x", data=str(next(numbers))))
        hub.flush()
        await _turns()
        return hub._pause

    with ExitStack() as stack:
        audience = stack.enter_context(hub.audience(Question(Selection(PODS_ONLY))))
        for reader in readers:
            stack.enter_context(hub.watching(reader))
        await come_back(*readers)
        await publish()
        await asyncio.sleep(0.004)
        await come_back(*readers)
        await asyncio.sleep(1)
        assert await publish() == pytest.approx(0.008), "twice what they took, however long ago that was"
        await come_back(readers[0])
        await asyncio.sleep(0.006)
        assert await publish() == pytest.approx(0.012), "most of them are still at it"
        await asyncio.sleep(1)
        assert await publish() == MAX_PAUSE
        await come_back(*readers[:3])
        await publish()
        await come_back(*readers[:3])
        assert await publish() == MIN_PAUSE, "one that never comes back holds nobody up"
        for wait in waits.values():
            wait.cancel()


async def test_commits_that_come_at_once_are_published_together() -> None:
    federation = Federation()
    await federation.join("a")
    await _turns()
    await asyncio.sleep(MAX_PAUSE)
    async with _waiting(federation.hub, Selection(PODS_ONLY)) as (waiter,):
        base = federation.hub.revision
        for number in range(10):
            await federation.commit("a", put(f"p{number}"))
        await asyncio.sleep(MAX_PAUSE)
        assert waiter.woken_at == [base]
        assert len(_segments(federation.hub, base)) == 1


# ----------------------------------------------------------------------------------------------------- after a restart


@pytest.mark.parametrize("max_entries", [8192, 50])
async def test_a_new_hub_has_the_newest_history(max_entries: int) -> None:
    times = itertools.count()
    federation = Federation(clock=lambda: 1_000_000.0 + next(times))
    await federation.join("a")
    for number in range(100):
        await federation.commit("a", put(f"p{number}"), put(f"q{number}"), put(f"r{number}"))
    hub = WatchHub(federation.ledger, federation.view.types, max_entries=max_entries)
    hub.load()
    assert hub.revision == federation.ledger.revision
    entries = federation.ledger.read(hub.floor, 1000)
    found = [change for segment in _segments(hub, hub.floor) for change in segment.changes]
    assert [change.entry for change in found] == list(entries)
    assert hub.statistics()["replay_reads"] == 0
    is_whole = hub.floor == federation.ledger.oldest_revision
    assert is_whole == (max_entries == 8192)
    if not is_whole:
        assert 45 <= len(found) <= 50
        (before,) = federation.ledger.read(hub.floor - 1, 1)
        assert before.time_ms != found[0].entry.time_ms, "no commit is cut"


@pytest.mark.parametrize("max_bytes", [1, 20_000])
async def test_a_new_hub_keeps_to_its_bounds(max_bytes: int) -> None:
    times = itertools.count()
    federation = Federation(clock=lambda: 1_000_000.0 + next(times))
    await federation.join("a")
    for number in range(100):
        await federation.commit("a", put(f"p{number}"))
    hub = WatchHub(federation.ledger, federation.view.types, max_bytes=max_bytes)
    hub.load()
    assert hub.floor < hub.revision
    assert hub.statistics()["ring_bytes"] <= max(max_bytes, 1000)
    found = [change.revision for segment in _segments(hub, hub.floor) for change in segment.changes]
    assert found == list(range(hub.floor + 1, hub.revision + 1))


async def test_a_new_hub_of_a_new_ledger_is_empty() -> None:
    federation = Federation()
    federation.hub.load()
    assert federation.hub.floor == federation.hub.revision == federation.ledger.revision


# ------------------------------------------------------------------------------------------------------------- counts


class _Position:
    def __init__(self, position: int) -> None:
        self.position = position
        self.is_waiting = False


async def test_watchers_are_counted_by_state_and_their_ends_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{watch_hub.__name__}.SLICE", 1)
    federation = Federation(max_entries=2)
    await federation.join("a")
    for number in range(4):
        await federation.commit("a", put(f"p{number}"))
    hub = federation.hub
    hub.flush()
    with hub.watching(_Position(hub.revision)), hub.watching(_Position(hub.floor - 2)):
        statistics = hub.statistics()
        assert (statistics["watchers_live"], statistics["watchers_lagging"]) == (1, 1)
        assert statistics["watch_behind_revisions"] == hub.revision - hub.floor + 2
    ends: list[tuple[str, BaseException]] = [
        ("slow", WatchTooSlow(b"", 1)),
        ("expired", CursorExpired(1, 2)),
        ("client", asyncio.CancelledError()),
        ("failed", FederatorError("odd")),
    ]
    for reason, error in ends:
        before = hub.statistics().get(f"watch_ends_{reason}", 0)
        with pytest.raises(type(error)), hub.watching(_Position(0)):
            raise error
        assert hub.statistics()[f"watch_ends_{reason}"] == before + 1
    assert hub.statistics()["watchers_live"] == 0


async def test_one_that_waits_is_neither_lagging_nor_behind() -> None:
    federation = Federation(max_entries=1)
    await federation.join("a")
    federation.hub.flush()
    async with _waiting(federation.hub, Selection(PODS_ONLY)):
        for number in range(5):
            await federation.commit("a", put(f"d{number}"), type=DEPLOYMENTS)
            federation.hub.flush()
        statistics = federation.hub.statistics()
        assert (statistics["watchers_live"], statistics["watchers_lagging"]) == (1, 0)
        assert statistics["watch_behind_revisions"] == 0


async def test_no_more_watches_are_let_in_than_allowed() -> None:
    federation = Federation()
    hub = WatchHub(federation.ledger, federation.view.types, max_watches=2)
    with hub.watching(_Position(0)):
        with hub.watching(_Position(0)), pytest.raises(LimitReached) as raised, hub.watching(_Position(0)):
            raise AssertionError("let in")
        assert (raised.value.what, raised.value.limit) == ("watches", 2)
        with hub.watching(_Position(0)):
            pass
