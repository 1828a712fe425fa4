"""The merged store: client-go's Store and Indexer over the objects of all clusters, for programs."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping

from pyroaring import BitMap

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.merge.function_indexes import IndexFunc
from federator.aggregator.merge.merged_indexer import MergedIndexer
from federator.aggregator.merge.merged_object import MergedObject
from federator.api.key import ObjectKey

_NAMED_QUARANTINED = 10


class MergedStore:
    """The objects of all clusters by key, and by the values that index functions give them.

    It is read only: objects come and go by what the ledger commits. The same namespace and name in several clusters are
    as many objects, told apart by their keys. What is returned is sorted by type, cluster, namespace and name.

    What holds is what holds of the `MergedIndexer`, whose objects these are: every function is atomic and sees one
    revision. An object whose index function raises is there all the same, but missing from that index: quarantined,
    counted and named, until a state comes that can be indexed.

    Objects are read from the ledger, some 20 µs each. Whatever returns them raises LedgerCorrupt where the state of one
    is lost to damage, until its agent has sent it again.

    Attributes:
        indexer: whose objects these are.
    """

    def __init__(self, indexer: MergedIndexer, ledger: Ledger) -> None:
        """Reads through an indexer, which has loaded the ledger and is told of its commits.

        Stores over one indexer have the same indexes.
        """
        self.indexer = indexer
        self._ledger = ledger

    @property
    def revision(self) -> int:
        """Newest revision applied, the store's own version."""
        return self.indexer.revision

    def __len__(self) -> int:
        return len(self.indexer)

    def get(self, obj: MergedObject) -> MergedObject | None:
        """The present state of an object."""
        return self.get_by_key(obj.key)

    def get_by_key(self, key: ObjectKey) -> MergedObject | None:
        """The present state, or None."""
        row = self.indexer.find(key)
        return None if row is None else MergedObject(self._entry_of(row), self._ledger.bodies)

    def list(self) -> list[MergedObject]:
        """All objects."""
        return self.objects(self.indexer.present())

    # Below, `list` is the method above.

    def list_keys(self) -> builtins.list[ObjectKey]:
        """All keys."""
        return self._keys(self.indexer.present())

    def by_index(self, index_name: str, value: str) -> builtins.list[MergedObject]:
        """The objects an index has under a value.

        Raises:
            InvalidInput: there is no such index.
        """
        return self.objects(self.indexer.functions.find(index_name).values.rows(value))

    def index_keys(self, index_name: str, value: str) -> builtins.list[ObjectKey]:
        """The keys an index has under a value.

        Raises:
            InvalidInput: there is no such index.
        """
        return self._keys(self.indexer.functions.find(index_name).values.rows(value))

    def index(self, index_name: str, obj: MergedObject) -> builtins.list[MergedObject]:
        """The objects that share at least one of an object's values.

        Raises:
            InvalidInput: there is no such index.
            Exception: what the index function raised for `obj`.
        """
        index = self.indexer.functions.find(index_name)
        return self.objects(index.values.rows_of_any(index.values_of(obj)))

    def list_index_func_values(self, index_name: str) -> builtins.list[str]:
        """All values an index has objects under.

        Raises:
            InvalidInput: there is no such index.
        """
        return [*self.indexer.functions.find(index_name).values]

    def get_indexers(self) -> Mapping[str, IndexFunc]:
        """The index functions by name."""
        return {index.name: index.func for index in self.indexer.functions}

    def add_indexers(self, indexers: Mapping[str, IndexFunc]) -> None:
        """Adds indexes, complete at once over what is there. Blocks until done; see `adding_indexers`.

        Raises:
            InvalidInput: a name is taken; nothing was added.
        """
        for _ in self.adding_indexers(indexers):
            pass

    def adding_indexers(self, indexers: Mapping[str, IndexFunc]) -> Iterator[int]:
        """Does the same bit by bit; yields how many objects were looked at, every few milliseconds.

        Anything may be committed and read between two steps. The indexes answer once the iteration has come to its end;
        where it is closed before, there are none.
        """
        rows = self.indexer.present()
        return self.indexer.functions.building(indexers, rows.copy(), rows, self._entry_of, self._ledger.bodies)

    def statistics(self) -> Mapping[str, object]:
        """Sizes; `quarantined_keys` are the first ten of each index that has any, with their errors."""
        indexes = tuple(self.indexer.functions)
        quarantined = {index.name: index.quarantined for index in indexes if index.quarantined}
        return {
            "objects": len(self),
            "revision": self.revision,
            "index_values": {index.name: len(index.values) for index in indexes},
            "index_bytes": {index.name: index.memory for index in indexes},
            "quarantined": len(set[int]().union(*quarantined.values())),
            "quarantined_keys": {
                name: {str(self.indexer.key(row)): errors[row] for row in builtins.list(errors)[:_NAMED_QUARANTINED]}
                for name, errors in quarantined.items()
            },
        }

    def objects(self, rows: BitMap) -> builtins.list[MergedObject]:
        """The objects of some rows of the indexer."""
        return [
            MergedObject(self._entry(reference.revision), self._ledger.bodies)
            for references in self.indexer.references(rows)
            for reference in references.objects
        ]

    def _keys(self, rows: BitMap) -> builtins.list[ObjectKey]:
        return [
            ObjectKey(references.cluster_id, *references.group_resource, reference.namespace, reference.name)
            for references in self.indexer.references(rows)
            for reference in references.objects
        ]

    def _entry_of(self, row: int) -> ObjectEntry:
        return self._entry(self.indexer.revision_of(row))

    def _entry(self, revision: int) -> ObjectEntry:
        entry = self._ledger.entry(revision)
        assert entry is not None, "the newest state of a present object is never compacted"
        return entry
