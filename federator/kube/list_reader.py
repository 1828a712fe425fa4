"""Reading a list while it arrives, so that its body is never in memory as a whole.

A list is one JSON object with the items in an array, and the array is nearly all of it. It is cut between two items,
and each run of whole items is decoded by itself. Where a cut may be is guessed by how the server writes the beginning
of an item; whether it is one is decided by decoding: a run that is cut anywhere else is no JSON.
"""

from __future__ import annotations

import re

import msgspec

from federator.kube.frame_reader import object_end

RUN_BYTES = 256 * 1024
"""Bytes that are gathered before a cut is looked for: about a hundred pods."""

_ITEMS = re.compile(rb'"items"\s*:\s*\[\s*')
_HEAD_BYTES = 64 * 1024
"""How far into a list its items have to begin; a list that begins otherwise is read as a whole."""

_SEPARATOR = re.compile(rb"\s*,\s*")

_GUESSES = 4
"""Cuts tried in one run before more is gathered."""

_ITEM_STARTS = (
    re.compile(rb'\{"metadata":\{'),  # built-in types
    re.compile(rb'\{"apiVersion":"[^"\\]*","kind":"[^"\\]*"'),  # custom resources, and what carries its type
    re.compile(rb"\{"),
)


class ListMeta(msgspec.Struct, rename="camel"):
    """A list's own metadata."""

    resource_version: str | None = None
    continue_: str | None = msgspec.field(default=None, name="continue")


class ListBody(msgspec.Struct):
    """A list with its items undecoded; keys may come in any order, and do: custom resources put items first.

    From a ListReader, `items` are only those that no run has given.
    """

    kind: str = ""
    metadata: ListMeta | None = None
    items: list[msgspec.Raw] | None = None


_decode_run = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_body = msgspec.json.Decoder(ListBody).decode


class ListReader:
    """Takes a body in chunks and gives its items in runs.

    Holds about two runs of bytes, or one item where that is longer. A body of another shape (no items, items that
    begin late, whitespace between them) is held until its end and then read as a whole; the result is the same.
    """

    def __init__(self, *, run_bytes: int = RUN_BYTES) -> None:
        self._run_bytes = run_bytes
        self._before_items = b""
        self._separator = b""
        self._buffer = bytearray()
        self._look_at = run_bytes

    def feed(self, chunk: bytes) -> list[msgspec.Raw]:
        """Takes the next chunk and returns the items that are complete, in order; mostly none."""
        self._buffer += chunk
        if len(self._buffer) < self._look_at:
            return []
        if not self._separator and not self._find_items():
            self._look_at = 1 << 62  # of another shape: read as a whole
            return []
        items = self._cut()
        # After a run without a cut, an item longer than a run, look again only when twice as much is there.
        self._look_at = self._run_bytes if items else 2 * len(self._buffer)
        return items

    def finish(self) -> ListBody:
        """Returns kind and metadata, and the items that are left.

        Raises:
            msgspec.MsgspecError: the body is no list.
        """
        try:
            return _decode_body(self._before_items + bytes(self._buffer))
        except RecursionError:
            return self._finish_deep()
        finally:
            self._buffer = bytearray()

    def _finish_deep(self) -> ListBody:
        if not self._separator and not self._find_items():
            raise msgspec.DecodeError("JSON is nested too deeply")
        items, end = self._split()
        try:
            body = _decode_body(self._before_items + bytes(self._buffer[end:]))
        except RecursionError:
            raise msgspec.DecodeError("JSON is nested too deeply") from None
        body.items = items
        return body

    def _find_items(self) -> bool:
        """Finds where the items begin, and takes what is before them out of the buffer."""
        match = _ITEMS.search(self._buffer, 0, _HEAD_BYTES)
        if match is None:
            return False
        before = bytes(self._buffer[: match.end()])
        try:
            _decode_body(before + b"]}")
        except msgspec.MsgspecError:  # some other "items", deeper inside
            return False
        start = next(
            (found[0] for pattern in _ITEM_STARTS if (found := pattern.match(self._buffer, match.end()))), None
        )
        end = match.end()
        del match  # it pins the buffer against being cut
        if start is None:
            return False
        self._before_items = before
        self._separator = b"}," + bytes(start)
        del self._buffer[:end]
        return True

    def _cut(self) -> list[msgspec.Raw]:
        end = len(self._buffer)
        for _ in range(_GUESSES):
            end = self._buffer.rfind(self._separator, 0, end)
            if end < 0:
                break
            with memoryview(self._buffer) as view:
                run = b"".join((b"[", view[: end + 1], b"]"))
            try:
                items = _decode_run(run)
            except msgspec.MsgspecError:
                continue
            except RecursionError:
                items, end = self._split()
                del self._buffer[:end]
                return items
            del self._buffer[: end + 2]
            return items
        return []

    def _split(self) -> tuple[list[msgspec.Raw], int]:
        """The whole items in the buffer, found by their braces, and where the rest begins.

        For items nested deeper than the decoder goes: whoever decodes them refuses them, and the others are not lost.
        """
        items: list[msgspec.Raw] = []
        start = 0
        while (end := object_end(self._buffer, start)) >= 0:
            items.append(msgspec.Raw(bytes(self._buffer[start:end])))
            separator = _SEPARATOR.match(self._buffer, end)
            start = separator.end() if separator else end
            if separator is None:
                break
        return items, start
