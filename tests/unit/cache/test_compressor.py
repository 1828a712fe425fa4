from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.api.list_watch import Known, ListOptions, ListPage, WatchEvent, nothing_known
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache.compressor import DICTIONARY_SAMPLES, Compressor
from federator.cache.handler import ResourceEventHandlerFuncs
from federator.cache.indexer import Indexer
from federator.cache.shared_informer import SharedInformer
from federator.kube import MemberClient, ResourceListWatch
from federator.testing.fake_api_server import FakeApiServer
from tests.unit.aggregator.federation import eventually

CONFIG_MAPS = ResourceType(group="", version="v1", resource="configmaps", kind="ConfigMap", namespaced=True)

RAW = st.sampled_from([b"", b"{}", b'{"metadata":{}}', b"x" * 5000]) | st.binary(max_size=200).map(
    lambda raw: b"{" + raw
)


@given(st.lists(RAW, max_size=DICTIONARY_SAMPLES * 2), st.lists(RAW, max_size=5), st.booleans())
def test_what_is_restored_is_what_was_given(listed: list[bytes], more: list[bytes], early: bool) -> None:
    compressor = Compressor()
    objects = [KubeObject("shop", f"p{number}", "u", "7", raw, 9) for number, raw in enumerate([*listed, *more])]
    kept = [compressor.compress(obj) for obj in objects] if early else []
    compressor.learn(objects[: len(listed)])
    kept += [compressor.compress(obj) for obj in objects]
    assert [compressor.restore(obj) for obj in kept] == objects * (2 if early else 1)
    assert [compressor.compress(obj) for obj in kept] == kept
    assert [compressor.restore(obj) for obj in objects] == objects


def test_objects_that_repeat_each_other_take_little() -> None:
    compressor = Compressor()
    raw = b'{"spec":' + bytes(f"{[hex(number * 2654435761) for number in range(100)]}", "ascii")
    objects = [KubeObject("shop", f"p{number}", "u", "7", raw + b"%d}" % number) for number in range(20)]
    before = len(compressor.compress(objects[0]).raw)
    compressor.learn(objects)
    assert len(compressor.compress(objects[0]).raw) * 8 < before


KEYS = st.sampled_from("abc")
STEPS = st.lists(
    st.tuples(st.just("put"), KEYS, RAW)
    | st.tuples(st.just("remove"), KEYS, st.none())
    | st.tuples(
        st.just("replace"), st.lists(st.tuples(KEYS, RAW), max_size=20, unique_by=lambda each: each[0]), st.none()
    ),
    max_size=20,
)


def by_length(obj: KubeObject) -> list[str]:
    return [str(len(obj.raw))]


@given(STEPS, st.integers(0, 20))
def test_a_compressed_store_is_as_one_that_is_not(steps: list[tuple[str, object, object]], indexed_after: int) -> None:
    plain, compressed = Indexer(), Indexer(compress=True)
    version = count(1)
    for number, (step, key, raw) in enumerate([*steps, ("check", "", None)]):
        if number == min(indexed_after, len(steps)):
            for indexer in (plain, compressed):
                indexer.add_indexers({"length": by_length})
        if step == "put":
            obj = KubeObject("", str(key), "u", str(next(version)), raw)  # type: ignore[arg-type]
            assert plain.put(obj.key, obj) == compressed.put(obj.key, obj)
        elif step == "remove":
            assert plain.remove(str(key)) == compressed.remove(str(key))
        elif step == "replace":
            objects = [KubeObject("", name, "u", str(next(version)), raw) for name, raw in key]  # type: ignore[attr-defined]
            # Some are given as they are kept, as a list does with what did not change.
            again = [compressed.kept(name) for name in "abc"]
            listed = {obj.key: obj for obj in [*filter(None, again), *objects]}
            before = plain.replace([compressed.whole(obj) for obj in listed.values()], "9")
            kept = compressed.replace(list(listed.values()), "9")
            assert {name: compressed.whole(obj) for name, obj in kept.items()} == before
        assert compressed.list() == plain.list()
        assert dict(compressed.snapshot()) == dict(plain.snapshot())
        assert [compressed.get_by_key(name) for name in "abc"] == [plain.get_by_key(name) for name in "abc"]
    for value in plain.list_index_func_values("length"):
        assert compressed.by_index("length", value) == plain.by_index("length", value)
    assert compressed.statistics()["objects"] == len(plain.list())


def test_a_snapshot_stays_what_it_was() -> None:
    for compress in (False, True):
        indexer = Indexer(compress=compress)
        first, second = KubeObject("", "a", "u", "1", b"{}"), KubeObject("", "a", "u", "2", b"[]")
        indexer.add(first)
        snapshot = indexer.snapshot()
        indexer.add(second)
        indexer.add(KubeObject("", "b", "u", "3", b"{}"))
        assert dict(snapshot) == {"a": first}
        assert len(snapshot) == 1


def test_bytes_follow_what_is_stored() -> None:
    indexer = Indexer()
    for name, raw in (("a", b"x" * 100), ("b", b"x" * 50), ("a", b"x" * 10)):
        indexer.add(KubeObject("", name, "u", "1", raw))
    empty = Indexer()
    objects = indexer.list()
    indexer.replace(objects, "2")
    one = indexer.statistics()["bytes"]
    indexer.remove("b")
    assert one - indexer.statistics()["bytes"] == 50 + (one - 60) // 2  # type: ignore[operator]
    indexer.remove("a")
    assert indexer.statistics()["bytes"] == empty.statistics()["bytes"] == 0


@pytest.mark.parametrize("use_watch_list", [True, False], ids=["watch-list", "list"])
async def test_an_informer_never_has_a_list_whole(use_watch_list: bool, tmp_path: Path) -> None:
    """Its objects are compressed while they are read; handlers are told whole ones all the same."""
    async with FakeApiServer() as server:
        for number in range(100):
            server.put("configmaps", f"c{number}", data={"text": "shipping and handling " * 20})
        path = server.kubeconfig(tmp_path / "kubeconfig")
        async with MemberClient.from_kubeconfig(path=path) as client:
            list_watch = _Sizes(ResourceListWatch(client, CONFIG_MAPS))
            informer = SharedInformer(list_watch, name="maps", compress=True, use_watch_list=use_watch_list)
            told: dict[str, bytes] = {}
            registration = informer.add_event_handler(
                ResourceEventHandlerFuncs(
                    add=lambda obj, _: told.__setitem__(obj.key, obj.raw),
                    update=lambda _, new: told.__setitem__(new.key, new.raw),
                )
            )
            running = asyncio.create_task(informer.run())
            await registration.wait_synced()
            stored = {obj.key: obj.raw for obj in informer.indexer.list()}
            assert told == stored
            assert len(stored) == 100
            assert all(msgspec.json.decode(raw)["data"]["text"].startswith("shipping") for raw in stored.values())
            sizes = [len(kept.raw) for key in stored if (kept := informer.indexer.kept(key))]
            assert max(sizes) * 2 < min(map(len, stored.values()))
            if not use_watch_list:
                assert list_watch.largest * 2 < min(map(len, stored.values()))
            told.clear()
            server.put("configmaps", "c7", data={"text": "another"})
            informer.request_relist()
            await eventually(lambda: "default/c7" in told)
            assert list(told) == ["default/c7"]
            running.cancel()
            await asyncio.wait([running])


class _Sizes:
    """Notes how large the largest object is that a list gives."""

    def __init__(self, list_watch: ResourceListWatch) -> None:
        self.largest = 0
        self._list_watch = list_watch

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        page = await self._list_watch.list(options, known=known)
        self.largest = max([self.largest, *(len(obj.raw) for obj in page.objects)])
        return page

    def watch(self, options: ListOptions) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        return self._list_watch.watch(options)
