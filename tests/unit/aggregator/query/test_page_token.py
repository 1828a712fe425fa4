from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.query.page_token import LENGTH, PageTokenCodec, Place, binding
from federator.api.cursor import CursorCodec
from federator.errors import PageTokenForeign, PageTokenMalformed
from federator.v1 import inventory_pb2

CODEC = PageTokenCodec.of(CursorCodec(b"ledger-1", b"secret"))
BOUND = b"b" * 16
PLACE = Place(884213, 500, 884200)
_numbers = st.integers(0, 2**53)


@given(st.builds(Place, _numbers, _numbers, _numbers), st.binary(min_size=16, max_size=16))
def test_a_token_reads_back_and_has_one_length(place: Place, bound_to: bytes) -> None:
    token = CODEC.encode(place, bound_to)
    assert len(token) == LENGTH
    assert CODEC.decode(token, bound_to) == place


@pytest.mark.parametrize(
    "token",
    [
        b"x",
        b"not a token",
        b"A" * 87,
        b"A" * 88,
        b"\xff\x00",
        CODEC.encode(PLACE, BOUND)[:-4],
        CursorCodec(b"ledger-1", b"secret").encode(5),
        PageTokenCodec(b"ledger-2", b"secret").encode(PLACE, BOUND),
        PageTokenCodec(b"ledger-1", b"guessed").encode(PLACE, BOUND),
    ],
)
def test_what_this_ledger_did_not_make_is_malformed(token: bytes) -> None:
    with pytest.raises(PageTokenMalformed) as refused:
        CODEC.decode(token, BOUND)
    assert refused.value.field == "page_token"


def test_the_token_of_another_request_is_foreign() -> None:
    with pytest.raises(PageTokenForeign):
        CODEC.decode(CODEC.encode(PLACE, BOUND), b"c" * 16)


@given(st.integers(0, LENGTH * 3 // 4 - 2), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(position: int, flip: int) -> None:
    raw = bytearray(base64.urlsafe_b64decode(CODEC.encode(PLACE, BOUND)))
    raw[position] ^= flip
    with pytest.raises((PageTokenMalformed, PageTokenForeign)) as refused:
        CODEC.decode(base64.urlsafe_b64encode(raw), BOUND)
    assert isinstance(refused.value, PageTokenMalformed)


def test_a_request_is_bound_in_all_but_how_it_is_read() -> None:
    request = inventory_pb2.ListRequest(
        selection=inventory_pb2.Selection(resources=["pods"], label_selector="a=b"), order_by="name", at_revision=5
    )
    bound_to = binding(request)
    free = inventory_pb2.ListRequest(page_size=5, page_token=b"t", limits=inventory_pb2.Limits(time_ms=1))
    free.MergeFrom(request)
    assert binding(free) == bound_to
    for change in (
        {"limit": 1},
        {"order_by": "age"},
        {"at_revision": 6},
        {"at_time_ms": 5},
        {"read_mask": ["a"]},
        {"count_only": True},
        {"fresh_within_ms": 1},
        {"fresh_as_of": [inventory_pb2.FreshAsOf(cluster_id="a")]},
        {"selection": inventory_pb2.Selection(clusters=["a"])},
    ):
        other = inventory_pb2.ListRequest()
        other.CopyFrom(request)
        other.MergeFrom(inventory_pb2.ListRequest(**change))
        assert binding(other) != bound_to
