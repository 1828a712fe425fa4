"""Patches make one document of another, however large or odd the two are."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federator.aggregator.query import patch
from federator.aggregator.query.budget import Budget, QueryLimits
from federator.aggregator.query.patch import Patches, make_patch
from federator.errors import QueryTooCostly

_leaf = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text('a~/\\"é\U0001f600', max_size=3))
_keys = st.text("ab~/.", max_size=2)
_value = st.recursive(_leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys, inner, max_size=3))
_document = st.dictionaries(_keys, _value, max_size=4)


def applied(before: Any, operations: bytes) -> Any:
    return jsonpatch.apply_patch(before, json.loads(operations))


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: Python takes 1 for true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@settings(max_examples=settings().max_examples // 2)
@given(before=_document, after=_document)
def test_fine_and_coarse_patches_make_one_of_the_other(before: Any, after: Any) -> None:
    texts = json.dumps(before).encode(), json.dumps(after).encode()
    assert same(applied(before, make_patch(*texts)), after)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(patch, "FINE_VALUES", -1)
        assert same(applied(before, make_patch(*texts)), after)


def test_a_large_document_is_compared_by_whole_arrays() -> None:
    before = {"spec": {"many": list(range(patch.FINE_VALUES)), "name": "a"}, "gone": 1}
    after = {"spec": {"many": [*range(1, patch.FINE_VALUES), 7], "name": "b"}, "a/b~c": {"x": 1}}
    operations = json.loads(make_patch(json.dumps(before).encode(), json.dumps(after).encode()))
    assert [(each["op"], each["path"]) for each in operations] == [
        ("replace", "/spec/many"),
        ("replace", "/spec/name"),
        ("remove", "/gone"),
        ("add", "/a~1b~0c"),
    ]
    assert jsonpatch.apply_patch(before, operations) == after


def test_what_is_nested_too_deeply_is_replaced_whole() -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    made = make_patch(b"{}", deep)
    assert made == b'[{"op":"replace","path":"","value":' + deep + b"}]"


@pytest.mark.parametrize("odd", [b"", b"{", b"\xff", b"not json"])
def test_of_what_is_no_json_there_is_no_patch(odd: bytes) -> None:
    assert make_patch(odd, b"{}") == make_patch(b"{}", odd) == b""


def test_a_lone_surrogate_survives() -> None:
    after = b'{"a":"\\ud800"}'
    assert json.loads(make_patch(b"{}", after)) == [{"op": "add", "path": "/a", "value": "\ud800"}]


async def test_equal_bytes_need_no_work() -> None:
    assert await Patches().between(b"{}", b"{}", Budget()) == b"[]"


async def test_one_at_a_time_and_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = most = 0
    loop = asyncio.get_running_loop()

    def slow(before: bytes, after: bytes) -> bytes:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(5)  # the loop goes on meanwhile
        at_work -= 1
        return before + after

    monkeypatch.setattr(patch, "make_patch", slow)
    patches = Patches()
    made = await asyncio.gather(*(patches.between(b"%d" % each, b"x", Budget()) for each in range(5)))
    assert made == [b"%dx" % each for each in range(5)]
    assert most == 1


async def test_what_would_not_fit_is_refused_and_given_back() -> None:
    budget = Budget(QueryLimits(memory_bytes=1000))
    with pytest.raises(QueryTooCostly) as raised:
        await Patches().between(b'{"a":1}', json.dumps({"a": "x" * 1000}).encode(), budget)
    assert raised.value.limit == "memory_bytes"
    budget = Budget(QueryLimits(memory_bytes=1000))
    for _ in range(100):
        await Patches().between(b'{"a":1}', b'{"a":2}', budget)
