"""Damaged records: what is noticed of them, and what can be rebuilt.

Every record is under a checksum together with its key, so damage is noticed by whoever reads it. What then becomes of
it depends on the table:

- `current`: its head says nothing that the newest entry of the same key does not, so it is made again from the log.
- `log`, the newest state of a present object: only the agent has it. The head stays, with a fingerprint that nothing
  equals, so that the agent's listing commits the object as MODIFIED; until then its type is SYNCING in its cluster.
- `log`, else: history up to it is given up; a reader that stands before it is told CURSOR_EXPIRED.
- any other table: nothing in it can be trusted to be found again. The store is set aside (`store`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Mapping
from typing import NamedTuple

import msgspec

from federator.aggregator.ledger.planning import Head, Plan, View
from federator.aggregator.ledger.records import LOST as LOST
from federator.aggregator.ledger.records import Commit, DigestChange, TypeEntry, TypeRecord
from federator.api.cluster import ClusterID, TypeState
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.wire.digest import key_hash, leaf

STATE_LOST = "the ledger lost states of this type to damage; listing anew"
"""Reason of a type that is SYNCING until its agent has listed it. It is kept with the type, and so it is how a session
that opens later knows that a listing is wanted."""


class Noticed(NamedTuple):
    """What waits to be mended.

    Attributes:
        heads: keys of damaged records in `current`.
        revisions: of damaged entries.
    """

    heads: frozenset[bytes]
    revisions: frozenset[int]


class Damage:
    """What a ledger knows of its damaged records. For the event loop only.

    Attributes:
        given_up: newest revision in whose place history cannot be read; 0 for none.
        repaired: heads that were made again.
        states_lost: objects whose state was lost since the ledger was opened.
        history_lost: entries that were damaged and of no use but for history.
    """

    def __init__(self) -> None:
        self.given_up = 0
        self.repaired = 0
        self.states_lost = 0
        self.history_lost = 0
        self._heads: set[bytes] = set()
        self._revisions: set[int] = set()
        self._classified: set[int] = set()
        self._lost: dict[tuple[ClusterID, GroupResource], set[ObjectKey]] = {}

    def notice_head(self, key: bytes) -> bool:
        """Takes note of a damaged head; returns whether that is new."""
        is_new = key not in self._heads
        self._heads.add(key)
        return is_new

    def notice_entry(self, revision: int) -> bool:
        """Takes note of a damaged entry; returns whether that is new."""
        is_new = revision not in self._revisions and revision not in self._classified
        if is_new:
            self._revisions.add(revision)
        return is_new

    def take(self) -> Noticed:
        """Hands over what waits, once."""
        noticed = Noticed(frozenset(self._heads), frozenset(self._revisions))
        self._heads.clear()
        self._revisions.clear()
        self._classified |= noticed.revisions
        return noticed

    @property
    def waits(self) -> bool:
        """Whether anything waits to be mended."""
        return bool(self._heads or self._revisions)

    def lose(self, key: ObjectKey) -> None:
        """Takes note that the state of a present object is lost."""
        self._lost.setdefault((key.cluster_id, key.group_resource), set()).add(key)

    def told(self, heads: Mapping[ObjectKey, Head | None]) -> None:
        """Takes note of new heads: who has one is not lost any more."""
        if not self._lost:
            return
        for key, head in heads.items():
            of_type = self._lost.get((key.cluster_id, key.group_resource))
            if of_type is not None and (head is None or head.fingerprint != LOST):
                of_type.discard(key)
                if not of_type:
                    del self._lost[key.cluster_id, key.group_resource]

    def lost_types(self) -> Collection[tuple[ClusterID, GroupResource]]:
        """Types of which objects are lost."""
        return list(self._lost)

    def is_lost(self, cluster_id: ClusterID, resource: GroupResource) -> bool:
        """Whether objects of a type in a cluster are lost."""
        return (cluster_id, resource) in self._lost

    @property
    def lost_objects(self) -> int:
        """Present objects whose state is lost now."""
        return sum(map(len, self._lost.values()))


def plan_loss(view: View, lost: Mapping[ObjectKey, int], now_ms: int, unread: Container[int] = ()) -> Plan:
    """Plans that the states of present objects are lost: nothing is said of the objects, their types are SYNCING.

    Args:
        view: what is stored.
        lost: revision of the damaged entry by key; a key that has a newer state by now is left out.
        now_ms: the time.
        unread: revisions of entries that whoever loaded the ledger could not read either, so that no digest has them.
    """
    heads: dict[ObjectKey, Head | None] = {}
    counts: Counter[tuple[ClusterID, GroupResource]] = Counter()
    sums: Counter[tuple[ClusterID, GroupResource]] = Counter()
    for key, revision in lost.items():
        head = view.head(key)
        if head is not None and head.revision == revision:
            heads[key] = msgspec.structs.replace(head, fingerprint=LOST)
            if head.fingerprint != LOST and revision not in unread:
                counts[key.cluster_id, key.group_resource] -= 1
                sums[key.cluster_id, key.group_resource] -= leaf(key_hash(key.namespace, key.name), head.fingerprint)
    time_ms, revision = max(view.time_ms, now_ms), view.revision
    entries: list[TypeEntry] = []
    types: list[TypeRecord] = []
    low_water: list[tuple[ClusterID, GroupResource, str]] = []
    for cluster_id, resource in {(key.cluster_id, key.group_resource): None for key in heads}:
        record = view.type(cluster_id, resource)
        if record is None:
            continue
        types.append(msgspec.structs.replace(record, state=TypeState.SYNCING, reason=STATE_LOST, low_water=""))
        if (record.state, record.reason) != (TypeState.SYNCING, STATE_LOST):
            revision += 1
            entries.append(TypeEntry(revision, time_ms, cluster_id, record.type, TypeState.SYNCING, STATE_LOST))
        if record.low_water:
            low_water.append((cluster_id, resource, ""))
    digests = tuple(DigestChange(*of, count, sums[of]) for of, count in counts.items())
    commit = Commit(revision, tuple(entries), tuple(low_water), digests=digests)
    return Plan(commit, time_ms, types=tuple(types), heads=heads)
