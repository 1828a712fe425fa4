"""What commands ask: a scripted inventory, and where clusters are removed a scripted aggregator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.component.cli.scripted_admin import ScriptedAdmin, administrating
from tests.component.client.scripted_inventory import ScriptedInventory, serving
from tests.unit.cli.conftest import federator

__all__ = ["federator"]


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
