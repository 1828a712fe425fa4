"""The members and their types, as one revision has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from federator.aggregator.ledger.planning import Plan
from federator.aggregator.ledger.records import ClusterRecord, TypeRecord
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource


class Members:
    """Records of clusters and types; plans are applied in the order of their commits, each at once.

    The memory driver keeps them here; the LMDB driver mirrors here what has been told, so that its readers never see
    a commit before the listener does.
    """

    def __init__(self, clusters: Iterable[ClusterRecord] = (), types: Iterable[TypeRecord] = ()) -> None:
        self._clusters = {record.cluster_id: record for record in clusters}
        self._types: dict[ClusterID, dict[GroupResource, TypeRecord]] = {}
        for record in types:
            self._set_type(record)

    def apply(self, plan: Plan) -> None:
        """Takes over the records a plan changes."""
        if plan.cluster is not None:
            self._clusters[plan.cluster.cluster_id] = plan.cluster
        for record in plan.types:
            self._set_type(record)

    def by_id(self) -> Mapping[ClusterID, ClusterRecord]:
        """A copy of the records of all members; later plans do not change it."""
        return dict(self._clusters)

    def cluster(self, cluster_id: ClusterID) -> ClusterRecord | None:
        """The record of one member."""
        return self._clusters.get(cluster_id)

    def clusters(self) -> Iterator[ClusterRecord]:
        """The records of all members."""
        return iter(self._clusters.values())

    def type(self, cluster_id: ClusterID, resource: GroupResource) -> TypeRecord | None:
        """The record of one type of a member."""
        return self._types.get(cluster_id, {}).get(resource)

    def types(self, cluster_id: ClusterID) -> tuple[TypeRecord, ...]:
        """The records of all types of a member; none for an unknown member."""
        return tuple(self._types.get(cluster_id, {}).values())

    def _set_type(self, record: TypeRecord) -> None:
        self._types.setdefault(record.cluster_id, {})[record.type.group_resource] = record
