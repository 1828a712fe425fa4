"""The release before this one, as programs to run: its wheel is in `tests/releases`."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from federator.testing import fork_server
from federator.testing.fork_server import ForkServer

FOLDER = Path(__file__).parents[2] / "releases"
_UNPACKED = Path(__file__).parents[3] / "build" / "releases"


def wheel() -> Path:
    """The wheel of the release before.

    Raises:
        ValueError: there is not exactly one.
    """
    (found,) = FOLDER.glob("federator-*.whl")
    return found


@cache
def program() -> Path:
    """The folder that the wheel is unpacked into, once: what is imported from a wheel is compiled at every start.

    It is named after the wheel's content, so that another wheel has another one.
    """
    packed = wheel()
    folder = _UNPACKED / f"{packed.stem}-{hashlib.sha256(packed.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        _UNPACKED.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=_UNPACKED) as scratch:
            unpacked = Path(scratch) / "wheel"
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(unpacked)
            with contextlib.suppress(OSError):  # another process was faster
                unpacked.rename(folder)
    return folder


class PreviousRelease:
    """Starts programs of the release before, as processes that are forked; what it depends on is what is installed."""

    def __init__(self) -> None:
        program()  # before several need it
        self._server = ForkServer(["tests.integration.releases.in_place_of_this"])

    @contextlib.contextmanager
    def is_started(self) -> Iterator[None]:
        """Whatever program of federator is started meanwhile, by a Federation or by itself, is the release before."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fork_server, "shared", lambda: self._server)
            yield

    def is_release_of(self, pid: int) -> bool:
        """Whether a process was started as the release before."""
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return int(parent) == self._server.pid

    def close(self) -> None:
        """Kills what still runs of it."""
        self._server.close()
