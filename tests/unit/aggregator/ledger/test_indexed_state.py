from __future__ import annotations

import msgspec
import pytest

from federator.aggregator.ledger.indexed_state import NOTHING_INDEXED, UNKNOWN, UNREAD, IndexedState, read_indexed_state


def test_labels_owners_node_and_age_are_read() -> None:
    raw = msgspec.json.encode(
        {
            "metadata": {
                "name": "x",
                "labels": {"a": "b"},
                "ownerReferences": [{"uid": "u1", "kind": "K"}, {"uid": "u2", "kind": "L", "controller": True}],
                "creationTimestamp": "2026-11-29T10:02:11Z",
            },
            "spec": {"nodeName": "n1", "containers": [{}]},
            "status": {"phase": "Running"},
        }
    )
    assert read_indexed_state(raw) == IndexedState({"a": "b"}, "n1", ("u1", "u2"), created=1795946531, owner_kind="L")


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
    assert read_indexed_state(raw) == NOTHING_INDEXED


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            b'{"metadata":{"labels":{"a":"b","c":1}},"spec":{"nodeName":"n"}}',
            IndexedState({"a": "b"}, "n", (), False, 0),
        ),
        (b'{"metadata":{"labels":["a"],"ownerReferences":[{"uid":"u"}]}}', IndexedState({}, "", ("u",), False, 0)),
        (b'{"metadata":{"ownerReferences":[{"uid":"u"},{"uid":1},"x"]}}', IndexedState({}, "", ("u",), False, 0)),
        (b'{"metadata":{"ownerReferences":"x","labels":{"a":"b"}}}', IndexedState({"a": "b"}, "", (), False, 0)),
        (b'{"metadata":[]}', UNKNOWN),
        (b"[]", UNKNOWN),
        (b"null", UNKNOWN),
        (b"", UNKNOWN),
        (b'{"metadata":', UNKNOWN),
        (b'{"metadata":{"labels":{"a":"\xff"}}}', UNKNOWN),
        (b'{"metadata":{"labels":{"a":"\\ud800"}}}', UNKNOWN),
        (b'{"deep":' + b"[" * 200_000, UNKNOWN),
        (b'{"deep":' + b"[" * 200_000 + b"]" * 200_000 + b"}", UNKNOWN),
    ],
)
def test_what_has_another_shape_is_left_out_and_told(raw: bytes, expected: IndexedState) -> None:
    assert read_indexed_state(raw) == expected


@pytest.mark.parametrize(
    ("timestamp", "seconds"),
    [
        ('"1970-01-01T00:00:01Z"', 1),
        ('"2026-11-29T10:02:11.5+02:00"', 1795939331),
        ('"1969-12-31T23:59:59Z"', 0),
        ('"9999-12-31T23:59:59Z"', 2**32 - 2),
        ('"2026-11-29T10:02:11"', 0),
        ('"yesterday"', 0),
        ("7", 0),
        ("null", 0),
    ],
)
def test_an_age_is_read_where_it_is_one(timestamp: str, seconds: int) -> None:
    assert read_indexed_state(f'{{"metadata":{{"creationTimestamp":{timestamp}}}}}'.encode()).created == seconds


def test_states_of_before_ages_were_read_say_so() -> None:
    written = msgspec.msgpack.encode(({"a": "b"}, "n1", ("u1",), True))
    assert msgspec.msgpack.decode(written, type=IndexedState).created == UNREAD
