"""DigestTable: what the present objects of each type in each cluster add up to."""

from __future__ import annotations

from collections.abc import Mapping

from federator.aggregator.ledger.records import Commit, ObjectEntry
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource
from federator.wire.digest import Digest, key_hash, leaf, state_hash


class DigestTable:
    """Digests of all types, loaded with the merged Indexer and moved by what each commit says.

    What holds: after every object was taken in, and each later commit applied, `of` is the digest of what the ledger
    has of a type. Objects whose state is lost to damage are in none. A type without objects takes no memory; so what
    was held of a cluster goes with its last object, not with its record.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[ClusterID, GroupResource], Digest] = {}
        # Of the type that is loaded just now: a ledger has the objects of a type together.
        self._loading: tuple[ClusterID, str, str] | None = None
        self._count = 0
        self._sum = 0

    def take_in(self, entry: ObjectEntry) -> None:
        """Takes in a present object while the ledger is loaded."""
        cluster_id, group, resource, namespace, name = entry.key
        if self._loading != (cluster_id, group, resource):
            self.loaded()
            self._loading = cluster_id, group, resource
        self._count += 1
        state = state_hash(entry.content_hash, entry.api_version, entry.uid)
        self._sum += leaf(key_hash(namespace, name), state)

    def loaded(self) -> None:
        """Says that everything present was taken in. Nothing may be asked or applied before."""
        if self._loading is not None:
            cluster_id, group, resource = self._loading
            self._change(cluster_id, GroupResource(group, resource), self._count, self._sum)
        self._loading, self._count, self._sum = None, 0, 0

    def apply(self, commit: Commit) -> None:
        """Takes in what a commit changes."""
        for change in commit.digests:
            self._change(change.cluster_id, change.resource, change.count, change.sum)

    def of(self, cluster_id: ClusterID, resource: GroupResource) -> Digest:
        """Returns the digest of a type in a cluster."""
        return self._sums.get((cluster_id, resource), _NOTHING)

    def correct(self, cluster_id: ClusterID, resource: GroupResource, digest: Digest) -> None:
        """Takes over the digest that the ledger's table of present objects has just been found to have."""
        self._sums[cluster_id, resource] = digest
        self._change(cluster_id, resource, 0, 0)

    def statistics(self) -> Mapping[str, int]:
        """Types that have a digest."""
        return {"digests": len(self._sums)}

    def _change(self, cluster_id: ClusterID, resource: GroupResource, count: int, sum_: int) -> None:
        digest = self.of(cluster_id, resource).changed(count, sum_)
        if digest == _NOTHING:
            self._sums.pop((cluster_id, resource), None)
        else:
            self._sums[cluster_id, resource] = digest


_NOTHING = Digest()
