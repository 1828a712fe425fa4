"""Limits: what one answer may cost the aggregator."""

from __future__ import annotations

import msgspec

from federator.v1 import inventory_pb2


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one answer may cost; 0 stands for the aggregator's own bound, which none may exceed.

    Attributes:
        time: seconds of work, without waiting for freshness and for the reader.
        scanned_objects: object states read to decide what belongs to the answer.
        memory_bytes: held for the answer at once.
    """

    time: float = 0
    scanned_objects: int = 0
    memory_bytes: int = 0

    def message(self) -> inventory_pb2.Limits:
        """These limits as a message."""
        return inventory_pb2.Limits(
            time_ms=round(self.time * 1000), scanned_objects=self.scanned_objects, memory_bytes=self.memory_bytes
        )
