"""Answers as messages of inventory.proto, and questions out of them."""

from __future__ import annotations

from federator.aggregator.ledger.records import ClusterEntry, ClusterRecord
from federator.aggregator.merge.freshness import ClusterFreshness, TypeFreshness
from federator.aggregator.merge.resource_types import ResourceTypes, ServedType
from federator.aggregator.merge.selection import Selection
from federator.api.cluster import ClusterState
from federator.api.selector import ClusterSelector, FieldSelector, LabelSelector
from federator.errors import InvalidInput
from federator.v1 import inventory_pb2, types_pb2
from federator.wire.resource_type import (
    cluster_state_to_proto,
    resource_type_to_proto,
    type_state_to_proto,
)


def selection_from_proto(message: inventory_pb2.Selection, types: ResourceTypes) -> Selection:
    """Returns the selection a message asks for, its types resolved.

    Raises:
        InvalidInput: a field has a value that is not allowed; the error names it.
        UnknownResourceType: no member has ever named a type like one of these.
    """
    return Selection(
        resources=types.resolve(message.resources, field="selection.resources"),
        clusters=ClusterSelector.parse(message.clusters, field="selection.clusters"),
        namespace=checked_name("selection.namespace", message.namespace),
        name=checked_name("selection.name", message.name),
        labels=LabelSelector.parse(message.label_selector, field="selection.label_selector"),
        fields=FieldSelector.parse(message.field_selector, field="selection.field_selector"),
    )


def checked_name(field: str, given: str) -> str:
    """Returns a name or namespace that could be an object's.

    Raises:
        InvalidInput: it has characters that no name has, which would end a name in an index or a path.
    """
    if "\0" in given or "/" in given:
        raise InvalidInput(field, given, "a name, without '/' and control characters")
    return given


def cluster_freshness_to_proto(fresh: ClusterFreshness) -> inventory_pb2.ClusterFreshness:
    """Returns the message of a cluster's freshness."""
    return inventory_pb2.ClusterFreshness(
        cluster_id=fresh.cluster_id,
        state=cluster_state_to_proto(fresh.state),
        seen_age_ms=_milliseconds(fresh.seen_age),
        proved_age_ms=_milliseconds(fresh.proved_age),
        incomplete_types=[type_freshness_to_proto(of_type) for of_type in fresh.types if not of_type.is_complete],
    )


def type_freshness_to_proto(fresh: TypeFreshness) -> inventory_pb2.TypeFreshness:
    """Returns the message of a type's freshness."""
    return inventory_pb2.TypeFreshness(
        group=fresh.group_resource.group,
        resource=fresh.group_resource.resource,
        state=type_state_to_proto(fresh.state),
        resource_version=fresh.low_water,
        proved_age_ms=_milliseconds(fresh.proved_age),
        reason=fresh.reason,
    )


def cluster_to_proto(record: ClusterRecord, fresh: ClusterFreshness, objects: int) -> inventory_pb2.Cluster:
    """Returns the message of a member cluster."""
    return inventory_pb2.Cluster(
        cluster_id=record.cluster_id,
        display_name=record.display_name,
        cluster_uid=record.cluster_uid,
        state=cluster_state_to_proto(fresh.state),
        reason=fresh.reason,
        objects=objects,
        seen_age_ms=_milliseconds(fresh.seen_age),
        proved_age_ms=_milliseconds(fresh.proved_age),
        server_version=record.server_version,
        source=record.source,
        types=[type_freshness_to_proto(of_type) for of_type in fresh.types],
        state_since_ms=record.since_ms,
    )


def cluster_event_to_proto(entry: ClusterEntry) -> inventory_pb2.ClusterEvent:
    """Returns the message of a cluster's transition."""
    return inventory_pb2.ClusterEvent(
        cluster_id=entry.cluster_id,
        state=cluster_state_to_proto(entry.state),
        previous_state=cluster_state_to_proto(entry.previous_state)
        if entry.previous_state
        else types_pb2.CLUSTER_STATE_UNSPECIFIED,
        reason=entry.reason,
        transition=transition(entry.previous_state, entry.state),
    )


def transition(previous: ClusterState | None, state: ClusterState) -> inventory_pb2.ClusterTransition.ValueType:
    """Returns what a step from one state to another means; UNSPECIFIED for a step in between."""
    match previous, state:
        case _, ClusterState.REMOVED:
            return inventory_pb2.CLUSTER_TRANSITION_REMOVED
        case None | ClusterState.REMOVED, _:
            return inventory_pb2.CLUSTER_TRANSITION_JOINED
        case _, ClusterState.STALE:
            return inventory_pb2.CLUSTER_TRANSITION_STALE
        case ClusterState.JOINING | ClusterState.SYNCING, ClusterState.LIVE:
            return inventory_pb2.CLUSTER_TRANSITION_SYNCED
        case _, ClusterState.LIVE:
            return inventory_pb2.CLUSTER_TRANSITION_RECOVERED
        case _:
            return inventory_pb2.CLUSTER_TRANSITION_UNSPECIFIED


def served_type_to_proto(served: ServedType) -> inventory_pb2.ServedType:
    """Returns the message of a served type."""
    return inventory_pb2.ServedType(type=resource_type_to_proto(served.type), clusters=served.clusters)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)
