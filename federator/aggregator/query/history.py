"""History: every version of one object, newest first, and the gaps between them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import msgspec

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import EntryType, ObjectEntry
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.query.budget import Budget
from federator.aggregator.query.gaps import Gap, gaps_of
from federator.aggregator.query.object_state import ObjectState, raw_body
from federator.aggregator.query.patch import Patches
from federator.api.key import ObjectKey
from federator.errors import InvalidInput, LedgerCorrupt, RevisionExpired

DEFAULT_LIMIT = 100
"""Versions in one answer where nothing is asked for."""

MAX_LIMIT = 1000


class Version(msgspec.Struct, frozen=True):
    """One version of the object.

    Attributes:
        entry: what was committed.
        patch: JSON Patch that makes it of the version before; empty where there is none, or that is not to be had.
        state: its state, or for DELETED its last one, if asked for and to be had.
    """

    entry: ObjectEntry
    patch: bytes = b""
    state: ObjectState | None = None


class HistoryQuestion(msgspec.Struct, frozen=True):
    """What is asked for.

    Attributes:
        key: the object, present or not.
        before_revision: only versions before it; 0 for all.
        since_ms: only versions since this time, milliseconds since 1970; 0 for all.
        limit: at most so many; 0 for `DEFAULT_LIMIT`.
        with_objects: with the states themselves.
    """

    key: ObjectKey
    before_revision: int = 0
    since_ms: int = 0
    limit: int = 0
    with_objects: bool = False


class History:
    """The versions of one object, as of the revision at which it was made.

    Whoever iterates it holds a pin on the ledger's oldest revision. All that was under the key is one history, over
    deletions and UIDs. A gap stands before the versions that are older than its end. Where a version cannot be read,
    since it is damaged, history ends, as where it is compacted.

    Attributes:
        revision: newest revision looked at.
        next_before_revision: where to go on after the last entry; 0 where there is no more.
    """

    def __init__(
        self, question: HistoryQuestion, ledger: Ledger, types: ResourceTypes, patches: Patches, budget: Budget
    ) -> None:
        """Looks at nothing yet.

        Args:
            question: what is asked for.
            ledger: has the versions.
            types: tells the kinds of objects.
            patches: makes the patches.
            budget: of the answer.

        Raises:
            InvalidInput: the limit is too high.
            RevisionExpired: history does not reach back to `before_revision`.
        """
        if question.limit > MAX_LIMIT:
            raise InvalidInput("limit", question.limit, f"at most {MAX_LIMIT}, or 0 for {DEFAULT_LIMIT}")
        if 0 < question.before_revision <= ledger.oldest_revision:
            raise RevisionExpired(question.before_revision, ledger.oldest_revision)
        self.revision = ledger.revision
        self.next_before_revision = 0
        self._question = question
        self._ledger = ledger
        self._types = types
        self._patches = patches
        self._budget = budget

    async def entries(self) -> AsyncGenerator[Version | Gap, None]:
        """Yields versions and gaps, newest first.

        Raises:
            QueryTooCostly: it takes more than it may.
            LedgerCorrupt: the newest version is damaged.
        """
        question = self._question
        limit = question.limit or DEFAULT_LIMIT
        before = min(question.before_revision or self.revision + 1, self.revision + 1)
        gaps = self._gaps(before)
        gap = next(gaps, None)
        told, last = 0, before
        entry = self._first(before)
        while entry is not None:
            self._budget.scan()
            await self._budget.turn()
            former = self._former(entry)
            if entry.revision < before:
                is_too_old = entry.time_ms < question.since_ms
                if told == limit and not is_too_old:
                    self.next_before_revision = last
                    return
                while gap is not None and gap.ends_after(entry.revision):
                    yield gap
                    gap = next(gaps, None)
                if is_too_old:
                    return
                yield await self._version(entry, former)
                told, last = told + 1, entry.revision
            entry = former

    def _gaps(self, before: int) -> Iterator[Gap]:
        """The gaps that may stand in the answer, that which ended last first."""
        key = self._question.key
        is_first = not self._question.before_revision
        for gap in reversed(gaps_of(self._ledger, key.cluster_id, (key.group_resource,))):
            has_ended_before = bool(gap.to_revision) and gap.to_revision < before
            if (is_first or has_ended_before) and gap.ends_since(self._question.since_ms):
                yield gap

    def _first(self, before: int) -> ObjectEntry | None:
        """The newest entry of the key before a revision, or one from which it is reached."""
        # What the answer before named is a version, from which it is one step.
        named = self._readable(before)
        if named is not None and named.key == self._question.key:
            return named
        newest = self._ledger.newest(self._question.key)
        return self._ledger.entry(newest) if newest else None

    def _former(self, entry: ObjectEntry) -> ObjectEntry | None:
        revision = entry.previous_revision or entry.follows
        return self._readable(revision) if revision else None

    def _readable(self, revision: int) -> ObjectEntry | None:
        try:
            return self._ledger.entry(revision)
        except LedgerCorrupt:  # as good as compacted, and the ledger takes note of it
            return None

    async def _version(self, entry: ObjectEntry, former: ObjectEntry | None) -> Version:
        patch = b""
        if entry.type is EntryType.MODIFIED and former is not None:
            before, after = raw_body(former, self._ledger.bodies), raw_body(entry, self._ledger.bodies)
            patch = await self._patches.between(before, after, self._budget)
        shown = former if entry.type is EntryType.DELETED else entry
        state = None
        if self._question.with_objects and shown is not None:
            state = ObjectState(shown, self._ledger.bodies, self._types)
        return Version(entry, patch, state)
