"""Fault: what a process that was killed in the midst of its own code leaves to the next one.

LMDB reads its file through a mapping and trusts what is there. A damaged page can end the process by SIGSEGV, SIGBUS or
SIGABRT, which no `except` sees; Python's `faulthandler` still writes down where the process was.
"""

from __future__ import annotations

import faulthandler
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from federator.aggregator.ledger.tables import FILE_MODE

FILE = "ledger.fault"

_PACKAGE = str(Path(*Path(__file__).parts[-4:-1]))
_ERROR = re.compile(r"Fatal Python error: (.+)")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class Fault(NamedTuple):
    """How and where a process was killed.

    Attributes:
        error: such as "Segmentation fault" or "Aborted".
        frames: `path:line function` of the thread that was killed, innermost first; empty where it ran no Python.
    """

    error: str
    frames: tuple[str, ...]

    @property
    def is_of_ledger(self) -> bool:
        """Whether it was reading or writing the ledger."""
        return bool(self.frames) and _PACKAGE in self.frames[0]

    def __str__(self) -> str:
        return f"{self.error} in {self.frames[0]}" if self.frames else self.error


def note_faults(directory: Path, stack: ExitStack) -> None:
    """Has a fault of this process noted in a state directory until the stack closes.

    Does nothing where the process has its faults told elsewhere, as with PYTHONFAULTHANDLER: there is one such place.

    Raises:
        OSError: the file cannot be written.
    """
    if faulthandler.is_enabled():
        return
    file = directory / FILE
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    stack.callback(file.unlink, missing_ok=True)
    stack.callback(os.close, descriptor)
    faulthandler.enable(descriptor, all_threads=False)
    stack.callback(faulthandler.disable)


def take_fault(directory: Path) -> Fault | None:
    """Takes what the process before this one left; None where it met no fault, or none that was noted.

    Raises:
        OSError: the file cannot be read or deleted.
    """
    file = directory / FILE
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        return None
    file.unlink()
    error = _ERROR.match(text)
    if error is None:
        return None
    frames = (f"{path}:{line} {function}" for path, line, function in _FRAME.findall(text))
    return Fault(error[1], tuple(frames))
