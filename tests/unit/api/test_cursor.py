from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.api.cursor import LENGTH, CursorCodec
from federator.errors import CursorForeign, CursorForged, CursorMalformed

CODEC = CursorCodec(b"ledger-1", b"secret")


@given(st.integers(0, 2**53))
def test_a_cursor_reads_back_and_has_one_length(revision: int) -> None:
    cursor = CODEC.encode(revision)
    assert len(cursor) == LENGTH <= 64
    assert CODEC.decode(cursor) == revision


@pytest.mark.parametrize(
    "cursor", [b"", b"x", b"not a cursor", b"A" * 43, b"A" * 400, b"\xff\x00", CODEC.encode(5)[:-4]]
)
def test_what_is_no_cursor_is_malformed(cursor: bytes) -> None:
    with pytest.raises(CursorMalformed):
        CODEC.decode(cursor)


def test_another_version_is_malformed() -> None:
    raw = bytearray(base64.urlsafe_b64decode(CODEC.encode(5)))
    raw[0] = 2
    with pytest.raises(CursorMalformed):
        CODEC.decode(base64.urlsafe_b64encode(raw))


def test_a_cursor_of_another_ledger_is_foreign_whatever_its_revision() -> None:
    with pytest.raises(CursorForeign):
        CODEC.decode(CursorCodec(b"ledger-2", b"secret").encode(5))


def test_a_cursor_of_this_ledger_by_another_secret_is_forged() -> None:
    with pytest.raises(CursorForged):
        CODEC.decode(CursorCodec(b"ledger-1", b"guessed").encode(5))


@given(st.integers(0, 32), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(position: int, flip: int) -> None:
    raw = bytearray(base64.urlsafe_b64decode(CODEC.encode(12345)))
    raw[position] ^= flip
    with pytest.raises((CursorMalformed, CursorForeign, CursorForged)):
        CODEC.decode(base64.urlsafe_b64encode(raw))
