"""The Indexer: store, indexes, versions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.cache.indexer import NAMESPACE_INDEX, Indexer, meta_namespace_index_func
from federator.errors import InvalidInput
from tests.unit.cache.doubles import pod


def users(obj: KubeObject) -> Sequence[str]:
    """Index values as in client-go's tests: a comma-separated label."""
    value = (obj.meta().labels or {}).get("users", "")
    return value.split(",") if value else ()


def pod_of(name: str, version: int, users: str) -> KubeObject:
    return pod(name, version, labels={"users": users})


def test_st01_store_crud_list_and_replace() -> None:
    """ST01."""
    store = Indexer()
    store.add(pod("foo", 1))
    assert store.get_by_key("default/foo") == pod("foo", 1)
    store.update(pod("foo", 2))
    assert store.get(pod("foo", 0)) == pod("foo", 2)
    store.delete(pod("foo", 3))
    assert store.get(Tombstone("default/foo", None)) is None
    store.delete(pod("foo", 3))
    for name in "abc":
        store.add(pod(name, 4))
    assert {obj.name for obj in store.list()} == set("abc")
    assert sorted(store.list_keys()) == ["default/a", "default/b", "default/c"]
    before = store.replace([pod("c", 5), pod("d", 5)], "6")
    assert set(before) == {"default/a", "default/b", "default/c"}
    assert sorted(store.list_keys()) == ["default/c", "default/d"]


def test_st01_bug31_tombstones_delete_with_and_without_their_object() -> None:
    """K1, bug 31: the key of a tombstone is authoritative."""
    for last_state in (None, pod("foo", 1)):
        indexer = Indexer({"users": users, NAMESPACE_INDEX: meta_namespace_index_func})
        indexer.add(pod_of("foo", 1, "ernie"))
        indexer.add(pod_of("bar", 1, "ernie"))
        indexer.delete(Tombstone("default/foo", last_state))
        assert indexer.list_keys() == ["default/bar"]
        assert indexer.index_keys("users", "ernie") == ["default/bar"]
        assert indexer.index_keys(NAMESPACE_INDEX, "default") == ["default/bar"]


def test_st02_lookup_by_index() -> None:
    """ST02."""
    indexer = Indexer({"users": users})
    indexer.add(pod_of("one", 1, "bert,ernie"))
    indexer.add(pod_of("two", 2, "bert,oscar"))
    indexer.add(pod_of("tre", 3, "ernie,elmo"))
    assert {obj.name for obj in indexer.by_index("users", "bert")} == {"one", "two"}
    assert {obj.name for obj in indexer.by_index("users", "elmo")} == {"tre"}
    assert indexer.by_index("users", "nobody") == []
    assert {obj.name for obj in indexer.index("users", pod_of("any", 0, "oscar,elmo"))} == {"two", "tre"}


def test_st05_st06_values_without_objects_are_dropped_others_kept() -> None:
    """ST05, ST06."""
    indexer = Indexer({"users": users})
    indexer.add(pod_of("one", 1, "bert,ernie"))
    indexer.add(pod_of("two", 2, "ernie"))
    indexer.delete(pod_of("one", 3, "bert,ernie"))
    assert indexer.list_index_func_values("users") == ["ernie"]
    indexer.update(pod_of("two", 4, ""))
    assert indexer.list_index_func_values("users") == []


def test_st07_several_values_through_add_update_and_delete() -> None:
    """ST07."""
    indexer = Indexer({"users": users})

    def expect(**expected: set[str]) -> None:
        found = {value: set(indexer.index_keys("users", value)) for value in indexer.list_index_func_values("users")}
        assert found == expected

    indexer.add(pod_of("one", 1, "bert,ernie,bert"))
    expect(bert={"default/one"}, ernie={"default/one"})
    indexer.add(pod_of("two", 2, "bert"))
    expect(bert={"default/one", "default/two"}, ernie={"default/one"})
    indexer.update(pod_of("one", 3, "oscar,ernie"))
    expect(bert={"default/two"}, ernie={"default/one"}, oscar={"default/one"})
    indexer.replace([pod_of("tre", 4, "elmo")], "4")
    expect(elmo={"default/tre"})
    indexer.delete(pod_of("tre", 5, "elmo"))
    expect()


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda s: None, ""),
        (lambda s: s.add(pod("a", 10)), "10"),
        (lambda s: (s.add(pod("a", 10)), s.add(pod("b", 10))), "10"),
        (lambda s: (s.add(pod("a", 10)), s.update(pod("a", 12))), "12"),
        (lambda s: (s.add(pod("a", 10)), s.delete(pod("a", 11))), "11"),
        (lambda s: (s.add(pod("a", 10)), s.add(pod("b", ""))), "10"),
        (lambda s: (s.add(pod("a", 10)), s.delete(Tombstone("default/a", None))), "10"),
        (lambda s: (s.add(pod("a", 10)), s.delete(Tombstone("default/a", pod("a", 9)))), "10"),
        (lambda s: (s.add(pod("a", 10)), s.replace([pod("a", 5)], "20")), "20"),
        (lambda s: (s.add(pod("a", 10)), s.bookmark("30")), "30"),
    ],
)
def test_st08_the_stores_own_version(act: Callable[[Indexer], object], expected: str) -> None:
    """ST08: initial, add, same, higher, delete, without version, tombstones, replace, bookmark."""
    store = Indexer()
    act(store)
    assert store.last_resource_version == expected


def test_st09_values_and_keys_of_an_index() -> None:
    """ST09."""
    indexer = Indexer({"users": users, NAMESPACE_INDEX: meta_namespace_index_func})
    indexer.add(pod_of("one", 1, "bert,ernie"))
    indexer.add(pod("two", 2, namespace="other", labels={"users": "bert"}))
    assert sorted(indexer.list_index_func_values("users")) == ["bert", "ernie"]
    assert sorted(indexer.index_keys("users", "bert")) == ["default/one", "other/two"]
    assert indexer.index_keys(NAMESPACE_INDEX, "other") == ["other/two"]


def test_s2_indexes_added_to_a_filled_store_are_complete_at_once() -> None:
    indexer = Indexer()
    indexer.add(pod_of("one", 1, "bert"))
    indexer.add_indexers({"users": users})
    assert indexer.index_keys("users", "bert") == ["default/one"]
    assert indexer.get_indexers() == {"users": users}


def test_s2_a_taken_name_is_refused_and_nothing_is_added() -> None:
    indexer = Indexer({"users": users})
    with pytest.raises(InvalidInput, match="users"):
        indexer.add_indexers({"users": users, "other": users})
    assert list(indexer.get_indexers()) == ["users"]


@pytest.mark.parametrize("query", ["by_index", "index_keys", "index", "list_index_func_values"])
def test_s2_unknown_indexes_are_named(query: str) -> None:
    indexer = Indexer({"users": users})
    arguments = {"list_index_func_values": (), "index": (pod("a", 1),)}.get(query, ("value",))
    with pytest.raises(InvalidInput, match=r"nodes.*users"):
        getattr(indexer, query)("nodes", *arguments)


def moody(obj: KubeObject) -> Sequence[str]:
    if obj.resource_version == "13":
        raise ValueError("unlucky")
    return users(obj)


def test_s2_an_object_whose_index_function_raises_is_stored_quarantined_and_named() -> None:
    """Bug 18, the store's part."""
    indexer = Indexer({"moody": moody, "users": users})
    indexer.add(pod_of("one", 1, "bert"))
    indexer.add(pod_of("two", 1, "bert"))
    indexer.update(pod_of("one", 13, "bert"))
    assert indexer.get_by_key("default/one") == pod_of("one", 13, "bert")
    assert indexer.index_keys("moody", "bert") == ["default/two"]
    assert sorted(indexer.index_keys("users", "bert")) == ["default/one", "default/two"]
    assert indexer.statistics()["quarantined"] == 1
    assert indexer.statistics()["quarantined_keys"] == {"moody": ("default/one",)}


@pytest.mark.parametrize("mend", ["update", "delete", "replace"])
def test_s2_quarantine_ends_when_the_object_is_mended_or_gone(mend: str) -> None:
    indexer = Indexer({"moody": moody})
    indexer.add(pod_of("one", 13, "bert"))
    if mend == "replace":
        indexer.replace([pod_of("one", 14, "bert")], "14")
    else:
        getattr(indexer, mend)(pod_of("one", 14, "bert"))
    assert indexer.statistics()["quarantined"] == 0
    assert indexer.index_keys("moody", "bert") == ([] if mend == "delete" else ["default/one"])


def test_s2_a_string_is_not_taken_for_a_collection_of_letters() -> None:
    indexer = Indexer({"wrong": lambda obj: obj.name})
    indexer.add(pod("foo", 1))
    assert indexer.list_index_func_values("wrong") == []
    assert indexer.statistics()["quarantined"] == 1


def test_removal_is_exact_although_the_index_function_has_changed_its_mind() -> None:
    values = ["first"]
    indexer = Indexer({"fickle": lambda obj: values})
    indexer.add(pod("foo", 1))
    values[0] = "second"
    indexer.delete(pod("foo", 2))
    assert indexer.list_index_func_values("fickle") == []


def test_s1_another_thread_is_refused() -> None:
    indexer = Indexer({"users": users})
    indexer.add(pod("foo", 1))
    refused: list[str] = []

    def use() -> None:
        uses: list[Callable[[], object]] = [
            indexer.list,
            indexer.list_keys,
            lambda: indexer.get_by_key("default/foo"),
            lambda: indexer.add(pod("foo", 2)),
            lambda: indexer.delete(pod("foo", 2)),
            lambda: indexer.replace([], "2"),
            lambda: indexer.by_index("users", "x"),
            lambda: indexer.add_indexers({}),
        ]
        for call in uses:
            with pytest.raises(RuntimeError, match="thread"):
                call()
            refused.append("refused")

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(refused) == 8
    assert indexer.list() == [pod("foo", 1)]
