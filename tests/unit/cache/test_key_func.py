"""Keys inside one cluster and type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.api.delta import Tombstone
from federator.cache.key_func import meta_namespace_key, split_meta_namespace_key
from federator.errors import InvalidInput
from tests.unit.cache.doubles import pod

names = st.text(st.characters(blacklist_characters="/", blacklist_categories=["Cs"]), min_size=1, max_size=20)


@pytest.mark.parametrize(("key", "expected"), [("ns/name", ("ns", "name")), ("name", ("", "name"))])
def test_st11_keys_are_split(key: str, expected: tuple[str, str]) -> None:
    """ST11 object-name parsing."""
    assert split_meta_namespace_key(key) == expected


@pytest.mark.parametrize("key", ["", "/", "ns/", "/name", "a/b/c", "a//b"])
def test_st11_malformed_keys_are_refused(key: str) -> None:
    """ST11."""
    with pytest.raises(InvalidInput):
        split_meta_namespace_key(key)


@given(namespace=names | st.just(""), name=names)
def test_bug31_objects_and_their_tombstones_have_the_same_key(namespace: str, name: str) -> None:
    """Bug 31, K1: {object, tombstone with object, tombstone without}; and the key splits back."""
    obj = pod(name, 1, namespace=namespace)
    key = meta_namespace_key(obj)
    assert meta_namespace_key(Tombstone(key, obj)) == meta_namespace_key(Tombstone(key, None)) == key
    assert split_meta_namespace_key(key) == (namespace, name)
