"""Verification: whether every record of a ledger is what was written, and agrees with the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar

import lmdb

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.codec import ClusterRow, HeadRow, Kind, ObjectRow, Row, TypeRow
from federator.aggregator.ledger.damage import LOST
from federator.aggregator.ledger.maintenance import identity_of, transaction_of
from federator.aggregator.ledger.planning import head_of
from federator.aggregator.ledger.reader import OLDEST, POSITION, Reader
from federator.aggregator.ledger.records import EntryType, TypeEntry, TypeRecord
from federator.aggregator.ledger.sums import SUMS, SUMS_KEY, added, checksum
from federator.aggregator.ledger.tables import TABLES, Tables, Transaction
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource
from federator.errors import InvalidInput
from federator.wire.body import BodyCodec, Dictionary, content_hash, dictionary_of

T = TypeVar("T")

Report = Callable[[str], None]
"""Told of each problem, in one line."""


class Verified(NamedTuple):
    """What was looked at.

    Attributes:
        ledger_id: of the ledger, hexadecimal.
        revision: the one state that was looked at.
        records: records read, of all tables.
        bodies: bodies decompressed.
        problems: problems found.
    """

    ledger_id: str
    revision: int
    records: int
    bodies: int
    problems: int


def verify(tables: Tables, report: Report, *, bodies: bool = False) -> Verified:
    """Reads every record of every table, in one state. Blocks, some 25 µs per entry, with bodies somewhat more.

    - Each record has its checksum and stands at its own key.
    - Revisions follow each other and times only grow, up to the position; no record of another table is missing.
    - Each present object has one newest entry, each deletion that is remembered is one, and each entry follows one of
      the same object, as far as history reaches.
    - Each state that a cluster or a type has, or had as far as history reaches, is the one of its entry.
    - Numbers and names are one to one, and each that is used is known.
    - Each dictionary is one, and each body's dictionary is here.

    Args:
        tables: the ledger's, or a backup's.
        report: told of problems; what cannot be reached behind a damaged page is not told one by one.
        bodies: decompress each body, too, and compare it with its hash.

    Raises:
        LedgerError: there is no ledger, or its schema is not the present one.
        LedgerCorrupt: what it is cannot be read, or LMDB finds no table.
    """
    identity = identity_of(tables, must_be_present=True)
    with transaction_of(tables) as transaction:
        verification = _Verification(tables, transaction, report)
        verification.run(bodies=bodies)
        return Verified(
            identity.ledger_id.hex(),
            verification.end_revision,
            verification.records,
            verification.bodies,
            verification.problems,
        )


class _Verification(Reader):
    """One pass over one state."""

    def __init__(self, tables: Tables, transaction: Transaction, report: Report) -> None:
        super().__init__(tables, transaction)
        self._report = report
        self._codec = BodyCodec()
        self._clusters: set[str] = set()
        self._texts: dict[int, bytes] = {}
        self._oldest = 0
        self._sums: dict[str, int] = {}
        self._checks_bodies = False
        self.end_revision = 0
        self.records = 0
        self.bodies = 0
        self.problems = 0

    def run(self, *, bodies: bool) -> None:
        self._checks_bodies = bodies
        checks = {
            "meta": self._check_meta,
            "names": self._check_names,
            "numbers": self._check_numbers,
            "clusters": self._check_clusters,
            "types": self._check_types,
            "transitions": self._check_transitions,
            "dictionaries": self._check_dictionaries,
            "log": self._check_log,
            "current": self._check_current,
            "deletions": self._check_deletions,
        }
        assert set(checks) == set(TABLES)
        for table, check in checks.items():
            try:
                check()
            except KeyError:
                self._problem(table, "the table is missing")
            except lmdb.Error as error:
                self._problem(table, f"the rest cannot be read: {error}")

    def _check_meta(self) -> None:
        self.records += self.count("meta")
        position = self._meta(codec.POSITION, POSITION)
        self.end_revision = position.revision if position else 0
        self._oldest = self._meta(codec.NUMBER, OLDEST) or 0
        sealed = self._transaction.get(SUMS_KEY, None, self._tables.handle("meta"))
        if sealed is not None:  # else the ledger was made before there were any
            self._sums = self._open_record(SUMS, "meta sums", SUMS_KEY, sealed) or {}
        if self._oldest > self.end_revision:
            self._problem("meta oldest", f"{self._oldest} is after the position, {self.end_revision}")

    def _meta(self, kind: Kind[T], key: bytes) -> T | None:
        sealed = self._transaction.get(key, None, self._tables.handle("meta"))
        if sealed is None:
            self._problem(f"meta {key.decode()}", "it is missing")
            return None
        return self._open_record(kind, f"meta {key.decode()}", key, sealed)

    def _check_names(self) -> None:
        for key, name in self._each("names", codec.NAME):
            number = int.from_bytes(key)
            match name:
                case (cluster,):
                    self._texts[number] = cluster.encode()
                case (group, resource):
                    self._texts[number] = codec.type_text(GroupResource(group, resource))
                case _:
                    self._problem(f"names {number}", f"{name} is no cluster and no type")
            if number != len(self._texts):
                self._problem(f"names {number}", "numbers have a gap before it")

    def _check_numbers(self) -> None:
        seen = set()
        for text, number in self._each("numbers", codec.NUMBER):
            seen.add(number)
            if self._texts.get(number) != text:
                self._problem(f"numbers {_shown(text)}", f"its number {number} is not its name's")
        for number in self._texts.keys() - seen:
            self._problem(f"names {number}", "no text has this number")

    def _check_clusters(self) -> None:
        for key, record in self._each("clusters", codec.CLUSTER):
            self._clusters.add(record.cluster_id)
            if codec.cluster_text(record.cluster_id) != key:
                self._problem(f"clusters {_shown(key)}", f"it is the record of {record.cluster_id}")

    def _check_types(self) -> None:
        for key, record in self._each("types", codec.TYPE):
            if codec.type_key(record.cluster_id, record.type.group_resource) != key:
                self._problem(f"types {_shown(key)}", f"it is the record of {record.type} in {record.cluster_id}")
            elif record.cluster_id not in self._clusters:
                self._problem(f"types {_shown(key)}", "its cluster is unknown")

    def _check_transitions(self) -> None:
        states: dict[bytes, str] = {}
        for key, transition in self._each("transitions", codec.TRANSITION):
            try:
                cluster_id, resource = codec.transition_subject(key)
            except ValueError:
                self._problem(f"transitions {_shown(key)}", "its key is none")
                continue
            revision = codec.transition_revision(key)
            record = f"transitions {cluster_id} {resource or 'itself'} {revision}"
            states[codec.transitions_prefix(cluster_id, resource)] = transition.state
            if revision > self._oldest:
                self._check_transition(record, revision, (cluster_id, resource, transition.state))
        for text in self._clusters:
            cluster_id = ClusterID(text)
            known = self._get_quietly(codec.CLUSTER, "clusters", codec.cluster_text(cluster_id))
            subjects: list[tuple[GroupResource | None, str]] = [(None, known.state)] if known else []
            subjects += [(each.type.group_resource, each.state) for each in self._types_of(cluster_id)]
            for resource, state in subjects:
                newest = states.get(codec.transitions_prefix(cluster_id, resource))
                if newest != state:
                    self._problem(f"transitions {cluster_id} {resource or 'itself'}", f"it ends {newest}, not {state}")

    def _check_transition(
        self, record: str, revision: int, expected: tuple[ClusterID, GroupResource | None, str]
    ) -> None:
        row = self._row(revision)
        if row is None:
            self._problem(record, "its entry is missing")
        elif isinstance(row, ObjectRow) or _transition_of(row) != expected:
            self._problem(record, "its entry says otherwise")

    def _check_dictionaries(self) -> None:
        for expected, (key, dictionary) in enumerate(self._each("dictionaries", codec.DICTIONARY), 1):
            number = int.from_bytes(key)
            if number != expected:
                self._problem(f"dictionaries {number}", f"it should be number {expected}: the next would replace one")
            try:
                is_sound = Dictionary.of(dictionary.resource, dictionary.content) == dictionary
            except InvalidInput:
                is_sound = False
            if not is_sound:
                self._problem(f"dictionaries {number}", "it is no zstd dictionary of its ID")
            self._codec.add(dictionary)

    def _check_log(self) -> None:
        time_ms, previous = 0, self._oldest
        for key, row in self._each("log", codec.ROW):
            revision = codec.decode_revision(key)
            if revision > self.end_revision:
                self._problem(f"log {revision}", f"it is after the position, {self.end_revision}")
            if revision > previous + 1:
                self._problem(f"log {previous + 1}", f"it is missing or damaged, up to {revision - 1}")
            previous = max(previous, revision)
            own_time_ms = row.time_ms if isinstance(row, ObjectRow) else row.entry.time_ms
            if own_time_ms < time_ms:
                self._problem(f"log {revision}", "it is older than the entry before it")
            time_ms = own_time_ms
            if isinstance(row, ObjectRow):
                self._check_object(revision, row)
            elif revision > self._oldest:
                cluster_id, resource, _ = _transition_of(row)
                noted = codec.transition_key(cluster_id, resource, revision)
                if self._get_quietly(codec.TRANSITION, "transitions", noted) is None:
                    self._problem(f"log {revision}", "its transition is not noted")
        if previous < self.end_revision:
            self._problem(f"log {previous + 1}", f"it is missing or damaged, up to {self.end_revision}")

    def _check_object(self, revision: int, row: ObjectRow) -> None:
        record = f"log {revision}"
        key = self._key_of(row)
        if key is None:
            self._problem(record, f"its cluster {row.cluster} or its type {row.resource} is unknown")
            return
        if row.change not in {EntryType.ADDED, EntryType.MODIFIED, EntryType.DELETED}:
            self._problem(record, f"{row.change.name} is no change of an object")
        if (row.previous_revision == 0) is not (row.change is EntryType.ADDED):
            self._problem(record, f"{row.change.name} with previous revision {row.previous_revision}")
        self._check_predecessor(record, revision, row)
        self._check_successor(record, revision, row, key)
        self._check_body(record, row)

    def _check_predecessor(self, record: str, revision: int, row: ObjectRow) -> None:
        before = row.previous_revision or row.follows
        if not before:
            return
        if before >= revision:
            self._problem(record, f"it follows {before}, which is not before it")
            return
        # Compaction keeps what entries after it name as their predecessor, but of deletions nothing.
        kept_after = revision if row.previous_revision else before
        if kept_after <= self._oldest:
            return
        former = self._row(before)
        if former is None:
            self._problem(record, f"it follows {before}, which is missing")
        elif not isinstance(former, ObjectRow) or not _is_same_key(former, row):
            self._problem(record, f"it follows {before}, which is of something else")
        elif (former.change is EntryType.DELETED) is (row.change is not EntryType.ADDED):
            self._problem(record, f"{row.change.name} follows {before}, {former.change.name}")
        elif row.previous_revision and former.uid != row.uid:
            self._problem(record, f"it follows {before}, which has another UID")

    def _check_successor(self, record: str, revision: int, row: ObjectRow, key: bytes) -> None:
        """The newest entry of a key has to be the one that the other tables know."""
        head = self._get_quietly(codec.HEAD, "current", key)
        if head is not None:
            if head.revision < revision:
                self._problem(record, f"it is newer than what is known as the newest of its object, {head.revision}")
            return
        deletion = self._get_quietly(codec.NUMBER, "deletions", key) or 0
        if deletion < revision:
            what = "its object is neither present nor known as deleted"
            self._problem(record, what if not deletion else f"it is newer than the deletion of its object, {deletion}")

    def _check_body(self, record: str, row: ObjectRow) -> None:
        if row.change is EntryType.DELETED:
            if row.body:
                self._problem(record, "a deletion with a body")
            return
        dictionary_id = dictionary_of(row.body)
        if dictionary_id and dictionary_id not in self._codec:
            self._problem(record, f"its body needs dictionary {dictionary_id}, which is missing")
            return
        if self._checks_bodies:
            self.bodies += 1
            try:
                is_equal = content_hash(self._codec.decode(row.body)) == row.content_hash
            except InvalidInput as error:
                self._problem(record, f"its body is {error.given}")
            else:
                if not is_equal:
                    self._problem(record, "its body is not what its hash says")

    def _check_current(self) -> None:
        for key, head in self._each("current", codec.HEAD):
            record = f"current {key.hex()}"
            if head.fingerprint == LOST:
                self._problem(record, "the state of its object was lost; its agent brings it again")
                continue
            row = self._row(head.revision)
            if row is None:
                self._problem(record, f"its newest entry, {head.revision}, is missing")
            elif not isinstance(row, ObjectRow) or self._key_of(row) != key:
                self._problem(record, f"its newest entry, {head.revision}, is of something else")
            elif row.change is EntryType.DELETED:
                self._problem(record, f"its newest entry, {head.revision}, is a deletion")
            elif not _agrees(head, row):
                self._problem(record, f"its newest entry, {head.revision}, says otherwise")

    def _check_deletions(self) -> None:
        for key, revision in self._each("deletions", codec.NUMBER):
            record = f"deletions {key.hex()}"
            row = self._row(revision)
            if row is None:
                self._problem(record, f"its entry, {revision}, is missing")
            elif not isinstance(row, ObjectRow) or self._key_of(row) != key or row.change is not EntryType.DELETED:
                self._problem(record, f"its entry, {revision}, is not the deletion of that object")
            if self._transaction.get(key, None, self._tables.handle("current")) is not None:
                self._problem(record, "its object is present")

    def _types_of(self, cluster_id: ClusterID) -> Iterator[TypeRecord]:
        for key, sealed in self._starting_with("types", codec.types_prefix(cluster_id)):
            with suppress(ValueError):  # a damaged one was told where it stands
                yield codec.TYPE.unseal(key, sealed)

    def _each(self, table: str, kind: Kind[T]) -> Iterator[tuple[bytes, T]]:
        total = 0
        for key, sealed in self._transaction.cursor(self._tables.handle(table)):
            self.records += 1
            total += checksum(sealed)
            name = str(codec.decode_revision(key)) if table == "log" and len(key) == 8 else _shown(key)
            value = self._open_record(kind, f"{table} {name}", key, sealed)
            if value is not None:
                yield key, value
        if self._sums.get(table, added(total)) != added(total):
            self._problem(table, "records are missing or out of date: they do not add up")

    def _row(self, revision: int) -> Row | None:
        return self._get_quietly(codec.ROW, "log", codec.encode_revision(revision))

    def _get_quietly(self, kind: Kind[T], table: str, key: bytes) -> T | None:
        """A record for comparison; one that is damaged is told where it stands itself."""
        sealed = self._transaction.get(key, None, self._tables.handle(table))
        try:
            return None if sealed is None else kind.unseal(key, sealed)
        except ValueError:
            return None

    def _open_record(self, kind: Kind[T], record: str, key: bytes, sealed: bytes) -> T | None:
        try:
            return kind.unseal(key, sealed)
        except ValueError as error:  # msgspec's errors are ValueErrors too
            self._problem(record, str(error))
            return None

    def _key_of(self, row: ObjectRow) -> bytes | None:
        if row.cluster not in self._texts or row.resource not in self._texts:
            return None
        return codec.object_key(codec.numbers(row.cluster, row.resource).prefix, row.namespace, row.name)[0]

    def _problem(self, record: str, what: str) -> None:
        self.problems += 1
        self._report(f"{record}: {what}")


def _transition_of(row: ClusterRow | TypeRow) -> tuple[ClusterID, GroupResource | None, str]:
    entry = row.entry
    resource = entry.resource_type.group_resource if isinstance(entry, TypeEntry) else None
    return entry.cluster_id, resource, entry.state


def _is_same_key(one: ObjectRow, other: ObjectRow) -> bool:
    return (one.cluster, one.resource, one.namespace, one.name) == (
        other.cluster,
        other.resource,
        other.namespace,
        other.name,
    )


def _agrees(head: HeadRow, row: ObjectRow) -> bool:
    is_named = (head.namespace or row.namespace, head.name or row.name) == (row.namespace, row.name)
    expected = head_of(head.revision, row)
    return is_named and (head.fingerprint, head.identity) == (expected.fingerprint, expected.identity)


def _shown(key: bytes) -> str:
    """A key for people: text where it is some."""
    text = key.replace(b"\0", b"/")
    return text.decode() if text.isascii() and text.decode().isprintable() else key.hex()
