"""What the tests of Push share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.push.harness import Aggregator


@pytest.fixture
async def aggregator(tmp_path: Path) -> AsyncIterator[Aggregator]:
    """An aggregator that runs, over a ledger in memory, behind a unix socket."""
    aggregator = Aggregator(f"unix:{tmp_path}/i.sock")
    async with aggregator.running():
        yield aggregator
