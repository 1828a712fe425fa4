"""Purging: taking the past states of one object out of a ledger, for what should never have been in it.

The chain of entries stays, so that watches from old cursors go on; only what the past states held is gone, from the
records, from dictionaries that were trained on it, and from the pages that had it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.codec import ObjectRow
from federator.aggregator.ledger.floor import Floor
from federator.aggregator.ledger.maintenance import (
    Progress,
    SnapshotTables,
    WholeLog,
    holding,
    identity_of,
    replace_data,
    transaction_of,
)
from federator.aggregator.ledger.migration import migrate
from federator.aggregator.ledger.records import EntryType
from federator.aggregator.ledger.tables import DATA_FILE, FILE_MODE, Tables
from federator.aggregator.ledger.writer import Writer, changing
from federator.api.key import ObjectKey
from federator.errors import InvalidInput, LedgerCorrupt, LedgerError, ObjectNotFound
from federator.wire.body import BodyCodec, content_hash, dictionary_of, encode_body

PURGED_ANNOTATION = "federator.io/purged"
"""Annotation of a state whose content was purged."""

FRAGMENT_BYTES = 8
"""A dictionary that shares this many bytes in a row with a purged state, and with no other, is dropped."""

_NEW_FILE = "data.mdb.new"
_SLICE = 4096  # log rows in one transaction


class Purged(NamedTuple):
    """What `purge` has done.

    Attributes:
        states: past states whose content was taken out; 0 where an earlier purge has done it.
        is_present: whether the object is present: its newest state is as it was.
        dictionaries: dictionaries that were dropped.
        recoded: bodies that were compressed anew because of it.
        bytes_before: length of the ledger's file before.
        bytes_after: and after.
    """

    states: int
    is_present: bool
    dictionaries: int
    recoded: int
    bytes_before: int
    bytes_after: int


def purge(state_directory: Path, key: ObjectKey, *, progress: Progress | None = None) -> Purged:
    """Takes out what the past states of an object held, also those of objects that had the key before. Blocks.

    Reads the whole log, and writes the file anew, so that no free page keeps what was purged; the disk needs room for
    it. Killed at any point, the ledger is whole; called again, what is left is done.

    Args:
        state_directory: where the ledger is.
        key: of the object.
        progress: told how far the new file is.

    Raises:
        ObjectNotFound: history has nothing of that key.
        LedgerLocked: an aggregator, or another command, uses the ledger.
        LedgerFull: no room on the disk.
        LedgerCorrupt: a record that has to be read is damaged.
        LedgerError: the ledger cannot be opened or written.
    """
    with holding(state_directory) as folder:
        try:
            bytes_before = (folder / DATA_FILE).stat().st_size
            tables = Tables(folder)
            try:
                migrate(tables, identity_of(tables))
                purged = _purge_records(tables, key)
            finally:
                tables.close()
            _lower_floor(state_directory)
            bytes_after = _rewrite(folder, progress)
        except OSError as error:
            raise LedgerError(f"cannot write the ledger in {folder}: {error.strerror}") from error
    return purged._replace(bytes_before=bytes_before, bytes_after=bytes_after)


def _purge_records(tables: Tables, key: ObjectKey) -> Purged:
    with transaction_of(tables) as transaction:
        search = _Search(WholeLog(tables, transaction), key)
        dropped = search.tainted()
    if not search.rows:
        raise ObjectNotFound(str(key.group_resource), key.name, cluster_id=key.cluster_id, namespace=key.namespace)
    # Bodies first: as long as the past states are here, a purge that was killed finds the same dictionaries again.
    recoded = _recode(tables, dropped, search.bodies) if dropped else 0
    with changing(tables, _Purger) as writer:
        writer.put_rows(search.purged)
        if dropped:
            writer.drop_dictionaries(dropped)
    states = sum(row.change is not EntryType.DELETED for row in search.purged.values())
    return Purged(states, search.is_present, len(dropped), recoded, 0, 0)


class _Search:
    """What of a key is in the log, and which dictionaries know of it. Reads the whole log, where that has to be twice.

    Attributes:
        bodies: reads all bodies.
        rows: all entries of the key, by revision.
        is_present: whether the object is present.
        purged: the past entries as they are to be, where that is not what they are.
    """

    def __init__(self, reader: WholeLog, key: ObjectKey) -> None:
        self.bodies = BodyCodec()
        dictionaries = list(reader.dictionaries())
        for dictionary in dictionaries:
            self.bodies.add(dictionary)
        self.rows = dict(_rows_of(reader, key))
        head = reader.head(key)
        self.is_present = head is not None
        self._past = {revision: row for revision, row in self.rows.items() if head is None or revision != head.revision}
        record = reader.type(key.cluster_id, key.group_resource)
        self._kind = record.type.kind if record else ""
        self.purged = self._purge()
        self._dictionaries = [each for each in dictionaries if each.resource == key.group_resource]
        self._reader = reader

    def tainted(self) -> set[int]:
        """IDs of the dictionaries that have something which only the past states have."""
        known = {fragment for each in self._dictionaries for fragment in _fragments(each.content)}
        told = {
            fragment
            for row in self._past.values()
            if known
            for fragment in _fragments(self._raw(row))
            if fragment in known
        }
        self._forget_what_stays(told)
        return {
            each.dictionary_id for each in self._dictionaries if told and not told.isdisjoint(_fragments(each.content))
        }

    def _forget_what_stays(self, told: set[bytes]) -> None:
        # What the type's other objects have as well is no secret: names of fields, for one.
        for row in self.purged.values():
            told.difference_update(_fragments(self._raw(row)))
        resources = {row.resource for row in self._past.values()}
        for revision, row in self._reader.object_rows() if told else ():
            if row.resource in resources and revision not in self._past:
                raw = self._raw(row)
                told.difference_update([fragment for fragment in told if fragment in raw])

    def _purge(self) -> dict[int, ObjectRow]:
        hashes: dict[int, int] = {}
        changed = {}
        for revision, row in sorted(self._past.items()):
            if row.change is EntryType.DELETED:  # it has the hash of the state that it ended
                purged = msgspec.structs.replace(row, content_hash=hashes.get(row.previous_revision, 0))
            else:
                content = self._purged_content(row)
                hashes[revision] = content_hash(content)
                purged = msgspec.structs.replace(row, content_hash=hashes[revision], body=encode_body(content))
            if purged != row:
                changed[revision] = purged
        return changed

    def _purged_content(self, row: ObjectRow) -> bytes:
        kind = _kind(self._raw(row)) or self._kind
        metadata: dict[str, object] = {"name": row.name}
        if row.namespace:
            metadata["namespace"] = row.namespace
        metadata |= {"uid": row.uid, "resourceVersion": row.resource_version}
        if row.indexed.labels:
            metadata["labels"] = row.indexed.labels
        metadata["annotations"] = {PURGED_ANNOTATION: "true"}
        return msgspec.json.encode(
            {"apiVersion": row.api_version} | ({"kind": kind} if kind else {}) | {"metadata": metadata}
        )

    def _raw(self, row: ObjectRow) -> bytes:
        """A body's JSON; nothing where it cannot be read."""
        try:
            return self.bodies.decode(row.body)
        except InvalidInput:
            return b""


class _Purger(Writer, WholeLog):
    """Writes the records of a ledger anew."""

    def put_rows(self, rows: Mapping[int, ObjectRow]) -> None:
        """Writes rows in the place of those that the log has."""
        for revision, row in rows.items():
            self._put(codec.ROW, "log", codec.encode_revision(revision), row)

    def recode(self, after: int, dictionary_ids: set[int], bodies: BodyCodec) -> tuple[int, int]:
        """Compresses the bodies of the next rows without dictionary; returns where it came to, and how many it were."""
        recoded: dict[int, ObjectRow] = {}
        last = after
        for looked_at, (revision, row) in enumerate(self.object_rows(after)):
            if looked_at == _SLICE:
                break
            last = revision
            if dictionary_of(row.body) in dictionary_ids:
                try:
                    raw = bodies.decode(row.body)
                except InvalidInput as error:
                    raise LedgerCorrupt(str(self._tables.path), f"the body of log {revision}") from error
                recoded[revision] = msgspec.structs.replace(row, body=encode_body(raw))
        self.put_rows(recoded)
        return last, len(recoded)

    def drop_dictionaries(self, dictionary_ids: set[int]) -> None:
        """Drops dictionaries that no body needs, and numbers the others anew, without gaps."""
        kept = [each for each in self.dictionaries() if each.dictionary_id not in dictionary_ids]
        for number in range(self.count("dictionaries"), 0, -1):
            self._remove("dictionaries", codec.encode_number(number))
        for dictionary in kept:
            self._add_dictionary(dictionary)


def _recode(tables: Tables, dictionary_ids: set[int], bodies: BodyCodec) -> int:
    recoded, last = 0, -1
    after = 0
    while after != last:
        last = after
        with changing(tables, _Purger) as writer:
            after, more = writer.recode(last, dictionary_ids, bodies)
        recoded += more
    return recoded


def _lower_floor(state_directory: Path) -> None:
    # LMDB numbers the commits of a file that was written anew from 1: the floor would tell of commits that are gone.
    floor = Floor(state_directory)
    try:
        if floor.mark is not None:
            floor.write(msgspec.structs.replace(floor.mark, transaction=0))
    finally:
        floor.close()


def _rewrite(folder: Path, progress: Progress | None) -> int:
    """Writes the file anew without free pages, which still have what was in them; returns its length."""
    new = folder / _NEW_FILE
    tables = SnapshotTables(folder)
    try:
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        try:
            tables.copy_to(descriptor, progress)
            os.fsync(descriptor)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    finally:
        tables.close()
    replace_data(folder, new)
    return size


def _rows_of(reader: WholeLog, key: ObjectKey) -> Iterator[tuple[int, ObjectRow]]:
    # Not by the chain: it would leave out what stands behind an entry that is not there.
    numbers = reader.numbers(key.cluster_id, key.group, key.resource)
    if numbers is None:
        return
    wanted = (numbers.cluster, numbers.resource, key.namespace, key.name)
    for revision, row in reader.object_rows():
        if (row.cluster, row.resource, row.namespace, row.name) == wanted:
            yield revision, row


class _Kind(msgspec.Struct):
    kind: str = ""


def _kind(raw: bytes) -> str:
    try:
        return msgspec.json.decode(raw, type=_Kind).kind
    except ValueError:
        return ""


def _fragments(content: bytes) -> Iterator[bytes]:
    return (content[start : start + FRAGMENT_BYTES] for start in range(len(content) - FRAGMENT_BYTES + 1))
