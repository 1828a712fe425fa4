"""Backups of a ledger; `restore` makes ledgers of them.

A backup is one file: an LMDB data file of one state of the ledger, without free pages, then the manifest as JSON, its
length and a mark. So it can be looked into where it lies, by LMDB's own tools too, and a file that was cut short or
changed is never taken for a backup.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO

import msgspec

from federator.aggregator.ledger.files import sync_folder
from federator.aggregator.ledger.maintenance import Progress, SnapshotTables, identity_of, snapshot
from federator.aggregator.ledger.reader import reading
from federator.aggregator.ledger.tables import Tables
from federator.errors import BackupInvalid, InvalidInput, LedgerError

FORMAT_VERSION = 1
"""Of backups; newer ones are refused."""

_MARK = b"federator-backup"
_TRAILER = struct.Struct(">I16s")
_MAX_MANIFEST = 1 << 16


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """What a backup says of itself.

    Attributes:
        format_version: see FORMAT_VERSION.
        ledger_id: of the ledger it was made of, hexadecimal.
        schema_version: of its records.
        revision: the one state it has.
        oldest_revision: up to which history was compacted.
        time: when it was made, RFC 3339.
        objects: present objects.
        entries: entries of history, those of present objects included.
        bytes: of the data, which stands before the manifest.
        federator: version that made it.
        sha256: of the data, hexadecimal.
    """

    format_version: int
    ledger_id: str
    schema_version: int
    revision: int
    oldest_revision: int
    time: datetime
    objects: int
    entries: int
    bytes: int
    federator: str
    sha256: str


def back_up(
    state_directory: Path,
    target: Path,
    *,
    force: bool = False,
    clock: Callable[[], float] = time.time,
    progress: Progress | None = None,
) -> Manifest:
    """Makes a backup of one state of a ledger; an aggregator may be appending to it.

    As long as the copy takes, no page of that state is used again: the ledger of a busy aggregator grows meanwhile.
    The backup has its name once it is whole and durable. Blocks.

    Args:
        state_directory: where the ledger is.
        target: the file to make.
        force: replace what has that name.
        clock: seconds since 1970.
        progress: told how far it is.

    Raises:
        InvalidInput: there is something of that name, or the file cannot be made there.
        LedgerLocked: the ledger is being replaced.
        LedgerError: it cannot be read, or the backup cannot be written.
    """
    _require_free(target, force=force)
    with snapshot(state_directory) as tables:
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.absolute().parent)
        except OSError as error:
            raise InvalidInput("FILE", target, f"a path where a file can be made ({error.strerror})") from error
        partial = Path(name)
        try:
            with os.fdopen(descriptor, "w+b") as file:
                tables.copy_to(file.fileno(), progress)
                manifest = _describe(partial, file, clock())
                file.seek(manifest.bytes)
                encoded = msgspec.json.encode(manifest)
                file.write(encoded + _TRAILER.pack(len(encoded), _MARK))
                file.flush()
                os.fsync(file.fileno())
            _require_free(target, force=force)
            partial.replace(target)
            sync_folder(target.absolute().parent)
        except OSError as error:
            raise LedgerError(f"cannot write the backup {target}: {error.strerror}") from error
        finally:
            partial.unlink(missing_ok=True)
    return manifest


def read_manifest(backup: Path) -> Manifest:
    """Reads what a backup says of itself; its data is not looked at.

    Raises:
        InvalidInput: the file cannot be read.
        BackupInvalid: it is no whole backup, or one of a newer format.
    """
    try:
        with backup.open("rb") as file:
            return _read_manifest(file, backup)
    except OSError as error:
        raise InvalidInput("FILE", backup, f"a backup that can be read ({error.strerror})") from error


def manifest_of(tables: Tables, made: datetime, size: int, federator: str, digest: str) -> Manifest:
    """What is to be said of data, read from the data."""
    identity = identity_of(tables)
    with reading(tables) as reader:
        return Manifest(
            format_version=FORMAT_VERSION,
            ledger_id=identity.ledger_id.hex(),
            schema_version=identity.schema_version,
            revision=reader.position().revision,
            oldest_revision=reader.oldest_revision(),
            time=made,
            objects=reader.count("current"),
            entries=reader.count("log"),
            bytes=size,
            federator=federator,
            sha256=digest,
        )


def _require_free(target: Path, *, force: bool) -> None:
    if target.is_dir() or (not force and os.path.lexists(target)):
        raise InvalidInput("FILE", target, "a path of which there is nothing yet, or a file with --force")


def _describe(partial: Path, file: IO[bytes], now: float) -> Manifest:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    digest = hashlib.file_digest(file, hashlib.sha256).hexdigest()  # type: ignore[arg-type]  # typeshed wants readinto
    tables = SnapshotTables(partial, is_backup=True)
    try:
        return manifest_of(tables, datetime.fromtimestamp(now, UTC), size, metadata.version("federator"), digest)
    finally:
        tables.close()


def _read_manifest(file: IO[bytes], backup: Path) -> Manifest:
    size = file.seek(0, os.SEEK_END)
    if size < _TRAILER.size:
        raise BackupInvalid(str(backup), "it is too short")
    file.seek(size - _TRAILER.size)
    length, mark = _TRAILER.unpack(file.read(_TRAILER.size))
    start = size - _TRAILER.size - length
    if mark != _MARK or length > _MAX_MANIFEST or start < 0:
        raise BackupInvalid(str(backup), "it is none, or its end is missing")
    file.seek(start)
    encoded = file.read(length)
    try:
        # The version first: a newer manifest need not have what this one has.
        version = msgspec.json.decode(encoded, type=_Versioned).format_version
        if version == FORMAT_VERSION:
            manifest = msgspec.json.decode(encoded, type=Manifest)
    except ValueError as error:  # msgspec's errors are ValueErrors too
        raise BackupInvalid(str(backup), "its manifest cannot be read") from error
    if version != FORMAT_VERSION:
        raise BackupInvalid(str(backup), f"it has format {version}, this program reads {FORMAT_VERSION}")
    if manifest.bytes != start:
        raise BackupInvalid(str(backup), f"it has {start} bytes of data, its manifest says {manifest.bytes}")
    return manifest


class _Versioned(msgspec.Struct, rename="camel"):
    format_version: int
