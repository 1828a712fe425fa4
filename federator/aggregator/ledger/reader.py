"""What one transaction reads from the tables of a ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import lmdb

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.codec import HeadRow, Kind, Numbers, ObjectRow, Position, Row
from federator.aggregator.ledger.damage import LOST
from federator.aggregator.ledger.planning import Head
from federator.aggregator.ledger.records import (
    ClusterRecord,
    Entry,
    ObjectEntry,
    StoredKey,
    Transition,
    TypeRecord,
)
from federator.aggregator.ledger.sums import SUMS, SUMS_KEY
from federator.aggregator.ledger.tables import TABLES, Tables, Transaction, page_bytes
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

OLDEST_TIME = b"oldest-time"
"""Key of the time of the entry at the oldest revision in the table `meta`; there once one was forgotten."""

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

    def oldest_time_ms(self) -> int:
        """See the seam."""
        return self._get(codec.NUMBER, "meta", OLDEST_TIME) or 0

    def require_history(self, after_revision: int) -> None:
        """Checks that everything after a revision is here.

        Raises:
            CursorExpired: it is not.
        """
        oldest = self.oldest_revision()
        if after_revision < oldest:
            raise CursorExpired(after_revision, oldest)

    def history(self, after_revision: int, up_to: int) -> Iterator[tuple[int, Row]]:
        """The log's rows after a revision, in order. History has no gaps, so one that is missing is damage."""
        for revision, row in self.sound_history(after_revision, up_to):
            if row is None:
                raise LedgerCorrupt.at(str(self._tables.path), "log", codec.encode_revision(revision))
            yield revision, row

    def sound_history(self, after_revision: int, up_to: int) -> Iterator[tuple[int, Row | None]]:
        """The same, with None in place of a row that is missing or damaged."""
        log = self._transaction.cursor(self._tables.handle("log"))
        for revision in range(after_revision + 1, up_to + 1):
            expected = codec.encode_revision(revision)
            # At the first, and where another key stands than should: it was written at another one, or in its place.
            found = log.key() == expected or log.set_key(expected)
            row = None
            if found:
                try:
                    row = codec.ROW.unseal(expected, log.value())
                except ValueError:
                    row = None
                log.next()
            yield revision, row

    def backwards(self, revision: int) -> Iterator[tuple[int, Row | None]]:
        """The log's rows from a revision back, with None in place of one that is damaged."""
        log = self._transaction.cursor(self._tables.handle("log"))
        found = log.prev() if log.set_range(codec.encode_revision(revision + 1)) else log.last()
        while found:
            key, sealed = log.item()
            revision = int.from_bytes(key[:8])  # a page of another table may stand here
            try:
                yield revision, codec.ROW.unseal(key, sealed)
            except ValueError:
                yield revision, None
            found = log.prev()

    def require_end(self) -> None:
        """Checks that the log ends where the order stands.

        Raises:
            LedgerCorrupt: it does not.
        """
        position = self.position().revision
        log = self._transaction.cursor(self._tables.handle("log"))
        newest = log.key() if log.last() else None
        expected = codec.encode_revision(position)
        is_compacted = position == self.oldest_revision() and (newest is None or newest < expected)
        if newest != expected and not is_compacted:
            raise LedgerCorrupt(str(self._tables.path), f"log, which ends at {newest and newest.hex()}, not {position}")

    def scan(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All records of a table as they stand, unchecked."""
        return iter(self._transaction.cursor(self._tables.handle(table)))

    def finds(self, table: str, key: bytes, sealed: bytes) -> bool:
        """Whether a search for a key finds that record."""
        return self._transaction.get(key, None, self._tables.handle(table)) == sealed

    def sums(self) -> Mapping[str, int] | None:
        """What the tables should add up to; None where nothing was said yet."""
        return self._get(SUMS, "meta", SUMS_KEY)

    def heads_at(
        self, revisions: Collection[int], after: bytes, most: int, found: dict[ObjectKey, int]
    ) -> bytes | None:
        """Looks at up to `most` heads from a key on for those with one of some revisions.

        Returns:
            the key to go on from; None at the end.
        """
        cursor = self._transaction.cursor(self._tables.handle("current"))
        is_there = cursor.set_range(after) if after else cursor.first()
        for _ in range(most):
            if not is_there:
                return None
            key, sealed = cursor.item()
            head = self._unseal(codec.HEAD, "current", key, sealed)
            if head.revision in revisions and head.fingerprint != LOST:
                found[self.object_key(key, head)] = head.revision
            is_there = cursor.next()
        return cursor.key() if is_there else None

    def entry(self, revision: int) -> Entry | None:
        """The entry at a revision."""
        row = self._get(codec.ROW, "log", codec.encode_revision(revision))
        return None if row is None else self.as_entry(revision, row)

    def object_entry(self, revision: int) -> ObjectEntry | None:
        """The entry at a revision, if it is an object's."""
        entry = self.entry(revision)
        return entry if isinstance(entry, ObjectEntry) else None

    def state(self, revision: int) -> ObjectRow | None:
        """The object row at a revision: the state that the object took."""
        row = self._get(codec.ROW, "log", codec.encode_revision(revision))
        return row if isinstance(row, ObjectRow) else None

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
            first = next(((at, row) for at, row in self.sound_history(middle, high) if row is not None), None)
            if first is None:
                high = middle
            elif time_of(first[1]) <= time_ms:
                found = low = first[0]
            else:
                high = middle
        return found

    def present(self, damaged: Callable[[LedgerCorrupt], None], lost: Callable[[ObjectKey], None]) -> Iterator[Entry]:
        """Newest entries of all present objects.

        Args:
            damaged: told of each record that is damaged; its object is left out.
            lost: told of each object whose state is known to be lost; it is left out too.
        """
        for key, sealed in self._transaction.cursor(self._tables.handle("current")):
            try:
                head = self._unseal(codec.HEAD, "current", key, sealed)
                if head.fingerprint == LOST:
                    lost(self.object_key(key, head))
                    continue
                row = self._have(codec.ROW, "log", codec.encode_revision(head.revision))
            except LedgerCorrupt as error:
                damaged(error)
            else:
                yield self.as_entry(head.revision, row)

    def object_key(self, current_key: bytes, head: HeadRow) -> ObjectKey:
        """Which object a record of the table `current` speaks of."""
        numbers = codec.numbers_of(current_key)
        (cluster_id,), (group, resource) = map(self._name, numbers)
        return ObjectKey(ClusterID(cluster_id), group, resource, *codec.object_name(current_key, head))

    def keys(self, cluster_id: ClusterID, resource: GroupResource) -> Iterator[StoredKey]:
        """Present objects of one type in one cluster."""
        numbers = self.numbers(cluster_id, *resource)
        if numbers is not None:
            for key, sealed in self._starting_with("current", numbers.prefix):
                head = self._unseal(codec.HEAD, "current", key, sealed)
                yield StoredKey(*codec.object_name(key, head), head.revision, head.fingerprint)

    def slice_of_keys(
        self, cluster_id: ClusterID, resource: GroupResource, after: bytes, most: int
    ) -> tuple[list[StoredKey], bytes | None]:
        """Up to `most` of them, from those after a key on; and the key to go on after, None at the end.

        Args:
            cluster_id: the cluster.
            resource: the type.
            after: from the slice before; empty for the first.
            most: at least 1.
        """
        numbers = self.numbers(cluster_id, *resource)
        if numbers is None:
            return [], None
        keys: list[StoredKey] = []
        for key, sealed in self._starting_with("current", numbers.prefix, after):
            if len(keys) == most:
                return keys, after
            head = self._unseal(codec.HEAD, "current", key, sealed)
            keys.append(StoredKey(*codec.object_name(key, head), head.revision, head.fingerprint))
            after = key
        return keys, None

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

    def transitions(self, cluster_id: ClusterID, resource: GroupResource | None, up_to: int) -> list[Transition]:
        """States that a type, or the cluster itself (None), entered up to a revision."""
        found: list[Transition] = []
        for key, sealed in self._starting_with("transitions", codec.transitions_prefix(cluster_id, resource)):
            revision = codec.transition_revision(key)
            if revision > up_to:
                break
            row = self._unseal(codec.TRANSITION, "transitions", key, sealed)
            found.append(Transition(revision, row.since_ms, row.state, row.reason))
        return found

    def _transition_before(self, key: bytes) -> bytes | None:
        """Key of the transition of the same subject before one that is, or would be, at a key."""
        cursor = self._transaction.cursor(self._tables.handle("transitions"))
        found = cursor.prev() if cursor.set_range(key) else cursor.last()
        before = cursor.key() if found else b""
        return before if codec.is_of_same_subject(before, key) else None

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
        return page_bytes(self._transaction.stat(self._tables.handle(table)) for table in TABLES)

    def _starting_with(self, table: str, prefix: bytes, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        cursor = self._transaction.cursor(self._tables.handle(table))
        found = cursor.set_range(after or prefix)
        if found and after == cursor.key():
            found = cursor.next()
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
            raise LedgerCorrupt.at(str(self._tables.path), table, key, is_missing=True)
        return value

    def _get(self, kind: Kind[T], table: str, key: bytes) -> T | None:
        sealed = self._transaction.get(key, None, self._tables.handle(table))
        return None if sealed is None else self._unseal(kind, table, key, sealed)

    def _unseal(self, kind: Kind[T], table: str, key: bytes, sealed: bytes) -> T:
        try:
            return kind.unseal(key, sealed)
        except ValueError as error:  # msgspec's errors are ValueErrors too
            raise LedgerCorrupt.at(str(self._tables.path), table, key) from error


def time_of(row: Row) -> int:
    """When an entry was committed, milliseconds since 1970."""
    return row.time_ms if isinstance(row, ObjectRow) else row.entry.time_ms
