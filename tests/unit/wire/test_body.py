"""Bodies: what is encoded comes back, and nothing else is believed."""

from __future__ import annotations

import os
import threading
import tracemalloc

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from federator.api.resource import GroupResource
from federator.errors import InvalidInput
from federator.wire.body import (
    COMPRESS_FROM_BYTES,
    MAX_COMPRESSORS,
    MAX_DICTIONARY_BYTES,
    MAX_RAW_BYTES,
    BodyCodec,
    Dictionary,
    content_hash,
    decode_body,
    dictionary_of,
    encode_body,
)

MAGIC = b"\x28\xb5\x2f\xfd"
POD = b'{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"x":"' + b"pod " * 300 + b'"}}'


@given(st.binary(max_size=4096))
@example(b"")
@example(MAGIC)
@example(b"x" * (COMPRESS_FROM_BYTES - 1))
@example(b"x" * COMPRESS_FROM_BYTES)
def test_whatever_is_encoded_comes_back(raw: bytes) -> None:
    assert decode_body(encode_body(raw)) == raw


def test_short_json_stays_plain_and_long_json_becomes_one_sized_frame() -> None:
    assert encode_body(b'{"a":1}') == b'{"a":1}'
    body = encode_body(POD)
    assert body.startswith(MAGIC)
    assert len(body) < len(POD) / 4
    assert zstandard.get_frame_parameters(body).content_size == len(POD)


def test_the_largest_object_passes_and_one_byte_more_is_refused_in_both_forms() -> None:
    assert len(decode_body(encode_body(bytes(MAX_RAW_BYTES)))) == MAX_RAW_BYTES
    for body in (b"x" * (MAX_RAW_BYTES + 1), encode_body(bytes(MAX_RAW_BYTES + 1))):
        with pytest.raises(InvalidInput, match="at most"):
            decode_body(body)


def frame_without_size() -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(POD)


def frame_with_dictionary() -> bytes:
    dictionary = zstandard.train_dictionary(1024, [POD + os.urandom(8) for _ in range(200)])
    return zstandard.ZstdCompressor(dict_data=dictionary).compress(POD)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(MAGIC, id="only the magic number"),
        pytest.param(encode_body(POD)[:-5], id="cut"),
        pytest.param(encode_body(POD) + b"{}", id="trailing data"),
        pytest.param(encode_body(POD) * 2, id="two frames"),
        pytest.param(MAGIC + b"\xff" * 64, id="damaged"),
        pytest.param(frame_without_size(), id="no content size"),
        pytest.param(frame_with_dictionary(), id="dictionary"),
    ],
)
def test_a_frame_that_is_not_as_agreed_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="body"):
        decode_body(body)


def test_a_bomb_is_refused_before_memory_is_taken_for_it() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="67108864 bytes"):
            decode_body(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_threads_do_not_share_a_codec() -> None:
    raws = [bytes([n]) * 100_000 for n in range(8)]
    wrong: list[int] = []

    def work(n: int) -> None:
        if any(decode_body(encode_body(raws[n])) != raws[n] for _ in range(50)):
            wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(raws))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_content_hash_is_xxh3_and_stable() -> None:
    assert content_hash(b"") == 0x2D06800538D394C2
    assert content_hash(POD) == content_hash(bytes(bytearray(POD)))
    assert content_hash(POD) != content_hash(POD + b" ")


PODS = GroupResource("", "pods")


def trained(dictionary_id: int) -> bytes:
    """A dictionary for objects that look alike."""
    samples: list[bytes | bytearray | memoryview] = [
        b'{"metadata":{"name":"web-%d","labels":{"app":"web","n":"%d"}},"n":%d}' % (n, n, n) for n in range(500)
    ]
    return zstandard.train_dictionary(1024, samples, dict_id=dictionary_id).as_bytes()


DICTIONARY = Dictionary.of(PODS, trained(40_000))


def with_id(dictionary_id: int) -> bytes:
    """The same dictionary, which training would take its time for, with another ID in its header."""
    return DICTIONARY.content[:4] + dictionary_id.to_bytes(4, "little") + DICTIONARY.content[8:]


SMALL = b'{"metadata":{"name":"web-7","labels":{"app":"web","n":"7"}},"n":7}'


def with_dictionary() -> BodyCodec:
    codec = BodyCodec()
    codec.add(DICTIONARY)
    return codec


def test_a_dictionary_helps_its_type_and_no_other() -> None:
    codec = with_dictionary()
    body = codec.encode(SMALL, PODS)
    assert len(body) < len(SMALL) / 2
    assert dictionary_of(body) == 40_000
    assert codec.decode(body) == SMALL
    assert codec.encode(SMALL, GroupResource("apps", "deployments")) == encode_body(SMALL)


@given(st.binary(max_size=2000))
def test_any_bytes_come_back_with_a_dictionary(raw: bytes) -> None:
    codec = with_dictionary()
    assert codec.decode(codec.encode(raw, PODS)) == raw


def test_a_dictionary_that_is_not_here_is_named() -> None:
    body = with_dictionary().encode(SMALL, PODS)
    for decode in (decode_body, BodyCodec().decode):
        with pytest.raises(InvalidInput, match="dictionary 40000"):
            decode(body)


def test_bounds_hold_with_a_dictionary_too() -> None:
    codec = with_dictionary()
    bomb = codec.encode(bytes(MAX_RAW_BYTES + 1), PODS)
    with pytest.raises(InvalidInput, match="at most"):
        codec.decode(bomb)
    body = codec.encode(SMALL, PODS)
    for broken in (body[:-3], body + b"{}", body * 2):
        with pytest.raises(InvalidInput):
            codec.decode(broken)


def test_others_are_not_compressed_with_any_more_but_still_read_until_forgotten() -> None:
    codec = with_dictionary()
    body = codec.encode(SMALL, PODS)
    codec.use_only({1})
    assert dictionary_of(codec.encode(SMALL, PODS)) == 0
    assert codec.decode(body) == SMALL
    codec.forget_unused({1})
    assert 40_000 not in codec
    with pytest.raises(InvalidInput, match="dictionary 40000"):
        codec.decode(body)


def test_many_types_take_turns_at_the_compressors() -> None:
    codec = BodyCodec()
    types = [GroupResource("", f"type-{number}") for number in range(MAX_COMPRESSORS + 3)]
    for number, type_ in enumerate(types, 40_001):
        codec.add(Dictionary.of(type_, with_id(number)))
    for _ in range(2):
        for number, type_ in enumerate(types, 40_001):
            body = codec.encode(SMALL, type_)
            assert dictionary_of(body) == number
            assert codec.decode(body) == SMALL


@pytest.mark.parametrize("content", [b"", b"no dictionary", b"\x37\xa4\x30\xec", bytes(MAX_DICTIONARY_BYTES + 1)])
def test_what_is_no_dictionary_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match="a zstd dictionary"):
        Dictionary.of(PODS, content)
