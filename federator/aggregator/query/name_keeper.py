"""Name keeper: the task that puts new names in order once they have stopped pouring in."""

from __future__ import annotations

import asyncio

from federator.aggregator.merge.merged_indexer import MergedIndexer

LOOK_SECONDS = 5.0
"""Seconds between two looks."""

POURING = 5_000
"""New names between two looks that are a flood, as where a cluster joins: then the order waits. Each name costs some
10 us, and a list that is asked for meanwhile pays for it."""

PAUSE = 0.002
"""Seconds between two steps, which take as long."""


async def keep_names_in_order(indexer: MergedIndexer) -> None:
    """Puts new names in order, in steps, so that the first list after many have come need not. Runs until cancelled."""
    before = 0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = indexer.unsettled
        if now and now < before + POURING:
            for _ in indexer.settling():
                await asyncio.sleep(PAUSE)
        before = indexer.unsettled
