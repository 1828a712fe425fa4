"""The checks themselves: each finds what it is there for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import cast

import msgspec
import pytest

from federator.api.cluster import ClusterID, ClusterState
from federator.client import ClusterFreshness, ClusterTransition, Event, EventType, InventoryClient, ListResult
from federator.client.object import InventoryObject
from federator.errors import CursorExpired
from tests.integration.federation.recorder import Recorder
from tests.robustness.consumption import FEW_DESCRIPTORS, FEW_THREADS, Consumption, assert_no_growth
from tests.robustness.plan import CLUSTERS
from tests.robustness.traffic import ANCHOR, ANCHORS
from tests.robustness.vigil import ANCHORED, Vigil


def obj(version: int, uid: str = "u1", **fields: object) -> InventoryObject:
    made = InventoryObject(
        cluster_id=ClusterID("eu-1"),
        group="",
        version="v1",
        resource="configmaps",
        kind="ConfigMap",
        namespace="default",
        name="settings",
        uid=uid,
        resource_version=str(version),
        revision=version,
        body=b"{}",
    )
    return msgspec.structs.replace(made, **fields)


def event(kind: EventType, revision: int, changed: InventoryObject | None = None) -> Event:
    return Event(kind, changed, cursor=str(revision).encode(), revision=revision)


def moved(revision: int, state: ClusterState, before: ClusterState) -> Event:
    transition = ClusterTransition(ClusterID("eu-1"), state, before)
    return Event(EventType.CLUSTER, cursor=b"c", revision=revision, cluster=transition)


class Scripted:
    """A client whose watches bring what they are told, one script each, and end."""

    def __init__(self, *scripts: Sequence[Event | Exception]) -> None:
        self._scripts = iter(scripts)

    async def watch(self, *_: object, **__: object) -> AsyncGenerator[Event, None]:
        for each in next(self._scripts):
            if isinstance(each, Exception):
                raise each
            yield each


async def recorded(*scripts: Sequence[Event | Exception]) -> Recorder:
    recorder = Recorder(cast(InventoryClient, Scripted(*scripts)), ["configmaps"])
    await recorder._run()
    return recorder


INITIAL = [Event(EventType.ADDED, obj(5), revision=9), event(EventType.INITIAL_END, 9)]


async def test_a_good_history_is_taken() -> None:
    recorder = await recorded(
        [
            *INITIAL,
            event(EventType.MODIFIED, 10, obj(10)),
            moved(11, ClusterState.STALE, ClusterState.LIVE),
            moved(12, ClusterState.RECOVERING, ClusterState.STALE),
            event(EventType.DELETED, 13, obj(10)),
            event(EventType.ADDED, 14, obj(14, "u2")),
        ]
    )
    assert recorder.revisions() == {obj(14).key: 14}
    assert recorder.starts == 1


async def test_a_watch_that_is_told_to_start_over_does() -> None:
    again = [Event(EventType.RELISTED), Event(EventType.ADDED, obj(20, "u2"), revision=20)]
    recorder = await recorded([INITIAL[0], *again, event(EventType.INITIAL_END, 20)])
    assert (recorder.revisions(), recorder.starts) == ({obj(20).key: 20}, 2)
    recorder = await recorded([*INITIAL, CursorExpired(9, 100)], [event(EventType.INITIAL_END, 200)])
    assert (recorder.revisions(), recorder.starts) == ({}, 2)


@pytest.mark.parametrize(
    ("rest", "complaint"),
    [
        ([event(EventType.MODIFIED, 10, obj(10)), event(EventType.MODIFIED, 10, obj(10))], "share a revision"),
        ([event(EventType.BOOKMARK, 12), event(EventType.MODIFIED, 11, obj(11))], "only grows"),
        ([event(EventType.ADDED, 10, obj(10))], "added twice"),
        ([event(EventType.MODIFIED, 10, obj(10, "u2"))], "another UID"),
        ([event(EventType.MODIFIED, 10, obj(4))], "back in time"),
        ([event(EventType.DELETED, 10, obj(5)), event(EventType.DELETED, 11, obj(5))], "deleted before"),
        ([event(EventType.DELETED, 10, obj(5)), event(EventType.MODIFIED, 11, obj(6))], "modified before"),
        ([event(EventType.DELETED, 10, obj(5)), event(EventType.ADDED, 11, obj(6))], "and was not"),
        ([event(EventType.DELETED, 10, obj(5)), event(EventType.ADDED, 11, obj(4, "u2"))], "back in time"),
        ([event(EventType.DELETED, 10, obj(5, body=b""))], "last state"),
        ([Event(EventType.MODIFIED, obj(10), revision=10)], "MODIFIED"),
        (
            [moved(10, ClusterState.STALE, ClusterState.LIVE), moved(11, ClusterState.LIVE, ClusterState.RECOVERING)],
            "follows",
        ),
    ],
)
async def test_a_history_that_breaks_a_promise_is_found(rest: list[Event], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        await recorded([*INITIAL, *rest])


async def test_a_change_or_a_cursor_before_the_end_of_the_present_state_is_found() -> None:
    with pytest.raises(AssertionError, match="MODIFIED"):
        await recorded([Event(EventType.MODIFIED, obj(5), revision=9)])
    with pytest.raises(AssertionError, match="lose the rest"):
        await recorded([event(EventType.ADDED, 9, obj(5))])


def anchors() -> list[InventoryObject]:
    return [
        obj(1, cluster_id=ClusterID(cluster), resource=resource, namespace=ANCHOR, name=f"{ANCHOR}-{number}")
        for cluster in CLUSTERS
        for resource in ANCHORED
        for number in range(ANCHORS)
    ]


def answer(items: list[InventoryObject], *, complete: bool = True, **states: ClusterState) -> ListResult:
    given = {cluster: states.get(cluster.replace("-", "_"), ClusterState.LIVE) for cluster in CLUSTERS}
    clusters = {ClusterID(name): ClusterFreshness(ClusterID(name), state) for name, state in given.items()}
    return ListResult(tuple(items), 1, b"c", clusters, complete, len(items))


class Answering:
    """A client whose lists answer the same."""

    def __init__(self, result: ListResult) -> None:
        self._result = result

    async def list(self, *_: object, **__: object) -> ListResult:
        return self._result


async def watching() -> Vigil:
    vigil = Vigil(cast(InventoryClient, Answering(answer(anchors()))), CLUSTERS)
    await vigil.begin()
    return vigil


async def test_a_vigil_is_content_with_a_cluster_that_is_stale_and_whole() -> None:
    vigil = await watching()
    vigil.check(answer(anchors(), complete=False, eu_1=ClusterState.STALE))
    assert vigil.answers == 1


async def test_a_vigil_finds_what_is_missing_changed_invented_or_called_complete() -> None:
    vigil = await watching()
    stale = ClusterState.STALE
    with pytest.raises(AssertionError, match="not listed any more"):
        vigil.check(answer([each for each in anchors() if each.cluster_id != "eu-1"], complete=False, eu_1=stale))
    with pytest.raises(AssertionError, match="changed by nobody"):
        vigil.check(answer([*anchors()[1:], msgspec.structs.replace(anchors()[0], body=b"{ }")]))
    with pytest.raises(AssertionError, match="changed by nobody"):
        vigil.check(answer([*anchors(), obj(1)]))
    with pytest.raises(AssertionError, match="complete with"):
        vigil.check(answer(anchors(), eu_1=stale))
    with pytest.raises(AssertionError):
        fewer = msgspec.structs.replace(answer(anchors()), clusters={})
        vigil.check(fewer)


async def test_a_vigil_does_not_begin_with_an_answer_that_is_incomplete_or_empty() -> None:
    for result in (answer(anchors(), complete=False), answer([])):
        with pytest.raises(AssertionError):
            await Vigil(cast(InventoryClient, Answering(result)), CLUSTERS).begin()


def test_growth_of_descriptors_and_threads_is_found_and_memory_only_told() -> None:
    first = Consumption(pid=1, memory=1, descriptors=30, threads=10)
    assert_no_growth({"agent": first}, {"agent": msgspec.structs.replace(first, pid=2, memory=10**9)})
    for field, few in (("descriptors", FEW_DESCRIPTORS), ("threads", FEW_THREADS)):
        grown = msgspec.structs.replace(first, **{field: getattr(first, field) + few + 1})
        with pytest.raises(AssertionError, match=field):
            assert_no_growth({"agent": first}, {"agent": grown})
