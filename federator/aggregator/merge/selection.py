"""Selections: which objects a question is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from federator.api.cluster import ClusterID
from federator.api.field_path import FieldPath
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

    def field(self, path: FieldPath) -> str | None:
        """A field, as `read_field` returns it."""
        ...


class Selection(msgspec.Struct, frozen=True):
    """Conditions that must all hold.

    Attributes:
        resources: the types.
        clusters: the clusters, by name; those that join later too.
        namespace: empty for all. Objects that live in no namespace are not narrowed by it, as with kubectl.
        name: empty for all.
        labels: on the labels.
        fields: on any fields.
        cluster_labels: on the clusters' own labels; `federator.aggregator.merge.members` knows them.
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
    uid: str = ""
    owner_uid: str = ""

    @property
    def is_by_key(self) -> bool:
        """Whether keys alone decide, so that no state has to be looked at; a key never changes."""
        return not (self.labels or self.fields)

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
        """Whether the cluster is asked for."""
        return self.clusters.matches(cluster_id)

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
        """Whether what may change of an object, labels and fields, does not rule it out."""
        return (not self.labels or self.labels.matches(state.labels)) and self.fields.matches(state.field)
