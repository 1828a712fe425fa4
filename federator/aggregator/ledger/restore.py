"""Ledgers of backups.

A restored ledger is another one. It has what the old one had at the time of the backup, but what that gave out later is
not in it. So it gets an identity of its own, by which cursors of before are foreign instead of silently wrong. All its
entries get new revisions, above all that the old one can have given out, so that none ever stands for two changes, and
history has no gap. And no agent is believed to have had anything acknowledged, so that each lists everything anew.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.backup import Manifest, manifest_of, read_manifest
from federator.aggregator.ledger.codec import ClusterRow, Identity, Kind, ObjectRow, Position, Row, TypeRow
from federator.aggregator.ledger.files import sync_folder
from federator.aggregator.ledger.floor import Floor, Mark
from federator.aggregator.ledger.maintenance import SnapshotTables, holding, identity_of, replace_data, transaction_of
from federator.aggregator.ledger.migration import migrate
from federator.aggregator.ledger.planning import first_revision
from federator.aggregator.ledger.reader import OLDEST, OLDEST_TIME, POSITION, Reader, reading
from federator.aggregator.ledger.sums import SUMMED
from federator.aggregator.ledger.tables import DATA_FILE, FILE_MODE, Tables
from federator.aggregator.ledger.writer import Writer, changing
from federator.errors import BackupInvalid, InvalidInput, LedgerError, LedgerNotEmpty

T = TypeVar("T")

REPLACED = "ledger.replaced-"
"""Start of the names of folders with ledgers that were set aside, in the state directory; the time follows."""

_RESTORING = "ledger.restoring"
_FOLDER_MODE = 0o700
_CHUNK = 1 << 20
_SLICE = 4096  # records in one transaction


class Restored(NamedTuple):
    """What `restore` has done.

    Attributes:
        manifest: of the backup.
        revision: newest revision of the ledger.
        offset: by how much its revisions are above those that the same entries have in the backup.
        set_aside: where the former ledger is now; None where there was none that had anything.
    """

    manifest: Manifest
    revision: int
    offset: int
    set_aside: Path | None


def restore(
    state_directory: Path, backup: Path, *, force: bool = False, clock: Callable[[], float] = time.time
) -> Restored:
    """Makes a ledger of a backup; no aggregator may be running on the state directory. Blocks.

    Nothing is replaced before all of it is there, checked and durable; killed at any point, the state directory has
    the old ledger or the new one, whole. Entries that were damaged already when the backup was made stay damaged; what
    becomes of them is up to the aggregator.

    Args:
        state_directory: where the ledger is to be; made where there is none.
        backup: the file.
        force: set a ledger aside that has anything.
        clock: seconds since 1970.

    Raises:
        InvalidInput: the file cannot be read.
        BackupInvalid: it is no whole and undamaged backup.
        LedgerLocked: an aggregator or another command uses the ledger there.
        LedgerNotEmpty: the ledger there has something, or is damaged, and `force` was not given.
        LedgerCorrupt: records other than entries were damaged when the backup was made.
        LedgerError: the backup has a newer schema, or was made later than the clock says; the ledger cannot be written.
    """
    manifest = read_manifest(backup)
    now_ms = int(clock() * 1000)
    _require_usable(manifest, backup, now_ms)
    with holding(state_directory, create=True) as folder:
        is_empty, given_out = _former(folder)
        if not is_empty and not force:
            raise LedgerNotEmpty(str(folder))
        preparing = state_directory / _RESTORING
        try:
            floor = Floor(state_directory)
            try:
                shutil.rmtree(preparing, ignore_errors=True)
                preparing.mkdir(_FOLDER_MODE)
                base = max(first_revision(now_ms), given_out, floor.base)
                mark, offset = _prepare(preparing, backup, manifest, base)
                set_aside = None if is_empty else _set_aside(folder, state_directory, now_ms)
                replace_data(folder, preparing / DATA_FILE)
                floor.write(mark)
            finally:
                floor.close()
                shutil.rmtree(preparing, ignore_errors=True)
            sync_folder(state_directory)
        except OSError as error:
            raise LedgerError(f"cannot write the ledger in {folder}: {error.strerror}") from error
    return Restored(manifest, mark.revision, offset, set_aside)


def _require_usable(manifest: Manifest, backup: Path, now_ms: int) -> None:
    if not 1 <= manifest.schema_version <= codec.SCHEMA_VERSION:
        raise LedgerError(
            f"the backup {backup} has schema {manifest.schema_version}, this program reads 1 to {codec.SCHEMA_VERSION}"
        )
    if now_ms < int(manifest.time.timestamp() * 1000):
        raise LedgerError(
            f"the backup {backup} was made at {manifest.time.isoformat()}, which by the clock is yet to come; "
            "set the clock: the revisions of a restored ledger start at the time"
        )


def _former(folder: Path) -> tuple[bool, int]:
    """Whether the ledger of a folder has nothing, and the newest revision that it is known to have given out."""
    if not (folder / DATA_FILE).exists():
        return True, 0
    try:
        tables = SnapshotTables(folder)
        try:
            with reading(tables) as reader:
                return reader.count("log") == 0 and reader.count("clusters") == 0, reader.position().revision
        finally:
            tables.close()
    except LedgerError:  # damaged: whatever it had counts as something
        return False, 0


def _prepare(preparing: Path, backup: Path, manifest: Manifest, base: int) -> tuple[Mark, int]:
    """Makes the new ledger's file in a folder; returns where it stands, and the offset of its revisions."""
    _require_checksum(backup, manifest)
    source: Tables = SnapshotTables(backup, is_backup=True)
    try:
        if manifest_of(source, manifest.time, manifest.bytes, manifest.federator, manifest.sha256) != manifest:
            raise BackupInvalid(str(backup), "its manifest is of other data")
        if manifest.schema_version != codec.SCHEMA_VERSION:
            source.close()
            source = _migrated(backup, manifest, preparing / "migrated")
        target = Tables(preparing)
        try:
            with transaction_of(source) as transaction:
                return _Renumbering(_Source(source, transaction), target, base).run()
        finally:
            target.close()
    finally:
        source.close()


def _require_checksum(backup: Path, manifest: Manifest) -> None:
    digest = hashlib.sha256()
    for chunk in _chunks(backup, manifest.bytes):
        digest.update(chunk)
    if digest.hexdigest() != manifest.sha256:
        raise BackupInvalid(str(backup), "its data is not what was written: the checksum differs")


def _migrated(backup: Path, manifest: Manifest, folder: Path) -> Tables:
    folder.mkdir(_FOLDER_MODE)
    descriptor = os.open(folder / DATA_FILE, os.O_WRONLY | os.O_CREAT, FILE_MODE)
    with os.fdopen(descriptor, "wb") as copy:
        copy.writelines(_chunks(backup, manifest.bytes))
    tables = Tables(folder)
    migrate(tables, identity_of(tables))
    return tables


def _chunks(backup: Path, length: int) -> Iterator[bytes]:
    try:
        with backup.open("rb") as file:
            while length and (chunk := file.read(min(length, _CHUNK))):
                yield chunk
                length -= len(chunk)
    except OSError as error:
        raise InvalidInput("FILE", backup, f"a backup that can be read ({error.strerror})") from error


class _Source(Reader):
    """Reads the records of a backup as they stand."""

    def position_and_oldest(self) -> tuple[Position, int]:
        """Where the order stands, and where history begins."""
        return self.position(), self.oldest_revision()

    def first_revision(self) -> int:
        """Of the oldest entry that is still spoken of; one above the position where there is none."""
        key = next((key for key, _ in self.records("log")), None)
        first = self.position().revision + 1 if key is None else codec.decode_revision(key)
        return min([first, *(codec.transition_revision(key) for key, _ in self.records("transitions"))])

    def records(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """All of a table, unchecked."""
        return self._starting_with(table, b"")

    def opened(self, kind: Kind[T], table: str) -> Iterator[tuple[bytes, T]]:
        """All of a table, checked.

        Raises:
            LedgerCorrupt: one is damaged.
        """
        for key, sealed in self.records(table):
            yield key, self._unseal(kind, table, key, sealed)


class _Target(Writer):
    """Writes the records of a ledger that is being made."""

    def append_row(self, key: bytes, sealed: bytes) -> None:
        self._transaction.put(key, sealed, append=True, db=self._tables.handle("log"))

    def put(self, kind: Kind[T], table: str, key: bytes, value: T) -> None:
        self._put(kind, table, key, value)


class _Renumbering:
    """Writes all records of a backup into a new ledger, its revisions moved up to where nothing was given out."""

    def __init__(self, source: _Source, target: Tables, base: int) -> None:
        self._source = source
        self._target = target
        self._position, self._oldest = source.position_and_oldest()
        # Also the states from before history, which its first entries name as their predecessors.
        self._offset = base + 1 - min(source.first_revision(), self._oldest + 1)

    def run(self) -> tuple[Mark, int]:
        identity = Identity(codec.SCHEMA_VERSION, secrets.token_bytes(8), secrets.token_bytes(32))
        revision = self._moved(self._position.revision)
        with changing(self._target, _Target) as writer:
            writer.set_sums(dict.fromkeys(SUMMED, 0))
            writer.set_identity(identity)
            writer.put(codec.POSITION, "meta", POSITION, Position(revision, self._position.time_ms))
            writer.put(codec.NUMBER, "meta", OLDEST, self._moved(self._oldest))
            writer.put(codec.NUMBER, "meta", OLDEST_TIME, self._source.oldest_time_ms())
        self._write(self._rows(), lambda writer, key, sealed: writer.append_row(key, sealed))
        self._copy(
            "current", codec.HEAD, lambda head: msgspec.structs.replace(head, revision=self._moved(head.revision))
        )
        self._copy("deletions", codec.NUMBER, self._moved)
        # No instance that an agent ever has: whatever connects is one of which nothing is known.
        self._copy(
            "clusters",
            codec.CLUSTER,
            lambda record: msgspec.structs.replace(record, agent_instance="", durable_sequence=0),
        )
        self._copy("types", codec.TYPE, lambda record: record)
        self._write(
            self._source.opened(codec.TRANSITION, "transitions"),
            lambda writer, key, row: writer.put(codec.TRANSITION, "transitions", self._moved_transition(key), row),
        )
        self._copy("numbers", codec.NUMBER, lambda number: number)
        self._copy("names", codec.NAME, lambda name: name)
        self._copy("dictionaries", codec.DICTIONARY, lambda dictionary: dictionary)
        return Mark(identity.ledger_id, revision, 0), self._offset

    def _copy(self, table: str, kind: Kind[T], change: Callable[[T], T]) -> None:
        self._write(
            self._source.opened(kind, table),
            lambda writer, key, value: writer.put(kind, table, key, change(value)),
        )

    def _write(self, records: Iterator[tuple[bytes, T]], put: Callable[[_Target, bytes, T], None]) -> None:
        while slice_ := list(islice(records, _SLICE)):
            with changing(self._target, _Target) as writer:
                for key, value in slice_:
                    put(writer, key, value)

    def _rows(self) -> Iterator[tuple[bytes, bytes]]:
        for key, sealed in self._source.records("log"):
            moved = codec.encode_revision(self._moved(codec.decode_revision(key)))
            try:
                row = codec.ROW.unseal(key, sealed)
            except ValueError:
                yield moved, sealed  # of another key, so still damaged, and noticed where it stands
            else:
                yield moved, codec.ROW.seal(moved, self._row(row))

    def _row(self, row: Row) -> Row:
        if isinstance(row, ObjectRow):
            previous, follows = self._moved(row.previous_revision), self._moved(row.follows)
            return msgspec.structs.replace(row, previous_revision=previous, follows=follows)
        if isinstance(row, ClusterRow):
            return ClusterRow(msgspec.structs.replace(row.entry, revision=self._moved(row.entry.revision)))
        return TypeRow(msgspec.structs.replace(row.entry, revision=self._moved(row.entry.revision)))

    def _moved_transition(self, key: bytes) -> bytes:
        return codec.moved_transition(key, self._moved(codec.transition_revision(key)))

    def _moved(self, revision: int) -> int:
        return revision + self._offset if revision else 0


def _set_aside(folder: Path, state_directory: Path, now_ms: int) -> Path:
    moment = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    aside = state_directory / f"{REPLACED}{moment}"
    number = 1
    while aside.exists():
        number += 1
        aside = state_directory / f"{REPLACED}{moment}-{number}"
    aside.mkdir(_FOLDER_MODE)
    # A second name for the file, so that at no time the ledger is without one.
    os.link(folder / DATA_FILE, aside / DATA_FILE)
    sync_folder(aside)
    return aside
