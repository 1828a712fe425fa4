"""The watch hub: recent commits, from which live watchers are fed.

Watchers pull: each one holds a position and asks for what comes after it. The hub keeps one bounded ring for all of
them and no queue for any, so a slow reader costs no memory: it falls behind the ring and reads from the ledger.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ClusterEntry, Commit, Entry, ObjectEntry
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.serve.change import Change
from federator.api.resource import GroupResource
from federator.errors import AggregatorUnreachable, CursorExpired, WatchTooSlow

MAX_ENTRIES = 8192
"""Entries in the ring: 8 s at 1,000 changes a second, longer than any pause a healthy watcher makes."""

MAX_BYTES = 32 * 1024 * 1024
"""Bytes in the ring, bodies as stored and whatever watchers had decoded of them."""

ENTRY_BYTES = 512
"""Counted for an entry besides its body."""


class PublishedCommit:
    """A commit in the ring.

    Attributes:
        revision: newest revision after it.
        changes: its entries.
        bytes: what it counts in the ring: bodies as stored, and what has been decoded of them.
        hub: whose ring it is in; None once it left.
    """

    __slots__ = ("_resources", "bytes", "changes", "hub", "revision")

    def __init__(self, commit: Commit, ledger: Ledger, types: ResourceTypes, hub: WatchHub) -> None:
        self.revision = commit.revision
        self.bytes = sum(map(_stored_bytes, commit.entries))
        self.changes = tuple(Change(entry, ledger, types, self._grow) for entry in commit.entries)
        self.hub: WatchHub | None = hub
        self._resources = {_resource_of(entry) for entry in commit.entries}

    def may_concern(self, resources: frozenset[GroupResource]) -> bool:
        """Whether a watcher of these types has to look at the changes."""
        return None in self._resources or not self._resources.isdisjoint(resources)

    def _grow(self, number: int) -> None:
        self.bytes += number
        if self.hub is not None:
            self.hub.grow(number)


class Watcher(Protocol):
    """What the hub has to know of a watch."""

    @property
    def position(self) -> int:
        """Revision up to which everything has been handed to its client."""
        ...


class WatchHub:
    """Commits in revision order, the newest of them at hand.

    What holds:

    - *In order, complete*: `next_commit` returns the first commit after a position that is at or after `floor`;
      none is left out.
    - *Bounded*: by `max_entries` and `max_bytes`, in which what watchers have decoded counts. Beyond either the oldest
      commits leave, and a watcher behind them becomes lagging. The newest commit always stays.
    - *Decided alike*: a live and a lagging watcher see an entry through the same `Change`.

    Compaction must stay at or below `floor`: an entry's previous state is read from the ledger.
    """

    def __init__(
        self, ledger: Ledger, types: ResourceTypes, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES
    ) -> None:
        """Starts at the ledger's present revision.

        Args:
            ledger: where entries' previous states are.
            types: tells the kinds of objects.
            max_entries: bound of the ring.
            max_bytes: bound of the ring.
        """
        self._ledger = ledger
        self._types = types
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._ring: deque[PublishedCommit] = deque()
        self._entries = 0
        self._bytes = 0
        self._revision = self._floor = ledger.revision
        self._published = asyncio.Event()
        self._is_closed = False
        self._watchers: set[Watcher] = set()
        self._ends: Counter[str] = Counter()
        self.events: Counter[str] = Counter()

    @property
    def revision(self) -> int:
        """Newest revision published."""
        return self._revision

    @property
    def floor(self) -> int:
        """Revision after which every commit is in the ring."""
        return self._floor

    def publish(self, commit: Commit) -> None:
        """Takes in a commit that the merged view has applied, and wakes the watchers. Never waits."""
        self._revision = commit.revision
        if not commit.entries:
            return
        published = PublishedCommit(commit, self._ledger, self._types, self)
        self._ring.append(published)
        self._entries += len(published.changes)
        self.grow(published.bytes)
        self._wake()

    def grow(self, number: int) -> None:
        """Counts bytes that the ring has grown by, and lets the oldest commits go where it is too large."""
        self._bytes += number
        while len(self._ring) > 1 and (self._entries > self._max_entries or self._bytes > self._max_bytes):
            oldest = self._ring.popleft()
            self._entries -= len(oldest.changes)
            self._bytes -= oldest.bytes
            oldest.hub = None
            self._floor = oldest.revision

    def next_commit(self, position: int) -> PublishedCommit | None:
        """Returns the first commit with entries after a position.

        None where there is none, or where the position is before `floor` and the ledger has to be asked.
        """
        if not self._floor <= position < self._revision:
            return None
        index = bisect_right(self._ring, position, key=lambda published: published.revision)
        return self._ring[index] if index < len(self._ring) else None

    def change(self, entry: Entry) -> Change:
        """Returns an entry from the ledger as a change that nobody else looks at."""
        return Change(entry, self._ledger, self._types, lambda _: None)

    async def wait(self, position: int, until: float) -> None:
        """Returns once something was published after a position, or at a time of the loop's clock.

        Raises:
            AggregatorUnreachable: the hub is closed.
        """
        if self._is_closed:
            raise AggregatorUnreachable("the aggregator", "it is shutting down")
        if self._revision > position:
            return
        try:
            async with asyncio.timeout_at(until):
                await self._published.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """Ends every watch: each client is told to come back."""
        self._is_closed = True
        self._wake()

    @contextmanager
    def watching(self, watcher: Watcher) -> Iterator[None]:
        """Counts a watcher, and why it ends, for as long as the block runs."""
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
        except (asyncio.CancelledError, AggregatorUnreachable):
            reason = "shutdown" if self._is_closed else "client"
            raise
        finally:
            self._watchers.discard(watcher)
            self._ends[reason] += 1

    def statistics(self) -> Mapping[str, int]:
        """Watchers by state and how far behind, the ring's fill and bounds, events by type, ends by reason."""
        positions = [watcher.position for watcher in self._watchers]
        lagging = sum(position < self._floor for position in positions)
        return {
            "watchers_live": len(positions) - lagging,
            "watchers_lagging": lagging,
            "watch_behind_revisions": max((self._revision - position for position in positions), default=0),
            "ring_commits": len(self._ring),
            "ring_entries": self._entries,
            "ring_max_entries": self._max_entries,
            "ring_bytes": self._bytes,
            "ring_max_bytes": self._max_bytes,
            **{f"watch_events_{name}": number for name, number in self.events.items()},
            **{f"watch_ends_{reason}": number for reason, number in self._ends.items()},
        }

    def _wake(self) -> None:
        self._published.set()
        self._published = asyncio.Event()


def _stored_bytes(entry: Entry) -> int:
    return ENTRY_BYTES + (len(entry.body) if isinstance(entry, ObjectEntry) else 0)


def _resource_of(entry: Entry) -> GroupResource | None:
    """The type whose watchers an entry may concern; None for all watchers."""
    if isinstance(entry, ClusterEntry):
        return None
    return entry.key.group_resource if isinstance(entry, ObjectEntry) else entry.resource_type.group_resource
