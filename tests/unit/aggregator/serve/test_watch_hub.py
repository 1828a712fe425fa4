from __future__ import annotations

import asyncio
import itertools

import pytest

from federator.aggregator.ledger.records import Commit, ObjectEntry
from federator.aggregator.merge.selection import Selection
from federator.aggregator.serve import object_state
from federator.aggregator.serve.watch_hub import PublishedCommit, WatchHub
from federator.api.selector import FieldSelector, LabelSelector
from federator.errors import CursorExpired, FederatorError, WatchTooSlow
from federator.wire.body import decode_body
from tests.unit.aggregator.federation import DEPLOYMENTS, PODS, Federation, put

PODS_ONLY = frozenset({PODS.group_resource})


def _commits(hub: WatchHub, position: int) -> list[PublishedCommit]:
    """Everything in the ring after a position."""
    found = []
    while (published := hub.next_commit(position)) is not None:
        found.append(published)
        position = published.revision
    return found


async def test_commits_come_in_order_and_none_is_left_out() -> None:
    federation = Federation()
    base = federation.ledger.revision
    await federation.join("a")
    for number in range(5):
        await federation.commit("a", put(f"p{number}"), put(f"q{number}"))
    revisions = [change.revision for published in _commits(federation.hub, base) for change in published.changes]
    assert revisions == list(range(base + 1, federation.ledger.revision + 1))
    assert federation.hub.next_commit(federation.ledger.revision) is None


async def test_a_position_inside_a_commit_finds_that_commit() -> None:
    federation = Federation()
    await federation.join("a")
    commit = await federation.commit("a", put("x"), put("y"), put("z"))
    published = federation.hub.next_commit(commit.entries[0].revision)
    assert published is not None
    assert published.revision == commit.revision


async def test_the_ring_is_bounded_by_entries() -> None:
    federation = Federation(max_entries=10)
    await federation.join("a")
    for number in range(20):
        await federation.commit("a", put(f"p{number}"), put(f"q{number}"), put(f"r{number}"))
    statistics = federation.hub.statistics()
    assert (statistics["ring_entries"], statistics["ring_commits"]) == (9, 3)
    floor = federation.hub.floor
    assert federation.hub.next_commit(floor - 1) is None
    assert [len(published.changes) for published in _commits(federation.hub, floor)] == [3, 3, 3]


async def test_the_newest_commit_stays_however_large() -> None:
    federation = Federation(max_bytes=100)
    await federation.join("a")
    for _ in range(2):
        commit = await federation.commit("a", put("x", data="x" * next(_sizes)))
        (published,) = _commits(federation.hub, federation.hub.floor)
        assert published.revision == commit.revision


_sizes = itertools.count(5000)


async def test_what_watchers_decode_counts_against_the_bound_and_is_decoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    federation = Federation(max_bytes=60_000)
    await federation.join("a")
    base = federation.ledger.revision
    data = "x" * 20_000  # compresses to next to nothing
    commits = [await federation.commit("a", put(f"p{number}", data=data)) for number in range(5)]
    decoded: list[int] = []

    def counting(body: bytes) -> bytes:
        decoded.append(1)
        return decode_body(body)

    monkeypatch.setattr(f"{object_state.__name__}.decode_body", counting)
    hub = federation.hub
    assert hub.floor <= base
    for published in _commits(hub, base):
        for selector in ("", "app!=x", "app"):
            for fields in ("", "data!=y", "data!=z,spec.nodeName="):
                selection = Selection(
                    PODS_ONLY, labels=LabelSelector.parse(selector), fields=FieldSelector.parse(fields)
                )
                for change in published.changes:
                    event = change.event(selection)
                    assert (event is None) == (selector == "app")
                    assert event is None or event.state is None or event.size > 20_000
    assert len(decoded) == 5
    statistics = hub.statistics()
    assert statistics["ring_bytes"] <= 60_000
    assert hub.floor > base
    gone = statistics["ring_bytes"]
    commits_left = _commits(hub, hub.floor)
    assert sum(published.bytes for published in commits_left) == gone
    assert commits_left[-1].revision == commits[-1].revision


async def test_a_commit_that_left_the_ring_counts_no_more() -> None:
    federation = Federation(max_entries=1)
    await federation.join("a")
    await federation.commit("a", put("x"))
    (old,) = _commits(federation.hub, federation.hub.floor)
    await federation.commit("a", put("y"))
    before = federation.hub.statistics()["ring_bytes"]
    event = old.changes[0].event(Selection(PODS_ONLY))
    assert event is not None
    assert event.size
    assert federation.hub.statistics()["ring_bytes"] == before


async def test_watchers_of_other_types_need_not_look() -> None:
    federation = Federation()
    await federation.join("a")
    base = federation.ledger.revision
    await federation.commit("a", put("x"))
    await federation.commit("a", put("x"), type=DEPLOYMENTS)
    await federation.join("b")
    pods, deployments, *joining = _commits(federation.hub, base)
    assert pods.may_concern(PODS_ONLY)
    assert not deployments.may_concern(PODS_ONLY)
    assert joining[0].may_concern(PODS_ONLY)  # a cluster concerns everybody


async def test_a_change_without_its_previous_state_is_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation()
    await federation.join("a")
    first = await federation.commit("a", put("x", labels={"v": "1"}))
    commit = await federation.commit("a", put("x", labels={"v": "2"}))
    (entry,) = commit.entries
    assert isinstance(entry, ObjectEntry)
    assert entry.previous_revision == first.revision
    monkeypatch.setattr(federation.ledger, "entry", lambda _: None)
    change = federation.hub.change(entry)
    with pytest.raises(CursorExpired):
        change.event(Selection(PODS_ONLY, labels=LabelSelector.parse("v=1")))
    assert change.event(Selection(PODS_ONLY)) is not None  # keys alone decide, nothing is missing


@pytest.mark.looptime
async def test_waiting_ends_with_a_commit_or_with_time() -> None:
    federation = Federation()
    await federation.join("a")
    hub, loop = federation.hub, asyncio.get_running_loop()
    position = hub.revision
    began = loop.time()
    await hub.wait(position, began + 5)
    assert loop.time() == began + 5
    await hub.wait(position - 1, began + 100)
    assert loop.time() == began + 5

    async def later() -> Commit:
        await asyncio.sleep(2)
        return await federation.commit("a", put("x"))

    waiting = [asyncio.create_task(hub.wait(position, began + 100)) for _ in range(3)]
    await later()
    await asyncio.gather(*waiting)
    assert loop.time() == began + 7


class _Position:
    def __init__(self, position: int) -> None:
        self.position = position


async def test_watchers_are_counted_by_state_and_their_ends_by_reason() -> None:
    federation = Federation(max_entries=2)
    await federation.join("a")
    for number in range(4):
        await federation.commit("a", put(f"p{number}"))
    hub = federation.hub
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
