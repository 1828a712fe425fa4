"""Questions about one object: which it is."""

from __future__ import annotations

from typing import Protocol

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.scope import EVERYTHING, Scope
from federator.aggregator.merge.selection import Selection
from federator.aggregator.serve.messages import checked_name
from federator.api.cluster import ClusterID, parse_cluster_id
from federator.api.key import ObjectKey
from federator.api.selector import ClusterSelector
from federator.errors import AmbiguousName, InvalidInput, ObjectNotFound, UnknownCluster


class NamesObject(Protocol):
    """A request that names one object, as GetRequest does."""

    @property
    def cluster_id(self) -> str:
        """Member cluster; empty where the name is unique."""
        ...

    @property
    def resource(self) -> str:
        """Type name."""
        ...

    @property
    def namespace(self) -> str:
        """Namespace; empty for cluster-scoped types."""
        ...

    @property
    def name(self) -> str:
        """Name."""
        ...


def selection_of_one(view: MergedView, request: NamesObject) -> Selection:
    """Returns the selection of the objects that a request may name: one in each asked cluster at most.

    Raises:
        InvalidInput: it does not name one type, name and, where the type has them, namespace.
        UnknownResourceType: no member has ever named such a type.
        UnknownCluster: no such cluster was ever a member.
    """
    resources = view.types.resolve((request.resource,), field="resource")
    if len(resources) != 1:
        raise InvalidInput("resource", request.resource, "one resource type, neither a list nor a category")
    if not request.name:
        raise InvalidInput("name", request.name, "the name of one object")
    (resource,) = resources
    if not request.namespace and view.types.is_namespaced(resource):
        raise InvalidInput("namespace", "", f"a namespace, since {resource} live in namespaces")
    return Selection(
        resources,
        ClusterSelector((_known_cluster(view, request.cluster_id),)) if request.cluster_id else ClusterSelector(),
        namespace=checked_name("namespace", request.namespace),
        name=checked_name("name", request.name),
    )


def key_with_history(
    view: MergedView, ledger: Ledger, request: NamesObject, scope: Scope = EVERYTHING
) -> tuple[ObjectKey, Selection]:
    """Returns the key of the object that a request names, present or not, and its selection.

    Where several clusters have had the name, those count in which it is present, if there are any.

    Raises:
        InvalidInput, UnknownResourceType, UnknownCluster: as `selection_of_one` does.
        ObjectNotFound: history has nothing of it.
        AmbiguousName: several clusters have it, or had it, and none is given.
    """
    selection = selection_of_one(view, request)
    (resource,) = selection.resources
    every = (*view.freshness.members(), *view.freshness.former_members())
    clusters = filter(selection.has_cluster, every)
    keys = [ObjectKey(cluster_id, *resource, request.namespace, request.name) for cluster_id in clusters]
    allowed = [key for key in keys if scope.allows(key)]
    found = [key for key in allowed if ledger.stored(key)] or [key for key in allowed if ledger.newest(key)]
    if not found:
        raise ObjectNotFound(str(resource), request.name, cluster_id=request.cluster_id, namespace=request.namespace)
    if len(found) > 1:
        raise AmbiguousName(str(resource), request.name, tuple(sorted(key.cluster_id for key in found)))
    return found[0], selection


def _known_cluster(view: MergedView, given: str) -> ClusterID:
    cluster_id = parse_cluster_id(given)
    if view.freshness.state(cluster_id) is None:
        raise UnknownCluster(cluster_id, tuple(sorted(view.freshness.members())))
    return cluster_id
