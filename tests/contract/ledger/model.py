"""What a ledger has to say after each call, worked out once more, as plainly as can be: dicts of what is present.

Nothing of the rules is imported from the ledger. A model looks at the entries that a call made, in order, and holds
each against what the call meant; only revision and time are the ledger's own to choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import xxhash

from federator.aggregator.ledger.indexed_state import NOTHING_INDEXED
from federator.aggregator.ledger.records import (
    Batch,
    ClusterEntry,
    ClusterRecord,
    Entry,
    EntryType,
    ObjectEntry,
    Put,
    TypeEntry,
    TypeRecord,
)
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource, ResourceType

Entries = Iterator[Entry]
"""What the ledger made of a call, in order; a call takes from it what it means and leaves the rest."""


class Model:
    """What is present after some calls.

    The calls of one cluster come in their order. Those of different clusters touch nothing in common, so that each
    cluster's may be followed by itself.

    Attributes:
        clusters: record of each member; `since_ms` as the entries told it.
        types: record of each type of each member.
        present: newest entry of each present object.
        deleted: revision of the DELETED that each other known key ends with.
        forgotten: history up to a revision between these two is forgotten; equal where that is known exactly.
        has_gone_back: whether the last batch had an item of a listing that proves a restored cluster.
    """

    def __init__(self) -> None:
        self.clusters: dict[ClusterID, ClusterRecord] = {}
        self.types: dict[tuple[ClusterID, GroupResource], TypeRecord] = {}
        self.present: dict[ObjectKey, ObjectEntry] = {}
        self.deleted: dict[ObjectKey, int] = {}
        self.forgotten = (0, 0)
        self.has_gone_back = False

    def open_session(self, wanted: ClusterRecord, entries: Entries) -> None:
        """A session that was not refused."""
        known = self.clusters.get(wanted.cluster_id)
        if known is not None and known.state is not ClusterState.REMOVED:
            sequence = known.durable_sequence if known.agent_instance == wanted.agent_instance else 0
            self.clusters[wanted.cluster_id] = msgspec.structs.replace(
                wanted,
                state=known.state,
                reason=known.reason,
                since_ms=known.since_ms,
                term=known.term + 1,
                durable_sequence=sequence,
                labels_revision=known.labels_revision,
            )
            if wanted.labels != known.labels:
                self._enter(self.clusters[wanted.cluster_id], known.state, known, known.reason, entries)
            return
        joined = msgspec.structs.replace(
            wanted, term=known.term + 1 if known else 1, labels_revision=known.labels_revision if known else 0
        )
        self._enter(joined, ClusterState.JOINING, known, "", entries)
        for key in [key for key in self.types if key[0] == wanted.cluster_id]:
            self.types[key] = msgspec.structs.replace(self.types[key], low_water="", generation=0)
        forgotten = [key for key, of in self.types.items() if _is_forgotten(of, wanted.cluster_id)]
        told = [next(entries, None) for _ in forgotten]
        for key in forgotten:  # in whatever order they were told
            record = msgspec.structs.replace(self.types[key], state=TypeState.ABSENT)
            entry = next((each for each in told if isinstance(each, TypeEntry) and _type_of(each) == key), None)
            assert entry is not None, f"{key} is not told to be forgotten, only {told}"
            self.types[key] = msgspec.structs.replace(record, reason=entry.reason)
            _check(entry, _as_entry(self.types[key], entry))

    def append(self, batch: Batch, entries: Entries) -> None:
        """A batch that was not refused."""
        self.has_gone_back = False
        cluster = self.clusters[batch.cluster_id]
        if batch.sequence:
            if batch.sequence <= cluster.durable_sequence:
                return
            self.clusters[batch.cluster_id] = msgspec.structs.replace(cluster, durable_sequence=batch.sequence)
        key = (batch.cluster_id, batch.type.group_resource)
        if key not in self.types:
            self._describe(TypeRecord(batch.cluster_id, batch.type), entries)
        for change in batch.changes:
            object_key = ObjectKey(batch.cluster_id, *batch.type.group_resource, change.namespace, change.name)
            if isinstance(change, Put):
                self._put(batch, object_key, change, entries)
            elif object_key in self.present:
                self._delete(object_key, entries)
        if batch.low_water:
            self.types[key] = msgspec.structs.replace(self.types[key], low_water=batch.low_water)
        if batch.generation is not None:
            self.types[key] = msgspec.structs.replace(self.types[key], generation=batch.generation)

    def digests(self) -> dict[tuple[ClusterID, GroupResource], tuple[int, int]]:
        """Number and sum of the present objects of each type in each cluster that has any."""
        found: dict[tuple[ClusterID, GroupResource], tuple[int, int]] = {}
        for key, entry in self.present.items():
            count, total = found.get((key.cluster_id, key.group_resource), (0, 0))
            added = _hash(hashed_key(key).to_bytes(8, "little"), hashed_state(entry))
            found[key.cluster_id, key.group_resource] = (count + 1, (total + added) % 2**64)
        return found

    def set_cluster_state(self, cluster_id: ClusterID, state: ClusterState, reason: str, entries: Entries) -> None:
        """A change of a member's state."""
        known = self.clusters[cluster_id]
        if known.state is not state:
            self._enter(known, state, known, reason, entries)

    def set_type_state(
        self, cluster_id: ClusterID, resource_type: ResourceType, state: TypeState, reason: str, entries: Entries
    ) -> None:
        """A change of a type's state or description."""
        known = self.types.get((cluster_id, resource_type.group_resource))
        wanted = TypeRecord(cluster_id, resource_type, state, reason)
        if known is not None:
            wanted = TypeRecord(cluster_id, resource_type, state, reason, known.low_water, known.generation)
        if wanted != known:
            self._describe(wanted, entries)

    def _enter(
        self,
        record: ClusterRecord,
        state: ClusterState,
        previous: ClusterRecord | None,
        reason: str,
        entries: Entries,
    ) -> None:
        entry = next(entries, None)
        assert entry is not None, f"{record.cluster_id} is not told to be {state} with {record.labels}"
        is_relabelled = previous is not None and previous.labels != record.labels
        expected = ClusterEntry(
            entry.revision,
            entry.time_ms,
            record.cluster_id,
            state,
            previous.state if previous else None,
            reason,
            record.labels,
            previous.labels if previous and is_relabelled else None,
        )
        _check(entry, expected)
        self.clusters[record.cluster_id] = msgspec.structs.replace(
            record,
            state=state,
            reason=reason,
            since_ms=previous.since_ms if previous and previous.state is state else entry.time_ms,
            labels_revision=entry.revision if is_relabelled else record.labels_revision,
        )

    def _describe(self, record: TypeRecord, entries: Entries) -> None:
        entry = next(entries, None)
        assert entry is not None, f"{record.type} of {record.cluster_id} is not told to be {record.state}"
        _check(entry, _as_entry(record, entry))
        self.types[record.cluster_id, record.type.group_resource] = record

    def _put(self, batch: Batch, key: ObjectKey, put: Put, entries: Entries) -> None:
        stored = self.present.get(key)
        if stored is not None and stored.uid != put.uid:
            self._delete(key, entries)
            stored = None
        if stored is not None:
            is_same = (stored.content_hash, stored.api_version) == (put.content_hash, batch.type.api_version)
            if is_same:
                return
            if batch.skips_older and int(put.resource_version) < int(stored.resource_version):
                if not batch.listed_version or int(stored.resource_version) > int(batch.listed_version):
                    return
                self.has_gone_back = True
        entry = next(entries, None)
        assert isinstance(entry, ObjectEntry), f"{entry} is told where {key} was put"
        wanted = ObjectEntry(
            entry.revision,
            stored.revision if stored else 0,
            EntryType.MODIFIED if stored else EntryType.ADDED,
            entry.time_ms,
            key,
            batch.type.api_version,
            put.uid,
            put.resource_version,
            put.content_hash,
            put.body,
            put.indexed,
            entry.follows if self._may_follow(key, entry) else 0,
        )
        _check(entry, wanted)
        self.present[key] = wanted
        self.deleted.pop(key, None)

    def _may_follow(self, key: ObjectKey, entry: ObjectEntry) -> bool:
        """Whether an entry names the deletion before it, as it has to while that is in the history."""
        surely, perhaps = self.forgotten
        deleted = self.deleted.get(key, 0)
        if deleted > perhaps:
            assert entry.follows == deleted, f"{entry} follows the deletion {deleted}"
        return deleted > surely and entry.follows == deleted

    def _delete(self, key: ObjectKey, entries: Entries) -> None:
        entry = next(entries, None)
        assert entry is not None, f"nothing is told of {key}, which was deleted"
        last = self.present.pop(key)
        _check(
            entry,
            msgspec.structs.replace(
                last,
                revision=entry.revision,
                previous_revision=last.revision,
                type=EntryType.DELETED,
                time_ms=entry.time_ms,
                body=b"",
                indexed=NOTHING_INDEXED,
                follows=0,
            ),
        )
        self.deleted[key] = entry.revision


def hashed_key(key: ObjectKey) -> int:
    """The key hash of ingest.proto."""
    return _hash(b"\0".join((key.namespace.encode(), key.name.encode())), 0)


def hashed_state(entry: ObjectEntry) -> int:
    """The state hash of ingest.proto."""
    return _hash(b" ".join((entry.api_version.encode(), entry.uid.encode())), entry.content_hash)


def _hash(content: bytes, seed: int) -> int:
    return int.from_bytes(xxhash.xxh3_64_digest(content, seed))


def check_order(before: Entry | None, entries: Iterable[Entry]) -> None:
    """Revisions grow and none comes twice, also over a restart; times do not go back.

    Raises:
        AssertionError: not so.
    """
    for entry in entries:
        if before is not None:
            assert entry.revision > before.revision, f"{entry} comes after {before}"
            assert entry.time_ms >= before.time_ms, f"{entry} is said to be older than {before}"
        before = entry


def _check(told: Entry, wanted: Entry) -> None:
    assert told == wanted, f"the ledger says {told} where {wanted} was meant"


def _as_entry(record: TypeRecord, told: Entry) -> TypeEntry:
    return TypeEntry(told.revision, told.time_ms, record.cluster_id, record.type, record.state, record.reason)


def _type_of(entry: TypeEntry) -> tuple[ClusterID, GroupResource]:
    return entry.cluster_id, entry.resource_type.group_resource


def _is_forgotten(record: TypeRecord, cluster_id: ClusterID) -> bool:
    return record.cluster_id == cluster_id and record.state is not TypeState.ABSENT
