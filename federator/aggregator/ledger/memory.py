"""The ledger in memory: for tests and throw-away runs."""

from __future__ import annotations

import asyncio
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from federator.aggregator.ledger.ledger import KEYS_PER_SLICE, CommitListener
from federator.aggregator.ledger.members import Members
from federator.aggregator.ledger.planning import (
    Head,
    Plan,
    at,
    chain,
    check_revision,
    first_revision,
    outlived_by,
    plan_append,
    plan_cluster_state,
    plan_session,
    plan_type_state,
)
from federator.aggregator.ledger.records import (
    Batch,
    ClusterEntry,
    ClusterRecord,
    Commit,
    Entry,
    EntryType,
    ObjectEntry,
    StoredKey,
    Transition,
    TypeEntry,
    TypeRecord,
    has_new_state,
)
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.cursor import CursorCodec
from federator.api.duration_histogram import DurationHistogram
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource, ResourceType
from federator.errors import CursorExpired, InvalidInput, LedgerCorrupt, LedgerError, LedgerFull
from federator.wire.body import BodyCodec, Dictionary

DEFAULT_MAX_BYTES = 1 << 30
"""Room for entries, in bytes; history counts until it is compacted."""

ENTRY_BYTES = 512
"""Counted for an entry besides its body: about what its key, texts and table slots take."""


class _Present(Members):
    """The present state: the members, and the head of every object. It is the view that plans are made from."""

    def __init__(self, revision: int, state: Callable[[int], ObjectEntry | None]) -> None:
        super().__init__()
        self.state = state
        self.revision = revision
        self.time_ms = 0
        self._heads: dict[ClusterID, dict[GroupResource, dict[tuple[str, str], Head]]] = {}
        self._deletions: dict[ObjectKey, int] = {}

    def apply(self, plan: Plan) -> None:
        super().apply(plan)
        self.revision = plan.commit.revision
        self.time_ms = plan.time_ms
        for key, head in plan.heads.items():
            heads = self._heads.setdefault(key.cluster_id, {}).setdefault(key.group_resource, {})
            if head is None:
                heads.pop((key.namespace, key.name), None)
            else:
                heads[key.namespace, key.name] = head
        for key, revision in plan.deletions.items():
            if revision:
                self._deletions[key] = revision
            else:
                self._deletions.pop(key, None)

    def deletion(self, key: ObjectKey) -> int:
        return self._deletions.get(key, 0)

    def forget_deletion(self, key: ObjectKey, revision: int) -> None:
        if self._deletions.get(key) == revision:
            del self._deletions[key]

    def head(self, key: ObjectKey) -> Head | None:
        return self.heads_of(key.cluster_id, key.group_resource).get((key.namespace, key.name))

    def heads_of(self, cluster_id: ClusterID, resource: GroupResource) -> Mapping[tuple[str, str], Head]:
        return self._heads.get(cluster_id, {}).get(resource, {})

    def heads(self) -> Iterator[Head]:
        for by_type in self._heads.values():
            for by_name in by_type.values():
                yield from by_name.values()


class MemoryLedger:
    """A `Ledger` that lasts as long as the process.

    Each commit is made and told before the call returns, without yielding. It keeps every promise of the seam, with
    the process as the medium.
    """

    def __init__(self, *, max_bytes: int = DEFAULT_MAX_BYTES, clock: Callable[[], float] = time.time) -> None:
        """Starts empty.

        Args:
            max_bytes: room for entries; a batch that does not fit raises LedgerFull.
            clock: seconds since 1970.
        """
        self._clock = clock
        self._max_bytes = max_bytes
        self._cursors = CursorCodec(secrets.token_bytes(8), secrets.token_bytes(32))
        self._bodies = BodyCodec()
        self._listener: CommitListener | None = None
        self._oldest = first_revision(self._now_ms())
        self._oldest_time_ms = 0
        self._present = _Present(self._oldest, self.entry)
        self._log: dict[int, Entry] = {}
        self._history: list[int] = []  # the revisions after the oldest, in order; `_log` has survivors before it too
        self._transitions: dict[tuple[ClusterID, GroupResource | None], list[Transition]] = {}
        self._bytes = 0
        self._batches = 0
        self._durations = DurationHistogram()
        self._is_open = True

    @property
    def cursors(self) -> CursorCodec:
        """Writes and reads this ledger's cursors."""
        return self._cursors

    @property
    def bodies(self) -> BodyCodec:
        """As the seam says."""
        return self._bodies

    @property
    def revision(self) -> int:
        """Newest revision told to `on_commit`."""
        return self._present.revision

    @property
    def oldest_revision(self) -> int:
        """Oldest revision `read` can start after."""
        return self._oldest

    @property
    def oldest_time_ms(self) -> int:
        """As the seam says."""
        return self._oldest_time_ms

    @property
    def commit_durations(self) -> DurationHistogram:
        """How long commits took, telling included."""
        return self._durations

    def on_commit(self, listener: CommitListener) -> None:
        """Sets the one listener; call before the first append."""
        self._listener = listener

    async def open_session(self, wanted: ClusterRecord) -> ClusterRecord:
        """As the seam says."""
        plan, record = plan_session(self._present, wanted, self._now_ms())
        self._commit(plan)
        return record

    async def append(self, batch: Batch) -> Commit:
        """As the seam says; never waits."""
        plan = plan_append(self._present, batch, self._now_ms())
        if plan.commit.entries and self._bytes + _bytes_of(plan.commit.entries) > self._max_bytes:
            raise LedgerFull("memory")
        self._batches += 1
        return self._commit(plan)

    async def set_cluster_state(self, cluster_id: ClusterID, state: ClusterState, reason: str = "") -> Commit:
        """As the seam says."""
        return self._commit(plan_cluster_state(self._present, cluster_id, state, reason, self._now_ms()))

    async def set_type_state(
        self, cluster_id: ClusterID, resource_type: ResourceType, state: TypeState, reason: str = ""
    ) -> Commit:
        """As the seam says."""
        return self._commit(plan_type_state(self._present, cluster_id, resource_type, state, reason, self._now_ms()))

    async def add_dictionary(self, dictionary: Dictionary) -> None:
        """As the seam says."""
        self._bodies.add(dictionary)

    def read(self, after_revision: int, limit: int) -> Sequence[Entry]:
        """As the seam says."""
        if after_revision < self._oldest:
            raise CursorExpired(after_revision, self._oldest)
        start = bisect_right(self._history, after_revision)
        return [self._log[revision] for revision in self._history[start : start + limit]]

    def entry(self, revision: int) -> ObjectEntry | None:
        """As the seam says."""
        entry = self._log.get(revision)
        return entry if isinstance(entry, ObjectEntry) else None

    def entries(self, revisions: Iterable[int]) -> Iterator[tuple[int, ObjectEntry | LedgerCorrupt | None]]:
        """As the seam says."""
        for revision in revisions:
            try:
                yield revision, self.entry(revision)
            except LedgerCorrupt as error:
                yield revision, error

    def at(self, key: ObjectKey, revision: int) -> ObjectEntry | None:
        """As the seam says."""
        check_revision(revision, self._oldest, self.revision)
        return at(self.versions(key), revision)

    def versions(self, key: ObjectKey) -> Iterator[ObjectEntry]:
        """As the seam says."""
        return chain(self.entry, self.newest(key))

    def present(self) -> Iterator[ObjectEntry]:
        """As the seam says; the revision is that of the call."""
        entries = [self.entry(head.revision) for head in self._present.heads()]
        return iter([entry for entry in entries if entry is not None])

    def keys(self, cluster_id: ClusterID, resource: GroupResource) -> Iterator[StoredKey]:
        """As the seam says; the revision is that of the call."""
        heads = self._present.heads_of(cluster_id, resource)
        return iter([_stored_key(names, head) for names, head in heads.items()])

    def key_slices(self, cluster_id: ClusterID, resource: GroupResource) -> Iterator[Sequence[StoredKey]]:
        """As the seam says; at the revision of the call."""
        keys = self.keys(cluster_id, resource)
        while taken := list(islice(keys, KEYS_PER_SLICE)):
            yield taken

    def stored(self, key: ObjectKey) -> StoredKey | None:
        """As the seam says."""
        head = self._present.head(key)
        return None if head is None else _stored_key((key.namespace, key.name), head)

    def newest(self, key: ObjectKey) -> int:
        """As the seam says."""
        head = self._present.head(key)
        return head.revision if head else self._present.deletion(key)

    def transitions(self, cluster_id: ClusterID, resource: GroupResource | None = None) -> Sequence[Transition]:
        """As the seam says."""
        return tuple(self._transitions.get((cluster_id, resource), ()))

    def clusters(self) -> Mapping[ClusterID, ClusterRecord]:
        """As the seam says."""
        return self._present.by_id()

    def types(self, cluster_id: ClusterID) -> Sequence[TypeRecord]:
        """As the seam says."""
        return self._present.types(cluster_id)

    async def turn(self) -> None:
        """As the seam says."""
        await asyncio.sleep(0)

    async def compact(self, revision: int) -> int:
        """As the seam says; in one step."""
        if revision > self.revision:
            raise InvalidInput("revision", revision, f"at most the newest, {self.revision}")
        end = bisect_right(self._history, revision)
        if end:
            self._oldest_time_ms = self._log[self._history[end - 1]].time_ms
        outlived = [gone for passed in self._history[:end] for gone in outlived_by(self._log[passed])]
        for gone in outlived:
            entry = self._log.pop(gone)
            self._bytes -= _bytes_of((entry,))
            if isinstance(entry, ObjectEntry) and entry.type is EntryType.DELETED:
                self._present.forget_deletion(entry.key, gone)
        del self._history[:end]
        self._oldest = max(self._oldest, revision)
        for known in self._transitions.values():
            del known[: _last_at(known, self._oldest)]
        return len(outlived)

    def revision_at(self, time_ms: int) -> int:
        """As the seam says."""
        end = bisect_right(self._history, time_ms, key=lambda revision: self._log[revision].time_ms)
        return self._history[end - 1] if end else self._oldest

    def statistics(self) -> Mapping[str, int | float]:
        """As the seam says; `bytes` is what counts against the bound."""
        return {
            "revision": self.revision,
            "oldest_revision": self._oldest,
            "entries": len(self._log),
            "objects": sum(1 for _ in self._present.heads()),
            "bytes": self._bytes,
            "max_bytes": self._max_bytes,
            "batches": self._batches,
            "commits": self._durations.count,
            "commit_seconds": self._durations.sum,
            "last_commit_seconds": self._durations.last,
        }

    async def close(self) -> None:
        """Takes nothing any more; what is there can still be read."""
        self._is_open = False

    def _note_transition(self, entry: ClusterEntry | TypeEntry) -> None:
        resource = entry.resource_type.group_resource if isinstance(entry, TypeEntry) else None
        transition = Transition(entry.revision, entry.time_ms, entry.state, entry.reason)
        self._transitions.setdefault((entry.cluster_id, resource), []).append(transition)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _commit(self, plan: Plan) -> Commit:
        if not self._is_open:
            raise LedgerError("the ledger is closed")
        started = time.perf_counter()
        self._present.apply(plan)
        for entry in plan.commit.entries:
            self._log[entry.revision] = entry
            self._history.append(entry.revision)
            if has_new_state(entry):
                self._note_transition(entry)
        self._bytes += _bytes_of(plan.commit.entries)
        if plan.is_told and self._listener is not None:
            self._listener(plan.commit)
        self._durations.observe(time.perf_counter() - started)
        return plan.commit


def _last_at(known: Sequence[Transition], revision: int) -> int:
    """Index of the last transition at or before a revision; 0 where there is none."""
    return max(bisect_right(known, revision, key=lambda transition: transition.revision) - 1, 0)


def _stored_key(names: tuple[str, str], head: Head) -> StoredKey:
    return StoredKey(*names, head.revision, head.fingerprint)


def _bytes_of(entries: Sequence[Entry]) -> int:
    return sum(ENTRY_BYTES + len(entry.body) if isinstance(entry, ObjectEntry) else ENTRY_BYTES for entry in entries)
