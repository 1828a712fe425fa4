from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.kube.list_reader import ListBody, ListReader


def pod(number: int, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": f"web-{number}", "resourceVersion": str(number)}, **more}


def custom(number: int) -> dict[str, Any]:
    owners = [{"apiVersion": "example.com/v1", "kind": "Widget"}, {"apiVersion": "example.com/v1", "kind": "Widget"}]
    metadata = {"managedFields": [{"apiVersion": "v1"}, {"apiVersion": "v1"}], "ownerReferences": owners}
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": f"w-{number}", **metadata}}


def compact(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def chunks(body: bytes, size: int) -> Iterator[bytes]:
    return (body[start : start + size] for start in range(0, len(body), size))


def read(body: bytes, *, size: int = 100, run_bytes: int = 500) -> tuple[list[list[Any]], ListBody]:
    """The runs, and what came at the end."""
    reader = ListReader(run_bytes=run_bytes)
    runs = [[msgspec.json.decode(item) for item in reader.feed(chunk)] for chunk in chunks(body, size)]
    return [run for run in runs if run], reader.finish()


def items(runs: list[list[Any]], end: ListBody) -> list[Any]:
    return [item for run in runs for item in run] + [msgspec.json.decode(item) for item in end.items or ()]


METADATA = {"resourceVersion": "77", "continue": "next"}
PODS = [pod(number, spec={"a": [{"metadata": {}}, {"metadata": {"name": "inner"}}]}) for number in range(60)]
WIDGETS = [custom(number) for number in range(60)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"kind": "PodList", "apiVersion": "v1", "metadata": METADATA, "items": PODS}, PODS),
        ({"apiVersion": "example.com/v1", "items": WIDGETS, "kind": "WidgetList", "metadata": METADATA}, WIDGETS),
        ({"kind": "XList", "metadata": METADATA, "items": [{"z": number, "b": [{}, {}]} for number in range(300)]},
         [{"z": number, "b": [{}, {}]} for number in range(300)]),
    ],
    ids=["built-in", "custom", "unknown"],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 7, 333, 100_000])
def test_items_come_in_runs_whatever_the_chunks(body: dict[str, Any], expected: list[Any], size: int) -> None:
    runs, end = read(compact(body), size=size)
    assert items(runs, end) == expected
    assert (end.kind, end.metadata) == (body["kind"], msgspec.convert(METADATA, type(end.metadata)))
    if size < 1000:
        assert len(runs) > 5
        assert len(end.items or ()) < 20


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "PodList", "metadata": METADATA, "items": []},
        {"kind": "PodList", "metadata": METADATA, "items": None},
        {"kind": "PodList", "metadata": METADATA},
        {"kind": "PodList", "metadata": {"annotations": {"items": [1]}, "resourceVersion": "77"}, "items": PODS},
        {"kind": "Status", "status": "Failure", "message": "x" * 2000},
        {"kind": "PodList", "metadata": METADATA, "items": [pod(1, data="x" * 5000), pod(2), pod(3)]},
    ],
    ids=["empty", "null", "none", "another items", "status", "a long item"],
)
def test_other_shapes_are_read_as_a_whole(body: dict[str, Any]) -> None:
    runs, end = read(compact(body))
    assert items(runs, end) == (body.get("items") or [])
    assert end.kind == body["kind"]


def test_whitespace_between_items_costs_memory_only() -> None:
    body = {"kind": "PodList", "metadata": METADATA, "items": PODS}
    runs, end = read(json.dumps(body, indent=2).encode())
    assert items(runs, end) == PODS


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"kind":"PodList","items":[{"metadata":{}}', b"[]", b'{"items":3}'])
def test_what_is_no_list_is_refused_at_its_end(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read(body * 1, size=3, run_bytes=5)


def deep(number: int) -> bytes:
    return b'{"metadata":{"name":"deep-%d"},"spec":' % number + b'{"a":' * 3000 + b'"}{"' + b"}" * 3000 + b"}"


@pytest.mark.parametrize("size", [100, 10_000_000])
@pytest.mark.parametrize("sorted_keys", [True, False])
def test_an_item_nested_too_deeply_takes_no_other_with_it(size: int, sorted_keys: bool) -> None:
    """An apiserver takes custom resources nested far deeper than the decoder goes."""
    expected = [part for number in range(5) for part in (compact(pod(number)), deep(number))]
    listed = b'"items":[' + b",".join(expected) + b"]"
    metadata = b'"kind":"PodList","metadata":{"resourceVersion":"77"}'
    body = b"{%b,%b}" % ((listed, metadata) if sorted_keys else (metadata, listed))
    reader = ListReader(run_bytes=500)
    found = [bytes(item) for chunk in chunks(body, size) for item in reader.feed(chunk)]
    end = reader.finish()
    assert found + [bytes(item) for item in end.items or ()] == expected
    assert end.metadata is not None
    assert (end.kind, end.metadata.resource_version) == ("PodList", "77")


@pytest.mark.parametrize("cut", [10, 3000, 9000])
def test_a_body_that_ends_amid_an_item_nested_too_deeply_is_refused(cut: int) -> None:
    body = b'{"kind":"PodList","items":[' + deep(1) + b"]}"
    with pytest.raises(msgspec.MsgspecError):
        read(body[:-cut])


def test_a_body_cut_short_after_runs_is_refused() -> None:
    body = compact({"kind": "PodList", "metadata": METADATA, "items": PODS})
    with pytest.raises(msgspec.MsgspecError):
        read(body[:-200])


def test_it_holds_little_of_a_long_body() -> None:
    body = compact({"kind": "PodList", "metadata": METADATA, "items": PODS * 20})
    reader = ListReader(run_bytes=2000)
    held = 0
    for chunk in chunks(body, 500):
        reader.feed(chunk)
        held = max(held, len(reader._buffer))
    assert held < 5000 < len(body) / 10


@given(
    st.lists(
        st.recursive(
            st.none() | st.integers() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("metadata"), inner),
            max_leaves=4,
        ).map(lambda value: {"metadata": {"name": "x"}, "items": value}),
        max_size=5,
    ),
    st.integers(1, 50),
    st.integers(1, 100),
)
def test_any_items_any_edges(content: list[Any], size: int, run_bytes: int) -> None:
    runs, end = read(compact({"metadata": METADATA, "items": content}), size=size, run_bytes=run_bytes)
    assert items(runs, end) == content
