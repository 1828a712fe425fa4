"""Selections: which objects a question is about."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import msgspec

from federator.aggregator.ledger.records import ClusterEntry
from federator.aggregator.merge.cluster_labels import UNLABELLED, ClusterLabels, LabelledClusters
from federator.api.cluster import ClusterID
from federator.api.field_path import FieldPath, FieldValue
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.api.selector import ClusterSelector, FieldRequirement, FieldSelector, LabelSelector

NAME: FieldPath = ("metadata", "name")
NAMESPACE: FieldPath = ("metadata", "namespace")
NODE_NAME: FieldPath = ("spec", "nodeName")
INDEXED_FIELDS = frozenset({NAME, NAMESPACE, NODE_NAME})
"""Fields that the merged Indexer answers; any other is read from the objects themselves."""


class Selectable(Protocol):
    """One state of an object, as far as a selection looks at it."""

    @property
    def key(self) -> ObjectKey:
        """Which object."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        ...

    @property
    def uid(self) -> str:
        """Its metadata.uid."""
        ...

    @property
    def owner_uids(self) -> Collection[str]:
        """UIDs of the owners that it names."""
        ...

    def field(self, path: FieldPath) -> FieldValue:
        """A field, as `read_comparable` returns it."""
        ...


class Selection(msgspec.Struct, frozen=True):
    """Conditions that must all hold.

    Attributes:
        resources: the types.
        clusters: the clusters, by name; those that join later too. Only those of them that `cluster_labels` select.
        namespace: empty for all. Objects that live in no namespace are not narrowed by it, as with kubectl.
        name: empty for all.
        labels: on the labels.
        fields: on any fields.
        cluster_labels: on the clusters' own labels.
        labelled: which these are. Selections that were made between the same two changes of labels have the same, so
            they are equal where they ask for the same.
        uid: metadata.uid; empty for all.
        owner_uid: of an owner that the objects name; empty for all.
    """

    resources: frozenset[GroupResource]
    clusters: ClusterSelector = ClusterSelector()
    namespace: str = ""
    name: str = ""
    labels: LabelSelector = LabelSelector()
    fields: FieldSelector = FieldSelector()
    cluster_labels: LabelSelector = LabelSelector()
    labelled: LabelledClusters = UNLABELLED
    uid: str = ""
    owner_uid: str = ""

    @property
    def is_by_key(self) -> bool:
        """Whether keys alone decide, so that no state has to be looked at; a key never changes."""
        return not (self.labels or self.fields or self.uid or self.owner_uid)

    @property
    def indexed_fields(self) -> tuple[FieldRequirement, ...]:
        """Requirements that the merged Indexer answers."""
        return tuple(requirement for requirement in self.fields if requirement.path in INDEXED_FIELDS)

    @property
    def other_fields(self) -> FieldSelector:
        """Requirements that have to be read from the objects themselves."""
        return FieldSelector(
            tuple(requirement for requirement in self.fields if requirement.path not in INDEXED_FIELDS)
        )

    def has_cluster(self, cluster_id: ClusterID) -> bool:
        """Whether the cluster is asked for, by its name and its labels."""
        return self.clusters.matches(cluster_id) and self.labelled.matches(self.cluster_labels, cluster_id)

    def resolve_clusters(self, members: Iterable[ClusterID], former: Iterable[ClusterID] = ()) -> tuple[ClusterID, ...]:
        """Returns the clusters asked for, sorted; arguments as in `ClusterSelector.resolve`.

        Raises:
            UnknownCluster: a cluster is named that is neither, whatever labels are asked for.
        """
        named = self.clusters.resolve(members, former)
        return tuple(filter(self.has_cluster, named)) if self.cluster_labels else named

    def as_of(self, labels: ClusterLabels, revision: int) -> Selection | None:
        """Returns what the selection means for whoever asked for it at a revision, by the clusters' labels of then.

        Clusters that joined since are taken with the labels they joined with. None where labels of an asked cluster
        have changed since, and what they were is not known any more.
        """
        if not self.cluster_labels:
            return self
        known = labels.at(revision)
        if known is None:
            if labels.changed_since(revision, self.clusters) is not None:
                return None
            known = labels.now
        return msgspec.structs.replace(self, labelled=known)

    def is_changed_by(self, entry: ClusterEntry) -> bool:
        """Whether a change of a cluster's labels changes whether it is asked for."""
        if entry.previous_labels is None or not self.clusters.matches(entry.cluster_id):
            return False
        return self.cluster_labels.matches(entry.previous_labels) is not self.cluster_labels.matches(entry.labels)

    def matches_key(self, key: ObjectKey) -> bool:
        """Whether the key alone does not rule the object out."""
        return (
            key.group_resource in self.resources
            and (not self.namespace or key.namespace in {"", self.namespace})
            and self.name in {"", key.name}
            and self.has_cluster(key.cluster_id)
        )

    def matches(self, state: Selectable) -> bool:
        """Whether an object in this state is selected."""
        return self.matches_key(state.key) and self.matches_state(state)

    def matches_state(self, state: Selectable) -> bool:
        """Whether what a key does not tell of an object, its UID and what may change, does not rule it out."""
        return (
            self.uid in {"", state.uid}
            and (not self.owner_uid or self.owner_uid in state.owner_uids)
            and (not self.labels or self.labels.matches(state.labels))
            and self.fields.matches(state.field)
        )
