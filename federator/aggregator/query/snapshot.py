"""Snapshots: what a selection means at one revision, present or past."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from pyroaring import BitMap

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.scope import Scope
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.budget import Budget
from federator.aggregator.query.object_state import ObjectState
from federator.api.selector import FieldSelector
from federator.errors import LedgerCorrupt, RevisionExpired

SLICE = 64
"""Entries read before others may have their turn: at 20 µs each, somewhat more than a millisecond."""

STATE_BYTES = 2048
"""Counted for a past state that is kept: an entry with its body as stored."""


class Snapshot(msgspec.Struct):
    """What is selected at a revision.

    An object that is present now, in a state that it took at or before the revision, has not changed since: its row
    says what it was. Every other object that was present then is named by the first change that it had since.

    Attributes:
        revision: at which it is exact.
        rows: selected objects that are what they were, as far as the indexes know; good in the step in which the
            snapshot is returned.
        unanswered: requirements that no index knows, so that the objects of the rows have to be read.
        past: selected objects that have changed or are gone since, as they were; all requirements are met.
        scanned: states that were read for it.
        scanned_history: whether the log was read, since more has changed than is remembered.
    """

    revision: int
    rows: BitMap
    past: list[ObjectState]
    unanswered: FieldSelector = FieldSelector()
    scanned: int = 0
    scanned_history: bool = False


async def take_snapshot(
    view: MergedView,
    ledger: Ledger,
    selection: Selection,
    scope: Scope,
    revision: int,
    budget: Budget,
) -> Snapshot:
    """Returns what a selection means at a revision, which the caller has pinned (`query.pins`).

    For the present it yields to nobody and reads nothing. For the past it reads one state for each change since, in
    turns, and yields between them; after the last turn nothing can come between, so the rows are exact when it
    returns.

    Args:
        view: the present, and what has changed lately.
        ledger: has the history.
        selection: the question.
        scope: what the asker may see.
        revision: at most the view's.
        budget: of the answer.

    Raises:
        RevisionExpired: history does not reach back to the revision.
        QueryTooCostly: more has changed since than the budget allows to read.
        LedgerCorrupt: a state of then is damaged.
    """
    if revision < ledger.oldest_revision:
        raise RevisionExpired(revision, ledger.oldest_revision)
    past: list[ObjectState] = []
    reached = revision
    scanned_before, scanned_history = budget.scanned, False
    while reached < view.revision:
        if reached < view.recent.floor:
            scanned_history = True
            entries = ledger.read(reached, SLICE)
            replaced: Sequence[int] = [e.previous_revision for e in entries if isinstance(e, ObjectEntry)]
            budget.scan(len(entries))
            reached = entries[-1].revision if entries else view.recent.floor
        else:
            replaced, reached = view.recent.replaced_after(reached), view.revision
        # What comes last, and is little, is read in the step of the answer: so there is an end to it.
        await _take(replaced, past, view, ledger, selection, scope, revision, budget)
    rows = view.indexer.select(selection, scope)
    if revision < view.revision:
        rows = view.indexer.unchanged_since(rows, revision)
    unanswered = view.indexer.unanswered(selection)
    return Snapshot(revision, rows, past, unanswered, budget.scanned - scanned_before, scanned_history)


async def _take(
    replaced: Iterable[int],
    past: list[ObjectState],
    view: MergedView,
    ledger: Ledger,
    selection: Selection,
    scope: Scope,
    revision: int,
    budget: Budget,
) -> None:
    """Reads those of some states that were present at a revision, and keeps what is selected."""
    then = [at for at in replaced if 0 < at <= revision]
    for read, (_, entry) in enumerate(ledger.entries(then), 1):
        if read % SLICE == 0:
            await budget.turn()
        budget.scan()
        if isinstance(entry, LedgerCorrupt):
            raise entry
        if entry is None:
            raise RevisionExpired(revision, ledger.oldest_revision)
        state = ObjectState(entry, ledger.bodies, view.types)
        if scope.allows(entry.key) and selection.matches(state):
            state.settle()
            budget.hold(STATE_BYTES)
            past.append(state)
