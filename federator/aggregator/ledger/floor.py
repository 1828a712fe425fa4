"""The floor: what a ledger has last acknowledged, kept beside it.

LMDB keeps two pages that each name a whole state of the ledger. Where the newer one is damaged it falls back to the
older, and the last commits are gone without a word; the floor tells. And where the whole ledger is lost, its successor
starts above it, wherever the clock stands.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec
from xxhash import xxh3_64_digest

FILE = "ledger.floor"
"""Its name in the state directory: outside the ledger's folder, which may be set aside."""

_MODE = 0o600
_FIELDS = struct.Struct(">8sQQ")
_CHECKSUM_LENGTH = 8
_SYNC_EVERY = 1024  # commits; a commit has at most 1,024 entries, so a floor that was not synced is 2^20 behind at most


class Mark(msgspec.Struct, frozen=True):
    """What a ledger had acknowledged at some time.

    Attributes:
        ledger_id: which ledger.
        revision: newest that was durable.
        transaction: LMDB's number of the commit; it grows with each.
    """

    ledger_id: bytes
    revision: int
    transaction: int


class Floor:
    """The file with the newest mark. Written without a sync: it may be behind the ledger, never ahead of it."""

    def __init__(self, directory: Path) -> None:
        """Opens the file in a state directory, or creates it.

        Raises:
            OSError: it cannot be opened.
        """
        self._descriptor = os.open(directory / FILE, os.O_RDWR | os.O_CREAT, _MODE)
        self._written = 0
        self.mark = self._read()

    @property
    def base(self) -> int:
        """Revision above everything that the ledger, or one before it, can have given away; 0 where none is known."""
        return ((self.mark.revision >> 20) + 2) << 20 if self.mark else 0

    def write(self, mark: Mark) -> None:
        """Takes a newer mark. A failure to write is none of the ledger: the mark is only older then."""
        fields = _FIELDS.pack(mark.ledger_id, mark.revision, mark.transaction)
        try:
            os.pwrite(self._descriptor, xxh3_64_digest(fields) + fields, 0)
            self._written += 1
            if self._written % _SYNC_EVERY == 0:
                os.fsync(self._descriptor)
        except OSError:
            return
        self.mark = mark

    def close(self) -> None:
        """Makes it durable, and closes the file."""
        try:
            os.fsync(self._descriptor)
        except OSError:
            pass
        finally:
            os.close(self._descriptor)

    def _read(self) -> Mark | None:
        content = os.pread(self._descriptor, _CHECKSUM_LENGTH + _FIELDS.size, 0)
        checksum, fields = content[:_CHECKSUM_LENGTH], content[_CHECKSUM_LENGTH:]
        if len(fields) != _FIELDS.size or xxh3_64_digest(fields) != checksum:
            return None
        return Mark(*_FIELDS.unpack(fields))
