"""The merged Indexer: which objects of all clusters are present, and which of them a selection means."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pyroaring import BitMap

from federator.aggregator.ledger.indexed_state import NOTHING_INDEXED, IndexedState
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import Commit, EntryType, ObjectEntry
from federator.aggregator.merge.postings import Postings
from federator.aggregator.merge.selection import NAME, NAMESPACE, NODE_NAME, Selection
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.api.selector import FieldPath, LabelOperator, LabelRequirement
from federator.errors import LedgerError

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

    def row(self, local_key: str) -> int | None:
        """The row of a local key."""
        return self._rows_by_key.get(local_key)

    def add(self, local_key: str, row: int) -> None:
        """Takes in a row."""
        self._rows_by_key[local_key] = row
        self.rows.add(row)
        self.namespaces.add(local_key.partition(_SEPARATOR)[0], row)

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
    revision is pinned (`federator.aggregator.serve.pins`).

    A row is a number into columns; it costs its local key, two words, and its bits in the indexes. The body stays in
    the ledger. So that a row's old labels can be taken out of the indexes, they are not kept (some 200 bytes a row) but
    read again from the ledger's previous entry, and only where a hash of eight bytes says that they changed: most
    changes are of status alone. Where the ledger does not have that entry any more, every index is searched instead.
    """

    def __init__(self) -> None:
        self._revision = 0
        self._ledger: Ledger | None = None
        self._partitions: dict[GroupResource, dict[ClusterID, Partition]] = {}
        # Columns, by row number.
        self._row_partitions: list[Partition | None] = []
        self._row_keys: list[str] = []
        self._row_revisions = array("Q")
        self._row_hashes = array("q")
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
        self._ledger = ledger
        self._revision = ledger.revision
        for entry in ledger.present():
            self._upsert(entry)

    def apply(self, commit: Commit) -> None:
        """Takes in the object entries of a commit."""
        for entry in commit.entries:
            if isinstance(entry, ObjectEntry):
                self._applied_entries += 1
                if entry.type is EntryType.DELETED:
                    self._delete(entry)
                else:
                    self._upsert(entry)
        self._revision = commit.revision

    def _upsert(self, entry: ObjectEntry) -> None:
        key = entry.key
        local_key = key.namespace + _SEPARATOR + key.name
        partition = self._partition(key)
        state = entry.indexed
        self._malformed += not state.is_whole
        state_hash = _hash(state)
        row = partition.row(local_key)
        if row is None:
            row = self._new_row(partition, local_key)
            self._index(row, state, NOTHING_INDEXED)
        elif state_hash != self._row_hashes[row]:
            self._index(row, state, self._previous_state(entry, row))
        self._row_revisions[row] = entry.revision
        self._row_hashes[row] = state_hash

    def _delete(self, entry: ObjectEntry) -> None:
        key = entry.key
        local_key = key.namespace + _SEPARATOR + key.name
        partition = self._partition(key)
        row = partition.row(local_key)
        if row is None:
            return
        self._index(row, NOTHING_INDEXED, self._previous_state(entry, row))
        partition.discard(local_key, row)
        if not partition:
            self._drop(partition)
        self._row_partitions[row] = None
        self._row_keys[row] = ""
        self._free.append(row)

    def _partition(self, key: ObjectKey) -> Partition:
        by_cluster = self._partitions.setdefault(key.group_resource, {})
        partition = by_cluster.get(key.cluster_id)
        if partition is None:
            partition = by_cluster[key.cluster_id] = Partition(key.cluster_id, key.group_resource)
        return partition

    def _drop(self, partition: Partition) -> None:
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
            self._row_hashes.append(0)
        partition.add(local_key, row)
        return row

    def _previous_state(self, entry: ObjectEntry, row: int) -> IndexedState:
        """What the indexes hold of a row; where that cannot be known, takes the row out of them."""
        try:
            previous = self._ledger.entry(entry.previous_revision) if self._ledger else None
        except LedgerError:  # a damaged record must not keep later ones out
            previous = None
        if previous is not None:
            return previous.indexed
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


def sorted_references(references: References) -> Iterator[ObjectReference]:
    """Yields the references of one partition by namespace and name."""
    for key, revision in sorted(references.keys):
        namespace, _, name = key.partition(_SEPARATOR)
        yield ObjectReference(namespace, name, revision)


def _hash(state: IndexedState) -> int:
    """Of a state, equal for equal states. Two different ones share a hash once in 2^64 changes."""
    return hash((tuple(state.labels.items()), state.node_name, state.owner_uids))
