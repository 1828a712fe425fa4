"""Gaps: times in which a cluster was not live, or a type of it could not be followed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import Transition
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import GroupResource

_FOLLOWED = frozenset({TypeState.LIVE, TypeState.ABSENT})
"""States in which nothing of a type is missed: what is not served does not change."""


class Gap(msgspec.Struct, frozen=True):
    """What happened in it is known only by its result.

    Attributes:
        from_revision: of the entry with which it began.
        to_revision: of the entry with which it ended; 0 while it lasts.
        from_ms: when it began, milliseconds since 1970; where the aggregator was away, when it last committed anything.
        to_ms: when it ended; 0 while it lasts.
        state: the cluster's state as it began to be not live; LIVE where only a type could not be followed.
        reason: for people.
    """

    from_revision: int
    to_revision: int
    from_ms: int
    to_ms: int
    state: ClusterState
    reason: str

    def ends_after(self, revision: int) -> bool:
        """Whether it ended after a revision, or lasts."""
        return not self.to_revision or self.to_revision > revision

    def ends_since(self, time_ms: int) -> bool:
        """Whether it ended at a time or later, or lasts."""
        return not self.to_ms or self.to_ms >= time_ms


def gaps_of(
    ledger: Ledger, cluster_id: ClusterID, resources: Collection[GroupResource], *, after_revision: int = 0
) -> list[Gap]:
    """Returns the gaps of a cluster that lasted at a revision or began later, in order, those that touch as one.

    One that began before history does, begins with the newest state of its cluster or type that is still known.

    Args:
        ledger: knows the transitions.
        cluster_id: the cluster.
        resources: the types that have to be followed.
        after_revision: the revision.
    """
    own = _gaps(ledger.transitions(cluster_id), {ClusterState.LIVE})
    found = [
        Gap(*_bounds(begin, end), ClusterState(begin.state), begin.reason or f"cluster was {begin.state}")
        for begin, end in own
    ]
    for known in ledger.types(cluster_id):
        resource = known.type.group_resource
        if resource not in resources:
            continue
        transitions = ledger.transitions(cluster_id, resource)
        for begin, end in _gaps(transitions, _FOLLOWED):
            reason = f"{resource} {begin.state}" + (f": {begin.reason}" if begin.reason else "")
            found.append(Gap(*_bounds(begin, end), ClusterState.LIVE, reason))
    return [gap for gap in _merged(found) if gap.ends_after(after_revision)]


def _gaps(transitions: Sequence[Transition], good: Collection[str]) -> Iterator[tuple[Transition, Transition | None]]:
    """With which transition each time without one of the good states began, and with which it ended."""
    begin: Transition | None = None
    for transition in transitions:
        if transition.state not in good:
            begin = begin or transition
        elif begin is not None:
            yield begin, transition
            begin = None
    if begin is not None:
        yield begin, None


def _bounds(begin: Transition, end: Transition | None) -> tuple[int, int, int, int]:
    if end is None:
        return begin.revision, 0, begin.since_ms, 0
    return begin.revision, end.revision, begin.since_ms, end.since_ms


def _merged(gaps: list[Gap]) -> list[Gap]:
    merged: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: gap.from_revision):
        if not merged or not merged[-1].ends_after(gap.from_revision - 1):
            merged.append(gap)
            continue
        last = merged[-1]
        # The cluster's own state says more than that of a type.
        told = next((each for each in (last, gap) if each.state is not ClusterState.LIVE), last)
        later = gap if last.to_revision and gap.ends_after(last.to_revision) else last
        merged[-1] = Gap(
            last.from_revision,
            later.to_revision,
            min(last.from_ms, gap.from_ms),
            later.to_ms,
            told.state,
            told.reason,
        )
    return merged
