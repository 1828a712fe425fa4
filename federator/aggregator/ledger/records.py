"""What goes into the ledger and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeGuard

import msgspec

from federator.aggregator.ledger.indexed_state import NOTHING_INDEXED, IndexedState
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource, ResourceType


class Put(msgspec.Struct, frozen=True, gc=False):
    """A session says: this object exists in this state.

    Attributes:
        namespace: empty for cluster-scoped types.
        name: the object's name.
        uid: its UID; another one than stored makes a deletion and an addition.
        resource_version: the member's, verbatim.
        content_hash: xxh3-64 of the JSON after transforms; equal to what is stored commits nothing.
        body: the JSON, plain or as one zstd frame (`federator.wire.body`).
        indexed: what the indexes need of it.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    content_hash: int
    body: bytes
    indexed: IndexedState = NOTHING_INDEXED


class Delete(msgspec.Struct, frozen=True, gc=False):
    """A session says: this object is gone. Unknown objects commit nothing."""

    namespace: str
    name: str


class Batch(msgspec.Struct, frozen=True):
    """What one frame of a session asks to commit; applied whole or not at all.

    Attributes:
        cluster_id: the member, from the session's proven identity, never from an item.
        term: the session's term; a lower one than stored refuses the batch.
        sequence: the frame's sequence; at or below the durable one, the batch commits nothing. 0 for a batch that is
            not numbered, such as all but the last of a frame that needs several.
        type: the type of all changes.
        changes: at most `MAX_CHANGES`.
        low_water: resourceVersion up to which the type is complete after this batch, or "".
        skips_older: a Put that is older by resourceVersion than what is stored of the same UID is skipped: it is an
            item of a listing, or had to wait for long.
        listed_version: resourceVersion of the listing whose items these are; "" where that is not known, or there is
            none. An older item is skipped only if what is stored is newer than that, too: then a server that lags was
            listed. Else the cluster's versions have gone back, the item is taken, and the commit says so.
        generation: how often the cluster was restored, as the type is told from now on; None to leave it.
        is_replayed: the changes waited outside the order of the others. A Put of an object that is not stored, no newer
            than what the type is complete up to, is skipped: it was deleted since.
    """

    cluster_id: ClusterID
    term: int
    sequence: int
    type: ResourceType
    changes: tuple[Put | Delete, ...] = ()
    low_water: str = ""
    skips_older: bool = False
    listed_version: str = ""
    generation: int | None = None
    is_replayed: bool = False


MAX_CHANGES = 1024
"""Changes in one commit; with bodies of 1 KB a commit stays near 1 MiB."""


class EntryType(IntEnum):
    """Type of a ledger entry."""

    ADDED = 1
    MODIFIED = 2
    DELETED = 3
    CLUSTER = 4
    TYPE = 5


class ObjectEntry(msgspec.Struct, frozen=True, gc=False):
    """A committed change of one object.

    Attributes:
        revision: its place in the federation's order; unique, only grows.
        previous_revision: revision of the same object's previous change of the same UID, 0 for ADDED.
        type: ADDED, MODIFIED or DELETED.
        time_ms: commit time, milliseconds since 1970, never below the previous commit's.
        key: which object.
        api_version: e.g. `apps/v1`, of the body.
        uid: its UID.
        resource_version: the member's, of this state; for DELETED the last known.
        content_hash: of this state.
        body: of this state; empty for DELETED, whose last state is the entry at `previous_revision`.
        indexed: of this state; nothing for DELETED.
        follows: for ADDED, the revision of the DELETED that the same key had before, if history still had it; else 0.
            So the versions of a key are one chain, whatever objects they were of.
    """

    revision: int
    previous_revision: int
    type: EntryType
    time_ms: int
    key: ObjectKey
    api_version: str
    uid: str
    resource_version: str
    content_hash: int
    body: bytes
    indexed: IndexedState = NOTHING_INDEXED
    follows: int = 0


class ClusterEntry(msgspec.Struct, frozen=True):
    """A committed change of a member's state, or of its labels.

    Attributes:
        revision: as in ObjectEntry.
        time_ms: as in ObjectEntry.
        cluster_id: the member.
        state: entered.
        previous_state: left; None for a new member, REMOVED for one that comes back, the same where only the labels
            have changed.
        reason: for people.
        labels: the member's own, from here on; none in entries of before there were any.
        previous_labels: what they were before, where they have changed; None where they have not, or there was no such
            member.
    """

    revision: int
    time_ms: int
    cluster_id: ClusterID
    state: ClusterState
    previous_state: ClusterState | None = None
    reason: str = ""
    labels: Mapping[str, str] = {}
    previous_labels: Mapping[str, str] | None = None

    @property
    def is_transition(self) -> bool:
        """Whether the state has changed, and not the labels alone."""
        return self.state is not self.previous_state


class TypeEntry(msgspec.Struct, frozen=True):
    """A committed change of one type's state in one member.

    Attributes:
        revision: as in ObjectEntry.
        time_ms: as in ObjectEntry.
        cluster_id: the member.
        resource_type: the type.
        state: entered.
        reason: for people.
    """

    revision: int
    time_ms: int
    cluster_id: ClusterID
    resource_type: ResourceType
    state: TypeState
    reason: str = ""


Entry = ObjectEntry | ClusterEntry | TypeEntry


def has_new_state(entry: Entry) -> TypeGuard[ClusterEntry | TypeEntry]:
    """Whether an entry says that a member, or a type of it, has entered a state; a change of labels alone does not."""
    return isinstance(entry, TypeEntry) or (isinstance(entry, ClusterEntry) and entry.is_transition)


class DigestChange(msgspec.Struct, frozen=True, gc=False):
    """By how much a commit changes what the objects of one type in one cluster add up to (`federator.wire.digest`).

    Attributes:
        cluster_id: the cluster.
        resource: the type.
        count: objects more, or fewer.
        sum: difference of the sums; not reduced, and possibly negative.
    """

    cluster_id: ClusterID
    resource: GroupResource
    count: int
    sum: int


class Commit(msgspec.Struct, frozen=True):
    """One durable run of entries with growing revisions; may be empty when nothing differed.

    Attributes:
        revision: newest revision of the ledger after it.
        entries: the entries, in order.
        low_water: (cluster, type, resourceVersion) of bookmarks that became durable with it; "" where one became void.
        before: by revision, what the indexes hold of an object before that entry; missing where there was nothing, and
            UNKNOWN where the entry before is damaged. It spares whoever applies the commit reading those entries.
        digests: by how much the digests of types change. Objects whose state is lost to damage are in none.
        has_gone_back: an item of a listing was older than what was stored, though that was no newer than the listing:
            the cluster was restored.
    """

    revision: int
    entries: tuple[Entry, ...] = ()
    low_water: tuple[tuple[ClusterID, GroupResource, str], ...] = ()
    before: Mapping[int, IndexedState] = {}
    digests: tuple[DigestChange, ...] = ()
    has_gone_back: bool = False


class ClusterRecord(msgspec.Struct, frozen=True):
    """What the ledger keeps of one member.

    Attributes:
        cluster_id: its ID.
        cluster_uid: its UID.
        display_name: its name before normalising.
        server_version: its apiserver's version.
        source: where its credentials came from.
        namespace: the agent's narrowing, empty for all.
        label_selector: the agent's narrowing, empty for all.
        state: present state.
        reason: why, for people.
        since_ms: when it entered the state.
        term: of the newest session.
        agent_instance: of the newest session.
        durable_sequence: last sequence of that instance that is durable.
        labels: the cluster's own, as its agent told them with the newest session.
        labels_revision: of the entry that changed them last; 0 where they are as they were when it joined.
    """

    cluster_id: ClusterID
    cluster_uid: str
    display_name: str = ""
    server_version: str = ""
    source: str = ""
    namespace: str = ""
    label_selector: str = ""
    state: ClusterState = ClusterState.JOINING
    reason: str = ""
    since_ms: int = 0
    term: int = 0
    agent_instance: str = ""
    durable_sequence: int = 0
    labels: Mapping[str, str] = {}
    labels_revision: int = 0


class TypeRecord(msgspec.Struct, frozen=True):
    """What the ledger keeps of one type in one member.

    Attributes:
        cluster_id: the member.
        type: the type as its discovery describes it.
        state: present state.
        reason: why, for people.
        low_water: resourceVersion up to which everything is here, or "".
        generation: how often the cluster was restored, as far as this type was told.
    """

    cluster_id: ClusterID
    type: ResourceType
    state: TypeState = TypeState.SYNCING
    reason: str = ""
    low_water: str = ""
    generation: int = 0


class Transition(msgspec.Struct, frozen=True):
    """A state that a member, or one of its types, entered.

    Attributes:
        revision: of the entry that says so.
        since_ms: from when on nothing better can be said of it, milliseconds since 1970: the time of the entry; where
            the aggregator was away (`RESTARTED`), that of the newest entry before it went.
        state: of a ClusterState or a TypeState the value.
        reason: for people.
    """

    revision: int
    since_ms: int
    state: str
    reason: str = ""


RESTARTED = "aggregator restarted"
"""Reason of a member that is STALE because the aggregator has begun anew, and was away before."""


class StoredKey(msgspec.Struct, frozen=True, gc=False):
    """A present object as the ledger's table of them knows it.

    Attributes:
        namespace: empty for cluster-scoped types.
        name: its name.
        revision: of its newest entry.
        fingerprint: of its state as a whole, the state hash of `federator.wire.digest`; LOST where that is lost.
    """

    namespace: str
    name: str
    revision: int
    fingerprint: int


LOST = -1
"""Fingerprint of an object whose state is lost to damage. Fingerprints are not negative, so none equals it."""
