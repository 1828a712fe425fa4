"""Work on a ledger from outside the aggregator: who may, opening it for reading only, and giving it another file.

Two locks keep the parties apart. The appender's, which the aggregator holds as long as it runs, is held by whoever
changes the ledger. The data file's own is shared by those who only read, whom the aggregator does not disturb, and
taken whole by whoever puts another file in its place: LMDB's table of readers belongs to one file only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lmdb

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.codec import Identity, ObjectRow, Row
from federator.aggregator.ledger.files import sync_folder, take_lock
from federator.aggregator.ledger.reader import IDENTITY, Reader
from federator.aggregator.ledger.store import APPENDER_LOCK_FILE
from federator.aggregator.ledger.tables import (
    DATA_FILE,
    FILE_MODE,
    FOLDER,
    NEVER_WRITTEN,
    TABLES,
    Tables,
    Transaction,
    page_bytes,
)
from federator.errors import LedgerCorrupt, LedgerError

Progress = Callable[[int, int], None]
"""Told some times a second: bytes written, and about how many there will be."""

_FOLDER_MODE = 0o700
_GROWTH = 1 << 30  # bytes by which the file may grow between opening it and beginning to read
_LEAST_BYTES = 2 * 4096  # LMDB's two meta pages
_PROGRESS_INTERVAL = 0.2


class SnapshotTables(Tables):
    """The tables of a ledger or of a backup, opened for reading only; an appender may be at work beside.

    A transaction sees one state of everything. As long as it lasts, no page of that state is used again, so a ledger
    that is written to grows meanwhile.
    """

    def __init__(self, path: Path, *, is_backup: bool = False) -> None:
        """Opens the files.

        Args:
            path: a ledger's folder, or a backup.
            is_backup: it is one; nobody else writes to it, and nothing is written beside it.

        Raises:
            LedgerCorrupt: the file is damaged or cut short.
            LedgerError: there is none, it may not be read, or it is not LMDB's.
        """
        self.path = path
        self.names: dict[int, tuple[str, ...]] = {}
        data_file = path if is_backup else path / DATA_FILE
        try:
            size = data_file.stat().st_size
            if size < _LEAST_BYTES:
                raise LedgerCorrupt(str(path), f"its beginning: it has {size} bytes")
            # Larger than the file, but no more than it takes: unlike an appender's, this map need not last.
            self._environment = lmdb.Environment(
                str(path),
                map_size=size + _GROWTH,
                subdir=not is_backup,
                max_dbs=len(TABLES),
                mode=FILE_MODE,
                readonly=True,
                create=False,
                lock=not is_backup,
                max_spare_txns=1,
            )
        except OSError as error:
            raise LedgerError(f"cannot open the ledger in {path}: {error.strerror}") from error
        except lmdb.Error as error:
            raise self.typed(error) from error
        try:
            if not is_backup:
                self._environment.reader_check()  # of readers that were killed, whose pages would be kept for ever
            self._require_length(data_file)
            self._handles = self._open_tables()
        except lmdb.Error as error:
            self._environment.close()
            raise self.typed(error) from error
        except BaseException:
            self._environment.close()
            raise

    def copy_to(self, descriptor: int, progress: Progress | None = None) -> None:
        """Writes the used pages of one state to a file, from where that stands on. Blocks until they are written.

        Args:
            descriptor: open for writing.
            progress: called by this thread, the last time when all is written.

        Raises:
            OSError: they cannot be written.
            LedgerError: they cannot be read.
        """
        failure: list[BaseException] = []

        def copy() -> None:
            try:
                self._environment.copyfd(descriptor, compact=True)
            except lmdb.Error as error:
                failure.append(error)

        with transaction_of(self) as transaction:
            stats = [transaction.stat(handle) for handle in self._handles.values()]
        expected = page_bytes(stats)
        # LMDB copies in one call that nothing interrupts, and no Ctrl-C should have to wait for it. The thread is a
        # daemon, so that a process which is told to end does.
        copying = threading.Thread(target=copy, name="ledger-copy", daemon=True)
        copying.start()
        is_done = False
        while not is_done:  # and so it is told once at least, however quick the copy was
            copying.join(_PROGRESS_INTERVAL)
            is_done = not copying.is_alive()
            if progress is not None:
                progress(os.fstat(descriptor).st_size, expected)
        for error in failure:
            code = getattr(error, "code", None)
            if isinstance(code, int) and code > 0:  # the system's; LMDB's own are below zero
                raise OSError(code, os.strerror(code))
            assert isinstance(error, lmdb.Error)
            raise self.typed(error)

    def _require_length(self, data_file: Path) -> None:
        # A read behind the end of a file that was cut short would kill the process (SIGBUS). Never written pages at
        # the end are no damage; LMDB may leave them. Filled up, what is missing is noticed as damage by whoever reads
        # it. Allocating never shrinks the file, whatever an appender does to its length at the same time.
        needed = self.file_bytes()
        size = data_file.stat().st_size
        if size >= needed:
            return
        if data_file == self.path or needed - size > NEVER_WRITTEN:
            raise LedgerCorrupt(str(self.path), f"its end: {needed - size} bytes are missing")
        try:
            descriptor = os.open(data_file, os.O_RDWR)
            try:
                os.posix_fallocate(descriptor, needed - 1, 1)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LedgerCorrupt(str(self.path), f"its end: {needed - size} bytes are missing") from error

    def _open_tables(self) -> dict[str, lmdb._Database]:
        with self._environment.begin() as transaction:
            there = {bytes(name).decode("ascii", "replace") for name, _ in transaction.cursor()}
        if "meta" not in there:
            raise LedgerError(f"there is no ledger in {self.path}")
        return {name: self._environment.open_db(name.encode(), create=False) for name in TABLES if name in there}


@contextmanager
def snapshot(state_directory: Path) -> Iterator[SnapshotTables]:
    """Opens the ledger of a state directory for reading only; an aggregator may be running.

    Raises:
        LedgerLocked: its file is being replaced.
        LedgerCorrupt: it is damaged.
        LedgerError: there is none, it cannot be opened, or it has a schema that this program does not know.
    """
    folder = state_directory / FOLDER
    with ExitStack() as stack:
        _share(folder, stack)
        tables = SnapshotTables(folder)
        stack.callback(tables.close)
        identity_of(tables)
        yield tables


@contextmanager
def holding(state_directory: Path, *, create: bool = False) -> Iterator[Path]:
    """Keeps aggregators, and everybody who reads, from the ledger; yields its folder.

    Args:
        state_directory: where it is.
        create: make the folder where there is none.

    Raises:
        LedgerLocked: an aggregator or another command uses the ledger.
        LedgerError: there is none, or its folder cannot be used.
    """
    folder = state_directory / FOLDER
    with ExitStack() as stack:
        try:
            if create:
                folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
            elif not (folder / DATA_FILE).exists():
                raise LedgerError(f"there is no ledger in {folder}")
            lock(folder, stack)
            if (folder / DATA_FILE).exists():
                take_lock(folder / DATA_FILE, folder, stack, doing="reads", create=False)
        except OSError as error:
            raise LedgerError(f"cannot open the ledger in {folder}: {error.strerror}") from error
        yield folder


def lock(folder: Path, stack: ExitStack) -> None:
    """Takes the appender's lock of a ledger's folder, until the stack closes.

    Raises:
        LedgerLocked: somebody has it.
        OSError: the folder cannot be used.
    """
    path = folder / APPENDER_LOCK_FILE
    while True:
        descriptor = take_lock(path, folder, stack)
        if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:  # else the folder was set aside
            return


def replace_data(folder: Path, new: Path) -> None:
    """Makes another file, on the same disk and synced, the ledger's data. Durable when this returns.

    Killed at any point, the ledger has one of the two, whole.

    Args:
        folder: the ledger's, as `holding` gave it; nobody has it open.
        new: the file; its name is gone afterwards.

    Raises:
        OSError: it cannot be.
    """
    new.replace(folder / DATA_FILE)
    sync_folder(folder)


@contextmanager
def transaction_of(tables: Tables, *, write: bool = False) -> Iterator[Transaction]:
    """A transaction; what is written is durable after the block, and undone whole where the block raises.

    Raises:
        LedgerFull: no room; nothing was changed.
        LedgerCorrupt: a page is damaged.
        LedgerError: LMDB failed.
    """
    try:
        with tables.begin(write=write) as transaction:
            yield transaction
    except lmdb.Error as error:
        raise tables.typed(error) from error


class WholeLog(Reader):
    """Reads all of the log: history, and the states of before that are still those of present objects."""

    def rows(self, after_revision: int = 0) -> Iterator[tuple[int, Row]]:
        """The rows after a revision, in order.

        Raises:
            LedgerCorrupt: one is damaged.
        """
        cursor = self._transaction.cursor(self._tables.handle("log"))
        found = cursor.set_range(codec.encode_revision(after_revision + 1))
        while found:
            key, sealed = cursor.item()
            yield codec.decode_revision(key), self._unseal(codec.ROW, "log", key, sealed)
            found = cursor.next()

    def object_rows(self, after_revision: int = 0) -> Iterator[tuple[int, ObjectRow]]:
        """Of these, the changes of objects."""
        for revision, row in self.rows(after_revision):
            if isinstance(row, ObjectRow):
                yield revision, row


def identity_of(tables: Tables, *, must_be_present: bool = False) -> Identity:
    """The identity of a ledger.

    Args:
        tables: its.
        must_be_present: refuse older schemas, too.

    Raises:
        LedgerError: it has none, or a schema that this program does not read.
    """
    with transaction_of(tables) as transaction:
        key, handle = IDENTITY, tables.handle("meta")
        sealed = transaction.get(key, None, handle)
    if sealed is None:
        raise LedgerError(f"there is no ledger in {tables.path}")
    try:
        identity = codec.IDENTITY.unseal(key, sealed)
    except ValueError as error:
        raise LedgerCorrupt(str(tables.path), "its identity") from error
    codec.require_known_schema(identity, tables.path)
    if must_be_present and identity.schema_version != codec.SCHEMA_VERSION:
        raise LedgerError(
            f"the ledger in {tables.path} has schema {identity.schema_version}; "
            f"an aggregator that opens it brings it to {codec.SCHEMA_VERSION}"
        )
    return identity


def _share(folder: Path, stack: ExitStack) -> None:
    data_file = folder / DATA_FILE
    try:
        while True:
            descriptor = take_lock(data_file, folder, stack, doing="replaces the file of", is_shared=True, create=False)
            if os.fstat(descriptor).st_ino == data_file.stat().st_ino:
                return
    except FileNotFoundError as error:
        raise LedgerError(f"there is no ledger in {folder}") from error
    except OSError as error:
        raise LedgerError(f"cannot open the ledger in {folder}: {error.strerror}") from error
