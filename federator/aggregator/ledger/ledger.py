"""The ledger seam: one durable order over all changes of all clusters.

Promises of every driver, checked by one contract suite:

- *Ordered and unique*: each entry has its own revision; revisions only grow, also over restarts and over a lost and
  rebuilt ledger (a new one starts at seconds since 1970 x 2^20). They stay below 2^53.
- *Atomic*: a batch is committed whole or not at all.
- *Durable before it is told*: `append` returns, and `on_commit` is called, after the driver's medium has it.
- *In order*: `on_commit` sees every commit that has entries, low water or digests once, in revision order, on the event
  loop, before the call that made it returns. Calls take effect in the order in which they were made.
- *Summed up*: what the `digests` of all commits add up to is the digest of what `keys` gives, without what is LOST.
- *Idempotent*: a batch whose sequence is already durable for its agent instance commits nothing. Sequence 0 is not
  numbered: it is never a duplicate and makes no sequence durable.
- *Fenced*: a batch of an older term than the cluster's newest session raises `SessionFenced`.
- *Resumable*: `read` returns exactly the entries after a revision, or raises `CursorExpired`; never a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from federator.aggregator.ledger.records import (
    Batch,
    ClusterRecord,
    Commit,
    Entry,
    ObjectEntry,
    StoredKey,
    Transition,
    TypeRecord,
)
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.cursor import CursorCodec
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource, ResourceType
from federator.errors import LedgerCorrupt
from federator.wire.body import BodyCodec, Dictionary

ENTRIES_PER_LOT = 64
"""Entries that `Ledger.entries` reads at once: some 0.5 ms."""

KEYS_PER_SLICE = 512
"""Keys in one slice of `key_slices`: some 2 ms with what is done about each."""

CommitListener = Callable[[Commit], None]
"""Called on the event loop for every commit, in order; must not raise or block."""


class Ledger(Protocol):
    """One order over all changes. All methods are called on one event loop."""

    @property
    def cursors(self) -> CursorCodec:
        """Writes and reads this ledger's cursors."""
        ...

    @property
    def bodies(self) -> BodyCodec:
        """Reads bodies; knows every dictionary that a body in the ledger may need, once `add_dictionary` returned."""
        ...

    @property
    def revision(self) -> int:
        """Newest revision told to `on_commit`."""
        ...

    @property
    def oldest_revision(self) -> int:
        """Oldest revision `read` can start after."""
        ...

    @property
    def oldest_time_ms(self) -> int:
        """When the entry at `oldest_revision` was committed, milliseconds since 1970.

        0 where nothing was before it, or that is not known. What was before that time, history cannot tell.
        """
        ...

    def on_commit(self, listener: CommitListener) -> None:
        """Sets the one listener; call before the first append."""
        ...

    async def open_session(self, wanted: ClusterRecord) -> ClusterRecord:
        """Records that an agent instance has opened a session, and returns the stored record.

        The term is one more than the last; `durable_sequence` is kept where the agent instance is the same and 0
        otherwise. State, reason and since_ms of `wanted` are ignored: a new member is committed as JOINING.

        A member that comes back after REMOVED starts anew, with any UID: it is JOINING, nothing of its former agent's
        sequences counts, and its types are ABSENT without low water. So a cluster takes over the ID of another
        one by REMOVED, deleting batches, and a new session.

        Raises:
            InvalidInput: the ID is malformed.
            ClusterUIDChanged: the ID is known with another UID (and is not REMOVED).
            ClusterUIDKnown: the UID is a member under another ID.
        """
        ...

    async def append(self, batch: Batch) -> Commit:
        """Commits what differs from what is stored, and returns when it is durable.

        An object whose UID changed becomes a DELETED and an ADDED entry. A type nobody has told of becomes known as
        SYNCING, with its TypeEntry in the same commit. Cancelling the caller does not undo the batch.

        Raises:
            SessionFenced: a newer session exists.
            UnknownCluster: it never opened a session, or it is REMOVED and the batch has more than deletions.
            InvalidInput: more than MAX_CHANGES, a term no session has, or a type whose names cannot be real.
            LedgerFull: no room; nothing was changed.
            LedgerError: the medium failed, or the ledger is closed.
        """
        ...

    async def set_cluster_state(self, cluster_id: ClusterID, state: ClusterState, reason: str = "") -> Commit:
        """Commits a state change of a member; an unchanged state commits nothing.

        REMOVED keeps the record, so that history stays readable; the caller deletes the objects by batches.

        Raises:
            UnknownCluster: it never opened a session.
        """
        ...

    async def set_type_state(
        self, cluster_id: ClusterID, resource_type: ResourceType, state: TypeState, reason: str = ""
    ) -> Commit:
        """Commits a state change of a type; an unchanged state, description and reason commits nothing.

        Objects of the type stay; the caller deletes them by batches where they must go. Its low water stays too.

        Raises:
            UnknownCluster: the cluster never opened a session.
            InvalidInput: the type's names cannot be real.
        """
        ...

    async def add_dictionary(self, dictionary: Dictionary) -> None:
        """Keeps a dictionary for good; bodies of its type may be compressed with it once this returns.

        Raises:
            LedgerFull: no room.
            LedgerError: the medium failed, or the ledger is closed.
        """
        ...

    def read(self, after_revision: int, limit: int) -> Sequence[Entry]:
        """Returns up to `limit` entries after a revision, in order. Brief: never blocks on a commit.

        Raises:
            CursorExpired: entries after it have been compacted.
        """
        ...

    def entry(self, revision: int) -> ObjectEntry | None:
        """Returns the object entry at a revision, or None where compaction has passed it."""
        ...

    def entries(self, revisions: Iterable[int]) -> Iterator[tuple[int, ObjectEntry | LedgerCorrupt | None]]:
        """Yields each revision with what `entry` returns for it; a damaged one with the error, which is not raised.

        They are read some at a time, each lot at once: for many it takes half the time. Between two lots others may
        have their turn.
        """
        ...

    def at(self, key: ObjectKey, revision: int) -> ObjectEntry | None:
        """Returns the entry that made an object what it was at a revision; None where it was not present then.

        Takes a step for each later version of the key.

        Raises:
            CursorExpired: the revision is before `oldest_revision`.
            CursorAhead: it is after `revision`.
        """
        ...

    def versions(self, key: ObjectKey) -> Iterator[ObjectEntry]:
        """Iterates the entries of a key, newest first, as far back as history reaches.

        Deletions are among them, and what was deleted before under the same key. The oldest may be of a time before
        `oldest_revision`, which is what the object was then.
        """
        ...

    def present(self) -> Iterator[ObjectEntry]:
        """Iterates the newest entry of every present object, at one revision, in no stated order.

        The revision is `revision`, or a later one while appends are on their way.
        """
        ...

    def keys(self, cluster_id: ClusterID, resource: GroupResource) -> Iterator[StoredKey]:
        """Iterates the present objects of one type in one cluster, at one revision, as `present` does."""
        ...

    def key_slices(self, cluster_id: ClusterID, resource: GroupResource) -> Iterator[Sequence[StoredKey]]:
        """Iterates the same in slices of at most `KEYS_PER_SLICE`, between which others may have their turn.

        Each object that is present all the while is in one slice; those that are changed meanwhile may be in any state.
        """
        ...

    def stored(self, key: ObjectKey) -> StoredKey | None:
        """Returns what `keys` has of one object, or None where it is not present."""
        ...

    def newest(self, key: ObjectKey) -> int:
        """Returns the revision of the newest entry of a key, where `versions` begins; 0 where history has none."""
        ...

    def transitions(self, cluster_id: ClusterID, resource: GroupResource | None = None) -> Sequence[Transition]:
        """Returns the states that a member, or one type of it, entered, in order, as far back as history reaches.

        The first may be of a time before `oldest_revision`: it is the one that it was in then. Of a member or type that
        never was there are none.

        Args:
            cluster_id: the member, or former member.
            resource: the type; None for the member itself.
        """
        ...

    def clusters(self) -> Mapping[ClusterID, ClusterRecord]:
        """The members, as of `revision`."""
        ...

    def types(self, cluster_id: ClusterID) -> Sequence[TypeRecord]:
        """The types of one member, as of `revision`."""
        ...

    async def turn(self) -> None:
        """Lets others work, and returns when the ledger is not slowed down by whoever works on the loop for long."""
        ...

    async def compact(self, revision: int) -> int:
        """Forgets history up to a revision, keeping each key's newest state at or below it; returns entries dropped.

        So the `previous_revision` of every entry that can still be read can be read, too. Of the states of clusters and
        types the one that each was in at the revision is kept as a transition.

        Raises:
            InvalidInput: the revision is newer than `revision`.
        """
        ...

    def revision_at(self, time_ms: int) -> int:
        """The newest revision committed at or before a time; `oldest_revision` where the time is older."""
        ...

    def statistics(self) -> Mapping[str, int | float]:
        """Revisions, entries, bytes, commits, seconds spent committing."""
        ...

    async def close(self) -> None:
        """Commits what was appended, then releases the medium; again does nothing."""
        ...
