"""Framing of a watch: from byte chunks with arbitrary edges to JSON objects.

A watch is a run of JSON objects. Every known apiserver writes each on a line of its own, so a line is tried as a frame
first. That is only a fast path: where a line is not exactly one object (pretty-printed or concatenated objects, no
newline at all) the object's end is found by its braces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from federator.kube.status import undecodable

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Longest frame that is read, in bytes: the limit of the Go client."""

_OUTSIDE_STRING = re.compile(rb'[^"{}]*+')
_INSIDE_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_EVENT = re.compile(rb'\{"type":"([A-Z]+)","object":')
_WHITESPACE = re.compile(rb"[ \t\r\n]*+")
_MAYBE_END = b"} \t\r"
_QUOTE, _BACKSLASH, _OPEN, _CLOSE = b'"\\{}'


class Frame(msgspec.Struct):
    """One object of a watch.

    Attributes:
        type: type of the event; empty where the object is no event at all, such as a bare Status.
        object: JSON of the event's object, or of the whole where it is no event. It refers to the frame's bytes, so
            whoever keeps it keeps the frame.
    """

    type: str = ""
    object: msgspec.Raw = msgspec.Raw()


_decode_frame = msgspec.json.Decoder(Frame).decode


class FrameReader:
    """Collects the chunks of one watch and gives its frames as soon as they are complete.

    Every byte is looked at a bounded number of times, whatever the chunks are. Memory: one frame and one chunk.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        self._begin_frame(0)

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Takes the next bytes and gives the frames they complete; to be iterated to its end before the next call.

        Raises:
            KubeStatusError: `in_stream`, 500, after the frames before it: what came is no JSON object, or longer than
                the limit. Nothing more can be read from this watch.
        """
        self._buffer += chunk
        while (frame := self._next_frame()) is not None:
            yield frame

    def _begin_frame(self, end_of_last: int) -> None:
        # Deleting at the front of a bytearray moves its start, not its content.
        del self._buffer[:end_of_last]
        self._searched = 0
        self._scanning = False
        self._scanned = 0
        self._depth = 0
        self._in_string = False

    def _next_frame(self) -> Frame | None:
        if not self._skip_whitespace():
            return None
        if self._buffer[0] != _OPEN:
            raise undecodable("the watch carries something that is no JSON object", in_stream=True)
        if not self._scanning:
            newline = self._buffer.find(b"\n", self._searched)
            self._check_length(newline)
            if newline >= 0:
                frame = self._line_as_frame(newline)
                if frame is not None:
                    return frame
                self._scanning = True
            elif self._buffer[-1] in _MAYBE_END:
                self._scanning = True
            else:
                self._searched = len(self._buffer)
                return None
        end = self._scan()
        self._check_length(end)
        return self._scanned_frame(end) if end >= 0 else None

    def _skip_whitespace(self) -> bool:
        """Drops whitespace between frames; returns whether anything is left."""
        if self._buffer and self._buffer[0] in b" \t\r\n":
            match = _WHITESPACE.match(self._buffer)
            end = match.end() if match else 0
            del match  # it pins the buffer against being cut
            self._begin_frame(end)
        return bool(self._buffer)

    def _check_length(self, end: int) -> None:
        if (end if end >= 0 else len(self._buffer)) > self._max_frame_bytes:
            raise undecodable(f"the watch carries a frame of more than {self._max_frame_bytes} bytes", in_stream=True)

    def _line_as_frame(self, newline: int) -> Frame | None:
        """The frame, if the first line is exactly one object."""
        line = self._copy(newline)
        try:
            frame = _decoded(line)
        except msgspec.ValidationError as error:
            raise undecodable(f"the watch carries a frame that is no event: {error}", in_stream=True) from None
        except msgspec.DecodeError:
            return None
        self._begin_frame(newline + 1)
        return _checked(frame, line)

    def _scanned_frame(self, end: int) -> Frame:
        text = self._copy(end)
        self._begin_frame(end)
        try:
            return _checked(_decoded(text), text)
        except msgspec.MsgspecError as error:
            raise undecodable(f"the watch carries a frame that is no event: {error}", in_stream=True) from None

    def _copy(self, end: int) -> bytes:
        with memoryview(self._buffer) as view:
            return bytes(view[:end])

    def _scan(self) -> int:
        """Position after the first object, or -1 where it is not complete; goes on where it stopped."""
        self._scanned, self._depth, self._in_string = _scan(self._buffer, self._scanned, self._depth, self._in_string)
        return self._scanned if self._depth == 0 and self._scanned else -1


def object_end(buffer: bytes | bytearray, start: int) -> int:
    """Position after the JSON object that begins at `start`, or -1 where none begins or it is not complete."""
    if buffer[start : start + 1] != b"{":
        return -1
    position, depth, _ = _scan(buffer, start, 0, False)
    return -1 if depth else position


def _scan(buffer: bytes | bytearray, position: int, depth: int, in_string: bool) -> tuple[int, int, bool]:
    """Goes on until the depth is back to 0, or the buffer ends; returns where it stands."""
    while True:
        pattern = _INSIDE_STRING if in_string else _OUTSIDE_STRING
        match = pattern.match(buffer, position)
        position = match.end() if match else position
        del match  # it pins the buffer against growing
        if position == len(buffer) or buffer[position] == _BACKSLASH:
            return position, depth, in_string
        position += 1
        byte = buffer[position - 1]
        if byte == _QUOTE:
            in_string = not in_string
        elif byte == _OPEN:
            depth += 1
        else:
            depth -= 1
            if depth == 0:
                return position, 0, False


def _decoded(text: bytes) -> Frame:
    try:
        return _decode_frame(text)
    except RecursionError:
        # An object nested deeper than the decoder goes. Whoever decodes it will refuse it; the watch goes on.
        match = _EVENT.match(text)
        if match is None:
            raise msgspec.DecodeError("JSON is nested too deeply") from None
        return Frame(match[1].decode(), msgspec.Raw(text[match.end() : text.rstrip().rindex(b"}")]))


def _checked(frame: Frame, text: bytes) -> Frame:
    return frame if frame.type else Frame("", msgspec.Raw(text))
