"""A unit test that reaches out of its process is told so."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest

from federator.aggregator.ledger.lmdb import LmdbLedger


def listen() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))


def connect() -> None:
    with socket.socket() as connecting:
        connecting.connect(("127.0.0.1", 9))


@pytest.mark.parametrize(
    ("reach_out", "does"),
    [
        (listen, "listens"),
        (connect, "connects"),
        (lambda: subprocess.run(["true"], check=True), "starts a process"),
        (lambda: os.posix_spawn("/bin/true", ["true"], {}), "starts a process"),
        (os.fork, "forks"),
        (lambda: sqlite3.connect("kept"), "opens a database"),
        (lambda: LmdbLedger.open(Path("kept")), "opens a database"),
        (lambda: grpc.aio.server(), "starts a server"),
    ],
    ids=["listen", "connect", "run", "spawn", "fork", "SQLite", "LMDB", "gRPC"],
)
async def test_each_way_out_is_closed(
    nothing_is_outside: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    reach_out: Callable[[], object],
    does: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError, match=f"a unit test {does}: "):
        reach_out()
    assert nothing_is_outside == [does]
    nothing_is_outside.clear()
