"""The whole order, as a client saw it that asked for everything, and what each selection should have seen of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from federator.api.key import ObjectKey
from federator.client import ClusterTransition, EventType, InventoryObject
from tests.robustness.watch_checks.asked import Asked, State
from tests.robustness.watch_checks.history import CHANGES, PRESENT, History


class Change(NamedTuple):
    """One place in the order.

    Attributes:
        revision: the place.
        before: the object's state before it; None where there was none, or of another UID.
        after: its state after it; None where it is gone.
        cluster: the transition, where it is a cluster's.
    """

    revision: int
    before: InventoryObject | None = None
    after: InventoryObject | None = None
    cluster: ClusterTransition | None = None


class Expected(NamedTuple):
    """What a change means for one selection.

    Attributes:
        type: of the event.
        revision: of the change.
        object: the state it has to carry; None for a cluster's.
        cluster: the transition it has to carry.
        previous: the state before, where that was selected too.
    """

    type: EventType
    revision: int
    object: InventoryObject | None = None
    cluster: ClusterTransition | None = None
    previous: InventoryObject | None = None


class Origin(NamedTuple):
    """Who made a change.

    Attributes:
        cluster: the cluster that the session spoke for.
        term: of the session.
        order: when the ledger was asked for it, among all that it was asked for.
    """

    cluster: str
    term: int
    order: tuple[int, int]


class Compaction(NamedTuple):
    """History was forgotten up to a revision.

    Attributes:
        revision: up to which.
        began_at: seconds of the machine's monotonic clock.
        ended_at: likewise; infinite where nobody knows.
    """

    revision: int
    began_at: float
    ended_at: float


class LedgerRecord(msgspec.Struct, frozen=True):
    """What only the ledger's side knows of the order; empty where nobody wrote it down.

    Attributes:
        commits: the revisions of each commit.
        entries: what stands at each revision: ADDED, MODIFIED, DELETED, CLUSTER or TYPE.
        origins: who made the change at a revision.
        sessions: each session that was opened, as an origin.
        compactions: what was forgotten when.
    """

    commits: Sequence[Sequence[int]] = ()
    entries: Mapping[int, str] = {}
    origins: Mapping[int, Origin] = {}
    sessions: Sequence[Origin] = ()
    compactions: Sequence[Compaction] = ()


class Reference:
    """The order between two revisions.

    Attributes:
        begin: revision of the state it begins with.
        end: revision of the last thing seen.
        changes: after `begin`, as they came.
        faults: why they are no order: revisions that do not grow, an object that is added twice, or one that is changed
            or deleted and was not there.
        record: what the ledger's side knows.
    """

    def __init__(self, history: History, record: LedgerRecord) -> None:
        """Takes the history of a client that asked for everything and never had to start over.

        Raises:
            AssertionError: it did, or it never began.
        """
        assert len(history.parts) == 1, "whoever is the reference has to see it all, and was told to start over"
        (part,) = history.parts
        self.begin, self.end, self.record = part.begin, part.end, record
        assert self.begin != PRESENT, "the present state never came whole"
        self._initial = {obj.key: obj for obj in part.initial or ()}
        self._states: dict[tuple[ObjectKey, int], State] = {}
        self._expected: dict[Asked, list[Expected]] = {}
        self._begins: dict[Asked, dict[ObjectKey, InventoryObject]] = {}
        self.changes: list[Change] = []
        self.faults: list[str] = []
        present = dict(self._initial)
        for event in part.changes():
            if event.object is None:
                self.changes.append(Change(event.revision, cluster=event.cluster))
                continue
            key = event.object.key
            before, after = present.pop(key, None), None if event.type is EventType.DELETED else event.object
            if (before is None) is not (event.type is EventType.ADDED):
                held = before and before.revision
                self.faults.append(f"{event.type} {key} at {event.revision}, when its state was that of {held}")
            if after is not None:
                present[key] = after
            self.changes.append(Change(event.revision, before, after))
        for one, next_one in pairwise(self.changes):
            if one.revision >= next_one.revision:
                self.faults.append(f"revision {next_one.revision} after {one.revision}")
        self._commit_of = {revision: number for number, commit in enumerate(record.commits) for revision in commit}

    def commit(self, revision: int) -> Sequence[int]:
        """The revisions of the commit that a revision is in; it alone where that is not known."""
        number = self._commit_of.get(revision)
        return (revision,) if number is None else self.record.commits[number]

    def missing(self) -> list[str]:
        """What the ledger committed and the reference did not see, or the other way round."""
        wanted = {
            revision: kind
            for revision, kind in self.record.entries.items()
            if self.begin < revision <= self.end and kind in CHANGES
        }
        seen = {change.revision: _kind(change) for change in self.changes}
        first = (min(self.record.entries, default=0), max(self.record.entries, default=0))
        seen = {revision: kind for revision, kind in seen.items() if first[0] <= revision <= first[1]}
        return [
            f"revision {revision}: the ledger has {wanted.get(revision)}, its watch brought {seen.get(revision)}"
            for revision in sorted(wanted.keys() | seen.keys())
            if wanted.get(revision) != seen.get(revision)
        ]

    def expected(self, asked: Asked, after: int, up_to: int) -> Sequence[Expected]:
        """What a selection should see after a revision and up to another one."""
        found = self._expected.get(asked)
        if found is None:
            found = self._expected[asked] = [each for change in self.changes for each in self._meaning(asked, change)]
        low, high = (bisect_right(found, at, key=lambda each: each.revision) for at in (after, up_to))
        return found[low:high]

    def state(self, asked: Asked, revision: int) -> dict[ObjectKey, InventoryObject]:
        """What a selection holds at a revision.

        Raises:
            AssertionError: nobody knows, since it is before the beginning.
        """
        assert revision >= self.begin, f"{revision} is before {self.begin}, with which the reference begins"
        begin = self._begins.get(asked)
        if begin is None:
            begin = {key: obj for key, obj in self._initial.items() if self._means(asked, obj)}
            self._begins[asked] = begin
        held = dict(begin)
        for each in self.expected(asked, self.begin, revision):
            if each.object is not None:
                if each.type is EventType.DELETED:
                    held.pop(each.object.key, None)
                else:
                    held[each.object.key] = each.object
        return held

    def _meaning(self, asked: Asked, change: Change) -> Iterable[Expected]:
        if change.cluster is not None:
            if asked.clusters(change.cluster.cluster_id):
                yield Expected(EventType.CLUSTER, change.revision, cluster=change.cluster)
            return
        was, is_now = self._means(asked, change.before), self._means(asked, change.after)
        if is_now:
            kind, previous = (EventType.MODIFIED, change.before) if was else (EventType.ADDED, None)
            yield Expected(kind, change.revision, change.after, previous=previous)
        elif was:
            yield Expected(EventType.DELETED, change.revision, change.before, previous=change.before)

    def _means(self, asked: Asked, obj: InventoryObject | None) -> bool:
        if obj is None:
            return False
        place = (obj.key, obj.revision)
        if place not in self._states:
            self._states[place] = State.of(obj)
        return asked.means(self._states[place])


def _kind(change: Change) -> str:
    if change.cluster is not None:
        return EventType.CLUSTER
    if change.after is None:
        return EventType.DELETED
    return EventType.ADDED if change.before is None else EventType.MODIFIED
