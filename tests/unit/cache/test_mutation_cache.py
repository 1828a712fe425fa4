"""Reading one's own writes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.typing import EventDict

from federator.api.object import KubeObject
from federator.cache.indexer import Indexer
from federator.cache.mutation_cache import MutationCache
from federator.errors import InvalidInput
from tests.unit.cache.doubles import pod

TTL = 300.0


def state(version: int | str, *, uid: str = "one", users: str = "", name: str = "pod") -> KubeObject:
    obj = pod(name, version, labels={"users": users})
    return KubeObject(obj.namespace, obj.name, uid, obj.resource_version, obj.raw)


def users(obj: KubeObject) -> Sequence[str]:
    value = (obj.meta().labels or {}).get("users", "")
    if value == "broken":
        raise ValueError(value)
    return value.split(",") if value else ()


class Informer:
    """Its Indexer and what its Controller does to it, a cache on top, and a clock that a test turns."""

    KEY = "default/pod"

    def __init__(self, *, max_entries: int = 10) -> None:
        self.indexer = Indexer({"users": users})
        self.now = 1000.0
        self.cache = MutationCache(self.indexer, ttl=TTL, max_entries=max_entries, clock=lambda: self.now)

    def applies(self, obj: KubeObject, *, mark: int | str | None = None) -> None:
        """An object was added or updated; `mark` where older changes of others still wait."""
        self.indexer.put(obj.key, obj)
        self.indexer.bookmark(obj.resource_version if mark is None else str(mark))

    def deletes(self, version: int | str, *, key: str = KEY, mark: int | str | None = None) -> None:
        self.indexer.remove(key)
        self.indexer.bookmark(str(version if mark is None else mark))

    def given(self, key: str = KEY) -> str | None:
        """UID and version of what a read gives."""
        obj = self.cache.get_by_key(key)
        return None if obj is None else f"{obj.uid}@{obj.resource_version}"

    def found(self, value: str) -> list[str]:
        return sorted(f"{obj.name}@{obj.resource_version}" for obj in self.cache.by_index("users", value))

    def count(self, what: str) -> int:
        return self.cache.statistics()[what]


@pytest.fixture
def informer() -> Informer:
    return Informer()


def test_st16_a_write_is_read_at_once_and_gives_way_to_the_same_or_a_newer_state(informer: Informer) -> None:
    """ST16: newer local write wins; cleared by what the informer adds."""
    informer.applies(state(1))
    informer.cache.mutated(state(5))
    assert informer.given() == "one@5"
    informer.applies(state(4))
    assert informer.given() == "one@5", "the informer is still behind"
    informer.applies(state(5))
    assert informer.given() == "one@5"
    assert (informer.count("entries"), informer.count("caught_up")) == (0, 1)
    informer.applies(state(6))
    assert informer.given() == "one@6"


def test_st16_a_write_that_the_informer_is_past_is_not_kept(informer: Informer) -> None:
    informer.applies(state(7))
    informer.cache.mutated(state(5))
    assert (informer.given(), informer.count("entries")) == ("one@7", 0)


def test_st16_a_created_object_is_read_before_the_informer_has_it(informer: Informer) -> None:
    """ST16: also before the informer has synced."""
    informer.cache.mutated(state(5))
    assert informer.given() == "one@5"
    informer.indexer.replace([], "3")
    assert informer.given() == "one@5"
    informer.applies(state(5))
    assert informer.given() == "one@5"
    assert informer.count("entries") == 0


def test_st16_created_and_deleted_before_the_informer_saw_either_it_is_gone(informer: Informer) -> None:
    """ST16: a list, or another object's change, from after the write is proof enough."""
    informer.indexer.replace([state(2, name="other")], "3")
    informer.cache.mutated(state(5))
    assert informer.given() == "one@5"
    informer.applies(state(4, name="other"))
    assert informer.given() == "one@5"
    informer.applies(state(7, name="other"))
    assert informer.given() is None


@pytest.mark.parametrize("proof", ["delete", "list", "bookmark"])
def test_st16_a_deletion_drops_what_was_written_before_it(informer: Informer, proof: str) -> None:
    """ST16: cleared by what the informer deletes."""
    informer.applies(state(1))
    informer.cache.mutated(state(5))
    assert informer.given() == "one@5"
    if proof == "delete":
        informer.deletes(6)
    elif proof == "list":
        informer.indexer.replace([], "6")
    else:
        informer.deletes(6, mark=3)
        informer.indexer.bookmark("6")
    assert informer.given() is None
    assert informer.count("entries") == 0


def test_st16_a_deletion_that_overtook_other_objects_drops_it_at_once(informer: Informer) -> None:
    """ST16: the store's own version lags behind; that the object was there and is not is enough."""
    informer.applies(state(1))
    informer.cache.mutated(state(5))
    informer.deletes(6, mark=2)
    assert informer.given() is None
    informer.cache.mutated(state(5))  # nothing is remembered of it, and the mark is not there yet
    informer.indexer.bookmark("6")
    assert informer.given() is None


def test_st16_that_an_object_was_there_is_seen_when_it_is_written_not_when_it_is_read(informer: Informer) -> None:
    informer.cache.mutated(state(9, name="other"))
    informer.applies(state(1))
    informer.cache.mutated(state(5))
    informer.deletes(6, mark=2)
    assert informer.given() is None
    assert informer.given("default/other") == "one@9"


@pytest.mark.parametrize(("uid", "version"), [("one", "5"), ("one", "6"), ("two", "7"), ("one", "abc")])
def test_st16_a_state_that_overtook_other_objects_counts_by_its_own_version(
    informer: Informer, uid: str, version: str
) -> None:
    """ST16: the store's own version lags behind the object's."""
    informer.applies(state(1))
    informer.cache.mutated(state(5))
    informer.applies(state(version, uid=uid), mark=2)
    assert informer.given() == f"{uid}@{version}"
    assert informer.count("entries") == 0


def test_st16_a_second_write_does_not_hide_that_the_object_was_there(informer: Informer) -> None:
    informer.applies(state(1))
    informer.cache.mutated(state(4))
    informer.deletes(6, mark=2)
    informer.cache.mutated(state(5))
    assert informer.given() is None


def test_st16_the_answer_to_an_update_that_comes_after_the_deletion_brings_nothing_back(informer: Informer) -> None:
    """ST16 concurrent delete."""
    informer.applies(state(1))
    informer.applies(state(2))
    informer.deletes(3)
    informer.cache.mutated(state(2))
    assert informer.given() is None
    assert informer.count("entries") == 0


def test_st16_the_answer_to_an_update_that_comes_after_a_recreation_changes_nothing(informer: Informer) -> None:
    """ST16 concurrent recreate."""
    informer.applies(state(2))
    informer.deletes(3)
    informer.applies(state(4, uid="two"))
    informer.cache.mutated(state(2))
    assert informer.given() == "two@4"
    assert informer.count("entries") == 0


def test_st16_a_recreation_by_the_program_itself_outlives_the_deletion_before_it(informer: Informer) -> None:
    """ST16: the deletion is of another UID, and older."""
    informer.applies(state(1))
    informer.cache.mutated(state(5, uid="two"))
    assert informer.given() == "two@5"
    informer.deletes(4, mark=2)
    assert informer.given() == "two@5"
    informer.deletes(4)
    assert informer.given() == "two@5"
    informer.applies(state(5, uid="two"))
    assert informer.count("entries") == 1
    assert informer.given() == "two@5"
    assert informer.count("entries") == 0


def test_st16_st17_a_write_expires_and_may_come_again(informer: Informer) -> None:
    """ST16, ST17: not before its time, not at it, and then the informer's."""
    informer.applies(state(1))
    informer.cache.mutated(state(5))
    informer.now += TTL - 1
    assert informer.given() == "one@5"
    informer.now += 1
    assert informer.given() == "one@1"
    assert (informer.count("entries"), informer.count("expired")) == (0, 1)
    informer.cache.mutated(state(5))
    informer.now += TTL - 1
    assert informer.given() == "one@5"


def test_st17_what_expires_unread_is_dropped_by_later_writes(informer: Informer) -> None:
    informer.cache.mutated(state(5, name="a"))
    informer.now += TTL / 2
    informer.cache.mutated(state(6, name="b"))
    informer.now += TTL / 2
    informer.cache.mutated(state(7, name="c"))
    assert (informer.count("entries"), informer.count("expired")) == (2, 1)


def test_st16_of_several_answers_the_newest_counts(informer: Informer) -> None:
    informer.cache.mutated(state(9))
    informer.cache.mutated(state(10))
    informer.cache.mutated(state(8))
    assert informer.given() == "one@10"


def test_st16_beyond_the_bound_the_oldest_writes_are_given_up() -> None:
    informer = Informer(max_entries=2)
    for version, name in enumerate(("a", "b", "a", "c"), 5):
        informer.cache.mutated(state(version, name=name))
    assert [informer.given(f"default/{name}") for name in "abc"] == ["one@7", None, "one@8"]
    assert (informer.count("entries"), informer.count("evicted")) == (2, 1)


def test_st16_what_the_informer_has_is_no_reason_to_give_up_another() -> None:
    informer = Informer(max_entries=2)
    informer.cache.mutated(state(5, name="a"))
    informer.cache.mutated(state(7, name="b"))
    informer.applies(state(5, name="a"))
    informer.cache.mutated(state(8, name="c"))
    assert (informer.count("entries"), informer.count("evicted"), informer.count("caught_up")) == (2, 0, 1)


@pytest.mark.parametrize("version", ["", "0", "abc", "007"])
def test_st16_versions_without_an_order_leave_it_at_the_informers(informer: Informer, version: str) -> None:
    informer.applies(state(1))
    informer.cache.mutated(state(version))
    assert informer.given() == "one@1"
    assert (informer.count("entries"), informer.count("incomparable")) == (0, 1)


def test_st16_a_stored_version_without_an_order_is_the_informers(informer: Informer) -> None:
    informer.applies(state("abc"))
    informer.cache.mutated(state(5))
    assert informer.given() == "one@abc"
    informer.cache.mutated(state(5, name="other"))
    assert informer.given("default/other") is None


def test_st16_versions_longer_than_any_machine_number_are_ordered(informer: Informer) -> None:
    informer.applies(state("9" * 25))
    informer.cache.mutated(state("1" + "0" * 25))
    assert informer.given() == f"one@1{'0' * 25}"


def test_st16_a_cluster_restored_from_a_backup_takes_the_writes_along(informer: Informer) -> None:
    """What was written to a history that is no more is dropped, though its version is higher than all that are left."""
    informer.applies(state(100))
    informer.cache.mutated(state(105))
    informer.indexer.replace([state(50)], "60")
    assert informer.given() == "one@50"


def test_st16_an_index_finds_objects_by_what_was_written(informer: Informer) -> None:
    """ST16: one that left a value is not found there, one that came is, one that stayed is found in its new state."""
    informer.applies(state(1, name="stays", users="bert"))
    informer.applies(state(2, name="leaves", users="bert"))
    informer.applies(state(3, name="comes", users="ernie"))
    informer.applies(state(4, name="other", users="bert"))
    informer.cache.mutated(state(11, name="stays", users="bert"))
    informer.cache.mutated(state(12, name="leaves", users="ernie"))
    informer.cache.mutated(state(13, name="comes", users="bert,ernie"))
    informer.cache.mutated(state(14, name="new", users="bert"))
    assert informer.found("bert") == ["comes@13", "new@14", "other@4", "stays@11"]
    assert informer.found("ernie") == ["comes@13", "leaves@12"]
    assert informer.found("nobody") == []
    informer.applies(state(11, name="stays", users="bert"))
    assert informer.found("bert") == ["comes@13", "new@14", "other@4", "stays@11"], "each once"
    informer.applies(state(12, name="leaves", users="ernie"))
    informer.applies(state(20, name="leaves", users="bert"))
    informer.applies(state(21, name="comes"))
    assert informer.found("bert") == ["leaves@20", "other@4", "stays@11"], "the one that was new is gone again"


def test_st16_an_index_drops_what_is_deleted(informer: Informer) -> None:
    """ST16: so that whoever finds nothing may create it again."""
    informer.cache.mutated(state(2, users="bert"))
    assert informer.found("bert") == ["pod@2"]
    informer.deletes(3)
    assert informer.found("bert") == []


def test_st16_an_index_function_that_raises_leaves_the_written_state_out(
    informer: Informer, logs: list[EventDict]
) -> None:
    informer.applies(state(1, users="bert"))
    informer.cache.mutated(state(5, users="broken"))
    assert informer.found("bert") == []
    assert informer.found("broken") == []
    assert [entry["key"] for entry in logs if entry["log_level"] == "warning"] == [Informer.KEY], "told once"
    informer.now += TTL
    assert informer.found("bert") == ["pod@1"]


def test_st16_unknown_indexes_are_refused_and_new_ones_known(informer: Informer) -> None:
    informer.cache.mutated(state(5))
    with pytest.raises(InvalidInput, match="names"):
        informer.cache.by_index("names", "pod")
    informer.indexer.add_indexers({"names": lambda obj: [obj.name]})
    assert informer.cache.by_index("names", "pod") == [state(5)]


NAMES = ("a", "b")


@given(st.lists(st.tuples(st.sampled_from(["put", "delete", "apply", "answer"]), st.integers(0, 30)), max_size=60))
def test_st16_a_read_is_what_was_true_at_the_later_of_write_and_informer(steps: list[tuple[str, int]]) -> None:
    """ST16: over all orders in which writes, deletions, the informer and answers to writes may come."""
    informer = Informer()
    history: list[tuple[str, KubeObject | None]] = []  # the change of each version, from 1
    applied = 0
    answered = dict.fromkeys((f"default/{name}" for name in NAMES), 0)

    def truth(key: str, version: int) -> KubeObject | None:
        return next((obj for changed, obj in reversed(history[:version]) if changed == key), None)

    for step, number in steps:
        key = f"default/{NAMES[number % len(NAMES)]}"
        present = truth(key, len(history))
        version = len(history) + 1
        if step == "put":
            uid = present.uid if present is not None else f"uid-{version}"
            name = key.removeprefix("default/")
            history.append((key, state(version, uid=uid, users=("bert", "ernie")[number % 3 % 2], name=name)))
        elif step == "delete" and present is not None:
            history.append((key, None))
        elif step == "apply" and applied < len(history):
            changed, obj = history[applied]
            applied += 1
            if obj is None:
                informer.deletes(applied, key=changed)
            else:
                informer.applies(obj)
        elif step == "answer" and history:
            changed, obj = history[number % len(history)]
            if obj is not None:
                informer.cache.mutated(obj)
                answered[changed] = max(answered[changed], int(obj.resource_version))
        expected = {each: truth(each, max(applied, told)) for each, told in answered.items()}
        assert {each: informer.cache.get_by_key(each) for each in expected} == expected
        bert = [f"{obj.name}@{obj.resource_version}" for obj in expected.values() if obj and users(obj) == ["bert"]]
        assert informer.found("bert") == sorted(bert)
