"""The replay: history as segments, for watches that stand further back than the ring of recent commits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import Entry
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.serve.segment import SLICE, Segment
from federator.errors import CursorExpired

MAX_BYTES = 16 * 1024 * 1024
"""Of segments kept, with what has been decoded and encoded of them."""


class Replay:
    """Reads the ledger in segments whose ends do not depend on where a reader began.

    So readers that came from different positions soon read the same segments, each of which is read and decoded once
    while it is kept.
    """

    def __init__(self, ledger: Ledger, types: ResourceTypes, max_bytes: int = MAX_BYTES) -> None:
        self._ledger = ledger
        self._types = types
        self._max_bytes = max_bytes
        self._kept: OrderedDict[int, Segment] = OrderedDict()
        self._bytes = 0
        self._reads = 0

    def segment_after(self, position: int, until: int) -> Segment | None:
        """Returns the changes that follow a position.

        The ledger does not tell where its commits end, but all entries of one have the same time. So entries of one
        time count as one commit, which may join commits and never splits one.

        Args:
            position: a revision.
            until: a revision at which a commit ends; nothing after it is returned.

        Returns:
            None where there is nothing between the two.

        Raises:
            CursorExpired: what follows the position is compacted.
        """
        if position < self._ledger.oldest_revision:  # also where a segment is still kept: a state before it may not be
            raise CursorExpired(position, self._ledger.oldest_revision)
        segment = self._kept.get(position)
        if segment is None or segment.revision > until:
            segment = self._read(position, until)
            if segment is not None:
                self._keep(position, segment)
        else:
            self._kept.move_to_end(position)
        return segment

    def grow(self, number: int) -> None:
        """Counts bytes that a segment has grown by, and lets the oldest go where it is too much."""
        self._bytes += number
        while len(self._kept) > 1 and self._bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._let_go(oldest)

    def statistics(self) -> Mapping[str, int]:
        """Bytes kept, and segments read from the ledger so far."""
        return {"replay_bytes": self._bytes, "replay_reads": self._reads}

    def _read(self, position: int, until: int) -> Segment | None:
        self._reads += 1
        entries = self._ledger.read(position, 2 * SLICE + 1)
        if not entries or entries[0].revision > until:
            return None
        end, ends_commit = _end_of_segment(entries, until)
        return Segment(
            position,
            [(entry.time_ms, entry) for entry in entries[:end]],
            self._ledger,
            self._types,
            ends_commit=ends_commit,
            holder=self,
        )

    def _keep(self, position: int, segment: Segment) -> None:
        former = self._kept.pop(position, None)
        if former is not None:
            self._let_go(former)
        self._kept[position] = segment
        self.grow(segment.bytes)

    def _let_go(self, segment: Segment) -> None:
        self._bytes -= segment.bytes
        segment.holder = None


def _end_of_segment(entries: Sequence[Entry], until: int) -> tuple[int, bool]:
    """How many of some entries make a segment, and whether a commit ends with them.

    It ends with the first commit that goes up to a round revision or beyond, whichever entry it begins with; where that
    goes far beyond, at the round revision.
    """
    round_revision = -(-entries[0].revision // SLICE) * SLICE
    at_round = 0
    for index, following in enumerate(entries[1:], 1):
        if following.revision > until:
            return index, True
        if following.revision > round_revision:
            if following.time_ms != entries[index - 1].time_ms:
                return index, True
            at_round = at_round or index
            if following.revision > round_revision + SLICE:
                return at_round, False
    return len(entries), True
