"""The watch checks themselves: each finds what it is there for. `test_fault_run.py` has a run that passes all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from federator.api.cluster import ClusterID, ClusterState
from federator.client import ClusterFreshness, ClusterTransition, Event, EventType, InventoryObject
from tests.robustness.plan import Kind, Role
from tests.robustness.watch_checks import (
    CHECKS,
    EXPIRED,
    PRESENT,
    Call,
    Compaction,
    History,
    LedgerRecord,
    Message,
    Origin,
    Part,
    Reference,
    asked,
    broken,
    broken_by,
    everything,
)
from tests.robustness.watch_checks.journal import (
    Appended,
    Committed,
    Compacting,
    Journal,
    Opened,
    Started,
    compacted,
    ledger_record,
)
from tests.robustness.watch_run import draw_faults

EU, AP = ClusterID("eu-1"), ClusterID("ap-1")
LIVE, STALE, RECOVERING = ClusterState.LIVE, ClusterState.STALE, ClusterState.RECOVERING


def pod(
    revision: int, name: str, *, track: str = "stable", uid: str = "", cluster: ClusterID = EU, padding: int = 0
) -> InventoryObject:
    labels = {"track": track}
    body = {"metadata": {"namespace": "shop", "name": name, "labels": labels}, "spec": {"padding": "x" * padding}}
    return InventoryObject(
        cluster_id=cluster,
        group="",
        version="v1",
        resource="pods",
        kind="Pod",
        namespace="shop",
        name=name,
        uid=uid or f"uid-{name}",
        resource_version=str(1000 + revision),
        revision=revision,
        body=msgspec.json.encode(body),
    )


def event(kind: EventType, revision: int, obj: InventoryObject | None = None) -> Event:
    return Event(kind, obj, cursor=str(revision).encode(), revision=revision)


def added(obj: InventoryObject) -> Event:
    return event(EventType.ADDED, obj.revision, obj)


def modified(obj: InventoryObject) -> Event:
    return event(EventType.MODIFIED, obj.revision, obj)


def deleted(revision: int, last: InventoryObject) -> Event:
    return event(EventType.DELETED, revision, last)


def moved(revision: int, before: ClusterState, state: ClusterState, cluster: ClusterID = EU) -> Event:
    return Event(EventType.CLUSTER, cursor=b"c", revision=revision, cluster=ClusterTransition(cluster, state, before))


def bookmark(revision: int, *clusters: ClusterID) -> Event:
    freshness = tuple(ClusterFreshness(cluster, LIVE) for cluster in clusters)
    return msgspec.structs.replace(event(EventType.BOOKMARK, revision), freshness=freshness)


def present(revision: int, *objects: InventoryObject) -> list[Message]:
    events = [Event(EventType.ADDED, obj, revision=revision) for obj in objects]
    return [Message.of(*events), Message.of(event(EventType.INITIAL_END, revision))]


WEB, DB, FAR = pod(5, "web"), pod(6, "db", track="beta"), pod(7, "far", cluster=AP)
API = pod(11, "api")
WEB_LEFT = pod(12, "web", track="canary")
API_AGAIN = pod(15, "api", uid="uid-api-2")
API_CHANGED = pod(16, "api", uid="uid-api-2", padding=1)
FAR_CHANGED = pod(18, "far", cluster=AP, padding=1)

ORDER = [
    [added(API), modified(WEB_LEFT)],
    [moved(13, LIVE, STALE)],
    [deleted(14, API), added(API_AGAIN)],
    [modified(API_CHANGED)],
    [moved(17, STALE, RECOVERING)],
    [modified(FAR_CHANGED)],
]
"""Everything, a commit a line."""

RECORD = LedgerRecord(
    commits=[[event.revision for event in commit] for commit in ORDER],
    entries={event.revision: event.type for commit in ORDER for event in commit},
    origins={
        **{revision: Origin(EU, 1, (1, revision)) for revision in (11, 12)},
        **{revision: Origin(EU, 2, (1, revision)) for revision in (14, 15, 16)},
        18: Origin(AP, 1, (1, 18)),
    },
    sessions=[Origin(EU, 1, (1, 1)), Origin(AP, 1, (1, 2)), Origin(EU, 2, (1, 13))],
    compactions=[Compaction(12, 20.0, 21.0)],
)

STABLE = asked(
    "stable",
    "pods",
    types=["pods"],
    clusters=("eu-*", lambda cluster: cluster.startswith("eu-")),
    labels="track=stable",
    states=lambda state: state.labels.get("track") == "stable",
)


@dataclass
class Scene:
    """A history of two calls in which everything is right, and whatever a test does to it."""

    record: LedgerRecord = RECORD
    first: list[Message] = field(
        default_factory=lambda: [
            *present(10, WEB),
            Message.of(added(API), deleted(12, WEB)),
            Message.of(moved(13, LIVE, STALE)),
            Message.of(bookmark(13, EU)),
            Message.of(deleted(14, API), added(API_AGAIN)),
        ]
    )
    second: list[Message] = field(
        default_factory=lambda: [
            Message.of(modified(API_CHANGED)),
            Message.of(moved(17, STALE, RECOVERING)),
            Message.of(bookmark(18)),
        ]
    )
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.calls = [
            Call(PRESENT, self.first, opened_at=1, ended_at=2),
            Call(15, self.second, opened_at=3, ended_at=4),
        ]

    def reference(self) -> Reference:
        whole = [*present(10, WEB, DB, FAR), *(Message.of(*commit) for commit in ORDER), Message.of(bookmark(18))]
        history = History("everything", everything(["pods"]), [Part([Call(PRESENT, whole)])])
        return Reference(history, self.record)

    def history(self) -> History:
        return History("stable", STABLE, [Part(self.calls)])

    def broken(self) -> set[str]:
        return set(broken(self.history(), self.reference()))


def test_a_good_history_breaks_nothing() -> None:
    scene = Scene()
    assert broken_by([scene.history()], scene.reference()) == []


def test_so_do_one_that_begins_with_a_list_one_that_begins_with_a_cursor_and_one_that_never_begins() -> None:
    second = Scene().second
    listed = Part([Call(15, second)], listed=(API_AGAIN,))
    from_cursor = Part([Call(15, second)])
    unfinished = Part([Call(PRESENT, [Message.of(Event(EventType.ADDED, WEB, revision=10))])])
    assert broken(History("parts", STABLE, [listed, from_cursor, unfinished, Part()]), Scene().reference()) == {}


def test_so_does_one_that_was_left_in_the_middle_of_a_message() -> None:
    scene = Scene()
    scene.first[-1].taken = 1
    scene.calls[1].after = 14
    scene.second.insert(0, Message.of(added(API_AGAIN)))
    assert scene.broken() == set()


def test_so_does_one_with_previous_states() -> None:
    scene = Scene()
    with_previous(at_12=WEB, at_14=API, at_16=API_AGAIN)(scene)
    assert scene.broken() == set()


def test_a_commit_that_is_too_large_for_a_message_may_come_in_several() -> None:
    large = pod(11, "api", padding=1 << 20)
    whole = [*present(10, WEB, DB, FAR), Message.of(added(large), modified(WEB_LEFT))]
    history = History("everything", everything(["pods"]), [Part([Call(PRESENT, whole)])])
    reference = Reference(history, RECORD)
    spread = [*present(10, WEB), Message.of(added(large)), Message.of(deleted(12, WEB))]
    assert broken(History("stable", STABLE, [Part([Call(PRESENT, spread)])]), reference) == {}


def test_previous_states_count_in_what_is_too_large() -> None:
    half = 700_000
    before, after = pod(5, "web", padding=half), pod(12, "web", padding=half + 1)
    whole = [*present(10, before, DB, FAR), Message.of(added(API), modified(after))]
    history = History("everything", everything(["pods"]), [Part([Call(PRESENT, whole)])])
    reference = Reference(history, RECORD)
    spread = [*present(10, before), Message.of(added(API)), Message.of(modified(after))]
    call = Call(PRESENT, spread)
    assert set(broken(History("stable", STABLE, [Part([call])]), reference)) == {"atomic"}
    call.with_previous = True
    spread[-1].previous = {12: before}
    assert broken(History("stable", STABLE, [Part([call])]), reference) == {}


def replace(message: int, *events: Event, second: bool = False) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        (scene.second if second else scene.first)[message] = Message.of(*events)

    return change


def remove(message: int, *, second: bool = False) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        del (scene.second if second else scene.first)[message]

    return change


def swap(scene: Scene) -> None:
    scene.second[0], scene.second[1] = scene.second[1], scene.second[0]


def split(scene: Scene) -> None:
    scene.first[2:3] = [Message.of(added(API)), Message.of(deleted(12, WEB))]


def cut(scene: Scene) -> None:
    """The rest of a commit comes with the next call, though the client had not asked for that."""
    scene.first[-1] = Message.of(deleted(14, API))
    scene.calls[1].after = 14
    scene.second.insert(0, Message.of(added(API_AGAIN)))


def early(revision: int) -> Callable[[Scene], None]:
    """A bookmark that comes before the transition at 13."""

    def change(scene: Scene) -> None:
        scene.first[3], scene.first[4] = Message.of(bookmark(revision)), scene.first[3]

    return change


def again(scene: Scene) -> None:
    scene.second.insert(0, Message.of(added(API_AGAIN)))


def recorded(**changes: Any) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        scene.record = msgspec.structs.replace(scene.record, **changes)

    return change


def expired(*, opened_at: float, refused: tuple[int, int], after: int = 15) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        scene.calls[1] = Call(after, [], opened_at=opened_at, ended_at=opened_at + 1, end=EXPIRED, refused=refused)

    return change


def opened_late(scene: Scene) -> None:
    scene.calls = [Call(11, [Message.of(deleted(12, WEB))], opened_at=30, ended_at=31)]


def with_previous(**states: InventoryObject) -> Callable[[Scene], None]:
    """The previous states that the changes come with, by revision; the others have none."""
    previous = {int(revision.removeprefix("at_")): obj for revision, obj in states.items()}

    def change(scene: Scene) -> None:
        for call in scene.calls:
            call.with_previous = True
            for message in call.messages:
                revisions = previous.keys() & {event.revision for event in message.events}
                message.previous = {revision: previous[revision] for revision in revisions}

    return change


BROKEN: Mapping[str, tuple[Callable[[Scene], None], set[str]]] = {
    "left, told as changed": (
        replace(2, added(API), modified(WEB_LEFT)),
        {"filter", "is-create", "objects", "no ghost"},
    ),
    "freshness of others": (replace(4, bookmark(13, AP)), {"filter"}),
    "another cluster's": (
        replace(2, modified(FAR_CHANGED), second=True),
        {"filter", "reliable", "resumable", "is-create", "no ghost"},
    ),
    "out of order": (swap, {"ordered", "resumable"}),
    "again": (again, {"unique", "resumable", "is-create"}),
    "present twice": (replace(0, *[Event(EventType.ADDED, WEB, revision=10)] * 2), {"unique"}),
    "a commit in two messages": (split, {"atomic"}),
    "a commit in two calls": (cut, {"atomic"}),
    "lost after resuming": (remove(0, second=True), {"reliable", "resumable", "bookmarkable", "no ghost"}),
    "a transition lost": (remove(3), {"reliable", "bookmarkable"}),
    "a transition from elsewhere": (
        replace(1, moved(17, LIVE, RECOVERING), second=True),
        {"objects", "cluster order"},
    ),
    "a bookmark beside what it covers": (early(13), {"bookmarkable"}),
    "a bookmark ahead": (early(15), {"ordered", "bookmarkable"}),
    "a bookmark without a cursor": (replace(4, Event(EventType.BOOKMARK, revision=13)), {"bookmarkable"}),
    "a new one told as changed": (replace(5, deleted(14, API), modified(API_AGAIN)), {"is-create"}),
    "a change told as new": (replace(0, added(API_CHANGED), second=True), {"is-create"}),
    "deleted with the new state": (replace(2, added(API), deleted(12, WEB_LEFT)), {"filter", "objects"}),
    "an old body": (
        replace(0, modified(msgspec.structs.replace(API_CHANGED, body=API_AGAIN.body)), second=True),
        {"objects", "no ghost"},
    ),
    "a state of another revision": (
        replace(0, event(EventType.MODIFIED, 16, msgspec.structs.replace(API_CHANGED, revision=15)), second=True),
        {"objects", "no ghost"},
    ),
    "back in time": (
        replace(0, modified(msgspec.structs.replace(API_CHANGED, resource_version="9")), second=True),
        {"objects", "cluster order", "no ghost"},
    ),
    "swapped without a deletion": (
        replace(0, modified(msgspec.structs.replace(API_CHANGED, uid="other")), second=True),
        {"objects", "cluster order", "no ghost"},
    ),
    "no previous state": (with_previous(at_12=WEB, at_14=API), {"objects"}),
    "another previous state": (with_previous(at_12=WEB, at_14=API, at_16=API), {"objects"}),
    "a previous state of a transition": (
        with_previous(at_12=WEB, at_14=API, at_16=API_AGAIN, at_17=API),
        {"objects"},
    ),
    "a previous state of a new one": (with_previous(at_11=API, at_12=WEB, at_14=API, at_16=API_AGAIN), {"objects"}),
    "a ghost": (
        replace(0, *(Event(EventType.ADDED, one, revision=10) for one in (WEB, pod(9, "gone")))),
        {"no ghost"},
    ),
    "lost between list and watch": (replace(0), {"is-create", "no ghost"}),
    "an older session's": (recorded(sessions=[*RECORD.sessions, Origin(EU, 3, (1, 15))]), {"fenced"}),
    "made for another cluster": (recorded(origins={11: Origin(AP, 1, (1, 11))}), {"fenced"}),
    "refused, and not compacted": (expired(opened_at=30, refused=(15, 20)), {"expiry"}),
    "refused before it was": (expired(opened_at=10, refused=(11, 12), after=11), {"expiry"}),
    "refused for another's revision": (expired(opened_at=30, refused=(11, 12)), {"expiry"}),
    "answered though compacted": (opened_late, {"expiry"}),
}
"""What is done to the scene, and the checks that find it; all the others have nothing to say of it."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_history_that_breaks_a_promise_is_found(name: str) -> None:
    do, found = BROKEN[name]
    scene = Scene()
    do(scene)
    assert scene.broken() == found


def test_a_refusal_of_what_is_compacted_is_right() -> None:
    scene = Scene()
    scene.calls = [Call(11, [], opened_at=30, ended_at=31, end=EXPIRED, refused=(11, 12))]
    assert scene.broken() == set()


def test_each_check_is_seen_to_bite() -> None:
    assert set().union(*(found for _, found in BROKEN.values())) == set(CHECKS)


def seen(*parts: Part) -> History:
    return History("everything", everything(["pods"]), list(parts))


@pytest.mark.parametrize(
    "events",
    [
        [added(pod(11, "web"))],
        [modified(API)],
        [deleted(11, API)],
        [modified(pod(12, "web")), modified(pod(11, "web"))],
        [modified(pod(11, "web")), modified(pod(11, "web"))],
    ],
)
def test_an_order_that_is_none_is_found(events: list[Event]) -> None:
    reference = Reference(seen(Part([Call(PRESENT, [*present(10, WEB), Message.of(*events)])])), LedgerRecord())
    assert reference.faults
    assert broken_by([], reference)
    assert Scene().reference().faults == []


def test_who_did_not_see_it_all_is_no_reference() -> None:
    begin = present(10, WEB)
    for history in (
        seen(Part([Call(PRESENT, begin[:1])])),
        seen(Part([Call(PRESENT, begin)]), Part([Call(PRESENT, begin)])),
    ):
        with pytest.raises(AssertionError):
            Reference(history, RECORD)


@pytest.mark.parametrize(
    "entries",
    [
        {**RECORD.entries, 19: "ADDED"},  # and it is not asked for what came later
        {**RECORD.entries, 10: "TYPE"},
    ],
)
def test_a_reference_that_saw_what_the_ledger_committed_is_whole(entries: dict[int, str]) -> None:
    assert Scene(record=msgspec.structs.replace(RECORD, entries=entries)).reference().missing() == []


@pytest.mark.parametrize(
    "entries",
    [
        {revision: kind for revision, kind in RECORD.entries.items() if revision != 15},
        {**RECORD.entries, 15: "MODIFIED"},
        {**{revision + 1 if revision > 17 else revision: kind for revision, kind in RECORD.entries.items()}},
    ],
)
def test_a_reference_that_differs_from_what_the_ledger_committed_is_found(entries: dict[int, str]) -> None:
    scene = Scene(record=msgspec.structs.replace(RECORD, entries=entries))
    assert scene.reference().missing()
    assert broken_by([], scene.reference())


def test_a_journal_says_what_the_ledger_did(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    assert ledger_record(file) == LedgerRecord([], {}, {}, [], [])
    journal = Journal(file)
    for line in (
        Started(1),
        Opened("eu-1", 1, (1, 1)),
        Committed(((5, "ADDED"), (6, "TYPE"))),
        Appended("eu-1", 1, (1, 2), (5, 6)),
        Compacting(4, 10.0, is_done=False),
        Compacting(4, 11.0, is_done=True),
        Compacting(6, 12.0, is_done=False),
        Started(2),
        Committed(((7, "CLUSTER"),), is_recovered=True),
    ):
        journal.add(line)
    journal.close()
    with file.open("ab") as half:
        half.write(b'{"type":"Started"')
    record = ledger_record(file)
    assert record.commits == [(5, 6)]
    assert record.entries == {5: "ADDED", 6: "TYPE", 7: "CLUSTER"}
    assert record.origins == dict.fromkeys((5, 6), Origin("eu-1", 1, (1, 2)))
    assert record.sessions == [Origin("eu-1", 1, (1, 1))]
    assert record.compactions == [Compaction(4, 10.0, 11.0), Compaction(6, 12.0, float("inf"))]
    assert compacted(file) == 4


def test_every_run_restarts_and_kills_the_aggregator_and_supersedes_an_agent() -> None:
    wanted = {(Kind.RESTART, Role.AGGREGATOR), (Kind.KILL, Role.AGGREGATOR), (Kind.SUPERSEDE, Role.AGENT)}
    for seed in range(20):
        faults = draw_faults(seed, 20)
        assert {(fault.kind, fault.role) for fault in faults} == wanted
        assert draw_faults(seed, 20) == faults
        assert len(draw_faults(seed, 100)) == 10
