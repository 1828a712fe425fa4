"""What the ledger asks of the file system beside LMDB: locks that end with their process, and durable names."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path

from federator.aggregator.ledger.tables import FILE_MODE
from federator.errors import LedgerLocked


def take_lock(
    file: Path,
    folder: Path,
    stack: ExitStack,
    *,
    doing: str = "appends to",
    is_shared: bool = False,
    create: bool = True,
) -> int:
    """Locks a file until the stack closes or the process ends; returns its descriptor.

    Args:
        file: what is locked.
        folder: of the ledger, for the message.
        stack: gives the lock back.
        doing: what whoever has the lock does with the ledger, for the message.
        is_shared: others may have it too, in the same way.
        create: make the file where there is none; else it is opened for reading only.

    Raises:
        LedgerLocked: somebody has it.
        OSError: the file cannot be opened.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT if create else os.O_RDONLY, FILE_MODE)
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LedgerLocked(str(folder), doing) from error
    return descriptor


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable, which a file's fsync does not.

    Raises:
        OSError: it cannot be.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
