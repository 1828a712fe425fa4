"""What one transaction reads from the tables of a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import lmdb

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.codec import Kind, Numbers, ObjectRow, Position, Row
from federator.aggregator.ledger.planning import Head
from federator.aggregator.ledger.records import ClusterRecord, Entry, ObjectEntry, StoredKey, TypeRecord
from federator.aggregator.ledger.tables import TABLES, Tables, Transaction
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.errors import CursorExpired, LedgerCorrupt
from federator.wire.body import Dictionary

T = TypeVar("T")

IDENTITY = b"identity"
"""Key of the Identity in the table `meta`."""

POSITION = b"position"
"""Key of the Position in the table `meta`."""

OLDEST = b"oldest"
"""Key of the oldest revision in the table `meta`."""

MIGRATED = b"migrated"
"""Key of the revision up to which the log has the present schema, in the table `meta` of a ledger on its way there."""


@contextmanager
def reading(tables: Tables) -> Iterator[Reader]:
    """A read transaction: one state of the whole ledger. While it is open, no page it sees is used again.

    Raises:
        LedgerCorrupt: a page is damaged.
        LedgerError: LMDB failed.
    """
    try:
        with tables.begin() as transaction:
            yield Reader(tables, transaction)
    except lmdb.Error as error:
        raise tables.typed(error) from error


class Reader:
    """What a transaction can read; not to be used after it.

    Everything it gives has been checked; each method raises LedgerCorrupt for a record that is not what was written.
    """

    def __init__(self, tables: Tables, transaction: Transaction) -> None:
        self._tables = tables
        self._transaction = transaction

    def position(self) -> Position:
        """Where the order stands."""
        return self._have(codec.POSITION, "meta", POSITION)

    def oldest_revision(self) -> int:
        """See the seam."""
        return self._have(codec.NUMBER, "meta", OLDEST)

    def require_history(self, after_revision: int) -> None:
        """Checks that everything after a revision is here.

        Raises:
            CursorExpired: it is not.
        """
        oldest = self.oldest_revision()
        if after_revision < oldest:
            raise CursorExpired(after_revision, oldest)

    def history(self, after_revision: int, up_to: int) -> Iterator[tuple[int, Row]]:
        """The log's rows after a revision, in order."""
        log = self._transaction.cursor(self._tables.handle("log"))
        found = log.set_range(codec.encode_revision(after_revision + 1))
        while found:
            key, sealed = log.item()
            revision = codec.decode_revision(key)
            if revision > up_to:
                return
            yield revision, self._unseal(codec.ROW, "log", key, sealed)
            found = log.next()

    def entry(self, revision: int) -> Entry | None:
        """The entry at a revision."""
        row = self._get(codec.ROW, "log", codec.encode_revision(revision))
        return None if row is None else self.as_entry(revision, row)

    def object_entry(self, revision: int) -> ObjectEntry | None:
        """The entry at a revision, if it is an object's."""
        entry = self.entry(revision)
        return entry if isinstance(entry, ObjectEntry) else None

    def as_entry(self, revision: int, row: Row) -> Entry:
        """The entry a row was written for."""
        if not isinstance(row, ObjectRow):
            return row.entry
        (cluster_id,), (group, resource) = self._name(row.cluster), self._name(row.resource)
        return ObjectEntry(
            revision,
            row.previous_revision,
            row.change,
            row.time_ms,
            ObjectKey(ClusterID(cluster_id), group, resource, row.namespace, row.name),
            row.api_version,
            row.uid,
            row.resource_version,
            row.content_hash,
            row.body,
            row.indexed,
            row.follows,
        )

    def revision_at(self, time_ms: int, newest: int) -> int:
        """The newest revision up to `newest` committed at or before a time; the oldest where the time is older."""
        # Times grow with revisions, so the last entry in time is found by bisection, though revisions have gaps.
        low, high = self.oldest_revision(), newest
        found = low
        while low < high:
            middle = (low + high) // 2
            first = next(self.history(middle, high), None)
            if first is None:
                high = middle
            elif _time_of(first[1]) <= time_ms:
                found = low = first[0]
            else:
                high = middle
        return found

    def present(self) -> Iterator[ObjectEntry]:
        """Newest entries of all present objects."""
        for key, sealed in self._transaction.cursor(self._tables.handle("current")):
            head = self._unseal(codec.HEAD, "current", key, sealed)
            log_key = codec.encode_revision(head.revision)
            entry = self.as_entry(head.revision, self._have(codec.ROW, "log", log_key))
            if isinstance(entry, ObjectEntry):
                yield entry

    def keys(self, cluster_id: ClusterID, resource: GroupResource) -> Iterator[StoredKey]:
        """Present objects of one type in one cluster."""
        numbers = self.numbers(cluster_id, *resource)
        if numbers is not None:
            for key, sealed in self._starting_with("current", numbers.prefix):
                head = self._unseal(codec.HEAD, "current", key, sealed)
                yield StoredKey(*codec.object_name(key, head), head.resource_version)

    def head(self, key: ObjectKey) -> Head | None:
        """Head of a present object."""
        cluster_id, group, resource, namespace, name = key
        numbers = self.numbers(cluster_id, group, resource)
        if numbers is None:
            return None
        return self._get(codec.HEAD, "current", codec.object_key(numbers.prefix, namespace, name)[0])

    def deletion(self, key: ObjectKey) -> int:
        """Revision of the newest DELETED of a key that is not present, while history has it; else 0."""
        cluster_id, group, resource, namespace, name = key
        numbers = self.numbers(cluster_id, group, resource)
        if numbers is None:
            return 0
        return self._get(codec.NUMBER, "deletions", codec.object_key(numbers.prefix, namespace, name)[0]) or 0

    def newest(self, key: ObjectKey) -> int:
        """Revision of the newest entry of a key; 0 where history has none."""
        head = self.head(key)
        return self.deletion(key) if head is None else head.revision

    def dictionaries(self) -> Iterator[Dictionary]:
        """All dictionaries, the older ones of a type first."""
        for key, sealed in self._starting_with("dictionaries", b""):
            yield self._unseal(codec.DICTIONARY, "dictionaries", key, sealed)

    def cluster(self, cluster_id: ClusterID) -> ClusterRecord | None:
        """Record of a member."""
        return self._get(codec.CLUSTER, "clusters", codec.cluster_text(cluster_id))

    def clusters(self) -> Iterator[ClusterRecord]:
        """Records of all members."""
        for key, sealed in self._starting_with("clusters", b""):
            yield self._unseal(codec.CLUSTER, "clusters", key, sealed)

    def type(self, cluster_id: ClusterID, resource: GroupResource) -> TypeRecord | None:
        """Record of a type of a member."""
        return self._get(codec.TYPE, "types", codec.type_key(cluster_id, resource))

    def types(self, cluster_id: ClusterID) -> Iterator[TypeRecord]:
        """Records of all types of a member."""
        for key, sealed in self._starting_with("types", codec.types_prefix(cluster_id)):
            yield self._unseal(codec.TYPE, "types", key, sealed)

    def numbers(self, cluster_id: ClusterID, group: str, resource: str) -> Numbers | None:
        """Numbers of a cluster and a type; None where one of them has never had any."""
        cluster = self._get(codec.NUMBER, "numbers", codec.cluster_text(cluster_id))
        type_ = self._get(codec.NUMBER, "numbers", codec.type_text(GroupResource(group, resource)))
        return None if cluster is None or type_ is None else codec.numbers(cluster, type_)

    def count(self, table: str) -> int:
        """Records in a table."""
        return self._transaction.stat(self._tables.handle(table))["entries"]

    def used_bytes(self) -> int:
        """Bytes of the pages that hold records."""
        stats = [self._transaction.stat(self._tables.handle(table)) for table in TABLES]
        return sum(
            stat["psize"] * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) for stat in stats
        )

    def _starting_with(self, table: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._transaction.cursor(self._tables.handle(table))
        found = cursor.set_range(prefix)
        while found:
            key, sealed = cursor.item()
            if not key.startswith(prefix):
                return
            yield key, sealed
            found = cursor.next()

    def _name(self, number: int) -> tuple[str, ...]:
        name = self._tables.names.get(number)
        if name is None:
            name = self._tables.names[number] = self._have(codec.NAME, "names", codec.encode_number(number))
        return name

    def _have(self, kind: Kind[T], table: str, key: bytes) -> T:
        value = self._get(kind, table, key)
        if value is None:
            raise LedgerCorrupt(str(self._tables.path), f"{table} {key.hex()}, which is missing")
        return value

    def _get(self, kind: Kind[T], table: str, key: bytes) -> T | None:
        sealed = self._transaction.get(key, None, self._tables.handle(table))
        return None if sealed is None else self._unseal(kind, table, key, sealed)

    def _unseal(self, kind: Kind[T], table: str, key: bytes, sealed: bytes) -> T:
        try:
            return kind.unseal(key, sealed)
        except ValueError as error:  # msgspec's errors are ValueErrors too
            raise LedgerCorrupt(str(self._tables.path), f"{table} {key.hex()}") from error


def _time_of(row: Row) -> int:
    return row.time_ms if isinstance(row, ObjectRow) else row.entry.time_ms
