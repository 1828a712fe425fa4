"""ST01 to ST10 of the merged store, and client-go's shape over many clusters: N clusters' objects of one name are N."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.merge import function_indexes
from federator.aggregator.merge.function_indexes import IndexFunc
from federator.aggregator.merge.merged_indexer import MergedIndexer
from federator.aggregator.merge.merged_lister import MergedLister
from federator.aggregator.merge.merged_object import MergedObject
from federator.aggregator.merge.merged_store import MergedStore
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.api.selector import LabelSelector
from federator.errors import InvalidInput, LedgerCorrupt, ObjectNotFound
from tests.unit.aggregator.federation import DEPLOYMENTS, NODES, PODS, Federation, delete, put, raw_put

EU, US = ClusterID("eu"), ClusterID("us")


class World(Federation):
    """Two clusters, and a store over both."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MergedStore(self.view.indexer, self.ledger)

    @property
    def keys(self) -> list[str]:
        return list(map(str, self.store.list_keys()))

    def index_keys(self, name: str, value: str) -> list[str]:
        return list(map(str, self.store.index_keys(name, value)))


@pytest.fixture
async def world() -> World:
    made = World()
    for cluster_id in (EU, US):
        await made.join(cluster_id)
    return made


def key(cluster_id: ClusterID, name: str, *, namespace: str = "shop") -> ObjectKey:
    return ObjectKey(cluster_id, "", "pods", namespace, name)


def users(obj: MergedObject) -> Sequence[str]:
    """Index values as in client-go's tests: a comma-separated field."""
    value: str = obj.content["spec"].get("users", "")
    return value.split(",") if value else ()


def moody(obj: MergedObject) -> Sequence[str]:
    if obj.resource_version == "13":
        raise ValueError("unlucky")
    return users(obj)


def names(objects: Sequence[MergedObject]) -> list[str]:
    return [f"{obj.cluster_id}/{obj.name}" for obj in objects]


async def test_st01_crud_list_and_a_cluster_that_is_listed_anew(world: World) -> None:
    """ST01: what is committed is in the store, by its key in its cluster."""
    await world.commit(EU, put("foo", spec={"a": 1}, resource_version="7"))
    await world.commit(US, put("foo", spec={"a": 2}))
    obj = world.store.get_by_key(key(EU, "foo"))
    assert obj is not None
    assert (obj.cluster_id, obj.namespace, obj.name, obj.resource_version) == (EU, "shop", "foo", "7")
    assert obj.content["spec"] == {"a": 1}
    assert [each.content["spec"] for each in world.store.list()] == [{"a": 1}, {"a": 2}]
    await world.commit(EU, put("foo", spec={"a": 3}, resource_version="8"))
    present = world.store.get(obj)
    assert present is not None
    assert (present.content["spec"], present.revision) == ({"a": 3}, world.store.revision)
    assert (obj.content["spec"], obj.resource_version) == ({"a": 1}, "7"), "what was read stays what it was"
    await world.commit(EU, delete("foo"))
    await world.commit(EU, delete("foo"))
    assert world.store.get(obj) is None
    assert world.keys == ["us//pods/shop/foo"]
    await world.commit(US, *(put(name) for name in "bac"), delete("foo"))
    assert world.keys == [f"us//pods/shop/{name}" for name in "abc"]
    assert len(world.store) == 3


async def test_st02_lookup_by_index(world: World) -> None:
    """ST02."""
    world.store.add_indexers({"users": users})
    await world.commit(EU, put("one", spec={"users": "bert,ernie"}), put("two", spec={"users": "bert,oscar"}))
    await world.commit(US, put("one", spec={"users": "ernie,elmo"}))
    assert names(world.store.by_index("users", "bert")) == ["eu/one", "eu/two"]
    assert names(world.store.by_index("users", "ernie")) == ["eu/one", "us/one"]
    assert names(world.store.by_index("users", "elmo")) == ["us/one"]
    assert world.store.by_index("users", "nobody") == []
    (elmo,) = world.store.by_index("users", "elmo")
    assert names(world.store.index("users", elmo)) == ["eu/one", "us/one"]


@pytest.mark.parametrize("text", ["", "shop/foo", "eu//pods/shop", "//pods/shop/foo", "eu//pods/shop/"])
def test_st03_what_is_no_key_is_refused_by_name(text: str) -> None:
    """ST03: the store is asked by keys only, and the error of a malformed one has it."""
    with pytest.raises(InvalidInput) as refused:
        ObjectKey.parse(text)
    assert (refused.value.field, refused.value.given) == ("key", text)


async def test_st04_of_one_commit_those_that_fail_are_named_and_the_others_are_in(world: World) -> None:
    """ST04: a batch is in the store whole; which of its objects an index lacks can be told."""
    world.store.add_indexers({"moody": moody})
    await world.commit(
        EU,
        put("one", spec={"users": "bert"}),
        put("bad", spec={"users": "bert"}, resource_version="13"),
        put("two", spec={"users": "bert"}),
        put("odd", spec={"users": 7}),
    )
    assert len(world.keys) == 4
    assert world.index_keys("moody", "bert") == ["eu//pods/shop/one", "eu//pods/shop/two"]
    assert world.store.statistics()["quarantined_keys"] == {
        "moody": {
            "eu//pods/shop/bad": "ValueError('unlucky')",
            "eu//pods/shop/odd": "AttributeError(\"'int' object has no attribute 'split'\")",
        }
    }


async def test_st05_st06_values_without_objects_are_dropped_others_kept(world: World) -> None:
    """ST05, ST06."""
    world.store.add_indexers({"users": users})
    await world.commit(EU, put("one", spec={"users": "bert,ernie"}))
    await world.commit(US, put("one", spec={"users": "ernie"}))
    await world.commit(EU, delete("one"))
    assert world.store.list_index_func_values("users") == ["ernie"]
    await world.commit(US, put("one", spec={"users": ""}))
    assert world.store.list_index_func_values("users") == []
    assert world.view.statistics()["index_entries_function:users"] == 0


async def test_st07_several_values_through_add_update_and_delete(world: World) -> None:
    """ST07."""
    world.store.add_indexers({"users": users})

    def expect(**expected: set[str]) -> None:
        found = {value: set(world.index_keys("users", value)) for value in world.store.list_index_func_values("users")}
        assert found == expected

    one, other, two = "eu//pods/shop/one", "us//pods/shop/one", "eu//pods/shop/two"
    await world.commit(EU, put("one", spec={"users": "bert,ernie,bert"}))
    expect(bert={one}, ernie={one})
    await world.commit(US, put("one", spec={"users": "bert"}))
    expect(bert={one, other}, ernie={one})
    await world.commit(EU, put("one", spec={"users": "oscar,ernie"}), put("two", spec={"users": "bert"}))
    expect(bert={other, two}, ernie={one}, oscar={one})
    await world.commit(EU, delete("one"), put("two", spec={"users": "elmo"}))
    expect(bert={other}, elmo={two})
    await world.commit(US, delete("one"))
    await world.commit(EU, delete("two"))
    expect()


async def test_st08_the_stores_own_version_is_the_newest_revision(world: World) -> None:
    """ST08: initial, add, update, delete, nothing new; an object's own revision is that of its state."""
    start = world.store.revision
    assert start == world.ledger.revision
    added = (await world.commit(EU, put("a"))).revision
    assert world.store.revision == added > start
    other = (await world.commit(US, put("a"))).revision
    assert world.store.revision == other > added
    obj = world.store.get_by_key(key(EU, "a"))
    assert obj is not None
    assert obj.revision == added
    await world.commit(EU, put("a"))  # the same state
    assert world.store.revision == world.ledger.revision
    gone = (await world.commit(EU, delete("a"))).revision
    assert world.store.revision == gone > other


async def test_st09_values_and_keys_of_an_index(world: World) -> None:
    """ST09."""
    world.store.add_indexers({"users": users, "namespace": lambda obj: (obj.namespace,)})
    await world.commit(EU, put("one", spec={"users": "bert,ernie"}))
    await world.commit(US, put("one", namespace="other", spec={"users": "bert"}))
    assert sorted(world.store.list_index_func_values("users")) == ["bert", "ernie"]
    assert world.index_keys("users", "bert") == ["eu//pods/shop/one", "us//pods/other/one"]
    assert world.index_keys("namespace", "other") == ["us//pods/other/one"]
    assert list(world.store.get_indexers()) == ["users", "namespace"]


@pytest.fixture
async def filled(world: World) -> World:
    for cluster_id in (EU, US):
        await world.commit(
            cluster_id,
            put("a", labels={"app": "web"}),
            put("b", labels={"app": "db"}),
            put("a", namespace="other", labels={"app": "web"}),
        )
        await world.commit(cluster_id, put("n1", namespace="", labels={"app": "web"}), type=NODES)
        await world.commit(cluster_id, put("a", labels={"app": "web"}), type=DEPLOYMENTS)
    return world


def places(objects: Sequence[MergedObject]) -> list[str]:
    return [f"{obj.cluster_id}/{obj.namespace}/{obj.name}" for obj in objects]


async def test_st10_lists_over_all_by_cluster_and_by_namespace(filled: World) -> None:
    """ST10: list-all, and narrowed."""
    pods = MergedLister(filled.store, PODS.group_resource)
    assert places(pods.list()) == [
        f"{cluster_id}/{place}" for cluster_id in (EU, US) for place in ("other/a", "shop/a", "shop/b")
    ]
    assert places(pods.cluster(EU).list()) == ["eu/other/a", "eu/shop/a", "eu/shop/b"]
    assert places(pods.cluster(EU).namespace("shop").list()) == ["eu/shop/a", "eu/shop/b"]
    assert pods.cluster(EU).namespace("nowhere").list() == []
    assert pods.cluster(ClusterID("ap")).list() == []
    assert pods.cluster(ClusterID("*")).list() == []
    assert {obj.key.group_resource for obj in pods.list()} == {PODS.group_resource}


async def test_st10_selects_by_labels(filled: World) -> None:
    """ST10."""
    pods = MergedLister(filled.store, PODS.group_resource)
    web, old = LabelSelector.parse("app=web"), LabelSelector.parse("app notin (web,db)")
    assert places(pods.list(web)) == ["eu/other/a", "eu/shop/a", "us/other/a", "us/shop/a"]
    assert places(pods.cluster(US).list(web)) == ["us/other/a", "us/shop/a"]
    assert places(pods.cluster(US).namespace("shop").list(web)) == ["us/shop/a"]
    assert pods.list(old) == []
    assert pods.cluster(US).list()[0].labels == {"app": "web"}


async def test_st10_gets_by_name(filled: World) -> None:
    """ST10."""
    pods = MergedLister(filled.store, PODS.group_resource)
    assert pods.cluster(US).namespace("other").get("a").key == key(US, "a", namespace="other")
    nodes = MergedLister(filled.store, NODES.group_resource)
    assert nodes.cluster(EU).get("n1").key == ObjectKey(EU, "", "nodes", "", "n1")
    assert nodes.cluster(EU).namespace("shop").list() == [], "cluster-scoped objects are in no namespace"
    with pytest.raises(ObjectNotFound, match="pods 'a' not found in cluster 'eu'"):
        pods.cluster(EU).get("a")
    with pytest.raises(ObjectNotFound, match="'c' not found in namespace 'shop' of cluster 'us'"):
        pods.cluster(US).namespace("shop").get("c")


async def test_indexes_added_to_a_filled_store_are_complete_at_once(world: World) -> None:
    await world.commit(EU, put("one", spec={"users": "bert"}), raw_put("bad", b"\x00"))
    world.store.add_indexers({"users": users})
    assert world.index_keys("users", "bert") == ["eu//pods/shop/one"]
    assert world.store.get_indexers() == {"users": users}
    (error,) = world.store.statistics()["quarantined_keys"]["users"].values()  # type: ignore[index]
    assert error.startswith("DecodeError(")


async def test_indexes_are_built_bit_by_bit_while_everything_changes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(function_indexes, "BUILD_SLICE", 2)
    await world.commit(EU, *(put(f"p{number}", spec={"users": "old"}) for number in range(7)))
    building = world.store.adding_indexers({"users": users})
    assert next(building) == 2
    assert world.store.get_indexers() == {}
    with pytest.raises(InvalidInput, match="none, there are no indexes"):
        world.store.by_index("users", "old")
    changed = [put(name, spec={"users": "new"}) for name in ("p0", "p6")]
    await world.commit(EU, *changed, delete("p1"), delete("p4"), delete("p5"))
    await world.commit(US, put("p1", spec={"users": "new"}))  # in a place that was left, and two stay empty
    assert list(building) == [4, 6, 7]
    assert world.index_keys("users", "old") == ["eu//pods/shop/p2", "eu//pods/shop/p3"]
    assert world.index_keys("users", "new") == ["eu//pods/shop/p0", "eu//pods/shop/p6", "us//pods/shop/p1"]
    assert world.view.statistics()["index_entries_function:users"] == 5


async def test_a_build_that_is_given_up_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_indexes, "BUILD_SLICE", 1)
    await world.commit(EU, put("one", spec={"users": "bert"}), put("two"))
    building = iter(world.store.adding_indexers({"users": users}))
    next(building)
    building.close()  # type: ignore[attr-defined]
    assert not world.view.indexer.functions
    world.store.add_indexers({"users": users})
    assert world.index_keys("users", "bert") == ["eu//pods/shop/one"]


async def test_a_taken_name_is_refused_and_nothing_is_added(world: World) -> None:
    world.store.add_indexers({"users": users})
    with pytest.raises(InvalidInput, match="users"):
        world.store.add_indexers({"users": users, "other": users})
    assert list(world.store.get_indexers()) == ["users"]


@pytest.mark.parametrize("query", ["by_index", "index_keys", "index", "list_index_func_values"])
async def test_unknown_indexes_are_named(world: World, query: str) -> None:
    world.store.add_indexers({"users": users})
    await world.commit(EU, put("a"))
    arguments = {"list_index_func_values": (), "index": (world.store.list()[0],)}.get(query, ("value",))
    with pytest.raises(InvalidInput, match=r"nodes.*users"):
        getattr(world.store, query)("nodes", *arguments)


async def test_an_object_whose_index_function_raises_is_there_quarantined_and_named(world: World) -> None:
    """Bug 18, the merged store's part."""
    world.store.add_indexers({"moody": moody, "users": users})
    await world.commit(EU, put("one", spec={"users": "bert"}), put("two", spec={"users": "bert"}))
    with capture_logs() as logs:
        await world.commit(EU, put("one", spec={"users": "bert", "n": 1}, resource_version="13"))
    obj = world.store.get_by_key(key(EU, "one"))
    assert obj is not None
    assert obj.resource_version == "13"
    assert world.index_keys("moody", "bert") == ["eu//pods/shop/two"]
    assert world.index_keys("users", "bert") == ["eu//pods/shop/one", "eu//pods/shop/two"]
    told = world.store.statistics()
    assert (told["quarantined"], told["quarantined_keys"]) == (
        1,
        {"moody": {"eu//pods/shop/one": "ValueError('unlucky')"}},
    )
    assert world.view.statistics()["index_quarantined_function:moody"] == 1
    assert [(log["key"], log["error"]) for log in logs if "index" in log] == [
        ("eu//pods/shop/one", "ValueError('unlucky')")
    ]


@pytest.mark.parametrize("mend", ["put", "delete"])
async def test_quarantine_ends_when_the_object_is_mended_or_gone(world: World, mend: str) -> None:
    world.store.add_indexers({"moody": moody})
    await world.commit(EU, put("one", spec={"users": "bert"}, resource_version="13"))
    assert world.store.statistics()["quarantined"] == 1
    change = put("one", spec={"users": "bert", "n": 1}, resource_version="14") if mend == "put" else delete("one")
    await world.commit(EU, change)
    assert world.store.statistics()["quarantined"] == 0
    assert world.index_keys("moody", "bert") == ([] if mend == "delete" else ["eu//pods/shop/one"])


@pytest.mark.parametrize("wrong", [lambda obj: obj.name, lambda obj: [7], lambda obj: None])
async def test_what_is_no_collection_of_strings_is_not_taken_for_one(world: World, wrong: IndexFunc) -> None:
    world.store.add_indexers({"wrong": wrong})
    await world.commit(EU, put("foo"))
    assert world.store.list_index_func_values("wrong") == []
    assert world.store.statistics()["quarantined"] == 1


async def test_removal_is_exact_although_the_index_function_has_changed_its_mind(world: World) -> None:
    values = ["first"]
    world.store.add_indexers({"fickle": lambda obj: values})
    await world.commit(EU, put("foo"))
    values[0] = "second"
    await world.commit(EU, delete("foo"))
    assert world.store.list_index_func_values("fickle") == []


async def test_a_removed_row_leaves_nothing_to_the_object_that_takes_its_place(world: World) -> None:
    world.store.add_indexers({"moody": moody})
    await world.commit(EU, put("one", spec={"users": "bert"}, resource_version="13"))
    await world.commit(EU, delete("one"), put("two"))
    assert world.store.statistics()["quarantined_keys"] == {}


async def test_an_object_whose_state_is_lost_is_quarantined_by_a_build_and_refused_to_readers(world: World) -> None:
    await world.commit(EU, put("one", spec={"users": "bert"}), put("two", spec={"users": "bert"}))
    lost = world.store.get_by_key(key(EU, "one"))
    assert lost is not None
    lost_revision = lost.revision

    class Damaged(MemoryLedger):
        def entry(self, revision: int) -> ObjectEntry | None:
            if revision == lost_revision:
                raise LedgerCorrupt("ledger", "entry")
            return world.ledger.entry(revision)

    store = MergedStore(world.view.indexer, Damaged())
    store.add_indexers({"users": users})
    assert [str(each) for each in store.index_keys("users", "bert")] == ["eu//pods/shop/two"]
    assert list(store.statistics()["quarantined_keys"]["users"]) == ["eu//pods/shop/one"]  # type: ignore[index]
    with pytest.raises(LedgerCorrupt):
        store.list()
    await world.commit(EU, put("one", spec={"users": "bert,ernie"}))
    assert world.index_keys("users", "ernie") == ["eu//pods/shop/one"]
    assert store.statistics()["quarantined"] == 0


async def test_a_store_over_a_loaded_indexer_is_the_same(filled: World) -> None:
    loaded = MergedIndexer()
    loaded.load(filled.ledger)
    store = MergedStore(loaded, filled.ledger)
    store.add_indexers({"name": lambda obj: (obj.name,)})
    filled.store.add_indexers({"name": lambda obj: (obj.name,)})
    assert store.list_keys() == filled.store.list_keys()
    for value in ("a", "b", "n1"):
        assert store.index_keys("name", value) == filled.store.index_keys("name", value) != []


async def test_the_example_of_the_documentation() -> None:
    federation = Federation()
    for cluster in ("eu-1", "us-1"):
        await federation.join(cluster)
        await federation.commit(cluster, put("web", node="n1", labels={"app": "web"}), put("db", node="n2"))
    guide = (Path(__file__).parents[2] / "docs" / "indexes.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    told: dict[str, Any] = {"view": federation.view, "ledger": federation.ledger}
    exec(compile(example, "indexes.md", "exec"), told)
    assert [str(each) for each in told["keys"]] == ["eu-1//pods/shop/web", "us-1//pods/shop/web"]
    assert names(told["on_n1"]) == names(told["web"]) == ["eu-1/web", "us-1/web"]
    assert sorted(told["nodes"]) == ["n1", "n2"]
    assert told["one"].key == key(ClusterID("eu-1"), "web")
