"""Every test of this package runs once per driver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import Commit


class Clock:
    """Seconds since 1970, as the test wants them."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


OpenLedger = Callable[[int], Ledger]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "lmdb"])
async def open_ledger(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[OpenLedger]:
    """Opens a ledger with room for so many bytes; it is closed after the test."""
    opened: list[Ledger] = []

    def open_(max_bytes: int) -> Ledger:
        ledger: Ledger = (
            MemoryLedger(max_bytes=max_bytes, clock=clock)
            if request.param == "memory"
            else LmdbLedger.open(tmp_path, max_bytes=max_bytes, clock=clock)
        )
        opened.append(ledger)
        return ledger

    yield open_
    for ledger in opened:
        await ledger.close()


@pytest.fixture
def ledger(open_ledger: OpenLedger) -> Ledger:
    return open_ledger(1 << 30)


@pytest.fixture
def told(ledger: Ledger) -> list[Commit]:
    """What the listener was told, in order."""
    commits: list[Commit] = []
    ledger.on_commit(commits.append)
    return commits
