"""Room: what the ledger may still take, and a reserve for making room.

Where nothing more fits, appends are refused and everything else goes on. Compaction needs pages of its own, since LMDB
never writes over what a reader may see. So a file of some size, the ballast, stands in the ledger's folder: it is given
up where the disk is full, appends stay refused while it is away, and it is made again once there is room.
"""

from __future__ import annotations

import os
import time

import structlog

from federator.aggregator.ledger.reader import Reader
from federator.aggregator.ledger.tables import FILE_MODE, Tables
from federator.errors import LedgerFull

log = structlog.get_logger(__name__)

DISK_MARGIN = 16 << 20
"""Bytes of the disk that are left free: a commit also copies the pages of the trees above what it changes."""

BALLAST_BYTES = 32 << 20
"""What an aggregator's ballast takes: a slice of compaction writes at most some MiB before it frees as much."""

BALLAST_FILE = "ballast"

_PLENTY = 1 << 30
_LOOK_SECONDS = 0.25
"""While the bound and the disk leave more room than `_PLENTY`, the records are measured only so often: as much is not
written meanwhile."""

_NEARLY_NOTHING = 8 << 20  # of the disk; below this the ballast goes, so that no write meets a disk that is really full


class Room:
    """The bound on a ledger's records, and its ballast. Used by the commit thread, and read by anybody."""

    def __init__(self, tables: Tables, max_bytes: int, ballast_bytes: int) -> None:
        """Takes the ballast if there is room.

        Args:
            tables: the ledger's.
            max_bytes: room for records, in bytes of used pages.
            ballast_bytes: what the ballast takes; 0 for none.
        """
        self.max_bytes = max_bytes
        self._tables = tables
        self._ballast_bytes = ballast_bytes
        self._ballast = tables.path / BALLAST_FILE
        self._is_full = False
        self._looked_at = -_LOOK_SECONDS
        self._is_plenty = False
        self.restore()

    @property
    def is_full(self) -> bool:
        """Whether the last request was refused for want of room."""
        return self._is_full

    def prepare(self) -> None:
        """Before a transaction: gives up the ballast where the disk has nearly nothing left."""
        if self._tables.free_disk_bytes() < _NEARLY_NOTHING and self._has_ballast():
            self._ballast.unlink(missing_ok=True)
            log.warning("ledger's reserve given up, the disk is full", path=str(self._tables.path))

    def require(self, reader: Reader, more_bytes: int) -> None:
        """Checks that more records stay below the bound, and that the disk has room for them.

        The disk is asked beforehand because LMDB reports a write that a full disk cut short as an I/O error, which
        cannot be told from one that calls for opening the ledger again.

        Raises:
            LedgerFull: there is no room.
        """
        now, free = time.monotonic(), self._tables.free_disk_bytes()
        if self._is_plenty and now - self._looked_at < _LOOK_SECONDS and free > _PLENTY:
            return
        used = reader.used_bytes()
        in_file = self._tables.file_bytes() - used
        reserve = DISK_MARGIN + (0 if self._has_ballast() else self._ballast_bytes)
        room = min(self.max_bytes - used, free + in_file - reserve) - more_bytes
        is_full = room < 0
        self._looked_at, self._is_plenty = now, room > _PLENTY
        if is_full is not self._is_full:
            log.log(*_TURN[is_full], path=str(self._tables.path), used=used, max=self.max_bytes, disk_free=free)
        self._is_full = is_full
        if is_full:
            raise LedgerFull(str(self._tables.path))

    def restore(self) -> None:
        """Makes the ballast again where the disk has room for it and more."""
        if not self._ballast_bytes or self._has_ballast():
            return
        if self._tables.free_disk_bytes() < self._ballast_bytes + 2 * DISK_MARGIN:
            return
        try:
            descriptor = os.open(self._ballast, os.O_WRONLY | os.O_CREAT, FILE_MODE)
            try:
                os.posix_fallocate(descriptor, 0, self._ballast_bytes)
            finally:
                os.close(descriptor)
        except OSError:
            self._ballast.unlink(missing_ok=True)

    def _has_ballast(self) -> bool:
        return self._ballast.exists()


_TURN = {True: (40, "ledger is full and takes nothing more"), False: (20, "ledger has room again")}
