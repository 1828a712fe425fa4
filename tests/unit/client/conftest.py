from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from federator.client import InventoryClient, aconnect
from tests.unit.client.scripted_inventory import ScriptedInventory, serving


@pytest.fixture
async def inventory() -> AsyncIterator[ScriptedInventory]:
    scripted = ScriptedInventory()
    async with serving(scripted):
        yield scripted


@pytest.fixture
async def client(inventory: ScriptedInventory) -> AsyncIterator[InventoryClient]:
    async with aconnect(inventory.address) as connected:
        yield connected
