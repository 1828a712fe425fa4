"""A whole aggregator in the test's own loop, on a unix socket and free ports, and what it tells over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.metrics_core import Metric

from federator.aggregator import aggregator as assembly
from federator.aggregator.aggregator import Aggregator
from federator.aggregator.serve.watch_hub import WatchHub
from federator.aggregator.settings import AggregatorSettings
from tests.exposition import parsed


def settings(folder: Path, **changes: Any) -> AggregatorSettings:
    """Settings of an aggregator that keeps to itself: its ledger in memory, agents at a socket in the folder."""
    values: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "ingest_listen": f"unix:{folder / 'ingest.sock'}",
        "http_listen": "127.0.0.1:0",
        "shutdown_grace": 0.1,
    }
    return AggregatorSettings(**(values | changes))


def bound_ring(patch: pytest.MonkeyPatch, entries: int) -> None:
    """Bounds the rings of aggregators that are made from now on, so that little is more than they hold."""
    patch.setattr(assembly, "WatchHub", partial(WatchHub, max_entries=entries))


@asynccontextmanager
async def running(aggregator: Aggregator) -> AsyncIterator[Aggregator]:
    """Runs it while the block runs; what it fails with before it has started is raised here."""
    task = asyncio.create_task(aggregator.run(), name="aggregator")
    started = asyncio.create_task(aggregator.started.wait(), name="started")
    try:
        await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield aggregator
    finally:
        started.cancel()
        task.cancel()
        await asyncio.wait([task, started])


async def get(port: int, path: str) -> tuple[int, str]:
    """Status and text of one answer."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


async def scrape(port: int) -> dict[str, Metric]:
    """The families of /metrics by name, as Prometheus reads them."""
    _, text = await get(port, "/metrics")
    return parsed(text)
