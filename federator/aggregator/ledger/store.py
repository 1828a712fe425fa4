"""Store: opens the ledger of a state directory, and begins a new one where the old one is past use.

LMDB's pages have no checksums. What reads a damaged one is told so, or reads what no record's checksum fits, or is
killed by SIGBUS, SIGSEGV or SIGABRT. So beside the ledger's folder stand small files. One is there while the ledger is
open, and counts the processes that were killed before they served, or by what they found in the ledger (`fault`): too
many of them in a row, and the folder is set aside. After one that served and then ended without closing it, the ledger
is looked at whole before it serves again. Another says that a running process met a damaged page. The agents fill a new
ledger.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from federator.aggregator.ledger.fault import note_faults, take_fault
from federator.aggregator.ledger.files import take_lock
from federator.aggregator.ledger.room import BALLAST_FILE
from federator.aggregator.ledger.tables import DATA_FILE, FILE_MODE, FOLDER
from federator.errors import LedgerCorrupt, LedgerError

log = structlog.get_logger(__name__)

OPEN_FILE = "ledger.open"
CONDEMNED_FILE = "ledger.condemned"
APPENDER_LOCK_FILE = "appender.lock"
_LOCK_FILE = "ledger.lock"

ASIDE = "ledger.damaged-"
"""What the names of folders that were set aside start with; the time in UTC follows."""

KEPT_ASIDE = 2
"""Folders that are kept: one to look at, and one in case the first was set aside for no good reason."""

MAX_BAD_ENDS = 2
"""Processes in a row that may be killed before they serve, or by the ledger, before it is set aside. A process that is
killed once while it starts, by an impatient supervisor or for its memory, says nothing about its files."""

_OPENING = "opening"
_SERVING = "serving"

T = TypeVar("T")


class Store:
    """The ledger's place in one state directory.

    While it is open no other process uses the directory. Closing it is the owner's last step, behind the ledger's.
    """

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Touches nothing.

        Args:
            directory: the state directory.
            clock: seconds since 1970, for the names of what is set aside.
        """
        self._directory = directory
        self._clock = clock
        self._stack = ExitStack()
        self._ended_badly = False
        self._bad_ends = 0
        self._is_marked = False

    @property
    def ended_badly(self) -> bool:
        """Whether the process before this one ended without closing the ledger."""
        return self._ended_badly

    def open(self, opener: Callable[[], T]) -> T:
        """Opens the ledger, if need be after setting the former one aside. Blocks.

        Args:
            opener: opens the ledger in the state directory, or creates it there.

        Raises:
            LedgerLocked: another process uses it.
            LedgerError: what the opener raises, or the directory cannot be used.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            take_lock(self._directory / _LOCK_FILE, self._directory / FOLDER, self._stack)
            self._look_back()
            note_faults(self._directory, self._stack)
            try:
                return opener()
            except LedgerCorrupt as error:
                self._set_aside(str(error))
                return opener()
        except OSError as error:
            self.close()
            raise LedgerError(f"cannot open the ledger in {self._directory / FOLDER}: {error}") from error
        except LedgerError:
            self.close()
            raise

    def serves(self) -> None:
        """The ledger is open, loaded and serves. Blocks.

        Raises:
            LedgerError: this cannot be written down.
        """
        try:
            _write_mark(self._directory, OPEN_FILE, self._bad_ends, _SERVING)
        except OSError as error:
            raise LedgerError(f"cannot write beside the ledger in {self._directory}: {error}") from error

    def close(self) -> None:
        """Says that the process ends in order, and gives the directory back; again does nothing."""
        if self._is_marked:
            self._is_marked = False
            (self._directory / OPEN_FILE).unlink(missing_ok=True)
        self._stack.close()

    def _look_back(self) -> None:
        self._ended_badly = (self._directory / OPEN_FILE).exists()
        bad_ends, stage = _read_mark(self._directory, OPEN_FILE)
        fault = take_fault(self._directory)
        if fault is not None:
            log.error("the process before this one was killed by a fault", cause=str(fault), frames=fault.frames)
        if stage == _SERVING and not (fault and fault.is_of_ledger):
            bad_ends = 0
        condemned, reason = _read_mark(self._directory, CONDEMNED_FILE)
        if condemned:
            self._set_aside(reason)
            bad_ends = 0
        elif bad_ends >= MAX_BAD_ENDS:
            self._set_aside(f"{bad_ends} processes in a row were killed by it, or before it served")
            bad_ends = 0
        self._is_marked = True
        self._bad_ends = bad_ends + 1  # unless this one ends well
        _write_mark(self._directory, OPEN_FILE, self._bad_ends, _OPENING)

    def _set_aside(self, reason: str) -> None:
        folder = self._directory / FOLDER
        if folder.exists():
            aside = self._free_name()
            with ExitStack() as stack:
                take_lock(folder / APPENDER_LOCK_FILE, folder, stack)  # no other command is at work on it
                folder.rename(aside)
            (aside / BALLAST_FILE).unlink(missing_ok=True)
            log.error(
                "ledger set aside as damaged; a new one begins: history and cursors are lost, agents send everything "
                "again, answers are incomplete until they have",
                cause=reason,
                kept=str(aside),
            )
        for former in sorted(self._directory.glob(f"{ASIDE}*"))[:-KEPT_ASIDE]:
            log.warning("damaged ledger deleted, newer ones are kept", path=str(former))
            shutil.rmtree(former, ignore_errors=True)
        (self._directory / CONDEMNED_FILE).unlink(missing_ok=True)

    def _free_name(self) -> Path:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        names = (self._directory / f"{ASIDE}{stamp}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 100))))
        return next(name for name in names if not name.exists())


def condemn(directory: Path, reason: str) -> None:
    """Says that a page of the ledger in a state directory is damaged, for the next start. Never raises."""
    try:
        _write_mark(directory, CONDEMNED_FILE, 1, reason)
    except OSError as error:
        log.error("damage could not be noted for the next start", cause=str(error))


class _Mark(msgspec.Struct):
    """What a process says to the next one about a data file.

    Attributes:
        file: its inode, so that nothing is said of one that was put in its place, as by a restore.
        number: how often it was said.
        reason: for people.
    """

    file: int
    number: int
    reason: str


def _read_mark(directory: Path, name: str) -> tuple[int, str]:
    """How often something was said of the data file that is there now, and why."""
    try:
        mark = msgspec.json.decode((directory / name).read_bytes(), type=_Mark)
    except (FileNotFoundError, ValueError):
        return 0, ""
    return (mark.number, mark.reason) if mark.file == _data_file(directory) else (0, "")


def _write_mark(directory: Path, name: str, number: int, reason: str) -> None:
    descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        os.write(descriptor, msgspec.json.encode(_Mark(_data_file(directory), number, reason)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _data_file(directory: Path) -> int:
    try:
        return (directory / FOLDER / DATA_FILE).stat().st_ino
    except FileNotFoundError:
        return 0
