"""Merged listers: reading the objects of one type by cluster, namespace, name and labels."""

from __future__ import annotations

from federator.aggregator.merge.merged_object import MergedObject
from federator.aggregator.merge.merged_store import MergedStore
from federator.aggregator.merge.selection import NAMESPACE, Selection
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.api.selector import FieldRequirement, FieldSelector, LabelSelector
from federator.errors import ObjectNotFound

ALL = LabelSelector()
"""Selects whatever the labels are."""


class MergedLister:
    """Reads the objects of one type in all clusters. Selectors are answered by the indexes, without decoding."""

    def __init__(self, store: MergedStore, resource: GroupResource) -> None:
        """Reads from `store`."""
        self._store = store
        self._resource = resource

    def list(self, selector: LabelSelector = ALL) -> list[MergedObject]:
        """The selected objects of all clusters and namespaces."""
        rows = self._store.indexer.select(Selection(frozenset({self._resource}), labels=selector))
        return self._store.objects(rows)

    def cluster(self, cluster_id: ClusterID) -> ClusterLister:
        """Reads one cluster only; one that is no member has no objects."""
        return ClusterLister(self._store, self._resource, cluster_id)


class ClusterLister:
    """Reads the objects of one type in one cluster."""

    def __init__(self, store: MergedStore, resource: GroupResource, cluster_id: ClusterID) -> None:
        self._store = store
        self._resource = resource
        self._cluster_id = cluster_id

    def list(self, selector: LabelSelector = ALL) -> list[MergedObject]:
        """The selected objects of all namespaces."""
        indexer = self._store.indexer
        rows = indexer.select(Selection(frozenset({self._resource}), labels=selector))
        return self._store.objects(rows & indexer.rows_in(self._cluster_id, self._resource))

    def get(self, name: str) -> MergedObject:
        """The cluster-scoped object of this name.

        Raises:
            ObjectNotFound: there is none.
        """
        return self.namespace("").get(name)

    def namespace(self, namespace: str) -> NamespaceLister:
        """Reads one namespace only; the empty one has the objects of cluster-scoped types."""
        return NamespaceLister(self._store, self._resource, self._cluster_id, namespace)


class NamespaceLister:
    """Reads the objects of one type in one namespace of one cluster."""

    def __init__(self, store: MergedStore, resource: GroupResource, cluster_id: ClusterID, namespace: str) -> None:
        self._store = store
        self._resource = resource
        self._cluster_id = cluster_id
        self._namespace = namespace

    def list(self, selector: LabelSelector = ALL) -> list[MergedObject]:
        """The selected objects."""
        indexer = self._store.indexer
        # Not `Selection.namespace`, which lets cluster-scoped objects through.
        in_namespace = FieldSelector((FieldRequirement(NAMESPACE, equal=True, value=self._namespace),))
        rows = indexer.select(Selection(frozenset({self._resource}), labels=selector, fields=in_namespace))
        return self._store.objects(rows & indexer.rows_in(self._cluster_id, self._resource))

    def get(self, name: str) -> MergedObject:
        """The object of this name.

        Raises:
            ObjectNotFound: there is none.
        """
        obj = self._store.get_by_key(ObjectKey(self._cluster_id, *self._resource, self._namespace, name))
        if obj is None:
            raise ObjectNotFound(str(self._resource), name, cluster_id=self._cluster_id, namespace=self._namespace)
        return obj
