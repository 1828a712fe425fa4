"""What one transaction writes into the tables of a ledger."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import lmdb

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.codec import (
    ClusterRow,
    HeadRow,
    Identity,
    Kind,
    Numbers,
    ObjectRow,
    ObjectRowV1,
    Position,
    Row,
    TypeRow,
)
from federator.aggregator.ledger.indexed_state import NOTHING_INDEXED, IndexedState, read_indexed_state
from federator.aggregator.ledger.planning import Head, Plan, outlived_by
from federator.aggregator.ledger.reader import IDENTITY, MIGRATED, OLDEST, POSITION, Reader
from federator.aggregator.ledger.records import ClusterEntry, Entry, EntryType, ObjectEntry, TypeEntry
from federator.aggregator.ledger.tables import Tables, Transaction
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.errors import InvalidInput, LedgerError, LedgerFull
from federator.wire.body import Dictionary, decode_body

T = TypeVar("T")

DISK_MARGIN = 16 << 20
"""Bytes of the disk that are left free: a commit also copies the pages of the trees above what it changes."""


@contextmanager
def writing(tables: Tables) -> Iterator[Writer]:
    """A write transaction: durable (fsync) after the block, undone whole where the block raises.

    Raises:
        LedgerFull: the disk is full; nothing was changed.
        LedgerCorrupt: a page is damaged.
        LedgerError: a write or the fsync failed.
    """
    try:
        with tables.begin(write=True) as transaction:
            yield Writer(tables, transaction)
    except lmdb.Error as error:
        raise tables.typed(error) from error


class Writer(Reader):
    """What a write transaction can read and write; it is the view that plans are made from."""

    def __init__(self, tables: Tables, transaction: Transaction) -> None:
        super().__init__(tables, transaction)
        self._position: Position | None = None
        self._numbers: dict[tuple[ClusterID, str, str], Numbers] = {}

    def establish(self, base: int) -> Identity:
        """Returns the ledger's identity, and gives it one where it is new.

        Raises:
            LedgerError: it has a schema that this program does not know.
        """
        identity = self._get(codec.IDENTITY, "meta", IDENTITY)
        if identity is None:
            identity = Identity(codec.SCHEMA_VERSION, secrets.token_bytes(8), secrets.token_bytes(32))
            self.set_identity(identity)
            self._put(codec.POSITION, "meta", POSITION, Position(base, 0))
            self._put(codec.NUMBER, "meta", OLDEST, base)
        if not 1 <= identity.schema_version <= codec.SCHEMA_VERSION:
            raise LedgerError(
                f"the ledger in {self._tables.path} has schema {identity.schema_version}, "
                f"this program reads 1 to {codec.SCHEMA_VERSION}"
            )
        return identity

    def set_identity(self, identity: Identity) -> None:
        """Says what the ledger is from now on."""
        self._put(codec.IDENTITY, "meta", IDENTITY, identity)

    def convert_rows(self, most: int) -> int:
        """Rewrites the next rows of the log that a former schema wrote; returns how many were looked at, 0 at the end.

        A row that is damaged stays what it is: whoever reads it later will be told.
        """
        log = self._tables.handle("log")
        done = self._get(codec.NUMBER, "meta", MIGRATED) or 0
        looked_at = 0
        cursor = self._transaction.cursor(log)
        found = cursor.set_range(codec.encode_revision(done + 1))
        while found and looked_at < most:
            key, sealed = cursor.item()
            done = codec.decode_revision(key)
            looked_at += 1
            try:
                row = codec.ANY_ROW.unseal(key, sealed)
            except ValueError:
                row = None
            if isinstance(row, ObjectRowV1):
                self._transaction.put(key, codec.ROW.seal(key, self._converted(done, row)), db=log)
            found = cursor.set_range(codec.encode_revision(done + 1))  # the put may have moved the cursor
        if looked_at:
            self._put(codec.NUMBER, "meta", MIGRATED, done)
        return looked_at

    def _converted(self, revision: int, row: ObjectRowV1) -> ObjectRow:
        (cluster_id,), (group, resource) = self._name(row.cluster), self._name(row.resource)
        key = ObjectKey(ClusterID(cluster_id), group, resource, row.namespace, row.name)
        follows = 0
        if row.change is EntryType.ADDED:
            follows = self.deletion(key)
            self.set_deletion(key, 0)
        elif row.change is EntryType.DELETED:
            self.set_deletion(key, revision)
        return ObjectRow(
            row.change,
            row.previous_revision,
            follows,
            row.time_ms,
            row.cluster,
            row.resource,
            row.namespace,
            row.name,
            row.api_version,
            row.uid,
            row.resource_version,
            row.content_hash,
            _indexed(row.body),
            row.body,
        )

    @property
    def revision(self) -> int:
        """Newest revision given away, by this transaction too."""
        return self._current_position().revision

    @property
    def time_ms(self) -> int:
        """Time of the newest entry."""
        return self._current_position().time_ms

    def numbers(self, cluster_id: ClusterID, group: str, resource: str) -> Numbers | None:
        """See Reader; remembered, since every change of a batch asks for the same."""
        numbers = self._numbers.get((cluster_id, group, resource))
        if numbers is None:
            numbers = super().numbers(cluster_id, group, resource)
            if numbers is not None:
                self._numbers[cluster_id, group, resource] = numbers
        return numbers

    def require_room(self, more_bytes: int, max_bytes: int) -> None:
        """Checks that more records stay below the bound, and that the disk has room for them.

        The disk is asked beforehand because LMDB reports a write that a full disk cut short as an I/O error, which
        cannot be told from one that calls for opening the ledger again.

        Raises:
            LedgerFull: there is no room.
        """
        used = self.used_bytes()
        on_disk = self._tables.free_disk_bytes() + self._tables.file_bytes() - used
        if used + more_bytes > max_bytes or more_bytes + DISK_MARGIN > on_disk:
            raise LedgerFull(str(self._tables.path))

    def write(self, plan: Plan) -> None:
        """Writes what a plan changes. Where this raises, the transaction must be undone."""
        for entry in plan.commit.entries:
            self._append(entry)
        for key, head in plan.heads.items():
            self._set_head(key, head)
        for key, revision in plan.deletions.items():
            self.set_deletion(key, revision)
        if plan.dictionary is not None:
            self._add_dictionary(plan.dictionary)
        if plan.cluster is not None:
            self._put(codec.CLUSTER, "clusters", codec.cluster_text(plan.cluster.cluster_id), plan.cluster)
        for record in plan.types:
            self._put(codec.TYPE, "types", codec.type_key(record.cluster_id, record.type.group_resource), record)
        if plan.commit.entries:
            self._position = Position(plan.commit.revision, plan.time_ms)
            self._put(codec.POSITION, "meta", POSITION, self._position)

    def forget(self, up_to: int, most: int) -> tuple[int, bool]:
        """Forgets the next entries of history, at most `most` of them and none after `up_to`.

        Returns:
            how many entries were dropped, and whether history now starts after `up_to`.
        """
        oldest = self.oldest_revision()
        dropped: list[int] = []
        passed = 0
        for revision, row in self.history(oldest, up_to):  # told already, so what it names is committed
            if passed == most:
                break
            passed, oldest = passed + 1, revision
            entry = self.as_entry(revision, row)
            dropped += outlived_by(entry)
            if isinstance(entry, ObjectEntry) and entry.type is EntryType.DELETED:
                self._forget_deletion(entry)
        else:
            oldest = max(oldest, up_to)
        log = self._tables.handle("log")
        for revision in dropped:
            self._transaction.delete(codec.encode_revision(revision), db=log)
        self._put(codec.NUMBER, "meta", OLDEST, oldest)
        return len(dropped), oldest >= up_to

    def set_deletion(self, key: ObjectKey, revision: int) -> None:
        """Remembers with which entry a key ends that is not present; 0 forgets it."""
        deletion_key, _ = codec.object_key(self._given_numbers(key).prefix, key.namespace, key.name)
        if revision:
            self._put(codec.NUMBER, "deletions", deletion_key, revision)
        else:
            self._transaction.delete(deletion_key, db=self._tables.handle("deletions"))

    def _forget_deletion(self, entry: ObjectEntry) -> None:
        if self.deletion(entry.key) == entry.revision:
            self.set_deletion(entry.key, 0)

    def _add_dictionary(self, dictionary: Dictionary) -> None:
        # Numbered in the order in which they came, so that the newest of a type is the last.
        key = codec.encode_number(self.count("dictionaries") + 1)
        self._put(codec.DICTIONARY, "dictionaries", key, dictionary)

    def _append(self, entry: Entry) -> None:
        key = codec.encode_revision(entry.revision)
        sealed = codec.ROW.seal(key, self._as_row(entry))
        if not self._transaction.put(key, sealed, append=True, db=self._tables.handle("log")):
            # LMDB's own error, so that it is not mistaken for a refusal of this one request: records are half written.
            raise lmdb.CorruptedError(f"log {key.hex()}, where an entry stands that the position does not know")

    def _as_row(self, entry: Entry) -> Row:
        if isinstance(entry, ClusterEntry):
            return ClusterRow(entry)
        if isinstance(entry, TypeEntry):
            return TypeRow(entry)
        numbers = self._given_numbers(entry.key)
        return ObjectRow(
            entry.type,
            entry.previous_revision,
            entry.follows,
            entry.time_ms,
            numbers.cluster,
            numbers.resource,
            entry.key.namespace,
            entry.key.name,
            entry.api_version,
            entry.uid,
            entry.resource_version,
            entry.content_hash,
            entry.indexed,
            entry.body,
        )

    def _set_head(self, key: ObjectKey, head: Head | None) -> None:
        current_key, is_digest = codec.object_key(self._given_numbers(key).prefix, key.namespace, key.name)
        if head is None:
            self._transaction.delete(current_key, db=self._tables.handle("current"))
            return
        names = (key.namespace, key.name) if is_digest else ()
        row = HeadRow(head.revision, head.uid, head.resource_version, head.content_hash, head.api_version, *names)
        self._put(codec.HEAD, "current", current_key, row)

    def _given_numbers(self, key: ObjectKey) -> Numbers:
        cluster_id, group, resource, _, _ = key
        numbers = self.numbers(cluster_id, group, resource)
        if numbers is None:
            self._give_number(codec.cluster_text(cluster_id), (cluster_id,))
            self._give_number(codec.type_text(key.group_resource), key.group_resource)
            return self._given_numbers(key)
        return numbers

    def _give_number(self, text: bytes, name: tuple[str, ...]) -> None:
        if self._get(codec.NUMBER, "numbers", text) is None:
            number = self.count("names") + 1
            self._put(codec.NUMBER, "numbers", text, number)
            self._put(codec.NAME, "names", codec.encode_number(number), name)

    def _current_position(self) -> Position:
        if self._position is None:
            self._position = self.position()
        return self._position

    def _put(self, kind: Kind[T], table: str, key: bytes, value: T) -> None:
        self._transaction.put(key, kind.seal(key, value), db=self._tables.handle(table))


def _indexed(body: bytes) -> IndexedState:
    if not body:
        return NOTHING_INDEXED
    try:
        return read_indexed_state(decode_body(body))
    except InvalidInput:
        return IndexedState(is_whole=False)
