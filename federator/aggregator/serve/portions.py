"""What segments mean for questions, remembered for the next watch that asks the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from federator.aggregator.serve.audience import Audience
from federator.aggregator.serve.segment import Portion, Segment, portion_of

MAX_BYTES = 16 * 1024 * 1024
"""Of portions kept. Watches of one audience read a segment within milliseconds of each other; this is half a second of
10,000 events a second."""

PORTION_BYTES = 512
EVENT_BYTES = 64
"""Counted for a portion and for each event in it, besides its encoded bytes."""


class Portions:
    """The portions that were evaluated last, within a bound of bytes, each while its audience has members."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[Audience, int, int], Portion] = OrderedDict()
        self._bytes = 0
        self._evaluations = 0

    def find(self, segment: Segment, position: int, audience: Audience) -> Portion | None:
        """Returns what the changes of a segment after a position mean for an audience, where that is known."""
        return self._kept.get((audience, max(position, segment.after), segment.revision))

    def evaluate(self, segment: Segment, position: int, audience: Audience) -> Portion:
        """Finds it out.

        Raises:
            CursorExpired: a previous state is compacted.
        """
        self._evaluations += 1
        portion = portion_of(segment, position, audience.question)
        self._kept[audience, max(position, segment.after), segment.revision] = portion
        self._bytes += _bytes(portion)
        while self._bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= _bytes(oldest)
        return portion

    def statistics(self) -> Mapping[str, int]:
        """Bytes kept, and how often one was not known."""
        return {"portion_bytes": self._bytes, "portion_evaluations": self._evaluations}


def _bytes(portion: Portion) -> int:
    return PORTION_BYTES + EVENT_BYTES * len(portion.events) + len(portion.encoded)
