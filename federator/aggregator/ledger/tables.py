"""The LMDB environment of a ledger: its files, its tables and its transactions.

The map is reserved once, far larger than any ledger, because it cannot grow while others read; how much of it is
really used is bounded by `Writer.require_room`.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import lmdb

from federator.errors import LedgerCorrupt, LedgerError, LedgerFull

MAP_BYTES = 1 << 40
"""Addresses reserved for the file; they cost nothing until used."""

FOLDER = "ledger"
"""Folder of the ledger inside the state directory, for its owner's eyes only."""

FILE_MODE = 0o600

TABLES = (
    "log", "current", "deletions", "clusters", "types", "transitions", "numbers", "names", "dictionaries", "meta",
)  # fmt: skip
"""The tables; `codec` says what each has."""

DATA_FILE = "data.mdb"
"""LMDB's file in the folder."""

NEVER_WRITTEN = 64 << 20
"""Bytes that a transaction may have taken for itself at the end of the file and not used."""

_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.CursorFullError,  # a tree that leads back into itself
    lmdb.PageFullError,
    lmdb.ProblemError,
    lmdb.BadTxnError,  # a search was led beyond the file's end, and told only its transaction
    lmdb.MapResizedError,  # the newest commit claims more pages than are reserved
)
"""What LMDB says of pages that are not what it wrote. MDB_PANIC is not among it: it follows a write that failed."""

Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Handle: TypeAlias = "lmdb._Database"


class Tables:
    """An open environment; any thread may use it, each transaction belongs to one.

    Attributes:
        path: folder of the files.
        names: names by number, as committed transactions have read them. A name never changes, so this needs no
            invalidation, and it has an item per cluster and type only.
    """

    def __init__(self, path: Path, *, map_bytes: int = MAP_BYTES) -> None:
        """Opens the files in a folder, or creates them.

        Args:
            path: the folder; it exists, and nobody else appends to what it has.
            map_bytes: addresses to reserve.

        Raises:
            LedgerError: no address space, no permission, or not LMDB's files.
            LedgerCorrupt: a file is damaged.
            OSError: the file's length cannot be told or set.
        """
        self.path = path
        self.names: dict[int, tuple[str, ...]] = {}
        self._create(map_bytes)
        self._environment = self._open(self.path, map_bytes)
        try:
            self._restore_length()
            with self._environment.begin(write=True) as transaction:
                self._handles = {name: self._environment.open_db(name.encode(), transaction) for name in TABLES}
                self._require_pages(transaction)
        except (OSError, LedgerError):
            self._environment.close()
            raise
        except lmdb.Error as error:
            self._environment.close()
            raise self.typed(error) from error

    def _create(self, map_bytes: int) -> None:
        # LMDB makes its file with two writes; a power cut, or a kill, in between leaves one that it refuses for good.
        # So the file gets its name only when it is whole.
        if (self.path / DATA_FILE).exists():
            return
        making = self.path / "making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(0o700)
        environment = self._open(making, map_bytes)
        environment.sync(True)
        environment.close()
        (making / DATA_FILE).rename(self.path / DATA_FILE)
        shutil.rmtree(making)

    def _open(self, path: Path, map_bytes: int) -> lmdb.Environment:
        try:
            return lmdb.Environment(
                str(path),
                map_size=map_bytes,
                max_dbs=len(TABLES),
                mode=FILE_MODE,
                readahead=False,  # reads are of single pages; reading ahead would evict what is hot
                max_spare_txns=1,
            )
        except lmdb.Error as error:
            if error.code == errno.ENOMEM:
                raise LedgerError(
                    f"cannot reserve {map_bytes >> 30} GiB of addresses for the ledger in {self.path}; "
                    "raise the limit of the process's address space (ulimit -v, RLIMIT_AS)"
                ) from error
            raise self.typed(error) from error

    def _restore_length(self) -> None:
        # A file that was cut short would kill the process (SIGBUS) at the first read behind its end. Filled up with
        # zeros, the missing pages are noticed as damage. LMDB itself may leave never written pages at the end.
        data_file = self.path / DATA_FILE
        missing = self.file_bytes() - data_file.stat().st_size
        if missing > NEVER_WRITTEN:
            raise LedgerCorrupt(str(self.path), f"its end: {missing} bytes are missing")
        if missing > 0:
            os.truncate(data_file, self.file_bytes())

    def _require_pages(self, transaction: Transaction) -> None:
        # LMDB counts each table's pages in a record of its own, and never looks at the number. One that is damaged may
        # say that the ledger is full, at each start.
        if page_bytes(transaction.stat(handle) for handle in self._handles.values()) > self.file_bytes():
            raise LedgerCorrupt(str(self.path), "its tables, which count more pages than the file has")

    def forget_dead_readers(self) -> None:
        """Gives pages free that another process was reading when it was killed: LMDB does not notice by itself."""
        try:
            self._environment.reader_check()
        except lmdb.Error as error:
            raise self.typed(error) from error

    def free_disk_bytes(self) -> int:
        """Bytes by which the disk lets the file grow."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def begin(self, *, write: bool = False) -> Transaction:
        """Begins a transaction; `reading` and `writing` are the ways to use one.

        Raises:
            lmdb.Error: it cannot be had.
        """
        return self._environment.begin(write=write)

    def handle(self, table: str) -> Handle:
        """LMDB's handle of a table."""
        return self._handles[table]

    def file_bytes(self) -> int:
        """Length of the file; it never shrinks, its free pages are used again."""
        return self._environment.stat()["psize"] * (self._environment.info()["last_pgno"] + 1)

    def typed(self, error: lmdb.Error) -> LedgerError:
        """The ledger's error for one of LMDB's."""
        # The binding sets `code` only on errors it makes itself.
        if isinstance(error, lmdb.MapFullError) or getattr(error, "code", None) == errno.ENOSPC:
            return LedgerFull(str(self.path))
        if isinstance(error, _DAMAGE):
            return LedgerCorrupt(str(self.path), str(error))
        return LedgerError(f"the ledger in {self.path}: {error}")

    def last_transaction(self) -> int:
        """LMDB's number of the newest commit."""
        return self._environment.info()["last_txnid"]

    def close(self) -> None:
        """Closes the files."""
        self._environment.close()


def page_bytes(stats: Iterable[lmdb._StatDict]) -> int:
    """Bytes of the pages that hold records, by LMDB's statistics of tables."""
    return sum(stat["psize"] * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) for stat in stats)
