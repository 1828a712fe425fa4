"""What one transaction writes into the tables of a ledger."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import NamedTuple, TypeVar

import lmdb
import msgspec

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
    TransitionRow,
    TypeRow,
)
from federator.aggregator.ledger.indexed_state import NOTHING_INDEXED, UNKNOWN, IndexedState, read_indexed_state
from federator.aggregator.ledger.planning import Head, Plan, head_of, identity, outlived_by
from federator.aggregator.ledger.reader import IDENTITY, MIGRATED, OLDEST, OLDEST_TIME, POSITION, Reader, time_of
from federator.aggregator.ledger.records import (
    LOST,
    RESTARTED,
    ClusterEntry,
    Entry,
    EntryType,
    ObjectEntry,
    TypeEntry,
    has_new_state,
)
from federator.aggregator.ledger.sums import SUMS, SUMS_KEY, Change
from federator.aggregator.ledger.tables import TABLES, Tables, Transaction
from federator.api.cluster import ClusterID, ClusterState
from federator.api.key import ObjectKey
from federator.errors import InvalidInput, LedgerCorrupt
from federator.wire.body import Dictionary, decode_body
from federator.wire.digest import state_hash

T = TypeVar("T")
W = TypeVar("W", bound="Writer")

_FORGET_SECONDS = 0.01
_LOOK_EVERY = 32  # entries, between two looks at the clock


def writing(tables: Tables) -> AbstractContextManager[Writer]:
    """As `changing`, for what the ledger itself writes."""
    return changing(tables, Writer)


@contextmanager
def changing(tables: Tables, writer_class: type[W]) -> Iterator[W]:
    """A write transaction: durable (fsync) after the block, undone whole where the block raises.

    Raises:
        LedgerFull: the disk is full; nothing was changed.
        LedgerCorrupt: a page is damaged.
        LedgerError: a write or the fsync failed.
    """
    try:
        with tables.begin(write=True) as transaction:
            writer = writer_class(tables, transaction)
            yield writer
            writer.finish()
    except lmdb.Error as error:
        raise tables.typed(error) from error


class Forgotten(NamedTuple):
    """What a slice of compaction did.

    Attributes:
        dropped: entries.
        is_done: history now starts after the revision that was asked for.
        damaged: revisions of entries that could not be read, and were passed over.
    """

    dropped: int
    is_done: bool
    damaged: tuple[int, ...]


class Writer(Reader):
    """What a write transaction can read and write; it is the view that plans are made from.

    Attributes:
        writes: records written so far.
        end: where the order stands after the transaction, once that is over.
    """

    def __init__(self, tables: Tables, transaction: Transaction) -> None:
        super().__init__(tables, transaction)
        self._position: Position | None = None
        self._numbers: dict[tuple[ClusterID, str, str], Numbers] = {}
        self._sums = Change()
        self.writes = 0
        self.end = Position(0, 0)

    def establish(self, base: int) -> Identity:
        """Returns the ledger's identity, and gives it one where it is new.

        Raises:
            LedgerError: it has a schema that this program does not know.
            LedgerCorrupt: it has none, and yet records.
        """
        identity = self._get(codec.IDENTITY, "meta", IDENTITY)
        if identity is None:
            if any(map(self.count, TABLES)):
                raise LedgerCorrupt.at(str(self._tables.path), "meta", IDENTITY, is_missing=True)
            identity = Identity(codec.SCHEMA_VERSION, secrets.token_bytes(8), secrets.token_bytes(32))
            self.set_identity(identity)
            self._put(codec.POSITION, "meta", POSITION, Position(base, 0))
            self._put(codec.NUMBER, "meta", OLDEST, base)
        codec.require_known_schema(identity, self._tables.path)
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

    def convert_heads(self, after: bytes, most: int) -> bytes | None:
        """Rewrites the next heads of present objects that a former schema wrote.

        Args:
            after: key up to which they were looked at; empty at the beginning.
            most: heads to look at.

        Returns:
            the key up to which they have been looked at now; None at the end.
        """
        heads = list(islice(self._starting_with("current", b"", after), most))  # read before any is written
        for key, sealed in heads:
            try:
                old = codec.HEAD_V1.unseal(key, sealed)
            except ValueError:  # converted already, or damaged
                continue
            mark = state_hash(old.content_hash, old.api_version, old.uid)
            kind = identity(old.uid, self._indexed_at(old.revision))
            names = (old.namespace, old.name) if old.name else ()
            self._put(codec.HEAD, "current", key, HeadRow(old.revision, mark, kind, *names))
        return heads[-1][0] if heads else None

    def renew_heads(self, after: bytes, most: int) -> bytes | None:
        """Makes the next heads of present objects, of which schema 2 knew less, what their newest entries say now.

        Arguments and result are as those of `convert_heads`. What is damaged stays, for whoever reads it.
        """
        heads = list(islice(self._starting_with("current", b"", after), most))  # read before any is written
        for key, sealed in heads:
            try:
                head = codec.HEAD.unseal(key, sealed)
                row = self.state(head.revision)
            except (ValueError, LedgerCorrupt):
                continue
            if row is not None and head.fingerprint != LOST:
                kind = identity(row.uid, row.indexed)
                self._put(codec.HEAD, "current", key, msgspec.structs.replace(head, identity=kind))
        return heads[-1][0] if heads else None

    def begin_transitions(self) -> None:
        """Makes the table of transitions one whose records add up, where a former schema had none.

        Each member and type gets the state that it has now, as of where history begins: what has changed since is in
        the log, and so is what a member was before; of a type that is known only from then on.
        """
        sums = self._get(SUMS, "meta", SUMS_KEY)
        if sums is not None and "transitions" not in sums:
            self.set_sums({**sums, "transitions": 0})
        oldest, began = self.oldest_revision(), self._history_began()
        for record in list(self.clusters()):
            row = TransitionRow(record.since_ms, record.state, record.reason)
            self._put(codec.TRANSITION, "transitions", codec.transition_key(record.cluster_id, None, oldest), row)
            for known in list(self.types(record.cluster_id)):
                key = codec.transition_key(known.cluster_id, known.type.group_resource, oldest)
                self._put(codec.TRANSITION, "transitions", key, TransitionRow(began, known.state, known.reason))

    def _history_began(self) -> int:
        """Time of the first entry of history that can be read; of the newest where there is none."""
        rows = (row for _, row in self.sound_history(self.oldest_revision(), self.revision) if row is not None)
        return next(map(time_of, rows), self.time_ms)

    def find_transitions(self, after_revision: int, most: int) -> int | None:
        """Writes down the transitions among the next entries of the log.

        Returns:
            the revision to go on after; None at the end.
        """
        looked_at = list(islice(self.sound_history(after_revision, self.revision), most))
        for _, row in looked_at:
            if row is not None and not isinstance(row, ObjectRow):
                self._found_transition(row.entry)
        return looked_at[-1][0] if looked_at else None

    def _found_transition(self, entry: ClusterEntry | TypeEntry) -> None:
        resource = entry.resource_type.group_resource if isinstance(entry, TypeEntry) else None
        oldest = codec.transition_key(entry.cluster_id, resource, self.oldest_revision())
        if self._transition_before(_key_of(entry)) == oldest:  # the first: what was put there is of later
            previous = entry.previous_state if isinstance(entry, ClusterEntry) else None
            if previous is None:
                self._remove("transitions", oldest)
            else:
                self._put(codec.TRANSITION, "transitions", oldest, TransitionRow(self._history_began(), previous, ""))
        self.note_transition(entry)

    def _indexed_at(self, revision: int) -> IndexedState:
        """What the indexes hold of a state that a former schema may have written."""
        key = codec.encode_revision(revision)
        try:
            row = codec.ANY_ROW.unseal(key, self._transaction.get(key, None, self._tables.handle("log")) or b"")
        except ValueError:
            return UNKNOWN
        if isinstance(row, ObjectRow):
            return row.indexed
        return _indexed(row.body) if isinstance(row, ObjectRowV1) else UNKNOWN

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

    def write(self, plan: Plan) -> None:
        """Writes what a plan changes. Where this raises, the transaction must be undone."""
        for entry in plan.commit.entries:
            self._append(entry)
            if has_new_state(entry):
                self.note_transition(entry)
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

    def note_transition(self, entry: ClusterEntry | TypeEntry) -> None:
        """Writes down that a member or a type of it has entered a state."""
        row = TransitionRow(self._known_until(entry), entry.state, entry.reason)
        self._put(codec.TRANSITION, "transitions", _key_of(entry), row)

    def _known_until(self, entry: ClusterEntry | TypeEntry) -> int:
        if not _is_restart(entry):
            return entry.time_ms
        # All members are told after a restart, one after the other; it is the entry before the first that counts.
        try:
            before = self.entry(entry.revision - 1)
        except LedgerCorrupt:
            before = None
        if not _is_restart(before):
            return min(self.time_ms, entry.time_ms)
        assert isinstance(before, ClusterEntry)
        former = self._get(codec.TRANSITION, "transitions", _key_of(before))
        return before.time_ms if former is None else former.since_ms

    def _forget_transitions(self, entry: ClusterEntry | TypeEntry) -> None:
        """Forgets the states that a member or a type had before the one that history will begin with."""
        key = _key_of(entry)
        while (before := self._transition_before(key)) is not None:
            self._remove("transitions", before)

    def forget(self, up_to: int, most: int) -> Forgotten:
        """Forgets the next entries of history, at most `most` of them, none after `up_to`, for at most some 10 ms."""
        oldest = self.oldest_revision()
        until = time.perf_counter() + _FORGET_SECONDS
        dropped: list[int] = []
        damaged: list[int] = []
        passed, time_ms = 0, self.oldest_time_ms()
        for revision, row in self.sound_history(oldest, up_to):  # told already, so what it names is committed
            if passed == most or (passed % _LOOK_EVERY == _LOOK_EVERY - 1 and time.perf_counter() > until):
                break
            passed, oldest = passed + 1, revision
            if row is None:
                damaged.append(revision)  # it stays, since it may be the newest state of an object
                continue
            entry = self.as_entry(revision, row)
            time_ms = entry.time_ms
            dropped += outlived_by(entry)
            if has_new_state(entry):
                self._forget_transitions(entry)
            elif isinstance(entry, ObjectEntry) and entry.type is EntryType.DELETED:
                self._forget_deletion(entry)
        else:
            oldest = max(oldest, up_to)
        log = self._tables.handle("log")
        for revision in dropped:
            self._transaction.delete(codec.encode_revision(revision), db=log)
        self._put(codec.NUMBER, "meta", OLDEST, oldest)
        self._put(codec.NUMBER, "meta", OLDEST_TIME, time_ms)
        return Forgotten(len(dropped), oldest >= up_to, tuple(damaged))

    def repair_head(self, current_key: bytes, revision: int, row: ObjectRow) -> bytes:
        """Writes a head anew, from the newest entry of its key; returns it as it stands.

        It is what was written there before, so the sums do not change: what is damaged may be the checksum itself.
        """
        is_digest = codec.object_key(current_key[: codec.PREFIX_LENGTH], row.namespace, row.name)[1]
        names = (row.namespace, row.name) if is_digest else ()
        made = head_of(revision, row)
        head = HeadRow(made.revision, made.fingerprint, made.identity, *names)
        sealed = codec.HEAD.seal(current_key, head)
        self._transaction.put(current_key, sealed, db=self._tables.handle("current"))
        return sealed

    def set_sums(self, sums: Mapping[str, int]) -> None:
        """Says what the tables add up to."""
        self._put(SUMS, "meta", SUMS_KEY, dict(sums))

    def finish(self) -> None:
        """Writes what concerns the transaction as a whole; nothing may be written after it."""
        if self._sums:
            sums = self._get(SUMS, "meta", SUMS_KEY)
            if sums is not None:  # else the ledger is being made, or was made before there were any
                self.set_sums(self._sums.applied_to(sums))
        if self.writes and self._get(codec.POSITION, "meta", POSITION) is not None:
            self.end = self._current_position()

    def set_deletion(self, key: ObjectKey, revision: int) -> None:
        """Remembers with which entry a key ends that is not present; 0 forgets it."""
        deletion_key, _ = codec.object_key(self._given_numbers(key).prefix, key.namespace, key.name)
        if revision:
            self._put(codec.NUMBER, "deletions", deletion_key, revision)
        else:
            self._remove("deletions", deletion_key)

    def _forget_deletion(self, entry: ObjectEntry) -> None:
        if self.deletion(entry.key) == entry.revision:
            self.set_deletion(entry.key, 0)

    def _add_dictionary(self, dictionary: Dictionary) -> None:
        # Numbered in the order in which they came, so that the newest of a type is the last.
        key = codec.encode_number(self.count("dictionaries") + 1)
        self._put(codec.DICTIONARY, "dictionaries", key, dictionary)

    def _append(self, entry: Entry) -> None:
        self.writes += 1
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
            self._remove("current", current_key)
            return
        names = (key.namespace, key.name) if is_digest else ()
        self._put(codec.HEAD, "current", current_key, HeadRow(head.revision, head.fingerprint, head.identity, *names))

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
        self.writes += 1
        sealed = kind.seal(key, value)
        if table == "meta":
            self._transaction.put(key, sealed, db=self._tables.handle(table))
            return
        former = self._transaction.replace(key, sealed, db=self._tables.handle(table))
        self._sums.replace(table, former, sealed)

    def _remove(self, table: str, key: bytes) -> None:
        self.writes += 1
        former = self._transaction.pop(key, db=self._tables.handle(table))
        self._sums.replace(table, former, None)


def _key_of(entry: ClusterEntry | TypeEntry) -> bytes:
    resource = entry.resource_type.group_resource if isinstance(entry, TypeEntry) else None
    return codec.transition_key(entry.cluster_id, resource, entry.revision)


def _is_restart(entry: Entry | None) -> bool:
    return isinstance(entry, ClusterEntry) and (entry.state, entry.reason) == (ClusterState.STALE, RESTARTED)


def _indexed(body: bytes) -> IndexedState:
    if not body:
        return NOTHING_INDEXED
    try:
        return read_indexed_state(decode_body(body))
    except InvalidInput:
        return IndexedState(is_whole=False)
