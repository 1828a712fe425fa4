"""Runs commands, and what they ask: a scripted inventory, and where clusters are removed a scripted aggregator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from federator.cli.main import main
from tests.component.cli.scripted_admin import ScriptedAdmin, administrating
from tests.component.client.scripted_inventory import ScriptedInventory, serving


class Outcome(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


Federator = Callable[..., Awaitable[Outcome]]


@pytest.fixture
async def inventory(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedInventory]:
    scripted = ScriptedInventory()
    async with serving(scripted):
        monkeypatch.setenv("FEDERATOR_SERVER", scripted.address)
        yield scripted


@pytest.fixture
async def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedAdmin]:
    """Listens where the aggregator of the state directory does, which the environment names."""
    (tmp_path / "state").mkdir()
    async with administrating(tmp_path / "state" / "admin.sock") as scripted:
        monkeypatch.setenv("FEDERATOR_STATE_DIRECTORY", str(tmp_path / "state"))
        yield scripted


@pytest.fixture
def federator(capsys: pytest.CaptureFixture[str]) -> Federator:
    """Runs a command against the inventory, which answers from this loop while the command has its own."""

    async def run(*arguments: str) -> Outcome:
        code = await asyncio.to_thread(main, arguments)
        return Outcome(code, *capsys.readouterr())

    return run
