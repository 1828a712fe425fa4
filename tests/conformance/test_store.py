"""ST01 to ST11 and ST15 to ST19 of an informer's Indexer, its listers, and what stands on top of it."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
import pytest

from federator.api.delta import Tombstone
from federator.api.object import KubeObject, ObjectMeta
from federator.cache import (
    NAMESPACE_INDEX,
    Indexer,
    Lister,
    ResourceEventHandlerFuncs,
    meta_namespace_index_func,
    meta_namespace_key,
    split_meta_namespace_key,
)
from federator.cache.mutation_cache import MutationCache
from federator.errors import InvalidInput, ObjectNotFound
from federator.kube import MemberClient, ResourceListWatch
from federator.testing import FakeApiServer
from tests.conformance.informer_rig import followed, informer_of, until
from tests.conformance.rig import CONFIG_MAPS, settle
from tests.unit.cache.doubles import pod, running

NAMESPACES = {NAMESPACE_INDEX: meta_namespace_index_func}


def users(obj: KubeObject) -> Sequence[str]:
    """Index values as in client-go's tests: a comma-separated label."""
    value = (obj.meta().labels or {}).get("users", "")
    return value.split(",") if value else ()


def moody(obj: KubeObject) -> Sequence[str]:
    if obj.resource_version == "13":
        raise ValueError("unlucky")
    return users(obj)


def pod_of(name: str, version: int, users: str, *, namespace: str = "default") -> KubeObject:
    return pod(name, version, namespace=namespace, labels={"users": users})


NewStore = Callable[..., Indexer]


@pytest.fixture(params=[False, True], ids=["plain", "compressed"])
def new_store(request: pytest.FixtureRequest) -> NewStore:
    def made(**indexers: Callable[[KubeObject], Sequence[str]]) -> Indexer:
        return Indexer(indexers, compress=request.param)

    return made


def filled(store: Indexer, *objects: KubeObject) -> Indexer:
    """A store as a list makes it; enough of them that a store that compresses uses its dictionary."""
    store.replace([*objects, *(pod(f"filler-{number}", 1, namespace="filler") for number in range(20))], "1")
    return store


def keys(objects: Sequence[KubeObject]) -> list[str]:
    return sorted(f"{obj.key}@{obj.resource_version}" for obj in objects if obj.namespace != "filler")


# ------------------------------------------------------------------------------------------------------- the store


def test_st01_create_read_update_delete_list_and_replace(new_store: NewStore) -> None:
    """ST01 plain."""
    store = filled(new_store())
    foo, newer = pod("foo", 2), pod("foo", 3, labels={"a": "b"})
    store.add(foo)
    read = store.get_by_key("default/foo")
    assert read == store.get(pod("foo", 0)) == store.get(Tombstone("default/foo", None)) == foo
    store.update(newer)
    assert store.get_by_key("default/foo") == newer
    assert read == foo, "what was read stays what it was"
    assert store.get_by_key("foo") is store.get_by_key("other/foo") is None
    store.delete(newer)
    store.delete(newer)
    assert store.get_by_key("default/foo") is None
    for name in "bac":
        store.add(pod(name, 4))
    assert keys(store.list()) == ["default/a@4", "default/b@4", "default/c@4"]
    assert {"default/a", "default/b", "default/c"} < set(store.list_keys())
    before = store.replace([pod("c", 5), pod("d", 5)], "6")
    assert {"default/a", "default/b", "default/c"} < set(before)
    assert sorted(store.list_keys()) == ["default/c", "default/d"]
    assert keys(store.list()) == ["default/c@5", "default/d@5"]


@pytest.mark.looptime
async def test_st01_with_a_transform(server: FakeApiServer, client: MemberClient) -> None:
    """ST01 with transformer: what is stored, read and indexed is what the transform made, however it came."""

    def shout(obj: KubeObject) -> KubeObject:
        content = msgspec.json.decode(obj.raw)
        content["data"] = {"text": content["data"]["text"].upper()}
        return msgspec.structs.replace(obj, raw=msgspec.json.encode(content))

    def text(obj: KubeObject) -> str:
        value: str = msgspec.json.decode(obj.raw)["data"]["text"]
        return value

    server.put("configmaps", "listed", data={"text": "one"})
    informer = informer_of(client, transform=shout, indexers={"text": lambda obj: [text(obj)]})
    async with running(informer):
        await followed(server, informer)
        server.put("configmaps", "listed", data={"text": "two"})
        server.put("configmaps", "added", data={"text": "three"})
        await followed(server, informer)
        assert {obj.name: text(obj) for obj in informer.indexer.list()} == {"listed": "TWO", "added": "THREE"}
        assert sorted(informer.indexer.list_index_func_values("text")) == ["THREE", "TWO"]
        server.delete("configmaps", "listed")
        await followed(server, informer)
        assert informer.indexer.list_index_func_values("text") == ["THREE"]


def test_st02_lookup_by_index(new_store: NewStore) -> None:
    """ST02."""
    one, two, tre = pod_of("one", 1, "bert,ernie"), pod_of("two", 2, "bert,oscar"), pod_of("tre", 3, "ernie,elmo")
    store = filled(new_store(users=users), one, two)
    store.add(tre)
    assert keys(store.by_index("users", "bert")) == keys([one, two])
    assert keys(store.by_index("users", "ernie")) == keys([one, tre])
    assert store.by_index("users", "elmo") == [tre]
    assert store.by_index("users", "nobody") == []
    assert keys(store.index("users", pod_of("any", 0, "oscar,elmo"))) == keys([two, tre])
    assert store.index("users", pod_of("any", 0, "")) == []
    with pytest.raises(InvalidInput, match=r"nodes.*users"):
        store.by_index("nodes", "bert")


@pytest.mark.parametrize("text", ["", "/", "shop/", "/foo", "shop/foo/bar"])
def test_st03_what_is_no_key_is_refused_and_the_error_has_it(text: str) -> None:
    """ST03: every object has a key, so that no write can fail for want of one; only text may be none."""
    with pytest.raises(InvalidInput) as refused:
        split_meta_namespace_key(text)
    assert (refused.value.field, refused.value.given) == ("key", text)


def test_st04_of_several_at_once_those_that_fail_are_named_and_the_others_are_in(new_store: NewStore) -> None:
    """ST04: a list is taken whole; which of its objects an index lacks, and no other, can be told."""
    store = new_store(moody=moody, users=users)
    store.replace([pod_of("one", 1, "bert"), pod_of("bad", 13, "bert"), pod_of("two", 2, "bert")], "13")
    assert sorted(store.list_keys()) == ["default/bad", "default/one", "default/two"]
    assert sorted(store.index_keys("moody", "bert")) == ["default/one", "default/two"]
    assert sorted(store.index_keys("users", "bert")) == ["default/bad", "default/one", "default/two"]
    statistics = store.statistics()
    assert (statistics["quarantined"], statistics["quarantined_keys"]) == (1, {"moody": ("default/bad",)})


def test_st05_values_without_objects_are_dropped(new_store: NewStore) -> None:
    """ST05: by a delete, by an update, and by a list."""
    store = filled(new_store(users=users), *(pod_of(name, 1, f"user-{name}") for name in "abc"))
    store.delete(pod_of("a", 2, "user-a"))
    assert sorted(store.list_index_func_values("users")) == ["user-b", "user-c"]
    store.update(pod_of("b", 3, ""))
    assert store.list_index_func_values("users") == ["user-c"]
    store.replace([], "4")
    assert store.list_index_func_values("users") == []
    assert store.statistics()["index_values"] == {"users": 0}


def test_st06_values_that_have_objects_left_are_kept(new_store: NewStore) -> None:
    """ST06."""
    store = filled(new_store(users=users), pod_of("one", 1, "bert"), pod_of("two", 1, "bert"))
    store.delete(pod_of("two", 2, "bert"))
    assert store.list_index_func_values("users") == ["bert"]
    assert store.index_keys("users", "bert") == ["default/one"]


def test_st07_several_values_through_add_update_and_delete(new_store: NewStore) -> None:
    """ST07."""
    store = filled(new_store(users=users))

    def expect(**expected: set[str]) -> None:
        found = {value: set(store.index_keys("users", value)) for value in store.list_index_func_values("users")}
        assert found == expected

    one, two, tre = "default/one", "default/two", "default/tre"
    store.add(pod_of("one", 2, "bert,ernie,bert"))
    expect(bert={one}, ernie={one})
    store.add(pod_of("two", 3, "bert,oscar"))
    expect(bert={one, two}, ernie={one}, oscar={two})
    store.update(pod_of("one", 4, "oscar"))
    expect(bert={two}, oscar={one, two})
    store.update(pod_of("two", 5, ""))
    expect(oscar={one})
    store.add(pod_of("tre", 6, "ernie,oscar"))
    store.delete(pod_of("one", 7, "said to be elsewhere"))
    expect(ernie={tre}, oscar={tre})
    store.delete(Tombstone(tre, None))
    expect()


A10, B10 = pod("a", 10), pod("b", 10)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        pytest.param(lambda s: None, "", id="initial"),
        pytest.param(lambda s: s.add(A10), "10", id="add"),
        pytest.param(lambda s: (s.add(A10), s.add(B10)), "10", id="same"),
        pytest.param(lambda s: (s.add(A10), s.update(pod("a", 12))), "12", id="higher"),
        pytest.param(lambda s: (s.add(A10), s.delete(pod("a", 11))), "11", id="delete"),
        pytest.param(lambda s: (s.add(A10), s.add(pod("b", ""))), "10", id="without version"),
        pytest.param(lambda s: (s.add(A10), s.delete(pod("a", ""))), "10", id="delete without version"),
        pytest.param(lambda s: (s.add(A10), s.delete(Tombstone("default/a", None))), "10", id="tombstone"),
        pytest.param(lambda s: (s.add(A10), s.delete(Tombstone("default/a", pod("a", 9)))), "10", id="stale tombstone"),
        pytest.param(lambda s: (s.add(A10), s.put("default/b", pod("b", 30))), "10", id="amid a batch"),
        pytest.param(lambda s: (s.add(A10), s.remove("default/a")), "10", id="delete amid a batch"),
        pytest.param(lambda s: (s.add(A10), s.put("default/b", pod("b", 30)), s.bookmark("31")), "31", id="batch"),
        pytest.param(lambda s: (s.add(A10), s.replace([pod("a", 5)], "20")), "20", id="replace"),
        pytest.param(lambda s: (s.add(A10), s.replace([], "")), "10", id="replace without version"),
        pytest.param(lambda s: (s.add(A10), s.bookmark("")), "10", id="bookmark without version"),
    ],
)
def test_st08_the_stores_own_version(new_store: NewStore, act: Callable[[Indexer], object], expected: str) -> None:
    """ST08."""
    store = new_store()
    act(store)
    assert store.last_resource_version == store.statistics()["resource_version"] == expected


def test_st09_values_and_keys_of_several_indexes(new_store: NewStore) -> None:
    """ST09."""
    store = filled(new_store(users=users, namespace=meta_namespace_index_func), pod_of("one", 1, "bert,ernie"))
    store.add(pod_of("two", 2, "bert", namespace="other"))
    store.add(pod_of("node", 3, "elmo", namespace=""))
    assert sorted(store.list_index_func_values("users")) == ["bert", "elmo", "ernie"]
    assert sorted(store.list_index_func_values(NAMESPACE_INDEX)) == ["", "default", "filler", "other"]
    assert sorted(store.index_keys("users", "bert")) == ["default/one", "other/two"]
    assert store.index_keys("users", "ernie") == ["default/one"]
    assert store.index_keys(NAMESPACE_INDEX, "") == ["node"]
    assert store.index_keys("users", "oscar") == []
    assert store.get_indexers() == {"users": users, "namespace": meta_namespace_index_func}


# --------------------------------------------------------------------------------------------------- listers, keys


@pytest.fixture(params=[True, False], ids=["with namespace index", "without"])
def lister(request: pytest.FixtureRequest, new_store: NewStore) -> Lister:
    store = filled(
        new_store(**(NAMESPACES if request.param else {})),
        pod("a", 1, labels={"app": "web"}),
        pod("b", 2, labels={"app": "db"}),
        pod("a", 3, namespace="other", labels={"app": "web"}),
        pod("node", 4, namespace=""),
    )
    return Lister(store, resource="pods")


def test_st10_lists_all_and_by_namespace(lister: Lister) -> None:
    """ST10."""
    assert keys(lister.list()) == ["default/a@1", "default/b@2", "node@4", "other/a@3"]
    assert keys(lister.namespace("default").list()) == ["default/a@1", "default/b@2"]
    assert keys(lister.namespace("").list()) == ["node@4"]
    assert lister.namespace("nowhere").list() == []


@pytest.mark.parametrize(
    ("app", "expected"), [("web", ["default/a@1", "other/a@3"]), ("db", ["default/b@2"]), ("none", [])]
)
def test_st10_lists_what_a_selector_takes(lister: Lister, app: str, expected: list[str]) -> None:
    """ST10: some match, all match, none do."""
    assert keys(lister.list(lambda labels: labels.get("app") == app)) == expected
    in_default = [key for key in expected if key.startswith("default/")]
    assert keys(lister.namespace("default").list(lambda labels: labels.get("app") == app)) == in_default
    assert keys(lister.namespace("default").list(lambda labels: True)) == ["default/a@1", "default/b@2"]


def test_st10_gets_by_name(lister: Lister) -> None:
    """ST10."""
    assert lister.namespace("other").get("a") == pod("a", 3, namespace="other", labels={"app": "web"})
    assert lister.get("node").resource_version == "4"
    with pytest.raises(ObjectNotFound, match="pods 'a'"):
        lister.get("a")
    with pytest.raises(ObjectNotFound, match="'c' not found in namespace 'default'"):
        lister.namespace("default").get("c")


def test_st11_names_are_parsed_and_written_back() -> None:
    """ST11: any text of letters and slashes; what is a key is written back as it was, what is none is refused."""
    rng = random.Random(11)
    parsed = 0
    for _ in range(2000):
        text = "".join(rng.choice("abcdefghi/") for _ in range(rng.randrange(1, 10)))
        parts = text.split("/")
        if len(parts) > 2 or "" in parts:
            with pytest.raises(InvalidInput):
                split_meta_namespace_key(text)
            continue
        namespace, name = split_meta_namespace_key(text)
        assert [namespace, name] == (parts if len(parts) == 2 else ["", text])
        assert meta_namespace_key(pod(name, 1, namespace=namespace)) == text
        parsed += 1
    assert 500 < parsed < 1900


# ----------------------------------------------------------------------------------- what is read cannot be changed


@pytest.mark.parametrize(
    "change",
    [
        lambda obj: setattr(obj, "name", "other"),
        lambda obj: setattr(obj, "raw", b"{}"),
        lambda obj: delattr(obj, "raw"),
        lambda obj: object.__setattr__(obj, "name", "other"),
        lambda obj: operator.setitem(obj.raw, 0, 0),
        lambda obj: setattr(obj, "note", "new"),
        lambda obj: setattr(obj.meta(), "name", "other"),
        lambda obj: setattr(obj.meta().owner_references[0], "name", "other"),
        lambda obj: operator.setitem(obj.meta().owner_references, 0, None),
        lambda obj: setattr(Tombstone(obj.key, obj), "object", None),
    ],
)
def test_st15_an_object_cannot_be_changed(new_store: NewStore, change: Callable[[Any], object]) -> None:
    """ST15: client-go finds out afterwards that somebody changed a shared object; here nobody can."""
    raw = b'{"metadata":{"name":"a","namespace":"default","ownerReferences":[{"kind":"ReplicaSet","name":"set"}]}}'
    store = new_store()
    store.add(KubeObject("default", "a", "uid", "1", raw))
    obj = store.list()[0]
    with pytest.raises((AttributeError, TypeError), match=r"immutable|not support|no attribute 'note'|can't apply"):
        change(obj)
    assert store.list() == [obj] == [KubeObject("default", "a", "uid", "1", raw)]


def test_st15_what_the_metadata_hold_is_the_readers_own(new_store: NewStore) -> None:
    """ST15: labels are decoded anew each time, so that a change of them is nobody else's."""
    store = new_store(users=users)
    store.add(pod_of("a", 1, "bert"))

    def meta() -> ObjectMeta:
        return store.list()[0].meta()

    labels = meta().labels
    assert labels is not None
    labels["users"] = "ernie"
    assert meta().labels == {"users": "bert"}

    def emptied(labels: Mapping[str, str]) -> bool:
        cast("dict[str, str]", labels).clear()
        return True

    assert len(Lister(store, resource="pods").list(emptied)) == 1
    assert meta().labels == {"users": "bert"}


def test_st15_collections_that_come_and_go_are_no_part_of_the_store(new_store: NewStore) -> None:
    """ST15: what the store gives, is given, and gets from index functions may be changed without changing it."""
    values = ["bert"]
    store = new_store(fixed=lambda obj: values, namespace=meta_namespace_index_func)
    given = [pod(name, 1) for name in "ab"]
    store.replace(given, "1")
    given.clear()
    values.clear()
    lister = Lister(store, resource="pods")
    reads: list[Callable[[], Any]] = [
        store.list,
        store.list_keys,
        lambda: store.by_index("fixed", "bert"),
        lambda: store.index_keys("fixed", "bert"),
        lambda: store.index(NAMESPACE_INDEX, pod("a", 1)),
        lambda: store.list_index_func_values("fixed"),
        store.get_indexers,
        lister.list,
        lister.namespace("default").list,
        store.statistics,
    ]

    def picture() -> list[Any]:
        return [sorted(map(str, read())) for read in reads]

    before = picture()
    for read in reads:
        assert read(), "there is something to take away"
        read().clear()
    assert picture() == before
    store.delete(pod("a", 2))
    assert store.index_keys("fixed", "bert") == ["default/b"], "also what is forgotten is found by the values it had"


# ------------------------------------------------------------------------------------------ on top of an informer


@pytest.mark.looptime
async def test_st16_the_programs_own_writes_are_read_before_the_informer_has_them(
    server: FakeApiServer, client: MemberClient
) -> None:
    """ST16: with a watch that is held up: updated, created, deleted meanwhile, and deleted and created again."""
    for name in ("kept", "updated", "gone", "again"):
        server.put("configmaps", name, data={"n": "0"})
    informer = informer_of(client, indexers=NAMESPACES)
    api = ResourceListWatch(client, CONFIG_MAPS)

    async def written(name: str) -> KubeObject:
        """What the apiserver answers a write with."""
        server.put("configmaps", name, data={"n": "1"})
        obj = await api.get("default", name)
        assert obj is not None
        return obj

    def read() -> dict[str, str]:
        return {obj.name: obj.resource_version for obj in cache.by_index(NAMESPACE_INDEX, "default")}

    async with running(informer):
        await followed(server, informer)
        cache = MutationCache(informer.indexer)
        stored = read()
        with server.losing_events():
            answers = {name: await written(name) for name in ("updated", "gone", "again", "created", "short-lived")}
            for obj in answers.values():
                cache.mutated(obj)
            for name in ("gone", "again", "short-lived"):
                server.delete("configmaps", name)
            server.put("configmaps", "again", data={"n": "2"})
        assert read() == stored | {name: obj.resource_version for name, obj in answers.items()}
        assert cache.get_by_key("default/created") == answers["created"]
        informer.request_relist()
        await followed(server, informer)
        truth = {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in server.list("configmaps")}
        assert read() == truth
        assert set(truth) == {"kept", "updated", "again", "created"}
        for obj in answers.values():
            cache.mutated(obj)  # the answers come late, or twice
        assert read() == truth
        assert cache.statistics()["entries"] == 0


@pytest.mark.looptime
async def test_st18_a_handler_pushes_the_full_state_with_each_change_and_no_read_does(
    server: FakeApiServer, client: MemberClient
) -> None:
    """ST18: client-go's UndeltaStore; here a handler of three lines."""
    server.put("configmaps", "a")
    informer = informer_of(client)
    pushed: list[list[str]] = []

    def push(*_: object) -> None:
        pushed.append(sorted(obj.name for obj in informer.indexer.list()))

    informer.add_event_handler(ResourceEventHandlerFuncs(add=push, update=push, delete=push))
    async with running(informer):
        await until(lambda: pushed)
        steps: list[tuple[Callable[[], object], list[str]]] = [
            (lambda: server.put("configmaps", "b"), ["a", "b"]),
            (lambda: server.touch("configmaps", "b"), ["a", "b"]),
            (lambda: server.delete("configmaps", "a"), ["b"]),
        ]
        for change, expected in steps:
            pushed.clear()
            change()
            await until(lambda: pushed)
            assert pushed == [expected]
        pushed.clear()
        informer.indexer.list()
        informer.indexer.get_by_key("default/b")
        Lister(informer.indexer, resource="configmaps").list()
        await settle()
        assert pushed == []
        with server.losing_events():
            server.delete("configmaps", "b")
        informer.request_relist()
        await until(lambda: pushed)
        assert pushed == [[]]


@pytest.mark.looptime
@pytest.mark.parametrize("how", ["watched", "listed"])
async def test_st19_a_deletion_is_an_object_or_a_tombstone_and_both_have_the_key(
    server: FakeApiServer, client: MemberClient, how: str
) -> None:
    """ST19: what handlers get has one type, and needs no adapter."""
    server.put("configmaps", "a")
    server.put("configmaps", "b")
    informer = informer_of(client)
    deleted: list[KubeObject | Tombstone] = []
    informer.add_event_handler(ResourceEventHandlerFuncs(delete=deleted.append))
    async with running(informer):
        await followed(server, informer)
        last_state = informer.indexer.get_by_key("default/a")
        if how == "watched":
            version = server.delete("configmaps", "a")["metadata"]["resourceVersion"]
        else:
            with server.losing_events():
                server.delete("configmaps", "a")
            informer.request_relist()
        await until(lambda: deleted)
        (told,) = deleted
        assert meta_namespace_key(told) == told.key == "default/a"
        if how == "watched":
            assert isinstance(told, KubeObject)
            assert told.resource_version == version
        else:
            assert told == Tombstone("default/a", last_state)
        assert informer.indexer.list_keys() == ["default/b"]
