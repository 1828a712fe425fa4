from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.codec import HeadRow, ObjectRow
from federator.aggregator.ledger.indexed_state import IndexedState
from federator.aggregator.ledger.records import EntryType
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource

INDEXED = IndexedState({"app": "web"}, "node-1", ("u1",))
ROW = ObjectRow(EntryType.MODIFIED, 5, 0, 6, 1, 2, "shop", "web", "v1", "uid", "10", (1 << 64) - 1, INDEXED, b"\0body")
PREFIX = codec.numbers(1, 2).prefix
_names = st.text(st.characters(codec="utf-8"), max_size=300)


def test_a_sealed_value_comes_back() -> None:
    key = codec.encode_revision(7)
    assert codec.ROW.unseal(key, codec.ROW.seal(key, ROW)) == ROW


@pytest.mark.parametrize("position", [0, 7, 8, 20, -1])
def test_one_flipped_bit_is_noticed(position: int) -> None:
    key = codec.encode_revision(7)
    sealed = bytearray(codec.ROW.seal(key, ROW))
    sealed[position] ^= 4
    with pytest.raises(ValueError, match="checksum"):
        codec.ROW.unseal(key, bytes(sealed))


def test_a_value_at_another_key_or_cut_short_is_noticed() -> None:
    sealed = codec.ROW.seal(codec.encode_revision(7), ROW)
    for key, value in ((codec.encode_revision(8), sealed), (codec.encode_revision(7), sealed[:-1])):
        with pytest.raises(ValueError, match="checksum"):
            codec.ROW.unseal(key, value)
    with pytest.raises(ValueError, match="checksum"):
        codec.ROW.unseal(codec.encode_revision(7), b"")


def test_an_entry_costs_little_besides_its_body() -> None:
    row = ObjectRow(
        EntryType.ADDED,
        1_888_000_000_000_000,
        0,
        1_800_000_000_000,
        300,
        40,
        "kube-system",
        "coredns-7db6d8ff4d-x2x9p",
        "v1",
        "5b0b5e3e-7d8c-4d1f-9d57-1a2b3c4d5e6f",
        "123456789",
        1 << 63,
        INDEXED,
        bytes(800),
    )
    assert len(codec.ROW.seal(codec.encode_revision(7), row)) < 800 + 180


def test_revisions_sort_as_their_keys_do() -> None:
    revisions = [0, 1, 255, 256, 1 << 32, (1 << 53) - 1]
    assert sorted(map(codec.encode_revision, revisions)) == [codec.encode_revision(each) for each in revisions]
    assert [codec.decode_revision(codec.encode_revision(each)) for each in revisions] == revisions


@given(_names, _names, _names, _names)
def test_different_names_have_different_keys_that_fit(
    namespace: str, name: str, other_namespace: str, other_name: str
) -> None:
    key, _ = codec.object_key(PREFIX, namespace, name)
    other, _ = codec.object_key(PREFIX, other_namespace, other_name)
    assert (key == other) == ((namespace, name) == (other_namespace, other_name))
    assert len(key) <= 511


@given(_names, _names)
def test_a_key_gives_its_name_back(namespace: str, name: str) -> None:
    key, is_digest = codec.object_key(PREFIX, namespace, name)
    names = (namespace, name) if is_digest else ()
    assert codec.object_name(key, HeadRow(1, 5, 6, *names)) == (namespace, name)


def test_the_longest_names_kubernetes_allows_need_no_digest() -> None:
    assert not codec.object_key(PREFIX, "n" * 63, "x" * 253)[1]


def test_a_split_at_another_place_is_another_key() -> None:
    assert codec.object_key(PREFIX, "ab", "c")[0] != codec.object_key(PREFIX, "a", "bc")[0]
    assert codec.object_key(PREFIX, "a" * 300, "bc")[0] != codec.object_key(PREFIX, "a" * 300 + "b", "c")[0]


def test_the_text_of_a_cluster_is_never_that_of_a_type() -> None:
    texts = {codec.cluster_text(ClusterID("pods")), codec.type_text(GroupResource("", "pods"))}
    texts |= {codec.type_text(GroupResource("pods", "")), codec.cluster_text(ClusterID("pods.apps"))}
    assert len(texts) == 4
