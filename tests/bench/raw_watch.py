"""A watch that takes its messages as bytes: many of them must not be slower than what serves them."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, NamedTuple

import grpc

from federator.v1 import inventory_pb2

_EVENTS_TAG = 0x0A  # field 1 of WatchResponse, with a length
_TYPE_TAG = 0x08  # field 1 of WatchEvent, a number
_CHANGES = frozenset(
    {
        inventory_pb2.WATCH_EVENT_TYPE_ADDED,
        inventory_pb2.WATCH_EVENT_TYPE_MODIFIED,
        inventory_pb2.WATCH_EVENT_TYPE_DELETED,
    }
)
_MORE = 0x80  # of a number's byte: another follows


class Scanned(NamedTuple):
    """What a message of a watch holds.

    Attributes:
        changes: number of events that tell of an object.
        last: the last of these, still as bytes.
    """

    changes: int
    last: bytes


def scan(message: bytes) -> Scanned:
    """Counts the changes in a serialised WatchResponse, without decoding them.

    Raises:
        ValueError: there is something else in it than events.
    """
    changes = 0
    last_start = last_end = position = 0
    while position < len(message):
        if message[position] != _EVENTS_TAG:
            raise ValueError(f"field tag {message[position]} in a WatchResponse")
        size = message[position + 1]
        position += 2
        if size >= _MORE:
            size &= _MORE - 1
            shift = 7
            while (byte := message[position]) >= _MORE:
                size |= (byte & _MORE - 1) << shift
                shift += 7
                position += 1
            size |= byte << shift
            position += 1
        end = position + size
        # The type comes first in what protobuf writes; where it does not, the event has to be decoded.
        if message[position] == _TYPE_TAG:
            event_type: int = message[position + 1]
        else:
            event_type = inventory_pb2.WatchEvent.FromString(message[position:end]).type
        if event_type in _CHANGES:
            changes += 1
            last_start, last_end = position, end
        position = end
    return Scanned(changes, message[last_start:last_end])


class RawWatch:
    """One watch from a cursor on.

    Attributes:
        events: changes that came.
        last_at: monotonic time of the last message with one.
        arrived: set by each message.
        seen: by cluster, resourceVersion and monotonic time of each change, if it was asked to decode.
    """

    def __init__(self, channel: grpc.aio.Channel, request: bytes, *, decodes: bool) -> None:
        """Opens the call; nothing is read before `read`."""
        self.events = 0
        self.last_at = 0.0
        self.arrived = asyncio.Event()
        self.seen: dict[str, list[tuple[int, float]]] = {}
        self._decodes = decodes
        self._last = b""
        self._revision = 0
        self._call: Any = channel.unary_stream(
            "/federator.v1.InventoryService/Watch", request_serializer=bytes, response_deserializer=None
        )(request)

    async def read(self) -> None:
        """Takes what comes until cancelled; ends the process where the watch ends or goes back."""
        while isinstance(message := await self._call.read(), bytes):
            now = time.monotonic()
            scanned = scan(message)
            if not scanned.changes:
                continue
            self.events += scanned.changes
            self._last = scanned.last
            self.last_at = now
            if self._decodes:
                self._decode(message, now)
            self.arrived.set()
        sys.exit(f"a watch ended: {await self._call.details()}")

    @property
    def revision(self) -> int:
        """Revision of the last change; 0 before the first."""
        return inventory_pb2.WatchEvent.FromString(self._last).revision

    def cancel(self) -> None:
        """Ends the call."""
        self._call.cancel()

    def _decode(self, message: bytes, now: float) -> None:
        for event in inventory_pb2.WatchResponse.FromString(message).events:
            if event.type not in _CHANGES:
                continue
            if event.revision <= self._revision:
                sys.exit(f"revision {event.revision} after {self._revision}")
            self._revision = event.revision
            self.seen.setdefault(event.object.cluster_id, []).append((int(event.object.resource_version), now))
