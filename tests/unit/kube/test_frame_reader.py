"""Bytes to frames, whatever the edges."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.errors import KubeStatusError
from federator.kube.frame_reader import Frame, FrameReader

OBJECT = '{"metadata":{"name":"grüße-漢字-🚀","annotations":{"a":"}{\\"\\\\","b":"\\n]["}}}'
EVENT = f'{{"type":"ADDED","object":{OBJECT}}}'


LIMIT = 100_000
"""Bytes of a frame, where the limit is the point: `test_a_frame_of_17_mib` has the one that clients have."""


def read(*chunks: bytes, reader: FrameReader | None = None) -> list[tuple[str, bytes]]:
    reader = reader or FrameReader()
    return [flat(frame) for chunk in chunks for frame in reader.feed(chunk)]


def flat(frame: Frame) -> tuple[str, bytes]:
    return frame.type, bytes(frame.object)


EXPECTED = ("ADDED", OBJECT.encode())


@pytest.mark.parametrize(
    "text",
    [
        f"{EVENT}\n{EVENT}\n",
        f"{EVENT}{EVENT}",
        f"{EVENT} {EVENT}\r\n",
        f"\n\n{EVENT}\n\n  {EVENT}\n",
        f"{EVENT}{EVENT}\n{EVENT}\n",
    ],
    ids=["lines", "concatenated", "crlf", "blank lines", "mixed"],
)
def test_every_split_gives_the_same_frames(text: str) -> None:
    data = text.encode()
    whole = [EXPECTED] * text.count(EVENT)
    assert read(data) == whole
    for edge in range(len(data) + 1):
        assert read(data[:edge], data[edge:]) == whole
    assert read(*(bytes([byte]) for byte in data)) == whole


def test_pretty_printed_frames_at_every_split() -> None:
    pretty = json.dumps(json.loads(EVENT), indent=2, ensure_ascii=False)
    data = f"{pretty}\n{EVENT}\n{pretty}\n".encode()
    for edge in range(len(data) + 1):
        frames = read(data[:edge], data[edge:])
        assert [frame_type for frame_type, _ in frames] == ["ADDED"] * 3
        assert [json.loads(raw) for _, raw in frames] == [json.loads(OBJECT)] * 3


def test_a_frame_is_given_with_its_last_byte() -> None:
    reader = FrameReader()
    data = EVENT.encode()
    assert list(reader.feed(data[:-1])) == []
    assert [flat(frame) for frame in reader.feed(data[-1:])] == [EXPECTED]


@given(st.lists(st.text(), min_size=1, max_size=5), st.data())
def test_any_text_at_any_edges(names: list[str], data: st.DataObject) -> None:
    separator = data.draw(st.sampled_from(["\n", "", " "]))
    indent = data.draw(st.sampled_from([None, 1]))
    events = [{"type": "ADDED", "object": {"name": name}} for name in names]
    body = "".join(json.dumps(event, ensure_ascii=False, indent=indent) + separator for event in events)
    encoded = body.encode("utf-8", "surrogatepass")
    edges = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=6)))
    chunks = [encoded[start:end] for start, end in zip([0, *edges], [*edges, len(encoded)], strict=True)]
    assert [json.loads(raw) for _, raw in read(*chunks)] == [event["object"] for event in events]


def test_an_object_that_is_no_event_is_given_whole() -> None:
    status = b'{"kind":"Status","code":410}'
    assert read(status) == [("", status)]


def test_frames_before_garbage_are_given() -> None:
    reader = FrameReader()
    frames = []
    with pytest.raises(KubeStatusError) as caught:
        for frame in reader.feed(f"{EVENT}\n<html>".encode()):
            frames.append(flat(frame))  # noqa: PERF401  # a comprehension would lose them
    assert frames == [EXPECTED]
    assert (caught.value.code, caught.value.status_reason, caught.value.in_stream) == (500, "InternalError", True)


@pytest.mark.parametrize(
    "garbage",
    [b"[]\n", b"5", b"}", b"\xff\xfe", b'{"type":5,"object":{}}\n', b'{"type":5}', b'{"type":"ADDED","object":{1}}\n'],
)
def test_garbage_is_an_error(garbage: bytes) -> None:
    with pytest.raises(KubeStatusError):
        read(garbage)


@pytest.mark.parametrize("end", [b'"}}\n', b""], ids=["complete", "endless"])
def test_a_frame_above_the_limit_is_an_error(end: bytes) -> None:
    data = b'{"type":"ADDED","object":{"a":"' + b"x" * LIMIT + end
    with pytest.raises(KubeStatusError, match=f"more than {LIMIT} bytes"):
        read(*pieces(data), reader=FrameReader(LIMIT))


def test_a_frame_just_below_the_limit_is_read() -> None:
    padding = b"x" * (LIMIT - len(b'{"type":"ADDED","object":{"a":""}}'))
    data = b'{"type":"ADDED","object":{"a":"' + padding + b'"}}'
    frames = read(*pieces(data), b"\n", reader=FrameReader(LIMIT))
    assert [len(raw) for _, raw in frames] == [len(padding) + len(b'{"a":""}')]


def pieces(data: bytes) -> Iterator[bytes]:
    return (data[start : start + 1000] for start in range(0, len(data), 1000))


@pytest.mark.parametrize("end", [b"}", b"x"], ids=["looks like an end", "does not"])
def test_the_work_grows_with_the_bytes_not_with_the_chunks(end: bytes) -> None:
    # A quadratic reader goes over 128 GB here, so the test's time limit is the assertion.
    head, tail = b'{"type":"ADDED","object":{"a":"', b'"}}\n'
    assert len(read(head, *[b"x" * 639 + end] * 20_000, tail)) == 1
