"""Listings: the objects of a list, read from the ledger one by one, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_indexer import row_numbers
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.scope import EVERYTHING, Scope
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.budget import Budget
from federator.aggregator.query.mask import ReadMask
from federator.aggregator.query.object_state import ObjectState
from federator.aggregator.query.order import BY_KEY
from federator.aggregator.query.sorting import SLICE, Revisions, sorted_rows
from federator.aggregator.query.state_cache import StateCache
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource
from federator.api.selector import FieldSelector
from federator.errors import LedgerCorrupt, RevisionExpired

PAGE_BYTES = 1024 * 1024
"""Bytes of objects in one message; a single larger object travels alone."""

PART_BYTES = 256 * 1024
"""Bytes of objects read before they are sent: whoever gets them decodes them while the next are read."""

TOLD_SECONDS = 10.0
"""A pass over the heads of a million objects takes 2 s."""


class Listing:
    """Objects at one revision, named by the revisions at which they took their states.

    So it stays what it was while the world moves on. Whoever iterates the parts holds a pin on `revision` from the step
    in which the revisions were found (see `pins`).

    Attributes:
        revision: at which it is exact.
        left_out: types of which objects are missing because the ledger's record is damaged; final after the last part,
            and then freshness says so too.
        missing: how many objects are missing for that.
        found: objects that were read so far and belong to it.
    """

    def __init__(
        self,
        view: MergedView,
        ledger: Ledger,
        revision: int,
        revisions: Revisions,
        *,
        fields: FieldSelector | None = None,
        mask: ReadMask | None = None,
        cache: StateCache | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Takes what is to be read.

        Args:
            view: the merged view.
            ledger: has the objects.
            revision: at which these are what is selected.
            revisions: of the objects, in order.
            fields: what is yet to be looked at of them.
            mask: which fields of the bodies are wanted; None for all.
            cache: has some of the objects, and is to have all that are read; None where nobody will ask again soon.
            budget: pays for reading; None where nobody is to be refused.
        """
        self.revision = revision
        self._view = view
        self._ledger = ledger
        self._revisions = revisions
        self._fields = fields
        self._mask = mask
        self._cache = cache
        self._budget = budget
        self.left_out: dict[tuple[ClusterID, GroupResource], LedgerCorrupt] = {}
        self.missing = 0
        self.found = 0

    async def parts(self) -> AsyncGenerator[list[bytes], None]:
        """Yields the objects, encoded, in parts of at most about `PART_BYTES`.

        Raises:
            RevisionExpired: compaction passed the revision, because nobody held a pin.
            LedgerCorrupt: an object had to be left out, and freshness did not say so in time.
            QueryTooCostly: reading takes more than it may.
        """
        part: list[bytes] = []
        part_bytes = 0
        for turn, encoded in enumerate(self._encoded(), 1):
            if turn % SLICE == 0:
                await self._turn()
            if not encoded:
                continue
            self.found += 1
            if part and part_bytes + len(encoded) > PART_BYTES:
                yield part
                if self._budget:
                    self._budget.hold(-part_bytes)
                    self._budget.resume()
                part, part_bytes = [], 0
            part.append(encoded)
            part_bytes += len(encoded)
            if self._budget:
                self._budget.hold(len(encoded))
        if part:
            yield part
        for (cluster_id, resource), error in self.left_out.items():
            await self._until_told(cluster_id, resource, error)

    def _encoded(self) -> Iterator[bytes]:
        """The objects in order, encoded; nothing for those that are left out."""
        revisions, bodies, types, cache = self._revisions.tolist(), self._ledger.bodies, self._view.types, self._cache
        mask = self._mask.masked if self._mask else bytes
        cached = {at: encoded for at in revisions if (encoded := cache.find(at))} if cache else {}
        entries = self._ledger.entries(at for at in revisions if at not in cached)
        for at in revisions:
            if at in cached:
                yield mask(cached[at])
                continue
            _, entry = next(entries)
            if entry is None:
                raise RevisionExpired(self.revision, self._ledger.oldest_revision)
            if isinstance(entry, LedgerCorrupt):
                self._leave_out(at, entry)
                yield b""
                continue
            state = ObjectState(entry, bodies, types)
            if self._fields and not self._fields.matches(state.field):
                yield b""
                continue
            if cache:
                cache.keep(at, state.encoded)
            yield mask(state.encoded)

    async def _turn(self) -> None:
        if self._budget:
            await self._budget.turn()
        else:
            await asyncio.sleep(0)

    async def _until_told(self, cluster_id: ClusterID, resource: GroupResource, error: LedgerCorrupt) -> None:
        """Waits until freshness says of a type that it is not complete: the ledger finds out what the damage means."""
        freshness = self._view.freshness
        try:
            async with asyncio.timeout(TOLD_SECONDS):
                while freshness.of(cluster_id, (resource,)).is_complete:
                    await freshness.changed(cluster_id, resource)
        except TimeoutError:
            raise error from None

    def _leave_out(self, revision: int, error: LedgerCorrupt) -> None:
        """Takes note of a damaged state, and of which type it is: present objects are known without it.

        Raises:
            LedgerCorrupt: it is of the past, of which nobody will say that it is not complete.
        """
        indexer = self._view.indexer
        for cluster_id, resource in indexer.objects():
            if revision in indexer.revisions(row_numbers(indexer.rows_in(cluster_id, resource))):
                self.left_out[cluster_id, resource] = error
                self.missing += 1
                return
        raise error


def present_listing(view: MergedView, ledger: Ledger, selection: Selection, scope: Scope = EVERYTHING) -> Listing:
    """Returns a listing of what is selected now, by type, cluster, namespace and name; in one step.

    For who has nobody to refuse: fields that no index knows are looked at as the objects are read.
    """
    revisions = sorted_rows(view.indexer.select(selection, scope), BY_KEY, view.indexer)
    return Listing(view, ledger, view.revision, revisions, fields=view.indexer.unanswered(selection))
