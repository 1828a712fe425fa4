"""Holds unit tests to what they are: nothing outside the test's own process has a part in them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

import grpc.aio
import lmdb
import pytest

_REACHES_OUT = {
    "os.fork": "forks",
    "os.posix_spawn": "starts a process",
    "socket.bind": "listens",
    "socket.connect": "connects",
    "sqlite3.connect": "opens a database",
    "subprocess.Popen": "starts a process",
}
"""Of Python's audit events. LMDB and gRPC raise none, so what opens them is replaced while a test runs."""

_watching = threading.Event()
_refused: list[str] = []


def _audit(event: str, _: object) -> None:
    if event in _REACHES_OUT and _watching.is_set():
        _refuse(_REACHES_OUT[event])


def _refuse(does: str) -> NoReturn:
    _refused.append(does)
    raise AssertionError(f"a unit test {does}: one that has to belongs into tests/component, see docs/testing.md")


sys.addaudithook(_audit)


@pytest.fixture(autouse=True)
def nothing_is_outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Fails a test that opens a socket or a database or starts a process, also where the code under test hides that."""
    monkeypatch.setattr(lmdb, "Environment", lambda *_, **__: _refuse("opens a database"))
    monkeypatch.setattr(grpc.aio, "server", lambda *_, **__: _refuse("starts a server"))
    _refused.clear()
    _watching.set()
    yield _refused
    _watching.clear()
    assert not _refused
