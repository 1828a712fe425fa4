"""Changes: what became of everything selected between two revisions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple

import msgspec

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import EntryType, ObjectEntry
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.merge.scope import EVERYTHING, Scope
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.budget import Budget
from federator.aggregator.query.gaps import Gap, gaps_of
from federator.aggregator.query.object_state import ObjectState, raw_body
from federator.aggregator.query.patch import Patches
from federator.api.cluster import ClusterID
from federator.errors import CursorExpired, InvalidInput, RevisionExpired

SLICE = 64
"""Entries read at once, each in some 10 µs: the ledger's transaction is over, and others get their turn, after one."""

CHAIN_BYTES = 256
"""Counted for each object that has changed: two revisions, how many entries lie between, and a place to find them."""


class ChangesQuestion(msgspec.Struct, frozen=True):
    """What is asked for.

    Attributes:
        selection: the objects; the clusters' labels are those of now.
        after_revision: the beginning, which is not part of it.
        until_revision: the end, which is.
        with_transient: objects that came and went in between, too.
        with_patches: what differs, too.
        limit: at most so many changes; 0 for no limit.
        scope: what the asker may see.
    """

    selection: Selection
    after_revision: int
    until_revision: int
    with_transient: bool = False
    with_patches: bool = False
    limit: int = 0
    scope: Scope = EVERYTHING


class Change(msgspec.Struct, frozen=True):
    """What became of one object.

    Attributes:
        type: ADDED, MODIFIED or DELETED.
        state: at the end; for DELETED the last that was selected.
        newest: its newest entry.
        previous_revision: of its state at the beginning; 0 where that was not selected.
        versions: entries it has in between.
        patch: for MODIFIED, JSON Patch from its state at the beginning, if asked for.
    """

    type: EntryType
    state: ObjectState
    newest: ObjectEntry
    previous_revision: int
    versions: int
    patch: bytes = b""


class _Chain(NamedTuple):
    """The entries of one object in between.

    Attributes:
        begin: revision of its state at the beginning; 0 where it was not present.
        versions: number of entries.
    """

    begin: int
    versions: int


class Changes:
    """The net changes between two revisions, in the order of the newest change of each object.

    The log is read once, slice by slice, each with a transaction of its own; of each object that has changed two
    revisions are kept, no name: an entry names the one that it follows. Then the states at both ends are read. Whoever
    iterates holds a pin on the first revision.

    Attributes:
        total: changes so far, before the limit; final at the end.
    """

    def __init__(
        self, question: ChangesQuestion, ledger: Ledger, types: ResourceTypes, patches: Patches, budget: Budget
    ) -> None:
        """Looks at nothing yet.

        Args:
            question: what is asked for, its revisions inside history.
            ledger: has the history.
            types: tells the kinds of objects.
            patches: makes the patches.
            budget: of the answer.

        Raises:
            InvalidInput: the beginning is after the end.
        """
        if question.after_revision > question.until_revision:
            raise InvalidInput("after", question.after_revision, f"at most the end, {question.until_revision}")
        self.total = 0
        self._question = question
        self._ledger = ledger
        self._types = types
        self._patches = patches
        self._budget = budget

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yields the changes.

        Raises:
            RevisionExpired: compaction, or damage, has passed the beginning.
            QueryTooCostly: it takes more than it may.
            LedgerCorrupt: a state that has to be told is damaged.
        """
        limit = self._question.limit
        chains = await self._chains()
        for revision, chain in chains.items():
            await self._budget.turn()
            change = await self._change(self._entry(revision), chain)
            if change is None:
                continue
            self.total += 1
            if limit and self.total > limit:
                continue  # the total still counts
            if self._question.with_patches and change.type is EntryType.MODIFIED:
                change = msgspec.structs.replace(change, patch=await self._patch(change))
            yield change

    async def gaps(self, clusters: tuple[ClusterID, ...]) -> list[tuple[ClusterID, Gap]]:
        """Returns the gaps of clusters in between, by cluster and in order."""
        found = []
        for cluster_id in clusters:
            await self._budget.turn()
            gaps = gaps_of(
                self._ledger,
                cluster_id,
                self._question.selection.resources,
                after_revision=self._question.after_revision,
            )
            found += [(cluster_id, gap) for gap in gaps if gap.from_revision <= self._question.until_revision]
        return found

    async def _chains(self) -> dict[int, _Chain]:
        """The chains of all objects whose key is asked for, by the revision of their newest entries, in order."""
        question, budget = self._question, self._budget
        chains: dict[int, _Chain] = {}
        position = question.after_revision
        while position < question.until_revision:
            try:
                entries = self._ledger.read(position, min(SLICE, question.until_revision - position))
            except CursorExpired as error:
                raise RevisionExpired(question.after_revision, error.oldest) from error
            if not entries:
                break
            budget.scan(len(entries))
            for entry in entries:
                if not isinstance(entry, ObjectEntry) or not self._is_asked(entry):
                    continue
                chain = chains.pop(entry.previous_revision or entry.follows, None)
                if chain is None:
                    budget.hold(CHAIN_BYTES)
                    chain = _Chain(entry.previous_revision, 0)
                chains[entry.revision] = _Chain(chain.begin, chain.versions + 1)
            position = entries[-1].revision
            await budget.turn()
        return chains

    def _is_asked(self, entry: ObjectEntry) -> bool:
        return self._question.selection.matches_key(entry.key) and self._question.scope.allows(entry.key)

    async def _change(self, newest: ObjectEntry, chain: _Chain) -> Change | None:
        """What became of an object; None where that is nothing."""
        begin = self._entry(chain.begin) if chain.begin else None
        was = begin is not None and self._selected(begin) is not None
        now = None if newest.type is EntryType.DELETED else self._selected(newest)
        previous = chain.begin if was else 0
        if now is not None:
            if begin is not None and was and _is_same(begin, newest):
                return None
            kind = EntryType.MODIFIED if was else EntryType.ADDED
            return Change(kind, now, newest, previous, chain.versions)
        if not was and not self._question.with_transient:
            return None
        last = await self._selected_before(newest)
        if last is None:
            return None
        return Change(EntryType.DELETED, last, newest, previous, chain.versions)

    async def _selected_before(self, newest: ObjectEntry) -> ObjectState | None:
        """The last state before an entry that was selected, down to that at the beginning."""
        after, entry = self._question.after_revision, newest
        while entry.revision > after:
            await self._budget.turn()
            if entry.type is EntryType.ADDED and entry.follows <= after:
                break  # it was not present at the beginning
            entry = self._entry(entry.previous_revision or entry.follows)
            state = None if entry.type is EntryType.DELETED else self._selected(entry)
            if state is not None:
                return state
        return None

    def _selected(self, entry: ObjectEntry) -> ObjectState | None:
        """An entry's state, if it is selected."""
        state = ObjectState(entry, self._ledger.bodies, self._types)
        if self._question.selection.is_by_key:
            return state
        is_selected = self._question.selection.matches_state(state)
        state.settle()
        return state if is_selected else None

    def _entry(self, revision: int) -> ObjectEntry:
        self._budget.scan()
        entry = self._ledger.entry(revision)
        if entry is None:
            raise RevisionExpired(self._question.after_revision, self._ledger.oldest_revision)
        return entry

    async def _patch(self, change: Change) -> bytes:
        bodies = self._ledger.bodies
        before = raw_body(self._entry(change.previous_revision), bodies)
        return await self._patches.between(before, raw_body(change.newest, bodies), self._budget)


def _is_same(one: ObjectEntry, other: ObjectEntry) -> bool:
    """Whether an object has changed back to what it was."""
    return (one.content_hash, one.api_version, one.uid) == (other.content_hash, other.api_version, other.uid)
