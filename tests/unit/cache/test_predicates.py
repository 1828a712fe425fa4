"""Predicates: what is dropped in front of a handler, and what never is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.typing import EventDict

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.api.selector import LabelSelector
from federator.cache.handler import FilteringResourceEventHandler
from federator.cache.notification import AddNotification, DeleteNotification, Notification, UpdateNotification
from federator.cache.predicates import (
    Predicate,
    PredicateHandler,
    all_of,
    annotations_changed,
    any_of,
    generation_changed,
    in_namespace,
    is_add,
    is_delete,
    is_initial_add,
    is_resync,
    is_update,
    label_selector,
    labels_changed,
    not_,
    object_matches,
    resource_version_changed,
)
from federator.cache.shared_informer import SharedInformer
from federator.errors import MalformedSelector
from tests.unit.cache.doubles import FakeSource, RecordingHandler, pod, running, settle

KEY = "default/a"


def state(version: int, *, uid: str = "uid-a", **metadata: object) -> KubeObject:
    """A state of `default/a` with these fields of metadata."""
    return KubeObject("default", "a", uid, str(version), json.dumps({"metadata": metadata}).encode())


def add(obj: KubeObject, *, is_initial: bool = False) -> Notification:
    return AddNotification(obj.key, obj, is_initial)


def update(old: KubeObject, new: KubeObject) -> Notification:
    return UpdateNotification(new.key, old, new)


def delete(obj: KubeObject | Tombstone) -> Notification:
    return DeleteNotification(obj.key, obj)


WEB, DB = {"app": "web"}, {"app": "db"}
LOST = delete(Tombstone(KEY, None))
KINDS = {
    "initial add": add(state(1), is_initial=True),
    "add": add(state(1)),
    "update": update(state(1), state(2)),
    "resync": update(state(1), state(1)),
    "delete": delete(state(1)),
    "lost": LOST,
}


@pytest.mark.parametrize(
    ("predicate", "wanted"),
    [
        (is_add, {"initial add", "add"}),
        (is_initial_add, {"initial add"}),
        (is_update, {"update"}),
        (is_resync, {"resync"}),
        (is_delete, {"delete", "lost"}),
        (resource_version_changed, {"initial add", "add", "update", "delete", "lost"}),
    ],
)
def test_kinds_of_notifications(predicate: Predicate, wanted: set[str]) -> None:
    assert {kind for kind, notification in KINDS.items() if predicate(notification)} == wanted


@pytest.mark.parametrize(
    ("old", "new", "is_wanted"),
    [
        (state(1, generation=1), state(2, generation=2), True),
        (state(1, generation=2), state(2, generation=2), False),
        (state(1, generation=2), state(1, generation=2), False),
        (state(1, generation=1), state(2, generation=1, uid="uid of the next"), True),
        (state(1), state(2), True),
        (state(1), state(1), True),
        (state(1), state(2, generation=1), True),
    ],
    ids=["spec", "status", "resync", "recreated", "type without", "type without, resync", "appeared"],
)
def test_the_generation_tells_changes_of_the_spec(old: KubeObject, new: KubeObject, is_wanted: bool) -> None:
    assert generation_changed(update(old, new)) is is_wanted


@pytest.mark.parametrize(("predicate", "field"), [(labels_changed, "labels"), (annotations_changed, "annotations")])
def test_changes_of_labels_and_of_annotations(predicate: Predicate, field: str) -> None:
    def changed(old: object, new: object, **recreated: str) -> bool | None:
        other = "annotations" if field == "labels" else "labels"
        return predicate(update(state(1, **{field: old, other: WEB}), state(2, **{field: new, other: DB}, **recreated)))  # type: ignore[arg-type]

    assert changed(WEB, DB) is True
    assert changed(None, WEB) is True
    assert changed(WEB, WEB) is False
    assert changed(None, {}) is False
    assert changed(WEB, WEB, uid="uid of the next") is True


@pytest.mark.parametrize("predicate", [generation_changed, labels_changed, annotations_changed])
def test_changes_are_asked_of_updates_only(predicate: Predicate) -> None:
    assert all(predicate(KINDS[kind]) for kind in ("initial add", "add", "delete", "lost"))


@pytest.mark.parametrize(
    ("namespaces", "wanted"), [(("default",), {"a"}), (("default", "shop"), {"a", "b"}), (("",), {"node"}), ((), set())]
)
def test_namespaces(namespaces: tuple[str, ...], wanted: set[str]) -> None:
    objects = [pod("a", 1), pod("b", 1, namespace="shop"), pod("node", 1, namespace="")]
    predicate = in_namespace(*namespaces)
    assert {obj.name for obj in objects if predicate(add(obj))} == wanted
    assert {obj.name for obj in objects if predicate(delete(Tombstone(obj.key, None)))} == wanted


@pytest.mark.parametrize("selector", ["app in (web)", LabelSelector.parse("app=web")])
def test_labels_select_by_the_newest_state(selector: str | LabelSelector) -> None:
    predicate = label_selector(selector)
    web, db = state(1, labels=WEB), state(2, labels=DB)
    for wanted in (add(web), update(db, web), delete(web), delete(Tombstone(KEY, web))):
        assert predicate(wanted) is True
    for unwanted in (add(db), update(web, db), delete(db), delete(Tombstone(KEY, db)), add(state(3))):
        assert predicate(unwanted) is False
    assert predicate(LOST) is None
    assert predicate(delete(web.without_raw())) is None


def test_a_selector_that_does_not_parse_is_refused_when_it_is_given() -> None:
    with pytest.raises(MalformedSelector):
        label_selector("app in web")


@pytest.mark.parametrize("predicate", [label_selector("app=web"), generation_changed, labels_changed])
def test_objects_without_their_bytes_are_refused_rather_than_taken_for_empty(predicate: Predicate) -> None:
    with pytest.raises(ValueError, match="default/a is not known"):
        predicate(update(state(1), state(2).without_raw()))


def test_functions_see_the_newest_state_and_never_an_unknown_one() -> None:
    predicate = object_matches(lambda obj: obj.resource_version == "2")
    assert predicate(update(state(1), state(2))) is True
    assert predicate(delete(state(1))) is False
    assert predicate(LOST) is None


def says(answer: bool | None) -> Predicate:
    return lambda notification: answer


@pytest.mark.parametrize(
    ("answers", "all_say", "any_says"),
    [
        ([], True, False),
        ([True, True], True, True),
        ([True, False], False, True),
        ([False, False], False, False),
        ([True, None], None, True),
        ([None, True], None, True),
        ([False, None], False, None),
        ([None, False], False, None),
        ([None], None, None),
    ],
)
def test_combinations(answers: list[bool | None], all_say: bool | None, any_says: bool | None) -> None:
    predicates = [says(answer) for answer in answers]
    assert all_of(*predicates)(LOST) is all_say
    assert any_of(*predicates)(LOST) is any_says
    assert not_(all_of(*predicates))(LOST) is (None if all_say is None else not all_say)


def test_what_is_decided_is_not_asked_further() -> None:
    def must_not_be_asked(notification: Notification) -> bool:
        raise AssertionError

    assert all_of(says(False), must_not_be_asked)(LOST) is False
    assert any_of(says(True), must_not_be_asked)(LOST) is True


of_objects = st.sampled_from([label_selector("app=web"), label_selector("!app"), object_matches(lambda obj: False)])
any_combination = st.recursive(
    of_objects,
    lambda inner: st.one_of(
        inner.map(not_),
        st.lists(inner, min_size=1, max_size=3).map(lambda predicates: all_of(*predicates)),
        st.lists(inner, min_size=1, max_size=3).map(lambda predicates: any_of(*predicates)),
    ),
    max_leaves=8,
)


@given(st.lists(any_combination, max_size=3))
def test_h10_no_combination_loses_a_delete_whose_last_state_nobody_knows(predicates: list[Predicate]) -> None:
    recorder = RecordingHandler()
    PredicateHandler(recorder, *predicates).on_delete(Tombstone(KEY, None))
    assert recorder.deletes == [Tombstone(KEY, None)]


def test_what_certainly_is_not_wanted_is_dropped_also_where_the_last_state_is_unknown() -> None:
    recorder = RecordingHandler()
    PredicateHandler(recorder, is_add).on_delete(Tombstone(KEY, None))
    PredicateHandler(recorder, in_namespace("shop"), label_selector("app=web")).on_delete(Tombstone(KEY, None))
    assert recorder.deletes == []


def test_the_handler_gets_what_all_predicates_want_as_it_came() -> None:
    recorder = RecordingHandler()
    handler = PredicateHandler(recorder, in_namespace("default"), not_(is_resync))
    handler.on_add(pod("a", 1), True)
    handler.on_add(pod("b", 1, namespace="shop"), True)
    handler.on_add(pod("c", 1), False)
    handler.on_update(pod("a", 1), pod("a", 2))
    handler.on_update(pod("a", 2), pod("a", 2))
    tombstone = Tombstone("default/a", pod("a", 2))
    handler.on_delete(tombstone)
    assert recorder.events == [
        ("initial", "default/a", "1"),
        ("add", "default/c", "1"),
        ("update", "default/a", "1", "2"),
        ("delete", "default/a"),
    ]
    assert recorder.deletes[0] is tombstone
    assert handler.statistics() == {"passed": 4, "dropped": 2}


def test_predicates_only_drop_where_a_filter_keeps_the_picture_whole() -> None:
    """An object enters the selection, leaves it, and is deleted."""
    wanted, unwanted = state(2, labels=WEB), state(1, labels=DB)
    behind_predicates, behind_filter = RecordingHandler(), RecordingHandler()
    for handler in (
        PredicateHandler(behind_predicates, label_selector("app=web")),
        FilteringResourceEventHandler(lambda obj: obj.meta().labels == WEB, behind_filter),
    ):
        handler.on_add(unwanted, False)
        handler.on_update(unwanted, wanted)
        handler.on_update(wanted, unwanted)
        handler.on_delete(Tombstone(KEY, wanted))
    assert behind_predicates.events == [("update", KEY, "1", "2"), ("delete", KEY)]
    assert behind_filter.events[:2] == [("add", KEY, "2"), ("delete", KEY)]


async def test_what_an_async_handler_returns_comes_through() -> None:
    told: list[str] = []

    class Slow(RecordingHandler):
        async def on_add(self, obj: KubeObject, is_initial: bool) -> None:  # type: ignore[override]
            told.append(obj.key)

    handler = PredicateHandler(Slow(), is_add)
    result = handler.on_add(pod("a", 1), False)
    assert result is not None
    assert told == []
    await result
    assert told == [KEY]
    assert handler.on_update(pod("a", 1), pod("a", 2)) is None


@pytest.mark.looptime
async def test_h4_in_an_informer_what_a_predicate_raises_fails_that_one_and_what_is_dropped_settles(
    logs: list[EventDict],
) -> None:
    def odd_only(obj: KubeObject) -> bool:
        if obj.name == "bad":
            raise ValueError("cannot say")
        return int(obj.resource_version) % 2 == 1

    recorder = RecordingHandler()
    source = FakeSource(pod("bad", 1), pod("even", 2), pod("odd", 3))
    informer = SharedInformer(source, name="pods")
    registration = informer.add_event_handler(PredicateHandler(recorder, object_matches(odd_only)))
    async with running(informer):
        await registration.wait_synced()
        source.put("late")  # version 101
        await settle()
    assert recorder.events == [("initial", "default/odd", "3"), ("add", "default/late", "101")]
    assert registration.failed == 1
    assert [(entry["event"], entry["key"]) for entry in logs if entry["log_level"] == "error"] == [
        ("event handler failed", "default/bad")
    ]
