"""Listings: the selected objects at one revision, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_indexer import sorted_references
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.selection import Selection
from federator.aggregator.serve.object_state import ObjectState
from federator.errors import CursorExpired
from federator.v1 import inventory_pb2

PAGE_BYTES = 1024 * 1024
"""Bytes of objects in one message; a single larger object travels alone."""

SLICE = 64
"""Objects read before the event loop gets a turn: at 15 µs each, about a millisecond."""


class Listing:
    """What a selection means at one revision.

    References are taken at once when it is made, so the listing stays what it was while the world moves on. Whoever
    iterates the pages holds a pin on `revision` from the step in which the listing was made (see `pins`).

    Attributes:
        revision: at which it is exact.
        total: objects selected, before the limit; final only after the last page.
    """

    def __init__(self, view: MergedView, ledger: Ledger, selection: Selection, *, limit: int = 0) -> None:
        rows = view.indexer.select(selection)
        self.revision = view.revision
        self._types = view.types
        self._ledger = ledger
        self._limit = limit
        self._filter = selection.other_fields
        self._references = view.indexer.references(rows)
        self.total = 0 if self._filter else len(rows)

    async def pages(self) -> AsyncGenerator[list[inventory_pb2.InventoryObject], None]:
        """Yields the objects by type, cluster, namespace and name, in pages of at most about `PAGE_BYTES`.

        Raises:
            CursorExpired: compaction passed the revision, because nobody held a pin.
        """
        page: list[inventory_pb2.InventoryObject] = []
        page_bytes = taken = 0
        for turn, state in enumerate(self._states(), 1):
            if turn % SLICE == 0:
                await asyncio.sleep(0)
            if self._filter:
                if not self._filter.matches(state.field):
                    continue
                self.total += 1
            if self._limit and taken == self._limit:
                if self._filter:
                    continue  # the total still counts
                break
            taken += 1
            size = state.size
            if page and page_bytes + size > PAGE_BYTES:
                yield page
                page, page_bytes = [], 0
            page.append(state.message)
            page_bytes += size
        if page:
            yield page

    def _states(self) -> Iterator[ObjectState]:
        for references in self._references:
            for reference in sorted_references(references):
                entry = self._ledger.entry(reference.revision)
                if entry is None:
                    raise CursorExpired(self.revision, self._ledger.oldest_revision)
                yield ObjectState(entry, self._types)
