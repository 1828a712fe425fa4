"""The merged Indexer: which objects of all clusters are present, and which of them a selection means."""

from __future__ import annotations

import random
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from pyroaring import BitMap

from federator.aggregator.ledger.indexed_state import NOTHING_INDEXED, UNKNOWN, IndexedState
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import Commit, EntryType, ObjectEntry
from federator.aggregator.merge.postings import Postings
from federator.aggregator.merge.selection import NAME, NAMESPACE, NODE_NAME, Selection
from federator.api.cluster import ClusterID
from federator.api.field_path import FieldPath
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.api.selector import LabelOperator, LabelRequirement

LOAD_SLICE = 2048
"""Objects that are loaded at a time: some 30 ms."""

_SEPARATOR = "\0"
"""Between namespace and name in a local key: below every character, so that texts sort as the pair would."""


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


class Partition:
    """The rows of one type in one cluster.

    Attributes:
        cluster_id: the cluster.
        group_resource: the type.
    """

    __slots__ = ("_rows_by_key", "cluster_id", "group_resource", "namespaces", "rows")

    def __init__(self, cluster_id: ClusterID, group_resource: GroupResource) -> None:
        self.cluster_id = cluster_id
        self.group_resource = group_resource
        self.rows = BitMap()
        self.namespaces = Postings()
        self._rows_by_key: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._rows_by_key)

    def is_of(self, key: ObjectKey) -> bool:
        """Whether a key belongs here."""
        cluster_id, group, resource, _, _ = key
        return cluster_id == self.cluster_id and (group, resource) == self.group_resource

    def row(self, local_key: str) -> int | None:
        """The row of a local key."""
        return self._rows_by_key.get(local_key)

    def add(self, local_key: str, row: int) -> None:
        """Takes in a row."""
        self._rows_by_key[local_key] = row
        self.rows.add(row)
        self.namespaces.add(local_key.partition(_SEPARATOR)[0], row)

    def fill(self, rows_by_key: dict[str, int]) -> None:
        """Takes in its first rows, all at once."""
        self._rows_by_key = rows_by_key
        self.rows = BitMap(rows_by_key.values())
        by_namespace: defaultdict[str, list[int]] = defaultdict(list)
        for local_key, row in rows_by_key.items():
            by_namespace[local_key.partition(_SEPARATOR)[0]].append(row)
        self.namespaces = Postings.of(by_namespace)

    def discard(self, local_key: str, row: int) -> None:
        """Lets go of a row."""
        del self._rows_by_key[local_key]
        self.rows.discard(row)
        self.namespaces.discard(local_key.partition(_SEPARATOR)[0], row)

    def named(self, name: str, namespaces: Iterable[str]) -> Iterator[int]:
        """The rows of a name in some namespaces."""
        for namespace in namespaces:
            row = self._rows_by_key.get(namespace + _SEPARATOR + name)
            if row is not None:
                yield row


class References(NamedTuple):
    """Sorted references to the selected rows of one partition."""

    cluster_id: ClusterID
    group_resource: GroupResource
    keys: list[tuple[str, int]]


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
    number is given away again. Take `references` in the same step as the rows; they stay good for as long as their
    revision is pinned (`federator.aggregator.query.pins`).

    A row is a number into columns; it costs its local key, a word, and its bits in the indexes. The body stays in the
    ledger. A row's labels are not kept (some 200 bytes a row): each commit brings what they were before it. Where even
    the ledger does not know that, since the entry before is damaged, every index is searched instead.
    """

    def __init__(self) -> None:
        self._revision = 0
        self._partitions: dict[GroupResource, dict[ClusterID, Partition]] = {}
        self._last_partition: Partition | None = None
        # Columns, by row number.
        self._row_partitions: list[Partition | None] = []
        self._row_keys: list[str] = []
        self._row_revisions = array("Q")
        self._free: list[int] = []
        # Indexes on what may change of an object.
        self._label_keys = Postings()
        self._label_values: dict[str, Postings] = {}
        self._nodes = Postings()
        self._owners = Postings()
        self._applied_entries = 0
        self._malformed = 0
        self._searched = 0

    @property
    def revision(self) -> int:
        """Newest revision applied."""
        return self._revision

    def __len__(self) -> int:
        return len(self._row_keys) - len(self._free)

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
        self._revision = ledger.revision
        bulk = _Bulk()
        keys, partitions, revisions = self._row_keys, self._row_partitions, self._row_revisions
        for row, entry in enumerate(ledger.present()):
            key, state = entry.key, entry.indexed
            local_key = key.namespace + _SEPARATOR + key.name
            keys.append(local_key)
            partitions.append(self._partition(key))
            revisions.append(entry.revision)
            bulk.add(row, state)
            also(entry)
            if not state.is_whole:
                self._malformed += 1
            if row % LOAD_SLICE == LOAD_SLICE - 1:
                yield row + 1
        self._fill_partitions()
        self._take_in(bulk)

    def _take_in(self, bulk: _Bulk) -> None:
        """Indexes rows that are in no index yet."""
        for key, rows_by_value in bulk.labels.items():
            values = self._label_values.get(key)
            if values is None:
                values = self._label_values[key] = Postings()
            for value, rows in rows_by_value.items():
                values.add_all(value, rows)
            self._label_keys.add_all(key, list(chain.from_iterable(rows_by_value.values())))
        for node, rows in bulk.nodes.items():
            self._nodes.add_all(node, rows)
        for uid, rows in bulk.owners.items():
            self._owners.add_all(uid, rows)

    def _fill_partitions(self) -> None:
        rows_of: defaultdict[Partition, list[int]] = defaultdict(list)
        for row, partition in enumerate(self._row_partitions):
            if partition is not None:
                rows_of[partition].append(row)
        for partition, rows in rows_of.items():
            partition.fill({self._row_keys[row]: row for row in rows})

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
        key = entry.key
        row = self._new_row(self._partition(key), key.namespace + _SEPARATOR + key.name)
        self._row_revisions[row] = entry.revision
        self._malformed += not entry.indexed.is_whole
        added.add(row, entry.indexed)

    def _modify(self, entry: ObjectEntry, before: IndexedState) -> None:
        key, state = entry.key, entry.indexed
        local_key = key.namespace + _SEPARATOR + key.name
        partition = self._partition(key)
        row = partition.row(local_key)
        self._malformed += not state.is_whole
        if row is None:  # the state before was damaged, and so could not be loaded
            row = self._new_row(partition, local_key)
            self._index(row, state, NOTHING_INDEXED)
        elif state != before:
            self._index(row, state, self._known(before, row))
        self._row_revisions[row] = entry.revision

    def _delete(self, entry: ObjectEntry, before: IndexedState) -> None:
        key = entry.key
        local_key = key.namespace + _SEPARATOR + key.name
        partition = self._partition(key)
        row = partition.row(local_key)
        if row is None:
            return
        self._index(row, NOTHING_INDEXED, self._known(before, row))
        partition.discard(local_key, row)
        if not partition:
            self._drop(partition)
        self._row_partitions[row] = None
        self._row_keys[row] = ""
        self._free.append(row)

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
            partition = by_cluster[key.cluster_id] = Partition(key.cluster_id, key.group_resource)
        return partition

    def _drop(self, partition: Partition) -> None:
        self._last_partition = None
        by_cluster = self._partitions[partition.group_resource]
        del by_cluster[partition.cluster_id]
        if not by_cluster:
            del self._partitions[partition.group_resource]

    def _new_row(self, partition: Partition, local_key: str) -> int:
        if self._free:
            row = self._free.pop()
            self._row_partitions[row] = partition
            self._row_keys[row] = local_key
        else:
            row = len(self._row_keys)
            self._row_partitions.append(partition)
            self._row_keys.append(local_key)
            self._row_revisions.append(0)
        partition.add(local_key, row)
        return row

    def _known(self, before: IndexedState, row: int) -> IndexedState:
        """What the indexes hold of a row; where that is unknown, takes the row out of them."""
        if before is not UNKNOWN:
            return before
        self._searched += 1
        for postings in (self._label_keys, *self._label_values.values(), self._nodes, self._owners):
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
        for uid in set(old.owner_uids).difference(new.owner_uids):
            self._owners.discard(uid, row)
        for uid in set(new.owner_uids).difference(old.owner_uids):
            self._owners.add(uid, row)

    def _discard_label(self, key: str, value: str, row: int) -> None:
        values = self._label_values.get(key)
        if values is not None:
            values.discard(value, row)
            if not values:
                del self._label_values[key]

    # -------------------------------------------------------------------------------------------------------- reads

    def select(self, selection: Selection) -> BitMap:
        """Returns the rows of a selection, as far as the indexes know it.

        Requirements on other than `INDEXED_FIELDS` are left to the caller, who has the bodies.
        """
        partitions = list(self._selected_partitions(selection))
        rows = self._candidates(partitions, selection.namespace, selection.name)
        for label_requirement in selection.labels:
            if not rows:
                return rows
            self._keep_labelled(rows, label_requirement)
        for requirement in selection.indexed_fields:
            equal = self._rows_by_field(partitions, requirement.path, requirement.value)
            if requirement.equal:
                rows &= equal
            else:
                rows -= equal
        return rows

    def owned_by(self, owner_uid: str) -> BitMap:
        """Returns the rows that name an owner of this UID."""
        return self._owners.rows(owner_uid).copy()

    def references(self, rows: BitMap) -> list[References]:
        """Returns references to rows, by type, then by cluster; unsorted inside, which may be done later."""
        taken = []
        for group_resource in sorted(self._partitions):
            by_cluster = self._partitions[group_resource]
            for cluster_id in sorted(by_cluster):
                found = rows & by_cluster[cluster_id].rows
                if found:
                    keys = [(self._row_keys[row], self._row_revisions[row]) for row in found]
                    taken.append(References(cluster_id, group_resource, keys))
        return taken

    def count(self, rows: BitMap) -> Mapping[ClusterID, int]:
        """Returns how many of the rows each cluster has; clusters with none are left out."""
        counts: dict[ClusterID, int] = {}
        for by_cluster in self._partitions.values():
            for cluster_id, partition in by_cluster.items():
                number = rows.intersection_cardinality(partition.rows)
                if number:
                    counts[cluster_id] = counts.get(cluster_id, 0) + number
        return counts

    def objects(self) -> Mapping[tuple[ClusterID, GroupResource], int]:
        """Returns how many objects there are, by cluster and type."""
        return {
            (cluster_id, group_resource): len(partition)
            for group_resource, by_cluster in self._partitions.items()
            for cluster_id, partition in by_cluster.items()
        }

    def objects_by_type(self) -> Mapping[GroupResource, int]:
        """Returns how many objects there are of each type."""
        return {
            group_resource: sum(map(len, by_cluster.values()))
            for group_resource, by_cluster in self._partitions.items()
        }

    def sample(self, resource: GroupResource, most: int) -> list[int]:
        """Returns the revisions of some objects of a type, drawn at random from all clusters, each once."""
        rows = BitMap().union(*(partition.rows for partition in self._partitions.get(resource, {}).values()))
        return [self._row_revisions[rows[place]] for place in random.sample(range(len(rows)), min(most, len(rows)))]

    def statistics(self) -> Mapping[str, int]:
        """Objects, entries of each index, entries applied, bodies malformed, and rows that had to be searched for."""
        return {
            "revision": self._revision,
            "objects": len(self),
            "partitions": sum(map(len, self._partitions.values())),
            "index_entries_label_keys": len(self._label_keys),
            "index_entries_label_values": sum(map(len, self._label_values.values())),
            "index_entries_nodes": len(self._nodes),
            "index_entries_owners": len(self._owners),
            "applied_entries": self._applied_entries,
            "malformed": self._malformed,
            "searched": self._searched,
        }

    def _selected_partitions(self, selection: Selection) -> Iterator[Partition]:
        for group_resource in selection.resources:
            for cluster_id, partition in self._partitions.get(group_resource, {}).items():
                if selection.has_cluster(cluster_id):
                    yield partition

    def _candidates(self, partitions: list[Partition], namespace: str, name: str) -> BitMap:
        """A new bitmap of the partitions' rows, narrowed by what their keys say."""
        if name:
            named = BitMap()
            for partition in partitions:
                named.update(partition.named(name, (namespace, "") if namespace else partition.namespaces))
            return named
        if namespace:
            return BitMap().union(*(partition.namespaces.rows_of_any((namespace, "")) for partition in partitions))
        return BitMap().union(*(partition.rows for partition in partitions))

    def _keep_labelled(self, rows: BitMap, requirement: LabelRequirement) -> None:
        values = self._label_values.get(requirement.key)
        match requirement.operator:
            case LabelOperator.IN:
                rows &= values.rows_of_any(requirement.values) if values else BitMap()
            case LabelOperator.NOT_IN:
                rows -= values.rows_of_any(requirement.values) if values else BitMap()
            case LabelOperator.EXISTS:
                rows &= self._label_keys.rows(requirement.key)
            case LabelOperator.DOES_NOT_EXIST:
                rows -= self._label_keys.rows(requirement.key)
            case _:
                compared = filter(requirement.compares, values or ())
                rows &= values.rows_of_any(compared) if values else BitMap()

    def _rows_by_field(self, partitions: list[Partition], path: FieldPath, value: str) -> BitMap:
        """The rows whose indexed field equals a value."""
        if path == NODE_NAME:
            if value:
                return self._nodes.rows(value)
            return self._candidates(partitions, "", "") - self._nodes.rows_of_any(self._nodes)
        if path == NAMESPACE:
            return BitMap().union(*(partition.namespaces.rows(value) for partition in partitions))
        assert path == NAME, "every indexed field has its index"
        return self._candidates(partitions, "", value) if value else BitMap()


class _Bulk:
    """Rows by what the indexes say of them, collected to be added together: several times as fast as one by one."""

    __slots__ = ("labels", "nodes", "owners", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.labels: dict[str, dict[str, list[int]]] = {}
        self.nodes: dict[str, list[int]] = {}
        self.owners: dict[str, list[int]] = {}

    def add(self, row: int, state: IndexedState) -> None:
        self.rows += 1
        for key, value in state.labels.items():
            values = self.labels.get(key)
            if values is None:
                values = self.labels[key] = {}
            _append(values, value, row)
        if state.node_name:
            _append(self.nodes, state.node_name, row)
        if state.owner_uids:
            for uid in set(state.owner_uids):
                _append(self.owners, uid, row)


def _append(rows_by_value: dict[str, list[int]], value: str, row: int) -> None:
    rows = rows_by_value.get(value)
    if rows is None:
        rows_by_value[value] = [row]
    else:
        rows.append(row)


def sorted_references(references: References) -> Iterator[ObjectReference]:
    """Yields the references of one partition by namespace and name."""
    for key, revision in sorted(references.keys):
        namespace, _, name = key.partition(_SEPARATOR)
        yield ObjectReference(namespace, name, revision)
