from __future__ import annotations

import msgspec
import pytest

from federator.aggregator.ledger.indexed_state import IndexedState, read_indexed_state


def test_labels_owners_and_node_are_read() -> None:
    raw = msgspec.json.encode(
        {
            "metadata": {
                "name": "x",
                "labels": {"a": "b"},
                "ownerReferences": [{"uid": "u1", "kind": "K"}, {"uid": "u2"}],
            },
            "spec": {"nodeName": "n1", "containers": [{}]},
            "status": {"phase": "Running"},
        }
    )
    assert read_indexed_state(raw) == IndexedState({"a": "b"}, "n1", ("u1", "u2"))


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b'{"metadata":null,"spec":null}',
        b'{"metadata":{"labels":null,"ownerReferences":null}}',
        b'{"metadata":{"ownerReferences":[]}}',
        b'{"metadata":{},"spec":"a string"}',
        b'{"metadata":{},"spec":["a"]}',
        b'{"metadata":{},"spec":{"nodeName":5}}',
    ],
)
def test_what_is_not_there_is_empty(raw: bytes) -> None:
    assert read_indexed_state(raw) == IndexedState()


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"metadata":{"labels":{"a":"b","c":1}},"spec":{"nodeName":"n"}}', IndexedState({"a": "b"}, "n", (), False)),
        (b'{"metadata":{"labels":["a"],"ownerReferences":[{"uid":"u"}]}}', IndexedState({}, "", ("u",), False)),
        (b'{"metadata":{"ownerReferences":[{"uid":"u"},{"uid":1},"x"]}}', IndexedState({}, "", ("u",), False)),
        (b'{"metadata":{"ownerReferences":"x","labels":{"a":"b"}}}', IndexedState({"a": "b"}, "", (), False)),
        (b'{"metadata":[]}', IndexedState(is_whole=False)),
        (b"[]", IndexedState(is_whole=False)),
        (b"null", IndexedState(is_whole=False)),
        (b"", IndexedState(is_whole=False)),
        (b'{"metadata":', IndexedState(is_whole=False)),
        (b'{"metadata":{"labels":{"a":"\xff"}}}', IndexedState(is_whole=False)),
        (b'{"metadata":{"labels":{"a":"\\ud800"}}}', IndexedState(is_whole=False)),
        (b'{"deep":' + b"[" * 200_000, IndexedState(is_whole=False)),
        (b'{"deep":' + b"[" * 200_000 + b"]" * 200_000 + b"}", IndexedState(is_whole=False)),
    ],
)
def test_what_has_another_shape_is_left_out_and_told(raw: bytes, expected: IndexedState) -> None:
    assert read_indexed_state(raw) == expected
