from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from federator.client import InventoryClient, aconnect
from tests.component.client.scripted_inventory import ScriptedInventory, serving

FIRST_DELAY = 0.01
"""Seconds before the first attempt after a lost connection, instead of 0.2."""


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other sooner than they do for users."""
    monkeypatch.setattr("federator.client.watch._FIRST_DELAY", FIRST_DELAY)
    monkeypatch.setattr("federator.client.page_walk._FIRST_DELAY", FIRST_DELAY)


@pytest.fixture
async def inventory() -> AsyncIterator[ScriptedInventory]:
    scripted = ScriptedInventory()
    async with serving(scripted):
        yield scripted


@pytest.fixture
async def client(inventory: ScriptedInventory) -> AsyncIterator[InventoryClient]:
    async with aconnect(inventory.address) as connected:
        yield connected
