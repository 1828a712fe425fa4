"""Handlers made of functions, and handlers behind a filter."""

from __future__ import annotations

import pytest

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache.handler import FilteringResourceEventHandler, ResourceEventHandlerFuncs
from tests.unit.cache.doubles import RecordingHandler, pod


def is_even(obj: KubeObject) -> bool:
    return int(obj.resource_version) % 2 == 0


@pytest.fixture
def recorder() -> RecordingHandler:
    return RecordingHandler()


@pytest.fixture
def filtering(recorder: RecordingHandler) -> FilteringResourceEventHandler:
    return FilteringResourceEventHandler(is_even, recorder)


@pytest.mark.parametrize(("version", "expected"), [(2, [("initial", "default/a", "2")]), (1, [])])
def test_h10_adds_are_filtered(
    recorder: RecordingHandler, filtering: FilteringResourceEventHandler, version: int, expected: list[tuple[str, ...]]
) -> None:
    filtering.on_add(pod("a", version), True)
    assert recorder.events == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (2, 4, [("update", "default/a", "2", "4")]),
        (1, 4, [("add", "default/a", "4")]),
        (2, 3, [("delete", "default/a")]),
        (1, 3, []),
    ],
)
def test_h10_updates_become_what_they_mean_for_the_selection(
    recorder: RecordingHandler,
    filtering: FilteringResourceEventHandler,
    old: int,
    new: int,
    expected: list[tuple[str, ...]],
) -> None:
    filtering.on_update(pod("a", old), pod("a", new))
    assert recorder.events == expected
    assert recorder.deletes == ([pod("a", old)] if new == 3 and old == 2 else [])


@pytest.mark.parametrize(
    ("deleted", "is_told"),
    [
        (pod("a", 2), True),
        (pod("a", 1), False),
        (Tombstone("default/a", pod("a", 2)), True),
        (Tombstone("default/a", pod("a", 1)), False),
        (Tombstone("default/a", None), True),
    ],
)
def test_h10_bug31_deletes_are_filtered_by_the_last_state_and_told_where_that_is_unknown(
    recorder: RecordingHandler,
    filtering: FilteringResourceEventHandler,
    deleted: KubeObject | Tombstone,
    is_told: bool,
) -> None:
    filtering.on_delete(deleted)
    assert recorder.deletes == ([deleted] if is_told else [])


async def test_what_an_async_handler_returns_comes_through_the_filter() -> None:
    told: list[str] = []

    class Slow(RecordingHandler):
        async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
            told.append(obj.key)

    result = FilteringResourceEventHandler(is_even, Slow()).on_add(pod("a", 2), False)
    assert result is not None
    assert told == []
    await result
    assert told == ["default/a"]


def test_functions_that_are_not_given_are_not_called() -> None:
    added: list[str] = []
    handler = ResourceEventHandlerFuncs(add=lambda obj, is_initial: added.append(obj.key))
    handler.on_add(pod("a", 1), False)
    handler.on_update(pod("a", 1), pod("a", 2))
    handler.on_delete(pod("a", 2))
    assert added == ["default/a"]


def test_functions_that_are_given_are_called() -> None:
    called: list[tuple[object, ...]] = []
    handler = ResourceEventHandlerFuncs(
        update=lambda old, new: called.append((old, new)), delete=lambda obj: called.append((obj,))
    )
    handler.on_add(pod("a", 1), True)
    handler.on_update(pod("a", 1), pod("a", 2))
    handler.on_delete(pod("a", 3))
    assert called == [(pod("a", 1), pod("a", 2)), (pod("a", 3),)]
