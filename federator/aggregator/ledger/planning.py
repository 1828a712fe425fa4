"""The rules of the ledger: what a request changes, given what is stored.

Pure functions, one per kind of request, shared by every driver: they read a `View` and return a `Plan`, and refuse a
request before anything is written. A driver makes the plan durable, whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec
from xxhash import xxh3_64_intdigest

from federator.aggregator.ledger.indexed_state import UNKNOWN, IndexedState
from federator.aggregator.ledger.records import (
    LOST,
    MAX_CHANGES,
    Batch,
    ClusterEntry,
    ClusterRecord,
    Commit,
    Delete,
    DigestChange,
    Entry,
    EntryType,
    ObjectEntry,
    Put,
    TypeEntry,
    TypeRecord,
)
from federator.api.cluster import ClusterID, ClusterState, TypeState, is_stand_in, parse_cluster_id
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource, ResourceType
from federator.api.resource_version import compare, is_older
from federator.errors import (
    ClusterUIDChanged,
    ClusterUIDKnown,
    CursorAhead,
    CursorExpired,
    InvalidInput,
    LedgerCorrupt,
    LedgerError,
    SessionFenced,
    UnknownCluster,
)
from federator.wire.body import Dictionary
from federator.wire.digest import key_hash, leaf, state_hash

_MAX_GROUP = 253
_MAX_RESOURCE = 63
_REVISION_SHIFT = 20
_MAX_BASE = 1 << 52


class Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is known of a present object without reading its newest entry: enough for most changes.

    Attributes:
        revision: of its newest entry.
        fingerprint: of its state as a whole, the state hash of digests; an equal one says that nothing has changed.
        identity: of its UID and what the indexes hold; an equal one says that neither has changed.
    """

    revision: int
    fingerprint: int
    identity: int


def head_of(revision: int, state: State) -> Head:
    """The head of an object that took a state at a revision."""
    return Head(
        revision,
        state_hash(state.content_hash, state.api_version, state.uid),
        identity(state.uid, state.indexed),
    )


def identity(uid: str, indexed: IndexedState) -> int:
    """One number for which object it is and where the indexes have it."""
    return xxh3_64_intdigest(_encode((uid, indexed)))


_encode = msgspec.msgpack.Encoder().encode


class State(Protocol):
    """What a change has to know of the state before it; attributes as in ObjectEntry."""

    @property
    def api_version(self) -> str:
        """E.g. `apps/v1`."""
        ...

    @property
    def uid(self) -> str:
        """The object's."""
        ...

    @property
    def resource_version(self) -> str:
        """The member's."""
        ...

    @property
    def content_hash(self) -> int:
        """Of the JSON."""
        ...

    @property
    def indexed(self) -> IndexedState:
        """What the indexes hold; UNKNOWN where the state could not be read, and nothing else of it is true either."""
        ...


class View(Protocol):
    """What the ledger holds, as the rules read it: one state, which does not change while a plan is made."""

    @property
    def revision(self) -> int:
        """Newest revision given away."""
        ...

    @property
    def time_ms(self) -> int:
        """Time of the newest entry."""
        ...

    def cluster(self, cluster_id: ClusterID) -> ClusterRecord | None:
        """The record of one member."""
        ...

    def clusters(self) -> Iterable[ClusterRecord]:
        """All members, the removed ones too."""
        ...

    def type(self, cluster_id: ClusterID, resource: GroupResource) -> TypeRecord | None:
        """The record of one type of a member."""
        ...

    def types(self, cluster_id: ClusterID) -> Iterable[TypeRecord]:
        """All types of a member."""
        ...

    def head(self, key: ObjectKey) -> Head | None:
        """The head of a present object."""
        ...

    def state(self, revision: int) -> State | None:
        """The state that an object took at a revision.

        Raises:
            LedgerCorrupt: it is damaged.
        """
        ...

    def deletion(self, key: ObjectKey) -> int:
        """Revision of the newest DELETED of a key that is not present, while history has it; else 0."""
        ...


class Plan(msgspec.Struct, frozen=True):
    """What a request changes.

    Attributes:
        commit: what is told once the plan is durable.
        time_ms: time of its entries, milliseconds since 1970.
        cluster: the member's new record, or None where it stays.
        types: the new records of types.
        heads: new heads by key; None where the object is no longer present.
        deletions: by key, the revision of the DELETED that a key without head ends with; 0 where the key is present
            again, so that nothing is remembered of the deletion before.
        dictionary: a dictionary that becomes known.
    """

    commit: Commit
    time_ms: int
    cluster: ClusterRecord | None = None
    types: tuple[TypeRecord, ...] = ()
    heads: Mapping[ObjectKey, Head | None] = {}
    deletions: Mapping[ObjectKey, int] = {}
    dictionary: Dictionary | None = None

    @property
    def is_told(self) -> bool:
        """Whether the commit has anything for the listener."""
        return bool(self.commit.entries or self.commit.low_water or self.commit.digests)


class _Draft:
    """A plan in the making: gives away revisions and collects effects."""

    def __init__(self, view: View, now_ms: int) -> None:
        self.revision = view.revision
        self.time_ms = max(view.time_ms, now_ms)
        self.entries: list[Entry] = []
        self.low_water: list[tuple[ClusterID, GroupResource, str]] = []
        self.cluster: ClusterRecord | None = None
        self.types: dict[GroupResource, TypeRecord] = {}
        self.heads: dict[ObjectKey, Head | None] = {}
        self.states: dict[ObjectKey, State] = {}
        self.before: dict[int, IndexedState] = {}
        self.deletions: dict[ObjectKey, int] = {}
        self.digests: tuple[DigestChange, ...] = ()
        self.count = self.sum = 0  # by which the digest of the batch's type changes
        self.has_gone_back = False

    def next_revision(self) -> int:
        self.revision += 1
        return self.revision

    def set_cluster(self, record: ClusterRecord, previous: ClusterRecord | None) -> ClusterRecord:
        """Writes a member's new record, and tells what has changed of its state and labels."""
        revision = self.next_revision()
        is_relabelled = previous is not None and previous.labels != record.labels
        if is_relabelled:
            record = msgspec.structs.replace(record, labels_revision=revision)
        self.cluster = record
        self.entries.append(
            ClusterEntry(
                revision,
                self.time_ms,
                record.cluster_id,
                record.state,
                previous.state if previous else None,
                record.reason,
                record.labels,
                previous.labels if previous and is_relabelled else None,
            )
        )
        return record

    def set_type(self, record: TypeRecord) -> None:
        self.types[record.type.group_resource] = record
        self.entries.append(
            TypeEntry(self.next_revision(), self.time_ms, record.cluster_id, record.type, record.state, record.reason)
        )

    def set_low_water(self, record: TypeRecord, low_water: str) -> None:
        resource = record.type.group_resource
        self.types[resource] = msgspec.structs.replace(record, low_water=low_water)
        self.low_water.append((record.cluster_id, resource, low_water))

    def plan(self) -> Plan:
        return Plan(
            Commit(
                self.revision,
                tuple(self.entries),
                tuple(self.low_water),
                self.before,
                self.digests,
                self.has_gone_back,
            ),
            self.time_ms,
            self.cluster,
            tuple(self.types.values()),
            self.heads,
            self.deletions,
        )


def first_revision(now_ms: int) -> int:
    """The revision a new ledger starts after: seconds since 1970 x 2^20, above every earlier ledger's.

    Raises:
        LedgerError: the clock stands before 1970 or after 2106, so that revisions might reach 2^53.
    """
    base = now_ms // 1000 << _REVISION_SHIFT
    if not 0 < base < _MAX_BASE:
        raise LedgerError(f"the clock says {now_ms} ms since 1970; a ledger can be created from 1970 to 2106")
    return base


def plan_session(view: View, wanted: ClusterRecord, now_ms: int) -> tuple[Plan, ClusterRecord]:
    """Plans a new session, and gives the record it leaves.

    A member that comes back after REMOVED starts anew, whatever its UID: nothing of its former agent or types is
    believed, only its term goes on, so that sessions from before the removal stay fenced.

    Raises:
        InvalidInput: the ID is malformed.
        ClusterUIDChanged: the ID is known with another UID; a stand-in is no other UID, it proves nothing.
        ClusterUIDKnown: the UID is a member under another ID.
    """
    cluster_id = parse_cluster_id(wanted.cluster_id)
    for other in view.clusters():
        is_member = other.state is not ClusterState.REMOVED and other.cluster_id != cluster_id
        if is_member and other.cluster_uid == wanted.cluster_uid:
            raise ClusterUIDKnown(cluster_id, wanted.cluster_uid, other.cluster_id)
    draft = _Draft(view, now_ms)
    known = view.cluster(cluster_id)
    if known is None or known.state is ClusterState.REMOVED:
        record = _join(draft, view, wanted, known)
    elif known.cluster_uid != wanted.cluster_uid and not (
        is_stand_in(known.cluster_uid) or is_stand_in(wanted.cluster_uid)
    ):
        raise ClusterUIDChanged(cluster_id, known.cluster_uid, wanted.cluster_uid)
    else:
        is_same_instance = known.agent_instance == wanted.agent_instance
        record = draft.cluster = msgspec.structs.replace(
            wanted,
            state=known.state,
            reason=known.reason,
            since_ms=known.since_ms,
            term=known.term + 1,
            durable_sequence=known.durable_sequence if is_same_instance else 0,
            labels_revision=known.labels_revision,
        )
        if record.labels != known.labels:
            record = draft.set_cluster(record, known)
    return draft.plan(), record


def _join(draft: _Draft, view: View, wanted: ClusterRecord, removed: ClusterRecord | None) -> ClusterRecord:
    joining = msgspec.structs.replace(
        wanted,
        state=ClusterState.JOINING,
        reason="",
        since_ms=draft.time_ms,
        term=removed.term + 1 if removed else 1,
        durable_sequence=0,
        labels_revision=removed.labels_revision if removed else 0,
    )
    joining = draft.set_cluster(joining, removed)
    for record in view.types(wanted.cluster_id) if removed else ():
        # What was said of the removed cluster's types says nothing of the one that joins.
        forgotten = draft.types[record.type.group_resource] = msgspec.structs.replace(
            record, low_water="", generation=0
        )
        if record.state is not TypeState.ABSENT:
            # Its agent tells of every type that it has; until it is LIVE, nothing counts as ABSENT.
            forgotten = msgspec.structs.replace(forgotten, state=TypeState.ABSENT, reason="cluster joined anew")
            draft.set_type(forgotten)
        if record.low_water:
            draft.set_low_water(forgotten, "")
    return joining


def plan_append(view: View, batch: Batch, now_ms: int) -> Plan:
    """Plans a batch of changes.

    Raises:
        InvalidInput: the batch is malformed.
        UnknownCluster: the cluster has never opened a session, or is REMOVED and the batch has more than deletions.
        SessionFenced: a newer session exists.
    """
    cluster = _member(view, batch.cluster_id)
    _check(view, batch, cluster)
    draft = _Draft(view, now_ms)
    if 0 < batch.sequence <= cluster.durable_sequence:
        return draft.plan()
    if batch.sequence:
        draft.cluster = msgspec.structs.replace(cluster, durable_sequence=batch.sequence)
    record = view.type(batch.cluster_id, batch.type.group_resource)
    if record is None:
        record = TypeRecord(batch.cluster_id, batch.type)
        draft.set_type(record)
    _plan_changes(draft, view, batch, record.low_water if batch.is_replayed else "")
    if batch.generation is not None and batch.generation != record.generation:
        record = msgspec.structs.replace(record, generation=batch.generation)
        draft.types[record.type.group_resource] = record
    if batch.low_water and batch.low_water != record.low_water:
        draft.set_low_water(record, batch.low_water)
    return draft.plan()


def _check(view: View, batch: Batch, cluster: ClusterRecord) -> None:
    if batch.term < cluster.term:
        raise SessionFenced(batch.cluster_id, batch.term, cluster.term)
    if batch.term > cluster.term:
        raise InvalidInput("term", batch.term, f"the term of an opened session, at most {cluster.term}")
    if len(batch.changes) > MAX_CHANGES:
        raise InvalidInput("changes", len(batch.changes), f"at most {MAX_CHANGES} in one batch")
    _check_type(batch.type)
    if cluster.state is ClusterState.REMOVED and not all(isinstance(change, Delete) for change in batch.changes):
        raise UnknownCluster(batch.cluster_id, _known(view))


def _check_type(resource_type: ResourceType) -> None:
    # Groups are DNS subdomains and plurals DNS labels; drivers rely on their length and on the absence of NUL.
    group, resource = resource_type.group_resource
    too_long = len(group.encode()) > _MAX_GROUP or len(resource.encode()) > _MAX_RESOURCE
    if too_long or not resource or "\0" in group + resource:
        allowed = f"a group of at most {_MAX_GROUP} bytes and a plural of 1 to {_MAX_RESOURCE}, without NUL"
        raise InvalidInput("type", str(resource_type), allowed)


def _plan_changes(draft: _Draft, view: View, batch: Batch, gone_up_to: str) -> None:
    """Plans the changes of a batch; what is not stored, and no newer than `gone_up_to`, is known to be gone."""
    cluster_id, (group, resource) = batch.cluster_id, batch.type.group_resource
    heads = draft.heads
    for change in batch.changes:
        key = ObjectKey(cluster_id, group, resource, change.namespace, change.name)
        head = heads[key] if key in heads else view.head(key)
        if isinstance(change, Put):
            if head is None and gone_up_to and compare(change.resource_version, gone_up_to) in {-1, 0}:
                continue
            _plan_put(draft, view, batch, key, change, head)
        elif head is not None:
            _plan_deletion(draft, key, head, _state(draft, view, key, head))
    if draft.count or draft.sum:
        draft.digests = (DigestChange(cluster_id, batch.type.group_resource, draft.count, draft.sum),)


class _Unreadable(msgspec.Struct, frozen=True):
    api_version: str = ""
    uid: str = ""
    resource_version: str = ""
    content_hash: int = 0
    indexed: IndexedState = UNKNOWN


_UNREADABLE = _Unreadable()


def _state(draft: _Draft, view: View, key: ObjectKey, head: Head) -> State:
    """The state of a present object."""
    state = draft.states.get(key)
    if state is None:
        try:
            state = view.state(head.revision)
        except LedgerCorrupt:
            state = None  # the change is true all the same, and must not be kept out
    return state or _UNREADABLE


def _plan_put(draft: _Draft, view: View, batch: Batch, key: ObjectKey, put: Put, head: Head | None) -> None:
    api_version, uid = batch.type.api_version, put.uid
    mark = state_hash(put.content_hash, api_version, uid)
    if head is not None and head.fingerprint == mark:
        return
    kind = identity(uid, put.indexed)
    before = put.indexed  # which an equal identity says
    if head is not None and (batch.skips_older or head.identity != kind):
        previous = _state(draft, view, key, head)
        before = previous.indexed
        if previous is not _UNREADABLE:
            if previous.uid != uid:
                _plan_deletion(draft, key, head, previous)
                head = None
            elif batch.skips_older and is_older(put.resource_version, previous.resource_version):
                listed = batch.listed_version
                if not listed or compare(previous.resource_version, listed) == 1:
                    return
                draft.has_gone_back = True
    follows = 0
    if head is None:
        follows = draft.deletions[key] if key in draft.deletions else view.deletion(key)
        if follows:
            draft.deletions[key] = 0
    revision = draft.next_revision()
    entry = ObjectEntry(
        revision,
        head.revision if head else 0,
        EntryType.MODIFIED if head else EntryType.ADDED,
        draft.time_ms,
        key,
        api_version,
        uid,
        put.resource_version,
        put.content_hash,
        put.body,
        put.indexed,
        follows,
    )
    draft.entries.append(entry)
    hashed = key_hash(key.namespace, key.name)
    draft.sum += leaf(hashed, mark)
    if head is not None:
        draft.before[revision] = before
    if head is not None and head.fingerprint != LOST:
        draft.sum -= leaf(hashed, head.fingerprint)
    else:
        draft.count += 1
    draft.states[key] = entry
    draft.heads[key] = Head(revision, mark, kind)


def _plan_deletion(draft: _Draft, key: ObjectKey, head: Head, previous: State) -> None:
    revision = draft.next_revision()
    draft.entries.append(
        ObjectEntry(
            revision,
            head.revision,
            EntryType.DELETED,
            draft.time_ms,
            key,
            previous.api_version,
            previous.uid,
            previous.resource_version,
            previous.content_hash,
            b"",
        )
    )
    draft.before[revision] = previous.indexed
    if head.fingerprint != LOST:
        draft.count -= 1
        draft.sum -= leaf(key_hash(key.namespace, key.name), head.fingerprint)
    draft.heads[key] = None
    draft.deletions[key] = revision


def plan_cluster_state(view: View, cluster_id: ClusterID, state: ClusterState, reason: str, now_ms: int) -> Plan:
    """Plans a member's change of state.

    Raises:
        UnknownCluster: the cluster has never opened a session.
    """
    cluster = _member(view, cluster_id)
    draft = _Draft(view, now_ms)
    if state is not cluster.state:
        entered = msgspec.structs.replace(cluster, state=state, reason=reason, since_ms=draft.time_ms)
        draft.set_cluster(entered, cluster)
    return draft.plan()


def plan_type_state(
    view: View, cluster_id: ClusterID, resource_type: ResourceType, state: TypeState, reason: str, now_ms: int
) -> Plan:
    """Plans a type's change of state or description; an unknown type is made known.

    Raises:
        UnknownCluster: the cluster has never opened a session.
        InvalidInput: the type's names are too long to be real.
    """
    _member(view, cluster_id)
    _check_type(resource_type)
    draft = _Draft(view, now_ms)
    known = view.type(cluster_id, resource_type.group_resource)
    wanted = TypeRecord(cluster_id, resource_type, state, reason)
    if known is not None:
        wanted = msgspec.structs.replace(known, type=resource_type, state=state, reason=reason)
    if wanted != known:
        draft.set_type(wanted)
    return draft.plan()


def plan_dictionary(view: View, dictionary: Dictionary, now_ms: int) -> Plan:
    """Plans that a dictionary becomes known; it is no part of the order."""
    return msgspec.structs.replace(_Draft(view, now_ms).plan(), dictionary=dictionary)


def _member(view: View, cluster_id: ClusterID) -> ClusterRecord:
    cluster = view.cluster(cluster_id)
    if cluster is None:
        raise UnknownCluster(cluster_id, _known(view))
    return cluster


def _known(view: View) -> tuple[str, ...]:
    return tuple(sorted(record.cluster_id for record in view.clusters() if record.state is not ClusterState.REMOVED))


def outlived_by(entry: Entry) -> tuple[int, ...]:
    """Revisions whose entries nobody can ask for once history up to and including `entry` is forgotten.

    A change replaces the state before it, a deletion also leaves nothing itself, and states of clusters and types are
    kept in their records. So, forgetting in order, what stays is the newest state of each object present then.
    """
    if not isinstance(entry, ObjectEntry):
        return (entry.revision,)
    previous = (entry.previous_revision,) if entry.previous_revision else ()
    return (*previous, entry.revision) if entry.type is EntryType.DELETED else previous


def chain(entry: Callable[[int], ObjectEntry | None], newest: int) -> Iterator[ObjectEntry]:
    """Follows the versions of one key from its newest revision back to where history ends.

    Args:
        entry: reads an entry; None for what is compacted.
        newest: revision to start at; 0 for none.
    """
    revision = newest
    while revision and (found := entry(revision)) is not None:
        yield found
        revision = found.previous_revision or found.follows


def at(versions: Iterable[ObjectEntry], revision: int) -> ObjectEntry | None:
    """What a key was at a revision, given its versions, newest first; None where it was not present."""
    found = next((version for version in versions if version.revision <= revision), None)
    return None if found is None or found.type is EntryType.DELETED else found


def check_revision(revision: int, oldest: int, newest: int) -> None:
    """Checks that history can tell of a revision.

    Raises:
        CursorExpired: it is too old.
        CursorAhead: it is yet to come.
    """
    if revision < oldest:
        raise CursorExpired(revision, oldest)
    if revision > newest:
        raise CursorAhead(revision, newest)
