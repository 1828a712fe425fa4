"""Temporary folders that do not pile up when their processes are killed."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from pathlib import Path

_PREFIX = "federator-testbed-"
_OWNER = "owner"


class ScratchFolder:
    """A temporary folder of this process, readable by its user only.

    A process that is killed cannot remove its folder, and an etcd's log alone takes 64 MB. So each folder has a file
    that its process keeps locked, and whoever makes a folder first removes those whose lock nobody holds.

    Attributes:
        path: the folder.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # Locked before it has the name that a sweep looks for: no sweep can find it unlocked while we live.
        unnamed = self.path / f".{_OWNER}"
        self._owner = unnamed.open("wb")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        unnamed.rename(self.path / _OWNER)

    def remove(self) -> None:
        """Removes the folder with all that is in it; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._owner.close()


def _sweep(root: Path) -> None:
    for owner in root.glob(f"{_PREFIX}*/{_OWNER}"):
        try:
            with owner.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)
        except OSError:
            continue  # its process lives, or it belongs to another user, or another sweep was faster
