"""Listings: the selected objects at one revision, page by page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_indexer import sorted_references
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.object_state import ObjectState
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource
from federator.errors import CursorExpired, LedgerCorrupt

PAGE_BYTES = 1024 * 1024
"""Bytes of objects in one message; a single larger object travels alone."""

TOLD_SECONDS = 10.0
"""A pass over the heads of a million objects takes 2 s."""

SLICE = 64
"""Objects read before the event loop gets a turn: at 15 µs each, about a millisecond."""


class Listing:
    """What a selection means at one revision.

    References are taken at once when it is made, so the listing stays what it was while the world moves on. Whoever
    iterates the pages holds a pin on `revision` from the step in which the listing was made (see `pins`).

    Attributes:
        revision: at which it is exact.
        total: objects selected, before the limit; final only after the last page.
        left_out: types of which objects are missing because the ledger's record is damaged; final after the last page,
            and then freshness says so too.
    """

    def __init__(self, view: MergedView, ledger: Ledger, selection: Selection, *, limit: int = 0) -> None:
        rows = view.indexer.select(selection)
        self.revision = view.revision
        self._types = view.types
        self._ledger = ledger
        self._limit = limit
        self._filter = selection.other_fields
        self._references = view.indexer.references(rows)
        self._freshness = view.freshness
        self.total = 0 if self._filter else len(rows)
        self.left_out: dict[tuple[ClusterID, GroupResource], LedgerCorrupt] = {}

    async def pages(self) -> AsyncGenerator[list[bytes], None]:
        """Yields the objects, encoded, by type, cluster, namespace and name, in pages of at most about `PAGE_BYTES`.

        Raises:
            CursorExpired: compaction passed the revision, because nobody held a pin.
            LedgerCorrupt: an object had to be left out, and freshness did not say so in time.
        """
        page: list[bytes] = []
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
            page.append(state.encoded)
            page_bytes += size
        if page:
            yield page
        for (cluster_id, resource), error in self.left_out.items():
            await self._until_told(cluster_id, resource, error)

    async def _until_told(self, cluster_id: ClusterID, resource: GroupResource, error: LedgerCorrupt) -> None:
        """Waits until freshness says of a type that it is not complete: the ledger finds out what the damage means."""
        try:
            async with asyncio.timeout(TOLD_SECONDS):
                while self._freshness.of(cluster_id, (resource,)).is_complete:
                    await self._freshness.changed(cluster_id, resource)
        except TimeoutError:
            raise error from None

    def _states(self) -> Iterator[ObjectState]:
        for references in self._references:
            for reference in sorted_references(references):
                try:
                    entry = self._ledger.entry(reference.revision)
                except LedgerCorrupt as error:
                    self.left_out[references.cluster_id, references.group_resource] = error
                    self.total -= not self._filter
                    continue
                if entry is None:
                    raise CursorExpired(self.revision, self._ledger.oldest_revision)
                yield ObjectState(entry, self._ledger.bodies, self._types)
