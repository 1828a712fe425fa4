"""Freshness: how far the data of each cluster and type can be trusted, now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice

import msgspec

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ClusterEntry, Commit, TypeEntry
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import GroupResource

PROVED_WITHIN = 180.0
"""Seconds for which a sign of the apiserver proves a type: an idle one gets a bookmark about once a minute. Where one
does not come the watch is dialled again after 90 s, and the next may take that minute and a quarter: no alarm yet."""

GROUP_UNREAD = "its API group cannot be discovered"
"""Reason of a type that no agent has told of, and of whose group none can tell."""

MAX_UNREAD_GROUPS = 1000
"""API groups that are kept of a cluster; one has some dozens, and only aggregated ones are ever unread."""

_MAX_GROUP = 253


class TypeFreshness(msgspec.Struct, frozen=True):
    """How fresh one type in one cluster is.

    Attributes:
        group_resource: the type.
        state: its state now; LIVE and ABSENT are promises, everything else says that data may be missing or old.
        reason: why it is not LIVE, for people.
        low_water: resourceVersion of the member up to which everything is here, or "".
        proved_age: seconds since the apiserver last gave a sign for it; None if never to this process.
    """

    group_resource: GroupResource
    state: TypeState
    reason: str = ""
    low_water: str = ""
    proved_age: float | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the type is missing or old."""
        return self.state in {TypeState.LIVE, TypeState.ABSENT}


class ClusterFreshness(msgspec.Struct, frozen=True):
    """How fresh the asked types of one cluster are.

    Attributes:
        cluster_id: the cluster.
        state: its state.
        reason: why it is not LIVE, for people.
        types: the asked types, sorted.
        seen_age: seconds since its agent was last heard; None if never by this process.
    """

    cluster_id: ClusterID
    state: ClusterState
    reason: str
    types: tuple[TypeFreshness, ...]
    seen_age: float | None = None

    @property
    def proved_age(self) -> float | None:
        """Seconds since the oldest proof among the types that are followed; None if one was never proved."""
        ages = [fresh.proved_age for fresh in self.types if fresh.state in _FOLLOWED]
        known = [age for age in ages if age is not None]
        return max(known) if known and len(known) == len(ages) else None

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the asked types is missing or old."""
        return all(fresh.is_complete for fresh in self.types)


_FOLLOWED = {TypeState.LIVE, TypeState.STALE, TypeState.SYNCING}


class _Type(msgspec.Struct):
    state: TypeState
    reason: str = ""
    low_water: str = ""
    proved_at: float | None = None


class _Cluster(msgspec.Struct):
    state: ClusterState
    reason: str = ""
    seen_at: float | None = None
    unread_groups: frozenset[str] = frozenset()
    types: dict[GroupResource, _Type] = {}


class FreshnessTable:
    """States of clusters and types from committed ledger entries, ages from what the sessions hear.

    What holds: a type is told LIVE only while its cluster is LIVE and its apiserver has given a sign within
    `PROVED_WITHIN`; and ABSENT only while its cluster is LIVE. What an agent has not told of, its cluster does not
    serve: agents name every type that discovery shows them, also those they do not collect, and the API groups that it
    does not show them now; a type of such a group that was never told of is STALE.

    Ages are durations, since clocks differ. They are forgotten with the process, and are not part of the order: a
    type that was never proved to this process is not LIVE.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, proved_within: float = PROVED_WITHIN) -> None:
        self._clock = clock
        self._proved_within = proved_within
        self._clusters: dict[ClusterID, _Cluster] = {}
        self._waiting: dict[tuple[ClusterID, GroupResource], set[asyncio.Future[None]]] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """Changes with each state that was told; not with ages, nor with how far data reaches."""
        return self._version

    def load(self, ledger: Ledger) -> None:
        """Takes in the states of all members, once, before anything is applied."""
        for record in ledger.clusters().values():
            cluster = self._clusters[record.cluster_id] = _Cluster(record.state, record.reason)
            for known in ledger.types(record.cluster_id) if record.state is not ClusterState.REMOVED else ():
                cluster.types[known.type.group_resource] = _Type(known.state, known.reason, known.low_water)

    def apply(self, commit: Commit) -> None:
        """Takes in the cluster and type entries of a commit, and its bookmarks."""
        for entry in commit.entries:
            if isinstance(entry, ClusterEntry):
                self._version += 1
                self._set_state(entry)
                self._wake_all(entry.cluster_id)
            elif isinstance(entry, TypeEntry) and not self._is_removed(entry.cluster_id):
                known = self._type(entry.cluster_id, entry.resource_type.group_resource)
                known.state, known.reason = entry.state, entry.reason
                self._version += 1
                self._wake(entry.cluster_id, entry.resource_type.group_resource)
        for cluster_id, group_resource, low_water in commit.low_water:
            known_type = self._clusters[cluster_id].types.get(group_resource)
            if known_type is not None:  # else it is one of before the cluster joined anew, and becomes void
                known_type.low_water = low_water
                self._wake(cluster_id, group_resource)

    async def changed(self, cluster_id: ClusterID, resource: GroupResource) -> None:
        """Returns once the state or the low water of a type, or the state of its cluster, was set by a commit.

        By then whoever applies commits together with this table has applied that commit.
        """
        changed = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((cluster_id, resource), set()).add(changed)
        try:
            await changed
        finally:
            self._forget(cluster_id, resource, changed)

    def seen(self, cluster_id: ClusterID) -> None:
        """Says that the cluster's agent was heard just now; of a cluster that never joined it says nothing."""
        cluster = self._clusters.get(cluster_id)
        if cluster is not None:
            cluster.seen_at = self._clock()

    def proved(self, cluster_id: ClusterID, resource: GroupResource, age_seconds: float) -> None:
        """Says that the apiserver gave a sign for a type, so many seconds ago.

        An older sign than the last, or one for a type that is not in the ledger, changes nothing.
        """
        cluster = self._clusters.get(cluster_id)
        known = cluster.types.get(resource) if cluster else None
        if known is not None:
            proved_at = self._clock() - max(0.0, age_seconds)
            known.proved_at = proved_at if known.proved_at is None else max(known.proved_at, proved_at)

    def unread_groups(self, cluster_id: ClusterID, groups: Iterable[str]) -> None:
        """Says of which API groups the cluster's agent can tell nothing now; at most `MAX_UNREAD_GROUPS` are kept."""
        cluster = self._clusters.get(cluster_id)
        if cluster is None:
            return
        before = cluster.unread_groups
        kept = islice((group for group in groups if len(group) <= _MAX_GROUP), MAX_UNREAD_GROUPS)
        cluster.unread_groups = frozenset(kept)
        changed = before ^ cluster.unread_groups
        if changed:
            self._version += 1
            for waiting, resource in list(self._waiting):
                if waiting == cluster_id and resource.group in changed:
                    self._wake(waiting, resource)

    def state(self, cluster_id: ClusterID) -> ClusterState | None:
        """Returns a cluster's state; None where it was never a member."""
        cluster = self._clusters.get(cluster_id)
        return cluster.state if cluster else None

    def members(self) -> list[ClusterID]:
        """Returns the clusters that are members."""
        return [cluster_id for cluster_id, known in self._clusters.items() if known.state is not ClusterState.REMOVED]

    def former_members(self) -> list[ClusterID]:
        """Returns the clusters that were taken out."""
        return [cluster_id for cluster_id, known in self._clusters.items() if known.state is ClusterState.REMOVED]

    def of(self, cluster_id: ClusterID, resources: Collection[GroupResource] | None = None) -> ClusterFreshness:
        """Returns how fresh a cluster is.

        Args:
            cluster_id: a cluster that is or was a member.
            resources: the types asked for; None for all that the agent has told of.
        """
        cluster = self._clusters[cluster_id]
        now = self._clock()
        asked = sorted(cluster.types if resources is None else resources)
        return ClusterFreshness(
            cluster_id,
            cluster.state,
            cluster.reason,
            tuple(self._type_freshness(cluster, group_resource, now) for group_resource in asked),
            None if cluster.seen_at is None else max(0.0, now - cluster.seen_at),
        )

    def statistics(self) -> Mapping[str, int]:
        """Clusters and types known."""
        return {"clusters": len(self._clusters), "types": sum(len(known.types) for known in self._clusters.values())}

    def _wake(self, cluster_id: ClusterID, resource: GroupResource) -> None:
        for changed in self._waiting.get((cluster_id, resource), ()):
            if not changed.done():
                changed.set_result(None)

    def _wake_all(self, cluster_id: ClusterID) -> None:
        for waiting, resource in self._waiting:
            if waiting == cluster_id:
                self._wake(cluster_id, resource)

    def _forget(self, cluster_id: ClusterID, resource: GroupResource, changed: asyncio.Future[None]) -> None:
        waiting = self._waiting[cluster_id, resource]
        waiting.discard(changed)
        if not waiting:
            del self._waiting[cluster_id, resource]

    def _set_state(self, entry: ClusterEntry) -> None:
        cluster = self._clusters.get(entry.cluster_id)
        if cluster is None:
            cluster = self._clusters[entry.cluster_id] = _Cluster(entry.state)
        if entry.state is ClusterState.REMOVED:  # what comes back under this ID may be another cluster
            cluster.seen_at = None
            cluster.unread_groups = frozenset()
            cluster.types.clear()
        cluster.state, cluster.reason = entry.state, entry.reason

    def _type_freshness(self, cluster: _Cluster, group_resource: GroupResource, now: float) -> TypeFreshness:
        known = cluster.types.get(group_resource)
        if known is None:
            is_unread = group_resource.group in cluster.unread_groups
            known = _Type(TypeState.STALE, GROUP_UNREAD) if is_unread else _Type(TypeState.ABSENT)
        proved_age = None if known.proved_at is None else max(0.0, now - known.proved_at)
        state, reason = self._derived(cluster, known, proved_age)
        return TypeFreshness(group_resource, state, reason, known.low_water, proved_age)

    def _derived(self, cluster: _Cluster, known: _Type, proved_age: float | None) -> tuple[TypeState, str]:
        """The state a type really has, given its cluster's state and the age of its proof."""
        if known.state not in {TypeState.LIVE, TypeState.ABSENT}:
            return known.state, known.reason
        if cluster.state in {ClusterState.JOINING, ClusterState.SYNCING}:
            return TypeState.SYNCING, f"cluster is {cluster.state}"
        if cluster.state is not ClusterState.LIVE:
            return TypeState.STALE, cluster.reason or f"cluster is {cluster.state}"
        if known.state is TypeState.LIVE and (proved_age is None or proved_age > self._proved_within):
            told = "not proved to this process yet" if proved_age is None else f"last proved {proved_age:.0f} s ago"
            return TypeState.STALE, told
        return known.state, known.reason

    def _is_removed(self, cluster_id: ClusterID) -> bool:
        return self._clusters[cluster_id].state is ClusterState.REMOVED

    def _type(self, cluster_id: ClusterID, group_resource: GroupResource) -> _Type:
        types = self._clusters[cluster_id].types
        known = types.get(group_resource)
        if known is None:
            known = types[group_resource] = _Type(TypeState.SYNCING)
        return known
