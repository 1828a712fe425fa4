"""The watch hub: recent commits, from which live watchers are fed.

Watchers pull: each one holds a position and asks for what comes after it. The hub keeps one bounded ring for all of
them and no queue for any, so a slow reader costs no memory: it falls behind the ring and reads from the ledger.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Protocol

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import Commit, Entry
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.serve.audience import Audience, Audiences
from federator.aggregator.serve.bookmark_clock import BookmarkClock
from federator.aggregator.serve.portions import Portions
from federator.aggregator.serve.question import Question
from federator.aggregator.serve.replay import Replay
from federator.aggregator.serve.segment import SLICE, Segment
from federator.errors import AggregatorUnreachable, CursorExpired, LimitReached, SelectionChanged, WatchTooSlow

MAX_ENTRIES = 8192
"""Entries in the ring: 8 s at 1,000 changes a second, longer than any pause a healthy watcher makes."""

MAX_BYTES = 32 * 1024 * 1024
"""Bytes in the ring, bodies as stored and whatever watchers had decoded and encoded of them."""

MAX_WATCHES = 20_000
"""Watches at once: each takes up to 32 KiB while idle, so these take 640 MB."""

MESSAGE_SECONDS = 100e-6
"""About what one message of a stream costs, whatever is in it, in this loop and in gRPC's threads."""

MIN_PAUSE = 0.001
MAX_PAUSE = 0.05
"""Bounds of the seconds between two publications under load."""

_READ = 512


class Watcher(Protocol):
    """What the hub has to know of a watch.

    Attributes:
        position: revision up to which it has read; the hub moves it past what does not concern a watch that waits.
        is_waiting: whether it has read everything that concerns it.
    """

    position: int
    is_waiting: bool


class WatchHub:
    """Commits in revision order, the newest of them at hand.

    What holds:

    - *In order, complete*: `segment_after` returns what follows a position, and none is left out.
    - *Bounded*: by `max_entries` and `max_bytes`, in which what watchers have decoded counts. Beyond either the oldest
      leave, and a watcher behind them becomes lagging. The newest commit always stays.
    - *Decided alike*: a live and a lagging watcher see an entry through the same `Change`.
    - *Waking whom it may concern*: a commit costs nothing for watchers of other types, clusters, namespaces or names.
    - *Together*: commits that come at once are published together. At rest a commit is published in the next step of
      the event loop. Under load there is a pause between two publications of twice the time that their messages take,
      or that most watchers took to send the last, if that is longer: a message costs much the same whatever is in it,
      so this bounds what watchers cost, and leaves time for commits, which have many short ways through the same loop.

    Compaction must stay at or below `floor`: an entry's previous state is read from the ledger.
    """

    def __init__(
        self,
        ledger: Ledger,
        types: ResourceTypes,
        *,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        max_watches: int = MAX_WATCHES,
    ) -> None:
        """Starts at the ledger's present revision, with nothing in the ring.

        Args:
            ledger: where entries' previous states are.
            types: tells the kinds of objects.
            max_entries: bound of the ring.
            max_bytes: bound of the ring.
            max_watches: how many may be open at once.
        """
        self._ledger = ledger
        self._types = types
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._max_watches = max_watches
        self._ring: deque[Segment] = deque()
        self._entries = 0
        self._bytes = 0
        self._revision = self._floor = ledger.revision
        self._pending: list[tuple[int, Entry]] = []
        self._publication: asyncio.Handle | None = None
        self._published_at = self._returned_at = 0.0
        self._pause = MIN_PAUSE
        self._woken: list[Watcher] = []
        self._replay = Replay(ledger, types)
        self._audiences = Audiences()
        self._is_closed = False
        self._watchers: set[Watcher] = set()
        self._ends: Counter[str] = Counter()
        self.portions = Portions()
        self.clock = BookmarkClock()
        self.events: Counter[str] = Counter()

    @property
    def revision(self) -> int:
        """Newest revision published."""
        return self._revision

    @property
    def floor(self) -> int:
        """Revision after which everything published is in the ring; a commit ends there."""
        return self._floor

    @property
    def is_closed(self) -> bool:
        """Whether every watch is to end."""
        return self._is_closed

    def load(self) -> None:
        """Fills the ring with the newest history, once, before anything is published. Blocks until done.

        So watchers that come back after a restart find there, decoded once for all of them, what they have missed.
        """
        start = max(self._ledger.oldest_revision, self._revision - self._max_entries)
        position = start
        for time_ms, entries in groupby(self._history(start), key=lambda entry: entry.time_ms):
            commit = [(time_ms, entry) for entry in entries]
            if position > start or start == self._ledger.oldest_revision:  # else its beginning may be missing
                self._add(position, commit)
            else:
                self._floor = commit[-1][1].revision
            position = commit[-1][1].revision
        if self._ring:
            self._floor = self._ring[0].after

    def publish(self, commit: Commit) -> None:
        """Takes in a commit that the merged view has applied, and has it published soon. Never waits."""
        self._pending += [(commit.revision, entry) for entry in commit.entries]
        if self._pending and self._publication is None:
            loop = asyncio.get_running_loop()
            self._publication = loop.call_at(max(loop.time(), self._published_at + self._pause), self.flush)

    def flush(self) -> None:
        """Publishes what was taken in, and wakes the watchers whom it may concern."""
        if self._publication is not None:
            self._publication.cancel()
            self._publication = None
        pending, self._pending = self._pending, []
        if not pending:
            return
        before = self._revision
        self._revision = pending[-1][1].revision
        self._add(before, pending)
        late = [each for each in self._woken if not each.is_waiting and each in self._watchers]
        now = asyncio.get_running_loop().time()
        is_behind = len(late) > len(self._woken) // 2
        taken = (now if is_behind else self._returned_at) - self._published_at
        self._woken = late
        for audience in self._audiences.concerned_by([entry for _, entry in pending]):
            audience.concerned_at = self._revision
            self._woken += _wake(audience, before)
        least = len(self._woken) * MESSAGE_SECONDS
        self._pause = min(MAX_PAUSE, max(MIN_PAUSE, 2 * taken, 2 * least))
        self._published_at = now

    def grow(self, number: int) -> None:
        """Counts bytes that the ring has grown by, and lets the oldest whole commits go where it is too large."""
        self._bytes += number
        while self._entries > self._max_entries or self._bytes > self._max_bytes:
            ends = next((index for index, segment in enumerate(self._ring, 1) if segment.ends_commit), len(self._ring))
            if ends >= len(self._ring):
                return
            for _ in range(ends):
                oldest = self._ring.popleft()
                self._entries -= len(oldest.changes)
                self._bytes -= oldest.bytes
                oldest.holder = None
                self._floor = oldest.revision

    def segment_after(self, position: int) -> Segment | None:
        """Returns the first segment with changes after a position, from the ring or from the ledger; None at the end.

        Raises:
            CursorExpired: what follows the position is compacted.
        """
        if position < self._floor:
            segment = self._replay.segment_after(position, self._floor)
            if segment is not None:
                return segment
        if position >= self._revision:
            return None
        if position < self._ring[0].revision:
            return self._ring[0]
        index = bisect_right(self._ring, position, key=lambda segment: segment.revision)
        return self._ring[index]

    async def wait(self, watcher: Watcher, audience: Audience) -> None:
        """Returns once something was published that may concern a watcher, `wake` was called, or the hub is closed.

        Moves the watcher's position past what does not concern it.
        """
        if self._is_closed or watcher.position < self._revision:
            return
        loop = asyncio.get_running_loop()
        self._returned_at = loop.time()
        woken = loop.create_future()
        audience.waiting[watcher] = woken
        watcher.is_waiting = True
        try:
            await woken
        finally:
            watcher.is_waiting = False
            audience.waiting.pop(watcher, None)

    def wake(self, watcher: Watcher, audience: Audience) -> None:
        """Lets a watcher that waits go on, at the newest revision: nothing up to it concerns it."""
        woken = audience.waiting.pop(watcher, None)
        if woken is not None and not woken.done():
            watcher.position = self._revision
            woken.set_result(None)

    def close(self) -> None:
        """Ends every watch: each client is sent what is there, and told to come back."""
        self.flush()
        self._is_closed = True
        for audience in self._audiences:
            for watcher in list(audience.waiting):
                self.wake(watcher, audience)

    @contextmanager
    def audience(self, question: Question) -> Iterator[Audience]:
        """Makes the caller a member of a question's audience for as long as the block runs."""
        audience = self._audiences.join(question, self._revision)
        try:
            yield audience
        finally:
            self._audiences.leave(audience)

    @contextmanager
    def watching(self, watcher: Watcher) -> Iterator[None]:
        """Counts a watcher, and why it ends, for as long as the block runs.

        Raises:
            LimitReached: there are as many watches as are allowed.
        """
        if len(self._watchers) >= self._max_watches:
            raise LimitReached("watches", self._max_watches)
        self._watchers.add(watcher)
        reason = "failed"
        try:
            yield
        except WatchTooSlow:
            reason = "slow"
            raise
        except CursorExpired:
            reason = "expired"
            raise
        except SelectionChanged:
            reason = "relabelled"
            raise
        except (asyncio.CancelledError, AggregatorUnreachable):
            reason = "shutdown" if self._is_closed else "client"
            raise
        finally:
            self._watchers.discard(watcher)
            self._ends[reason] += 1

    def statistics(self) -> Mapping[str, int]:
        """Watchers by state and how far behind, the ring's fill and bounds, events by type, ends by reason."""
        positions = [watcher.position for watcher in self._watchers if not watcher.is_waiting]
        lagging = sum(position < self._floor for position in positions)
        return {
            "watchers_live": len(self._watchers) - lagging,
            "watchers_lagging": lagging,
            "watch_audiences": len(self._audiences),
            "watch_behind_revisions": max((self._revision - position for position in positions), default=0),
            "ring_segments": len(self._ring),
            "ring_entries": self._entries,
            "ring_max_entries": self._max_entries,
            "ring_bytes": self._bytes,
            "ring_max_bytes": self._max_bytes,
            **self._replay.statistics(),
            **self.portions.statistics(),
            **{f"watch_events_{name}": number for name, number in self.events.items()},
            **{f"watch_ends_{reason}": number for reason, number in self._ends.items()},
        }

    def _add(self, after: int, entries: Sequence[tuple[int, Entry]]) -> None:
        """Appends whole commits to the ring, in segments, none of which splits a commit that fits into one."""
        start = 0
        while start < len(entries):
            end = _end_of_segment(entries, start)
            ends_commit = end == len(entries) or entries[end][0] != entries[end - 1][0]
            piece = entries[start:end]
            start = end
            segment = Segment(after, piece, self._ledger, self._types, ends_commit=ends_commit, holder=self)
            after = segment.revision
            self._ring.append(segment)
            self._entries += len(piece)
            self.grow(segment.bytes)

    def _history(self, position: int) -> Iterator[Entry]:
        while entries := self._ledger.read(position, _READ):
            yield from entries
            position = entries[-1].revision


def _end_of_segment(entries: Sequence[tuple[int, Entry]], start: int) -> int:
    """Where the segment that begins at an index ends: with a commit, unless that has more than `SLICE` entries."""
    end = start + SLICE
    if end >= len(entries):
        return len(entries)
    return next((index for index in range(end, start, -1) if entries[index - 1][0] != entries[index][0]), end)


def _wake(audience: Audience, before: int) -> list[Watcher]:
    """Wakes those that wait, and returns them; what was published up to `before` does not concern them."""
    waiting, audience.waiting = audience.waiting, {}
    for watcher, woken in waiting.items():
        watcher.position = before
        if not woken.done():
            woken.set_result(None)
    return list(waiting)
