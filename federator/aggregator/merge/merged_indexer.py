"""The merged Indexer: which objects of all clusters are present, and which of them a selection means."""

from __future__ import annotations

import random
import secrets
import struct
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap
from xxhash import xxh3_64_intdigest

from federator.aggregator.ledger.indexed_state import (
    NOTHING_INDEXED,
    UNKNOWN,
    UNREAD,
    IndexedState,
    read_indexed_state,
)
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import Commit, EntryType, ObjectEntry
from federator.aggregator.merge.axis import Axis, AxisKind, Codes, Column, Rows
from federator.aggregator.merge.field_indexes import FieldIndexes
from federator.aggregator.merge.function_indexes import FunctionIndexes
from federator.aggregator.merge.growing import GrowingColumn
from federator.aggregator.merge.hash_index import HashIndex, hash_text
from federator.aggregator.merge.names import LoadedNames, NameTable
from federator.aggregator.merge.pair_index import PairIndex
from federator.aggregator.merge.postings import Postings
from federator.aggregator.merge.scope import EVERYTHING, Scope
from federator.aggregator.merge.selection import NAME, NAMESPACE, NODE_NAME, Selection
from federator.aggregator.merge.texts import Texts, ranks_of
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.api.selector import FieldRequirement, FieldSelector, LabelOperator, LabelRequirement
from federator.errors import InvalidInput, LedgerCorrupt

LOAD_SLICE = 2048
"""Objects that are loaded at a time: some 30 ms."""

_FIRST_LOOK = 64
"""Names that are looked at beside those that should be enough for a page: names have more and fewer rows."""

_DENSE = 8
"""From this part of all rows on, a column is looked through whole."""

LAST = 0xFFFFFFFF
"""Rank of a row that has no value."""


class Partition:
    """The rows of one type in one cluster.

    Attributes:
        number: place among the partitions; given to another one when this has no rows any more.
        cluster_id: the cluster.
        group_resource: the type.
        rows: the rows.
    """

    __slots__ = ("cluster_id", "group_resource", "number", "rows")

    def __init__(self, number: int, cluster_id: ClusterID, group_resource: GroupResource) -> None:
        self.number = number
        self.cluster_id = cluster_id
        self.group_resource = group_resource
        self.rows = BitMap()

    def is_of(self, key: ObjectKey) -> bool:
        """Whether a key belongs here."""
        cluster_id, group, resource, _, _ = key
        return cluster_id == self.cluster_id and (group, resource) == self.group_resource


class ObjectReference(NamedTuple):
    """One state of one present object; its body is in the ledger's entry of that revision.

    Attributes:
        namespace: empty for cluster-scoped types.
        name: its name.
        revision: at which it took the state.
    """

    namespace: str
    name: str
    revision: int


class References(NamedTuple):
    """References to the selected rows of one partition, by namespace and name."""

    cluster_id: ClusterID
    group_resource: GroupResource
    objects: list[ObjectReference]


class MergedIndexer:
    """All present objects of all clusters, indexed; it changes by committed ledger entries alone.

    What holds:

    - *Whole*: after `load` and then `apply` of every later commit, it holds exactly the objects present at `revision`.
      The same namespace and name in several clusters are as many objects.
    - *Atomic*: every method runs to its end without yielding to the event loop, so a commit is applied whole before
      anybody reads, and one call reads one revision.
    - *In order*: per cluster and key, states appear in the ledger's order; a reader may miss some between two calls.
    - *Never failing on content*: a body that does not have an object's shape is indexed by what can be read of it, and
      counted.

    What does not hold: row numbers mean nothing beyond the step in which they were read, since a deleted object's
    number is given away again. Take the rows' `revisions` in the same step: they name entries of the ledger, and stay
    good for as long as their revision is pinned (`federator.aggregator.query.pins`).

    A row is a number into columns of numbers: no Python object is kept for each. Its body stays in the ledger, and so
    do its labels (some 200 bytes a row): each commit brings what they were before it. Where even the ledger does not
    know that, since the entry before is damaged, every label is searched instead. Name, namespace, owner kind and
    owners are in the columns. Bitmaps say which rows have what; lookups by key, UID and owner go by hashes of 64 bits
    under a seed of this process, keys are compared as well.
    """

    def __init__(self) -> None:
        self._revision = 0
        self._seed = secrets.randbits(64)
        self._partitions: dict[GroupResource, dict[ClusterID, Partition]] = {}
        self._numbered: list[Partition | None] = []
        self._free_partitions: list[int] = []
        self._last_partition: Partition | None = None
        self._partition_codes: dict[AxisKind, Column] = {}  # by number of a partition; empty when they have changed
        self._free: list[int] = []
        self._end = 0  # row numbers given so far
        self._rows = BitMap()
        # Columns, by row number.
        self._partition_numbers: GrowingColumn[np.uint32] = GrowingColumn("I", np.uint32)
        self._row_namespaces: GrowingColumn[np.uint32] = GrowingColumn("I", np.uint32)
        self._row_names: GrowingColumn[np.uint32] = GrowingColumn("I", np.uint32)
        self._row_created: GrowingColumn[np.uint32] = GrowingColumn("I", np.uint32)
        self._row_owner_kinds: GrowingColumn[np.uint32] = GrowingColumn("I", np.uint32)
        self._row_revisions: GrowingColumn[np.uint64] = GrowingColumn("Q", np.uint64)
        self._row_uids: GrowingColumn[np.uint64] = GrowingColumn("Q", np.uint64)
        self._row_owners: GrowingColumn[np.uint64] = GrowingColumn("Q", np.uint64)
        self._more_owners: dict[int, tuple[int, ...]] = {}
        # Texts by number.
        self._names = NameTable(self._seed)
        self._namespaces = Texts()
        self._owner_kinds = Texts()
        # Indexes.
        self._keys = HashIndex()
        self._uids = PairIndex(lambda hashes, rows: self._row_uids.view()[rows] == hashes)
        self._owners = PairIndex(self._are_owned)
        self._namespace_rows = Postings()
        self._label_keys = Postings()
        self._label_values: dict[str, Postings] = {}
        self._nodes = Postings()
        self._owner_kind_rows = Postings()
        self.fields = FieldIndexes()
        self.functions = FunctionIndexes()
        self._ledger: Ledger | None = None
        self._applied_entries = 0
        self._malformed = 0
        self._searched = 0

    @property
    def revision(self) -> int:
        """Newest revision applied."""
        return self._revision

    def __len__(self) -> int:
        return self._end - len(self._free)

    # ------------------------------------------------------------------------------------------------------ changes

    def load(self, ledger: Ledger) -> None:
        """Takes in every present object of a ledger, once, before anything is applied. Blocks until done."""
        for _ in self.loading(ledger):
            pass

    def loading(self, ledger: Ledger, also: Callable[[ObjectEntry], None] = lambda _: None) -> Iterator[int]:
        """Does the same bit by bit; yields how many objects were read, every `LOAD_SLICE`.

        Nothing may be read or applied, and nothing appended to the ledger, before the iteration has come to its end.

        Args:
            ledger: whose objects are taken in.
            also: called with each entry, so that reading all of them once serves others, too.
        """
        self._ledger = ledger
        self._revision = ledger.revision
        bulk, names = _Bulk(), LoadedNames(self._seed)
        key_hashes = array("Q")
        row = -1
        for row, entry in enumerate(ledger.present()):
            key, state = entry.key, entry.indexed
            if state.created == UNREAD:
                state = _read_anew(entry, ledger)
            partition = self._partition(key)
            self._reserve(row + 1)
            self._set_row(row, partition, entry, state)
            self._row_namespaces.items[row] = self._namespaces.use(key.namespace) if key.namespace else 0
            names.add(key.name)
            key_hashes.append(self._key_hash(partition, key))
            bulk.add(row, state)
            bulk.partitions[partition].append(row)
            bulk.namespaces[key.namespace].append(row)
            also(entry)
            if not state.is_whole:
                self._malformed += 1
            if row % LOAD_SLICE == LOAD_SLICE - 1:
                yield row + 1
        self._end = row + 1
        self._rows = BitMap(range(self._end))
        self._row_names.fill(self._names.fill(names))
        yield self._end
        self._keys.fill(np.frombuffer(key_hashes, np.uint64))
        for partition, rows in bulk.partitions.items():
            partition.rows = BitMap(rows)
        for namespace, rows in bulk.namespaces.items():
            self._namespace_rows.add_all(namespace, rows)
        yield self._end
        self._fill_pairs()
        self._take_in(bulk)

    def apply(self, commit: Commit) -> None:
        """Takes in the object entries of a commit."""
        added = _Bulk()
        for entry in commit.entries:
            if not isinstance(entry, ObjectEntry):
                continue
            self._applied_entries += 1
            if entry.type is EntryType.ADDED:
                self._add(entry, added)
                continue
            if added.rows:
                self._take_in(added)
                added = _Bulk()
            before = commit.before.get(entry.revision, UNKNOWN)
            if entry.type is EntryType.DELETED:
                self._delete(entry, before)
            else:
                self._modify(entry, before)
        self._take_in(added)
        self._revision = commit.revision

    def _add(self, entry: ObjectEntry, added: _Bulk) -> None:
        self._malformed += not entry.indexed.is_whole
        row = self._new_row(entry)
        added.add(row, entry.indexed)
        self._index_fields(row, entry)

    def _modify(self, entry: ObjectEntry, before: IndexedState) -> None:
        state = entry.indexed
        row = self.find(entry.key)
        if row is None:  # the state before was damaged, and so could not be loaded
            added = _Bulk()
            self._add(entry, added)
            self._take_in(added)
            return
        self._malformed += not state.is_whole
        if state != before:
            self._index(row, state, self._known(before, row))
            self._row_created.items[row] = max(0, state.created)
            if before is UNKNOWN or state.owner_uids != before.owner_uids:
                self._set_owners(row, state)
        self._row_revisions.items[row] = entry.revision
        self._index_fields(row, entry)

    def _delete(self, entry: ObjectEntry, before: IndexedState) -> None:
        row = self.find(entry.key)
        if row is None:
            return
        self._index(row, NOTHING_INDEXED, self._known(before, row))
        self.fields.discard(row)
        self.functions.discard(row)
        self._set_owners(row, NOTHING_INDEXED)
        self._row_uids.items[row] = 0
        self._uids.discarded()
        self._keys.discard(row)
        self._names.leave(self._row_names.items[row])
        self._namespaces.leave(self._row_namespaces.items[row])
        self._namespace_rows.discard(entry.key.namespace, row)
        self._rows.discard(row)
        partition = self._partition(entry.key)
        partition.rows.discard(row)
        if not partition.rows:
            self._drop(partition)
        self._free.append(row)

    def _new_row(self, entry: ObjectEntry) -> int:
        key, state = entry.key, entry.indexed
        if self._free:
            row = self._free.pop()
        else:
            row = self._end
            self._end += 1
            self._reserve(self._end)
        partition = self._partition(key)
        self._set_row(row, partition, entry, state)
        self._row_namespaces.items[row] = self._namespaces.use(key.namespace) if key.namespace else 0
        self._row_names.items[row] = self._names.use(key.name)
        self._keys.add(self._key_hash(partition, key), row)
        self._uids.add(self._row_uids.items[row], row)
        for hash_ in self._owner_hashes(row):
            self._owners.add(hash_, row)
        self._rows.add(row)
        partition.rows.add(row)
        self._namespace_rows.add(key.namespace, row)
        return row

    def _reserve(self, rows: int) -> None:
        if rows > len(self._row_revisions.items):
            for column in self._columns():
                column.reserve(rows)

    def _columns(self) -> tuple[GrowingColumn[np.uint32] | GrowingColumn[np.uint64], ...]:
        return (
            self._partition_numbers,
            self._row_namespaces,
            self._row_names,
            self._row_created,
            self._row_owner_kinds,
            self._row_revisions,
            self._row_uids,
            self._row_owners,
        )

    def _set_row(self, row: int, partition: Partition, entry: ObjectEntry, state: IndexedState) -> None:
        """Fills the columns of a new row, but for the texts."""
        self._partition_numbers.items[row] = partition.number
        self._row_created.items[row] = max(0, state.created)
        self._row_owner_kinds.items[row] = 0
        self._row_revisions.items[row] = entry.revision
        self._row_uids.items[row] = hash_text(entry.uid, self._seed)
        self._row_owners.items[row] = 0
        if state.owner_uids:
            first, *more = [hash_text(uid, self._seed) for uid in dict.fromkeys(state.owner_uids)]
            self._row_owners.items[row] = first
            if more:
                self._more_owners[row] = tuple(more)

    def _set_owners(self, row: int, state: IndexedState) -> None:
        """Moves a row in the index of owners to what a state says."""
        before = self._owner_hashes(row)
        first, *more = [hash_text(uid, self._seed) for uid in dict.fromkeys(state.owner_uids)] or [0]
        self._row_owners.items[row] = first
        self._more_owners.pop(row, None)
        if more:
            self._more_owners[row] = tuple(more)
        after = self._owner_hashes(row)
        for hash_ in after:
            if hash_ not in before:
                self._owners.add(hash_, row)
        for hash_ in before:
            if hash_ not in after:
                self._owners.discarded()

    def _owner_hashes(self, row: int) -> tuple[int, ...]:
        first = self._row_owners.items[row]
        return (first, *self._more_owners.get(row, ())) if first else ()

    def _are_owned(self, hashes: NDArray[np.uint64], rows: Rows) -> NDArray[np.bool_]:
        owned: NDArray[np.bool_] = self._row_owners.view()[rows] == hashes
        if self._more_owners:
            for at in np.nonzero(~owned)[0].tolist():
                owned[at] = int(hashes[at]) in self._more_owners.get(int(rows[at]), ())
        return owned

    def _fill_pairs(self) -> None:
        rows = np.arange(self._end, dtype=np.uint32)
        self._uids.fill(self._row_uids.view()[: self._end], rows)
        owners = self._row_owners.view()[: self._end]
        owned = np.nonzero(owners)[0].astype(np.uint32)
        more = [(hash_, row) for row, hashes in self._more_owners.items() for hash_ in hashes]
        self._owners.fill(
            np.concatenate([owners[owned], np.array([hash_ for hash_, _ in more], np.uint64)]),
            np.concatenate([owned, np.array([row for _, row in more], np.uint32)]),
        )

    def _key_hash(self, partition: Partition, key: ObjectKey) -> int:
        text = f"{key.namespace}\0{key.name}".encode("utf-8", "surrogatepass")
        return xxh3_64_intdigest(_PARTITION.pack(partition.number) + text, self._seed)

    def _partition(self, key: ObjectKey) -> Partition:
        partition = self._last_partition  # entries of one commit mostly share it
        if partition is not None and partition.is_of(key):
            return partition
        partition = self._last_partition = self._find_partition(key)
        return partition

    def _find_partition(self, key: ObjectKey) -> Partition:
        by_cluster = self._partitions.setdefault(key.group_resource, {})
        partition = by_cluster.get(key.cluster_id)
        if partition is None:
            number = self._free_partitions.pop() if self._free_partitions else len(self._numbered)
            partition = by_cluster[key.cluster_id] = Partition(number, key.cluster_id, key.group_resource)
            self._numbered[number : number + 1] = [partition]
            self._partition_codes.clear()
        return partition

    def _drop(self, partition: Partition) -> None:
        self._last_partition = None
        self._partition_codes.clear()
        self._numbered[partition.number] = None
        self._free_partitions.append(partition.number)
        by_cluster = self._partitions[partition.group_resource]
        del by_cluster[partition.cluster_id]
        if not by_cluster:
            del self._partitions[partition.group_resource]

    def _known(self, before: IndexedState, row: int) -> IndexedState:
        """What the indexes hold of a row; where that is unknown, takes the row out of them."""
        if before is not UNKNOWN:
            return before
        self._searched += 1
        for postings in (self._label_keys, *self._label_values.values(), self._nodes):
            postings.discard_everywhere(row)
        self._label_values = {key: values for key, values in self._label_values.items() if values}
        return NOTHING_INDEXED

    def _index(self, row: int, new: IndexedState, old: IndexedState) -> None:
        """Moves a row in the indexes on what may change, from an old state to a new one."""
        for key, value in old.labels.items():
            if new.labels.get(key) != value:
                self._discard_label(key, value, row)
                if key not in new.labels:
                    self._label_keys.discard(key, row)
        for key, value in new.labels.items():
            if old.labels.get(key) != value:
                self._label_values.setdefault(key, Postings()).add(value, row)
                if key not in old.labels:
                    self._label_keys.add(key, row)
        if new.node_name != old.node_name:
            if old.node_name:
                self._nodes.discard(old.node_name, row)
            if new.node_name:
                self._nodes.add(new.node_name, row)
        # The column knows better than a state that was written before owner kinds were read.
        kind = self._row_owner_kinds.items[row]
        if new.owner_kind != self._owner_kinds[kind]:
            if kind:
                self._owner_kind_rows.discard(self._owner_kinds[kind], row)
                self._owner_kinds.leave(kind)
            self._row_owner_kinds.items[row] = 0
            if new.owner_kind:
                self._row_owner_kinds.items[row] = self._owner_kinds.use(new.owner_kind)
                self._owner_kind_rows.add(new.owner_kind, row)

    def _index_fields(self, row: int, entry: ObjectEntry) -> None:
        if self.fields:
            assert self._ledger is not None, "it was loaded before anything was applied"
            self.fields.put(row, entry, self._ledger.bodies)
        if self.functions:
            assert self._ledger is not None, "it was loaded before anything was applied"
            self.functions.put(row, entry, self._ledger.bodies)

    def _discard_label(self, key: str, value: str, row: int) -> None:
        values = self._label_values.get(key)
        if values is not None:
            values.discard(value, row)
            if not values:
                del self._label_values[key]

    def _take_in(self, bulk: _Bulk) -> None:
        """Indexes what may change of rows that are in no such index yet."""
        for key, rows_by_value in bulk.labels.items():
            values = self._label_values.get(key)
            if values is None:
                values = self._label_values[key] = Postings()
            for value, rows in rows_by_value.items():
                values.add_all(value, rows)
            self._label_keys.add_all(key, list(chain.from_iterable(rows_by_value.values())))
        for node, rows in bulk.nodes.items():
            self._nodes.add_all(node, rows)
        for kind, rows in bulk.owner_kinds.items():
            self._owner_kind_rows.add_all(kind, rows)
            for row in rows:
                self._row_owner_kinds.items[row] = self._owner_kinds.use(kind)

    # -------------------------------------------------------------------------------------------------------- reads

    def select(self, selection: Selection, scope: Scope = EVERYTHING) -> BitMap:
        """Returns the rows of a selection within a scope, as far as the indexes know it.

        What `unanswered` returns in the same step is left to the caller, who has the bodies.
        """
        wanted: list[BitMap] = []
        allowed = scope.rows(self)
        if allowed is not None:
            wanted.append(allowed)
        if selection.uid:
            wanted.append(self.with_uid(selection.uid))
        if selection.owner_uid:
            wanted.append(self.owned_by(selection.owner_uid))
        if selection.name:
            wanted.append(self._named(selection.name))
        if selection.namespace:
            wanted.append(self._namespace_rows.rows_of_any((selection.namespace, "")))
        unwanted: list[BitMap] = []
        for label_requirement in selection.labels:
            self._by_label(label_requirement, wanted, unwanted)
        asked = self._of_partitions(selection)
        for requirement in selection.fields:
            having = self._with_field(requirement, selection, asked)
            if having is not None:
                (wanted if requirement.equal else unwanted).append(having)
        wanted.append(asked)
        wanted.sort(key=len)
        rows = wanted[0].copy()
        for other in wanted[1:]:
            rows &= other
        for other in unwanted:
            rows -= other
        return rows

    def unanswered(self, selection: Selection) -> FieldSelector:
        """Returns the requirements of a selection that no index knows, so that the objects have to be read."""
        return FieldSelector(
            tuple(
                requirement
                for requirement in selection.other_fields
                if self.fields.answers(requirement.path, selection.resources) is None
            )
        )

    def building_fields(self) -> Iterator[None]:
        """Builds field indexes that are declared, one after the other, in steps of milliseconds.

        Others may change everything between two steps.
        """
        while (index := self.fields.unbuilt()) is not None:
            assert self._ledger is not None, "it was loaded before"
            rows = BitMap().union(
                *(
                    partition.rows
                    for resource, by_cluster in self._partitions.items()
                    if index.covers(resource)
                    for partition in by_cluster.values()
                )
            )
            yield from self.fields.building(index, rows, self._entry_of, self._ledger.bodies)

    def _entry_of(self, row: int) -> ObjectEntry | None:
        if row not in self._rows or self._ledger is None:
            return None
        try:
            return self._ledger.entry(self.revision_of(row))
        except LedgerCorrupt:
            return None

    def present(self) -> BitMap:
        """Returns all rows; not to be changed."""
        return self._rows

    def find(self, key: ObjectKey) -> int | None:
        """Returns the row of an object, or None where it is not present."""
        partition = self._partitions.get(key.group_resource, {}).get(key.cluster_id)
        if partition is None:
            return None
        for row in self._keys.find(self._key_hash(partition, key)):
            if (
                self._partition_numbers.items[row] == partition.number
                and self._namespaces[self._row_namespaces.items[row]] == key.namespace
                and self._names[self._row_names.items[row]] == key.name
            ):
                return row
        return None

    def key(self, row: int) -> ObjectKey:
        """Returns which object a row is."""
        partition = self._numbered[self._partition_numbers.items[row]]
        assert partition is not None, "a row in use has its partition"
        group, resource = partition.group_resource
        namespace = self._namespaces[self._row_namespaces.items[row]]
        return ObjectKey(partition.cluster_id, group, resource, namespace, self._names[self._row_names.items[row]])

    def rows_in(self, cluster_id: ClusterID, resource: GroupResource) -> BitMap:
        """Returns the rows of one type in one cluster; not to be changed."""
        partition = self._partitions.get(resource, {}).get(cluster_id)
        return partition.rows if partition else BitMap()

    def with_uid(self, uid: str) -> BitMap:
        """Returns the rows of a UID: several clusters or types may tell the same."""
        hash_ = hash_text(uid, self._seed)
        return BitMap([row for row in self._uids.find(hash_) if self._row_uids.items[row] == hash_])

    def owned_by(self, owner_uid: str) -> BitMap:
        """Returns the rows that name an owner of this UID."""
        hash_ = hash_text(owner_uid, self._seed)
        return BitMap([row for row in self._owners.find(hash_) if hash_ in self._owner_hashes(row)])

    def revisions(self, rows: Rows) -> NDArray[np.uint64]:
        """Returns the revisions at which rows took their states."""
        return self._row_revisions.view()[rows]

    def revision_of(self, row: int) -> int:
        """Returns the revision at which a row took its state."""
        return self._row_revisions.items[row]

    def created(self, rows: Rows) -> NDArray[np.int64]:
        """Returns when objects were created, seconds since 1970; 0 where that is not known."""
        return self._row_created.view()[rows].astype(np.int64)

    def unchanged_since(self, rows: BitMap, revision: int) -> BitMap:
        """Returns those of some rows whose objects are what they were at a revision."""
        numbers = row_numbers(rows)
        return _bitmap(numbers[self.revisions(numbers) <= revision])

    def column(self, axis: Axis) -> Column:
        """Returns what all rows have on an axis. CREATED is no such axis: see `created`."""
        match axis.kind:
            case AxisKind.CLUSTER | AxisKind.TYPE:
                return self._partition_column(axis.kind)
            case AxisKind.NAMESPACE:
                # Number 0 is that of the empty namespace, which is none.
                return Column(self._row_namespaces.view()[: self._end], self._namespaces.values())
            case AxisKind.NODE:
                return Column(*self._nodes.codes(self._end))
            case AxisKind.OWNER_KIND:
                return Column(self._row_owner_kinds.view()[: self._end], self._owner_kinds.values())
            case AxisKind.LABEL:
                return Column(*self._label_values.get(axis.name, Postings()).codes(self._end))
            case AxisKind.FIELD if (index := self.fields.find(axis.name)) is not None:
                return index.column(self._end)
            case _:
                raise ValueError(f"no column of {axis}")

    def ranks(self, axis: Axis, *, descending: bool = False, rows: Rows | None = None) -> Codes:
        """Returns where each row's value stands among all; equal values have equal ranks.

        Args:
            axis: the property; but for FIELD, whose values whoever asks has to rank (see `column`).
            descending: the largest value first.
            rows: of which rows; None for all, by row number.

        Returns:
            The ranks. Rows without a value have the rank `LAST`, whichever way round.
        """
        at = slice(0, self._end) if rows is None else rows
        is_none = None
        match axis.kind:
            case AxisKind.NAME:
                ranks = self._names.ranks()[self._row_names.view()[at]]
            case AxisKind.CREATED:
                ranks = self._row_created.view()[at]
                is_none = ranks == 0
            case AxisKind.CLUSTER | AxisKind.TYPE:
                ranks = self._of_partition_numbers(axis.kind).codes[self._partition_numbers.view()[at]]
            case AxisKind.NAMESPACE:
                codes = self._row_namespaces.view()[at]
                ranks, is_none = self._namespaces.ranks()[codes], codes == 0
            case AxisKind.FIELD:
                raise ValueError(f"what the values of {axis} mean, and so how they are ranked, is not known here")
            case _:
                codes, values, _ = self.column(axis)
                codes = codes[at]
                ranks, is_none = ranks_of(values)[codes], codes == 0
        ranks = np.uint32(LAST - 1) - ranks if descending else ranks.copy()
        if is_none is not None:
            ranks[is_none] = LAST
        return ranks

    def smallest(self, axis: Axis, rows: BitMap, wanted: int, *, descending: bool = False) -> Rows:
        """Returns those of some rows that can be among the first so many in the order of an axis, with all their ties.

        So that the first page of a list need not rank a million rows. The rows' numbers grow.
        """
        if len(rows) <= wanted:
            return row_numbers(rows)
        if axis.kind is AxisKind.NAME:
            looked_at = _FIRST_LOOK + wanted * len(self._names) // len(rows)
            while looked_at < len(self._names):
                found = self._rows_named(self._names.lowest(looked_at, descending=descending), rows)
                if len(found) >= wanted:
                    return found
                looked_at *= 2
            return row_numbers(rows)
        numbers = row_numbers(rows)
        ranks = self.ranks(axis, descending=descending)[numbers]
        return numbers.compress(ranks <= np.partition(ranks, wanted - 1)[wanted - 1])

    def _rows_named(self, wanted: NDArray[np.uint32], rows: BitMap) -> Rows:
        """Those of some rows whose names have wanted numbers."""
        names = self._row_names.view()[: self._end]
        if len(rows) * _DENSE < self._end:
            numbers = row_numbers(rows)
            return numbers[self._names.among(names[numbers], wanted)]
        # Most rows: then the whole column is looked through, which is not in leaps.
        return row_numbers(_bitmap(self._names.among(names, wanted).astype(np.uint32)) & rows)

    def settling(self) -> Iterator[None]:
        """Brings the order of names up to date bit by bit, so that `ranks` need not do it at once."""
        return self._names.settling()

    @property
    def unsettled(self) -> int:
        """Names that the order does not have yet."""
        return self._names.unsettled

    def references(self, rows: BitMap) -> list[References]:
        """Returns references to rows, by type, then by cluster; inside by namespace and name."""
        taken = []
        for group_resource in sorted(self._partitions):
            by_cluster = self._partitions[group_resource]
            for cluster_id in sorted(by_cluster):
                objects = sorted(map(self._reference, rows & by_cluster[cluster_id].rows))
                if objects:
                    taken.append(References(cluster_id, group_resource, objects))
        return taken

    def count(self, rows: BitMap | None = None) -> Mapping[ClusterID, int]:
        """Returns how many of some rows, or of all, each cluster has; clusters with none are left out."""
        counts: dict[ClusterID, int] = {}
        for by_cluster in self._partitions.values():
            for cluster_id, partition in by_cluster.items():
                number = len(partition.rows) if rows is None else rows.intersection_cardinality(partition.rows)
                if number:
                    counts[cluster_id] = counts.get(cluster_id, 0) + number
        return counts

    def objects(self) -> Mapping[tuple[ClusterID, GroupResource], int]:
        """Returns how many objects there are, by cluster and type."""
        return {
            (cluster_id, group_resource): len(partition.rows)
            for group_resource, by_cluster in self._partitions.items()
            for cluster_id, partition in by_cluster.items()
        }

    def objects_by_type(self) -> Mapping[GroupResource, int]:
        """Returns how many objects there are of each type."""
        return {
            group_resource: sum(len(partition.rows) for partition in by_cluster.values())
            for group_resource, by_cluster in self._partitions.items()
        }

    def sample(self, resource: GroupResource, most: int) -> list[int]:
        """Returns the revisions of some objects of a type, drawn at random from all clusters, each once."""
        rows = BitMap().union(*(partition.rows for partition in self._partitions.get(resource, {}).values()))
        drawn = random.sample(range(len(rows)), min(most, len(rows)))
        return [self._row_revisions.items[rows[place]] for place in drawn]

    def bytes(self) -> Mapping[str, int]:
        """Memory by part; that of texts, postings and bitmaps is estimated."""
        return {
            "columns": sum(column.memory for column in self._columns()),
            "names": self._names.memory,
            "keys": self._keys.memory,
            "uids": self._uids.memory,
            "owners": self._owners.memory,
            "partitions": sum(_PARTITION_BYTES + 2 * len(known.rows) for known in self._numbered if known),
            "namespaces": self._namespace_rows.memory,
            "labels": self._label_keys.memory + sum(values.memory for values in self._label_values.values()),
            "nodes": self._nodes.memory,
            "owner_kinds": self._owner_kind_rows.memory,
            "fields": sum(index.memory for index in self.fields),
            "functions": self.functions.memory,
        }

    def statistics(self) -> Mapping[str, int]:
        """Objects, entries and bytes of each index, entries applied, bodies malformed, and rows searched for."""
        return {
            "revision": self._revision,
            "objects": len(self),
            "partitions": sum(map(len, self._partitions.values())),
            "index_entries_label_keys": len(self._label_keys),
            "index_entries_label_values": sum(map(len, self._label_values.values())),
            "index_entries_namespaces": len(self._namespace_rows),
            "index_entries_nodes": len(self._nodes),
            "index_entries_owners": len(self._owners),
            "index_entries_owner_kinds": len(self._owner_kind_rows),
            "index_entries_uids": len(self._uids),
            "index_entries_names": len(self._names),
            **{f"index_bytes_{part}": number for part, number in self.bytes().items()},
            "applied_entries": self._applied_entries,
            "malformed": self._malformed,
            "searched": self._searched,
            **self.fields.statistics(),
            **self.functions.statistics(),
        }

    def _reference(self, row: int) -> ObjectReference:
        return ObjectReference(
            self._namespaces[self._row_namespaces.items[row]],
            self._names[self._row_names.items[row]],
            self._row_revisions.items[row],
        )

    def _partition_column(self, kind: AxisKind) -> Column:
        by_number, values, _ = self._of_partition_numbers(kind)
        return Column(by_number[self._partition_numbers.view()[: self._end]], values)

    def _of_partition_numbers(self, kind: AxisKind) -> Column:
        """By number of a partition the code of its cluster or type. Codes are ranks plus 1; 0 is of free numbers."""
        column = self._partition_codes.get(kind)
        if column is None:
            texts = [
                ""
                if partition is None
                else partition.cluster_id
                if kind is AxisKind.CLUSTER
                else str(partition.group_resource)
                for partition in self._numbered
            ]
            values = ["", *sorted({text for text in texts if text})]
            codes = {text: code for code, text in enumerate(values)}
            by_number = np.array([codes[text] for text in texts], np.uint32)
            column = self._partition_codes[kind] = Column(by_number, values)
        return column

    def _of_partitions(self, selection: Selection) -> BitMap:
        """The rows of the selected types in the selected clusters; not to be changed."""
        is_asked = cache(selection.has_cluster)  # of each cluster once, however many types it has
        selected = [
            partition.rows
            for group_resource in selection.resources
            for cluster_id, partition in self._partitions.get(group_resource, {}).items()
            if is_asked(cluster_id)
        ]
        if len(selected) == sum(map(len, self._partitions.values())):
            return self._rows
        return selected[0] if len(selected) == 1 else BitMap().union(*selected)

    def _named(self, name: str) -> BitMap:
        number = self._names.find(name)
        if number is None:
            return BitMap()
        rows = np.nonzero(self._row_names.view()[: self._end] == number)[0].astype(np.uint32)
        return _bitmap(rows) & self._rows  # a free row's column says what it was

    def _by_label(self, requirement: LabelRequirement, wanted: list[BitMap], unwanted: list[BitMap]) -> None:
        values = self._label_values.get(requirement.key) or Postings()
        match requirement.operator:
            case LabelOperator.IN:
                wanted.append(values.rows_of_any(requirement.values))
            case LabelOperator.NOT_IN:
                unwanted.append(values.rows_of_any(requirement.values))
            case LabelOperator.EXISTS:
                wanted.append(self._label_keys.rows(requirement.key))
            case LabelOperator.DOES_NOT_EXIST:
                unwanted.append(self._label_keys.rows(requirement.key))
            case _:
                wanted.append(values.rows_of_any(filter(requirement.compares, values)))

    def _with_field(self, requirement: FieldRequirement, selection: Selection, asked: BitMap) -> BitMap | None:
        """The rows whose field equals the value of a requirement; not to be changed. None where no index knows."""
        value = requirement.value
        match requirement.path:
            case path if path == NODE_NAME:
                return self._nodes.rows(value) if value else asked - self._nodes.all_rows()
            case path if path == NAMESPACE:
                return self._namespace_rows.rows(value)
            case path if path == NAME:
                return self._named(value)
            case path:
                index = self.fields.answers(path, selection.resources)
                return None if index is None else index.rows(value, asked)


_PARTITION = struct.Struct("=I")
_PARTITION_BYTES = 1000


class _Bulk:
    """Rows by what the indexes say of them, collected to be added together: several times as fast as one by one."""

    __slots__ = ("labels", "namespaces", "nodes", "owner_kinds", "partitions", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.labels: dict[str, dict[str, list[int]]] = {}
        self.nodes: dict[str, list[int]] = {}
        self.owner_kinds: dict[str, list[int]] = {}
        # Only of rows that are loaded.
        self.partitions: defaultdict[Partition, list[int]] = defaultdict(list)
        self.namespaces: defaultdict[str, list[int]] = defaultdict(list)

    def add(self, row: int, state: IndexedState) -> None:
        self.rows += 1
        for key, value in state.labels.items():
            values = self.labels.get(key)
            if values is None:
                values = self.labels[key] = {}
            _append(values, value, row)
        if state.node_name:
            _append(self.nodes, state.node_name, row)
        if state.owner_kind:
            _append(self.owner_kinds, state.owner_kind, row)


def _append(rows_by_value: dict[str, list[int]], value: str, row: int) -> None:
    rows = rows_by_value.get(value)
    if rows is None:
        rows_by_value[value] = [row]
    else:
        rows.append(row)


def _read_anew(entry: ObjectEntry, ledger: Ledger) -> IndexedState:
    try:
        return read_indexed_state(ledger.bodies.decode(entry.body))
    except InvalidInput:
        return entry.indexed


def _bitmap(numbers: Rows) -> BitMap:
    return BitMap(array("I", numbers.tobytes()))  # several times as fast as from numpy's own


def row_numbers(rows: BitMap) -> Rows:
    """Returns the numbers of rows, growing."""
    return np.frombuffer(rows.to_array(), np.uint32)
