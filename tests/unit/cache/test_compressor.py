from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from federator.api.object import KubeObject
from federator.cache.compressor import DICTIONARY_SAMPLES, Compressor
from federator.cache.indexer import Indexer

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
