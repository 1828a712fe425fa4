"""Sequences of notifications that break each check, and some that break none."""

from __future__ import annotations

import pytest

from tests.robustness.differential.checks import broken_order, differences, repeated, skipped
from tests.robustness.differential.history import Ending, Gone, History, Key, State
from tests.robustness.differential.script import Kind, draw
from tests.robustness.differential.told import Told, outcome

KEY = Key("configmaps", "default/a")
POD = Key("pods", "default/a")
A10, A11, A12 = (State("a", version) for version in ("10", "11", "12"))
B20, B21 = (State("b", version) for version in ("20", "21"))


def history(key: Key = KEY) -> History:
    """Made, changed twice, deleted, made again and changed."""
    made = History(marked=("pods",))
    for state in (A10, A11, A12, None, B20, B21):
        made.observe(key, state)
    return made


def add(state: State, *, is_initial: bool = False, key: Key = KEY) -> Told:
    return Told("add", key, state, is_initial=is_initial)


def update(old: State, state: State, *, key: Key = KEY) -> Told:
    return Told("update", key, state, old=old)


def delete(uid: str, version: str, *, is_tombstone: bool = False, key: Key = KEY) -> Told:
    return Told("delete", key, State(uid, version), is_tombstone=is_tombstone)


@pytest.mark.parametrize(
    "told",
    [
        [add(A10), update(A10, A11), update(A11, A12), delete("a", "15"), add(B20), update(B20, B21)],
        [add(A10, is_initial=True), update(A10, A12), update(A12, B21)],
        [add(A11), delete("a", "11", is_tombstone=True), add(B21)],
        [add(A11), delete("a", "10", is_tombstone=True), add(B21)],
        [add(B21, is_initial=True)],
        [],
    ],
    ids=["all", "skips", "tombstone", "old tombstone", "late", "nothing"],
)
def test_a_part_of_what_happened_is_right(told: list[Told]) -> None:
    assert broken_order(told, history()) == []


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([add(A11), update(A11, A10)], "not in the history, or before that"),
        ([add(A10), update(A10, A11), update(A11, A10), update(A10, A11)], "not in the history, or before that"),
        ([add(State("a", "13"))], "not in the history"),
        ([add(State("c", "10"))], "not in the history"),
        ([add(A10), add(A11)], "though a@10 was there"),
        ([update(A10, A11)], "though nothing was there"),
        ([add(A10), delete("a", "15"), delete("a", "15")], "though nothing was there"),
        ([add(A10), update(A11, A12)], "though a@10 was there"),
        ([add(A10), update(A10, A10)], "tells of no change"),
        ([add(A10), update(A10, B20), delete("a", "15")], "though b@20 was there"),
        ([add(B20), delete("b", "30")], "not in the history, or before that"),
        ([add(A10), delete("a", "15"), add(A11)], "not in the history, or before that"),
        ([add(A10), delete("a", "11")], "nor after them"),
        ([add(A10), delete("a", "20")], "nor after them"),
        ([add(A10), delete("a", "15", is_tombstone=True)], "none of the states"),
        ([add(A10), delete("a", "15"), add(B20, is_initial=True)], "is not the first"),
    ],
)
def test_what_did_not_happen_so_is_found(told: list[Told], found: str) -> None:
    broken = broken_order(told, history())
    assert any(found in line for line in broken), broken
    assert all(line.startswith("configmaps default/a: ") for line in broken)


def test_calls_about_what_nobody_wrote_have_to_be_legal() -> None:
    other = Key("configmaps", "default/other")
    assert broken_order([add(A11, key=other), update(A11, A10, key=other)], history()) == []
    assert broken_order([update(A10, A11, key=other)], history()) != []


def test_where_repeats_are_allowed_they_repeat_what_is_held() -> None:
    assert broken_order([add(A10), update(A10, A10), update(A10, A11)], history(), repeats=True) == []
    assert broken_order([add(A11), update(A11, A11), update(A10, A10)], history(), repeats=True) != []


def test_a_pod_is_changed_once_more_before_it_is_deleted() -> None:
    marked = State("a", "14")
    assert list(history(POD).of(POD))[3:5] == [Ending("a"), Gone("a")]
    told = [add(A12, key=POD), update(A12, marked, key=POD)]
    assert broken_order([*told, delete("a", "15", key=POD)], history(POD)) == []
    assert broken_order([*told, delete("a", "14", key=POD, is_tombstone=True)], history(POD)) == []
    assert broken_order([*told, delete("a", "14", key=POD)], history(POD)) != [], "a deletion has a version of its own"
    assert broken_order([*told, update(marked, State("a", "15"), key=POD)], history(POD)) != [], "once only"
    assert broken_order([add(A10, key=POD), update(A10, State("a", "20"), key=POD)], history(POD)) != [], "too late"


def test_what_is_held_is_compared() -> None:
    assert differences("one", {KEY: A10}, "a list", {KEY: A10}) == []
    assert differences("one", {KEY: A10}, "a list", {KEY: A11}) == [
        "configmaps default/a: one has a@10, a list has a@11"
    ]
    assert differences("one", {KEY: A10}, "a list", {}) == ["configmaps default/a: one has a@10, a list has None"]
    many = {Key("configmaps", f"default/{number}"): A10 for number in range(7)}
    assert differences("one", {}, "a list", many)[-1] == "… and 2 more between one and a list"


def test_what_is_told_comes_to_what_exists() -> None:
    told = [add(A10), update(A10, A11), delete("a", "15"), add(B20), update(B20, B20)]
    assert outcome(told[:2]) == {KEY: A11}
    assert outcome(told[:3]) == {}
    assert outcome(told) == {KEY: B20}
    assert (skipped(told, history()), repeated(told)) == (2, 1)


def test_a_history_knows_what_exists_and_refuses_what_cannot_be() -> None:
    made = history()
    assert made.held() == {KEY: B21}
    made.observe(KEY, B21)
    assert len(made.of(KEY)) == 6, "what is known is not noted again"
    with pytest.raises(AssertionError, match="which nobody deleted"):
        made.observe(KEY, State("c", "30"))
    made.observe(KEY, None)
    made.observe(KEY, None)
    assert made.of(KEY)[-1] == Gone("b")
    assert made.held() == {}


def test_the_seed_decides_the_script_and_a_long_one_has_every_fault() -> None:
    assert draw(3, 60) == draw(3, 60) != draw(4, 60)
    assert {fault.kind for fault in draw(3, 120).faults} == set(Kind)
    assert draw(3, 30).pairs == (0.0, 12.0, 24.0)
