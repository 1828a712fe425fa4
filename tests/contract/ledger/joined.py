"""A ledger with what reads it, joined as the aggregator joins them, and opened anew as often as one likes."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import Commit
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.listing import present_listing
from federator.aggregator.serve.watch_hub import WatchHub
from federator.v1 import inventory_pb2
from tests.unit.aggregator.federation import Federation
from tests.unit.aggregator.serve.recorder import Recorder, new_watch

RING_ENTRIES = 4
"""Bound of the hub's ring: small, so that most watches begin behind it, and most history can be forgotten."""


class Joined:
    """Ledger, merged view and hub.

    Attributes:
        ledger: it.
        view: moved forward by each commit.
        hub: where watches read.
        commits: what the listener was told, in order, over all openings.
    """

    def __init__(self, open_ledger: Callable[[], MemoryLedger | LmdbLedger]) -> None:
        """Opens nothing; `start` does."""
        self._open = open_ledger
        self.commits: list[Commit] = []

    def start(self) -> None:
        """Opens the ledger, loads what reads it, and listens. On the loop."""
        self.ledger = self._open()
        self.view = MergedView()
        self.view.load(self.ledger)
        self.hub = WatchHub(self.ledger, self.view.types, max_entries=RING_ENTRIES)
        self.hub.load()
        self.ledger.on_commit(self._committed)

    async def stop(self) -> None:
        """Closes the ledger; `start` may come again."""
        self.hub.close()
        await self.ledger.close()

    async def compact(self, revision: int) -> tuple[int, int]:
        """Forgets history up to a revision, or as far as the hub lets it; returns how far, and the entries dropped."""
        self.hub.flush()
        bounded = min(revision, self.hub.floor)
        return bounded, await self.ledger.compact(bounded)

    async def watched(self, selection: Selection, after: int | None) -> Recorder:
        """What a watch brings from a revision, or anew, up to now."""
        self.hub.flush()
        recorder = Recorder()
        watch = new_watch(cast("Federation", self), selection, after=after)
        await recorder.follow(watch, until=lambda: self.ledger.revision)
        return recorder

    async def listed(self, selection: Selection) -> list[inventory_pb2.InventoryObject]:
        """What a list brings now."""
        parts = present_listing(self.view, self.ledger, selection).parts()
        return [inventory_pb2.InventoryObject.FromString(each) async for part in parts for each in part]

    def _committed(self, commit: Commit) -> None:
        self.commits.append(commit)
        self.view.apply(commit)
        self.hub.publish(commit)
