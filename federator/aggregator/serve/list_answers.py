"""Answers of List: objects in order, whole or page by page, of now or of the past."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import NamedTuple

import numpy as np

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.scope import EVERYTHING, Scope
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.budget import Budget, QueryLimits
from federator.aggregator.query.completeness import require_known_clusters
from federator.aggregator.query.encoding import OBJECTS, SUMMARY_CLUSTERS, EmbeddedField
from federator.aggregator.query.listing import Listing
from federator.aggregator.query.mask import ReadMask
from federator.aggregator.query.moment import revision_of, selection_as_of
from federator.aggregator.query.order import BY_KEY, Order, parse_order
from federator.aggregator.query.page_cache import ListKey, PageCache, SortedList
from federator.aggregator.query.page_token import PageTokenCodec, Place, binding
from federator.aggregator.query.pins import Pins
from federator.aggregator.query.snapshot import Snapshot, take_snapshot
from federator.aggregator.query.sorting import PlaceReader, sorted_revisions
from federator.aggregator.query.state_cache import StateCache
from federator.aggregator.serve.freshness_answers import AskedFreshness, FreshnessAnswers
from federator.aggregator.serve.messages import budget_of, selection_from_proto
from federator.errors import InvalidInput, PageTokenExpired, RevisionExpired
from federator.v1 import inventory_pb2

MAX_PAGE_SIZE = 10_000
"""Objects of one page."""

_SHORT = 1000
"""Objects of a list, or of a first page, that others may ask for, too, such as what a dashboard shows. Longer lists and
later pages are for who reads everything once."""

_SUMMARY = EmbeddedField(inventory_pb2.ListResponse, "summary")


class _Question(NamedTuple):
    """A request of List, read.

    Attributes:
        selection: what is asked for.
        order_by: by what it is sorted.
        mask: which fields are wanted; None for all.
        limit: objects in all; 0 for no limit.
        page_size: objects of one page; 0 for all.
        count_only: whether only the summary is wanted.
        bound_to: what a page token is bound to.
        place: where this page begins; None for the first.
    """

    selection: Selection
    order_by: str
    mask: ReadMask | None
    limit: int
    page_size: int
    count_only: bool
    bound_to: bytes
    place: Place | None


class _Page(NamedTuple):
    """What is to be read for one answer.

    Attributes:
        sorted: the list, or only its beginning.
        total: objects selected.
        start: of the page, in the list.
        end: of the page.
        fresh: freshness of the asked clusters, in the step in which the list was found.
    """

    sorted: SortedList
    total: int
    start: int
    end: int
    fresh: AskedFreshness


class ListAnswers:
    """Answers List requests. Nothing that a later page needs is kept here, see `PageCache`."""

    def __init__(
        self,
        view: MergedView,
        ledger: Ledger,
        pins: Pins,
        *,
        limits: QueryLimits | None = None,
        freshness: FreshnessAnswers | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Answers from these.

        Args:
            view: the merged view.
            ledger: history and bodies.
            pins: keep what is being read from being compacted.
            limits: what one answer may take.
            freshness: what answers say of it; shared by all that say it.
            clock: seconds since 1970.
        """
        self._view = view
        self._ledger = ledger
        self._pins = pins
        self._limits = limits or QueryLimits()
        self._freshness = freshness or FreshnessAnswers(view, ledger)
        self._clock = clock
        self._tokens = PageTokenCodec.of(ledger.cursors)
        self._cache = PageCache(pins)
        self._states = StateCache(view.types)

    def statistics(self) -> Mapping[str, int]:
        """The lists that are kept for their next pages, and the states that are kept for the next lists."""
        return {**self._cache.statistics(), **self._states.statistics()}

    def close(self) -> None:
        """Lets go of what is kept for later pages."""
        self._cache.clear()
        self._states.clear()

    async def answer(
        self, request: inventory_pb2.ListRequest, scope: Scope = EVERYTHING
    ) -> AsyncGenerator[bytes, None]:
        """Yields the responses, encoded, the last one with the summary. Freshness was waited for before.

        Raises:
            InvalidInput: a field has a value that is not allowed; the error names it.
            PageTokenMalformed: the token is none of this ledger's.
            PageTokenForeign: it is of another request.
            PageTokenExpired: the revision of the pages is compacted.
            RevisionExpired: the past that is asked for is compacted.
            UnknownCluster: a cluster is named that never was a member.
            UnknownResourceType: no member has ever named a type like one of these.
            QueryTooCostly: it takes more than it may.
            LedgerCorrupt: an object had to be left out, and freshness did not say so in time.
        """
        question = self._question(request)
        require_known_clusters(self._view, question.selection)
        budget = budget_of(self._limits, request.limits)
        for _ in self._view.indexer.settling():
            await budget.turn()
        revision = question.place.revision if question.place else self._revision_of(request)
        with self._pins.hold(revision), _expiring(question.place):
            if question.place and revision < self._ledger.oldest_revision:
                raise RevisionExpired(revision, self._ledger.oldest_revision)
            labels = self._view.cluster_labels
            selection = selection_as_of(question.selection, labels, self._ledger, revision)
            question = question._replace(selection=selection)
            page = await self._page(question, revision, scope, budget)
            listing = Listing(
                self._view,
                self._ledger,
                revision,
                page.sorted.revisions[page.start : page.end],
                mask=question.mask,
                cache=None if question.place or page.end - page.start > _SHORT else self._states,
                budget=budget,
            )
            last = b""
            async with aclosing(listing.parts()) as parts:
                async for part in parts:
                    if last:
                        yield last
                        budget.resume()
                    last = OBJECTS.encode(part)
            summary = self._summary(question, revision, page, listing)
        yield last + _SUMMARY.encode([summary])

    def _question(self, request: inventory_pb2.ListRequest) -> _Question:
        if request.page_size > MAX_PAGE_SIZE:
            raise InvalidInput("page_size", request.page_size, f"at most {MAX_PAGE_SIZE}, or 0 for all in one stream")
        bound_to = binding(request)
        selection = selection_from_proto(request.selection, self._view)
        self._order(request.order_by, selection)  # refuses what cannot be sorted by
        return _Question(
            selection=selection,
            order_by=request.order_by,
            mask=ReadMask.parse(request.read_mask),
            limit=request.limit,
            page_size=request.page_size,
            count_only=request.count_only,
            bound_to=bound_to,
            place=self._tokens.decode(request.page_token, bound_to) if request.page_token else None,
        )

    def _order(self, order_by: str, selection: Selection) -> Order:
        """Reads the order, as field indexes are now: one may be dropped while a list waits."""
        return parse_order(order_by, self._view.indexer.fields.answering(selection.resources))

    def _revision_of(self, request: inventory_pb2.ListRequest) -> int:
        match request.WhichOneof("at"):
            case "at_revision":
                return revision_of(self._ledger, request.at_revision, None, field="at")
            case "at_time_ms":
                if request.at_time_ms > self._clock() * 1000:
                    raise InvalidInput("at_time_ms", request.at_time_ms, "a time that has passed")
                return revision_of(self._ledger, None, request.at_time_ms, field="at")
            case _:
                return self._view.revision

    async def _page(self, question: _Question, revision: int, scope: Scope, budget: Budget) -> _Page:
        """Finds out which objects this answer has."""
        place, key = question.place, ListKey(question.bound_to, revision, scope)
        kept = self._cache.find(key) if place else None
        if kept is not None:
            total = len(kept.revisions)
            fresh = self._freshness.asked(question.selection)
        else:
            snapshot = await take_snapshot(self._view, self._ledger, question.selection, scope, revision, budget)
            fresh = self._freshness.asked(question.selection)
            total = len(snapshot.rows) + len(snapshot.past)
            kept = await self._sorted(question, snapshot, budget)
            if snapshot.unanswered:
                total = len(kept.revisions)
        if question.count_only:
            return _Page(kept, total, 0, 0, fresh)
        start = self._start(question, kept, revision)
        most = min(total, question.limit or total)
        end = max(start, min(most, start + question.page_size) if question.page_size else most)
        if question.page_size and end < most and len(kept.revisions) == total:
            self._cache.keep(key, kept)
        elif place:
            self._cache.forget(key)
        return _Page(kept, total, start, end, fresh)

    async def _sorted(self, question: _Question, snapshot: Snapshot, budget: Budget) -> SortedList:
        """Sorts what is selected: of a first page only that page, unless all has to be read to find out what it has."""
        revisions = np.empty(0, np.uint64)
        if snapshot.unanswered or not question.count_only:
            most = 0
            if not (snapshot.unanswered or question.place):
                most = min(filter(None, (question.page_size, question.limit)), default=0)
            revisions = await sorted_revisions(
                snapshot,
                BY_KEY if question.count_only else self._order(question.order_by, question.selection),
                self._view.indexer,
                self._ledger,
                self._view.types,
                budget,
                most=most,
            )
        return SortedList(revisions, budget.scanned, snapshot.scanned_history)

    def _start(self, question: _Question, kept: SortedList, revision: int) -> int:
        """Where the page begins: behind the last object of the pages before, wherever that is in the list now."""
        place = question.place
        if place is None:
            return 0
        revisions = kept.revisions
        if 0 < place.offset <= len(revisions) and int(revisions[place.offset - 1]) == place.last:
            return place.offset
        # The list is another one: rights, or what is known of the past, have changed since.
        reader = PlaceReader(
            self._ledger, self._view.types, self._order(question.order_by, question.selection), revision
        )
        key = reader.key(place.last)
        if key is None:
            raise RevisionExpired(revision, self._ledger.oldest_revision)
        start = reader.place(revisions, key)
        is_there = start < len(revisions) and int(revisions[start]) == place.last
        return start + is_there

    def _summary(self, question: _Question, revision: int, page: _Page, listing: Listing) -> bytes:
        fresh = page.fresh
        if listing.left_out:
            fresh = self._freshness.asked(question.selection)
        complete = not listing.left_out and fresh.is_complete
        self._freshness.count("list", is_complete=complete)
        summary = inventory_pb2.ListSummary(
            revision=revision,
            cursor=self._ledger.cursors.encode(revision),
            total=page.total - listing.missing,
            complete=complete,
        )
        most = min(page.total, question.limit or page.total)
        if question.page_size and not question.count_only and page.end < most:
            place = Place(revision, page.end, int(page.sorted.revisions[page.end - 1]))
            summary.next_page_token = self._tokens.encode(place, question.bound_to)
        if page.sorted.scanned:
            summary.scan.objects = page.sorted.scanned
            summary.scan.history = page.sorted.scanned_history
        return summary.SerializeToString() + SUMMARY_CLUSTERS.encode(fresh.messages)


@contextmanager
def _expiring(place: Place | None) -> Iterator[None]:
    """Names what has expired: the past that was asked for, or the pages."""
    try:
        yield
    except RevisionExpired as error:
        if place is None:
            raise
        raise PageTokenExpired(error.revision, error.oldest) from error
