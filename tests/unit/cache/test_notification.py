"""Coalescing: fewer notifications, the same effect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.api.delta import Tombstone
from federator.cache.handler import FilteringResourceEventHandler
from federator.cache.notification import (
    AddNotification,
    DeleteNotification,
    Notification,
    UpdateNotification,
    coalesce,
)
from tests.unit.cache.doubles import RecordingHandler, pod

KEY = "default/a"


def add(version: int, *, is_initial: bool = False) -> Notification:
    return AddNotification(KEY, pod("a", version), is_initial)


def update(old: int, new: int) -> Notification:
    return UpdateNotification(KEY, pod("a", old), pod("a", new))


def delete(version: int) -> Notification:
    return DeleteNotification(KEY, pod("a", version))


LOST = DeleteNotification(KEY, Tombstone(KEY, None))
FOUND = DeleteNotification(KEY, Tombstone(KEY, pod("a", 3)))


@pytest.mark.parametrize(
    ("pending", "coming", "expected"),
    [
        (add(1), update(1, 2), (add(2),)),
        (add(1, is_initial=True), update(1, 2), (add(2, is_initial=True),)),
        (add(1), delete(2), ()),
        (add(1), LOST, ()),
        (update(1, 2), update(2, 3), (update(1, 3),)),
        (update(1, 2), delete(3), (DeleteNotification(KEY, Tombstone(KEY, pod("a", 1))),)),
        (delete(3), add(4), (update(3, 4),)),
        (FOUND, add(4), (update(3, 4),)),
        (LOST, add(4), (LOST, add(4))),
    ],
)
def test_two_become_what_has_their_effect(
    pending: Notification, coming: Notification, expected: tuple[Notification, ...]
) -> None:
    assert coalesce(pending, coming) == expected


def history(exists: bool, changes: list[bool]) -> tuple[tuple[Notification, ...], int | None]:
    """Each change makes a new state of what is gone, and updates or deletes what exists.

    Returns what waits, coalesced, and the version in the end.
    """
    version, state = 1, 1 if exists else None
    waiting: tuple[Notification, ...] = ()
    for keep in changes:
        version += 1
        if state is None:
            coming, state = add(version), version
        elif keep:
            coming, state = update(state, version), version
        else:
            coming, state = delete(state), None
        waiting = waiting[:-1] + coalesce(waiting[-1], coming) if waiting else (coming,)
    return waiting, state


@given(st.booleans(), st.lists(st.booleans(), max_size=12))
def test_any_history_of_a_key_coalesces_to_the_same_final_state(exists: bool, changes: list[bool]) -> None:
    waiting, state = history(exists, changes)
    told: int | None = 1 if exists else None
    for notification in waiting:
        match notification:
            case AddNotification(obj=obj):
                assert told is None
                told = int(obj.resource_version)
            case UpdateNotification(old=old, new=new):
                assert told == int(old.resource_version)
                told = int(new.resource_version)
            case DeleteNotification(last_state=last_state):
                assert last_state is not None
                assert told == int(last_state.resource_version)
                told = None
    assert told == state
    assert len(waiting) <= 1


@given(st.booleans(), st.lists(st.booleans(), max_size=12))
def test_a_filter_in_front_of_the_handler_still_selects_rightly(exists: bool, changes: list[bool]) -> None:
    """Odd versions are selected: what the handler behind the filter knows in the end is what it should."""
    waiting, state = history(exists, changes)
    known = exists
    handler = RecordingHandler()
    filtering = FilteringResourceEventHandler(lambda obj: int(obj.resource_version) % 2 == 1, handler)
    for notification in waiting:
        notification.deliver(filtering)
    for event in handler.events:
        assert known is (event[0] != "add")
        known = event[0] != "delete"
    assert known is (state is not None and state % 2 == 1)
