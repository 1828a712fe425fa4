"""Answers as messages of inventory.proto, and questions out of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ClusterEntry, ClusterRecord
from federator.aggregator.merge.cluster_labels import UNLABELLED
from federator.aggregator.merge.field_indexes import FieldIndex, IndexState
from federator.aggregator.merge.freshness import ClusterFreshness, TypeFreshness
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.resource_types import ServedType
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.budget import Budget, QueryLimits
from federator.aggregator.query.encoding import EmbeddedField, NumberField
from federator.aggregator.query.moment import revision_of
from federator.api.cluster import ClusterState, TypeState
from federator.api.key import ObjectKey
from federator.api.selector import ClusterSelector, FieldSelector, LabelSelector
from federator.errors import InvalidInput
from federator.v1 import inventory_pb2, types_pb2
from federator.wire.resource_type import (
    cluster_state_to_proto,
    resource_type_to_proto,
    type_state_to_proto,
)


def selection_from_proto(message: inventory_pb2.Selection, view: MergedView) -> Selection:
    """Returns the selection a message asks for, its types resolved, and clusters selected by the labels they have now.

    Raises:
        InvalidInput: a field has a value that is not allowed; the error names it.
        UnknownResourceType: no member has ever named a type like one of these.
    """
    return Selection(
        resources=view.types.resolve(message.resources, field="selection.resources"),
        clusters=ClusterSelector.parse(message.clusters, field="selection.clusters"),
        namespace=checked_name("selection.namespace", message.namespace),
        name=checked_name("selection.name", message.name),
        labels=LabelSelector.parse(message.label_selector, field="selection.label_selector"),
        fields=FieldSelector.parse(message.field_selector, field="selection.field_selector"),
        cluster_labels=LabelSelector.parse(message.cluster_selector, field="selection.cluster_selector"),
        labelled=view.cluster_labels.now if message.cluster_selector else UNLABELLED,
        uid=checked_uid("selection.uid", message.uid),
        owner_uid=checked_uid("selection.owner_uid", message.owner_uid),
    )


MAX_UID = 128
"""Characters of a UID that may be asked for; Kubernetes' own have 36."""


def checked_uid(field: str, given: str) -> str:
    """Returns a UID that could be an object's, or "".

    Raises:
        InvalidInput: it is too long or has white space or control characters.
    """
    if len(given) > MAX_UID or not given.isprintable() or " " in given:
        raise InvalidInput(field, given[:MAX_UID], f"at most {MAX_UID} printable characters without white space")
    return given


def asked_revision(
    ledger: Ledger, request: inventory_pb2.AggregateRequest | inventory_pb2.GetChangesRequest, field: str
) -> int:
    """Returns the revision that a request means by `<field>_revision` or `<field>_time_ms`; without, the newest.

    Raises:
        InvalidInput: it is yet to come.
        RevisionExpired: history does not reach back to it.
    """
    given: dict[str, int | None] = {
        name: getattr(request, f"{field}_{name}") if request.HasField(f"{field}_{name}") else None  # type: ignore[arg-type]
        for name in ("revision", "time_ms")
    }
    return revision_of(ledger, **given, field=field)


def budget_of(limits: QueryLimits, asked: inventory_pb2.Limits) -> Budget:
    """Returns the budget of an answer whose request may lower some of the limits.

    Raises:
        InvalidInput: it asks for more than is allowed.
    """
    return Budget(
        limits.lowered(time_ms=asked.time_ms, scanned_objects=asked.scanned_objects, memory_bytes=asked.memory_bytes)
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
    """Returns the message of a cluster's freshness, with all types that were asked for."""
    return inventory_pb2.ClusterFreshness.FromString(encode_cluster_freshness(fresh, with_types=True))


def encode_cluster_freshness(fresh: ClusterFreshness, *, with_types: bool) -> bytes:
    """Returns the message of a cluster's freshness, encoded: an answer about a hundred clusters has thousands of types.

    Args:
        fresh: of the types that were asked for.
        with_types: whether those of them that lack nothing are told, too; a watch does not, bookmark by bookmark.
    """
    head = inventory_pb2.ClusterFreshness(
        cluster_id=fresh.cluster_id,
        state=cluster_state_to_proto(fresh.state),
        seen_age_ms=_milliseconds(fresh.seen_age),
        proved_age_ms=_milliseconds(fresh.proved_age),
    )
    incomplete, types = [], []
    for of_type in fresh.types:
        encoded = encode_type_freshness(of_type)
        if not of_type.is_complete:
            incomplete.append(encoded)
        if with_types and of_type.state is not TypeState.ABSENT:
            types.append(encoded)
    return head.SerializeToString() + _INCOMPLETE_TYPES.encode(incomplete) + _TYPES.encode(types)


def encode_type_freshness(fresh: TypeFreshness) -> bytes:
    """Returns the message of a type's freshness, encoded."""
    head = _type_freshness_head(*fresh.group_resource, fresh.state, fresh.reason)
    version = _RESOURCE_VERSION.text(fresh.low_water)
    proved_age = _milliseconds(fresh.proved_age)
    return head + version if proved_age is None else head + version + _PROVED_AGE.number(proved_age)


@lru_cache(maxsize=4096)
def _type_freshness_head(group: str, resource: str, state: TypeState, reason: str) -> bytes:
    """What hardly changes."""
    return inventory_pb2.TypeFreshness(
        group=group, resource=resource, state=type_state_to_proto(state), reason=reason
    ).SerializeToString()


_INCOMPLETE_TYPES = EmbeddedField(inventory_pb2.ClusterFreshness, "incomplete_types")
_TYPES = EmbeddedField(inventory_pb2.ClusterFreshness, "types")
_RESOURCE_VERSION = EmbeddedField(inventory_pb2.TypeFreshness, "resource_version")
_PROVED_AGE = NumberField(inventory_pb2.TypeFreshness, "proved_age_ms")


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
        types=[inventory_pb2.TypeFreshness.FromString(encode_type_freshness(of_type)) for of_type in fresh.types],
        state_since_ms=record.since_ms,
        labels=record.labels,
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


def field_index_to_proto(
    index: FieldIndex, quarantined: Iterable[ObjectKey], *, is_from_settings: bool
) -> inventory_pb2.FieldIndex:
    """Returns the message of a field index."""
    counted = index.statistics()
    return inventory_pb2.FieldIndex(
        path=index.name,
        resources=sorted(map(str, index.resources or ())),
        state=_INDEX_STATES[index.state],
        objects=index.looked_at,
        values=counted["values"],
        entries=counted["entries"],
        bytes=counted["bytes"],
        quarantined=counted["quarantined"],
        quarantined_keys=map(str, quarantined),
        is_from_settings=is_from_settings,
    )


_INDEX_STATES = {
    IndexState.BUILDING: inventory_pb2.FIELD_INDEX_STATE_BUILDING,
    IndexState.READY: inventory_pb2.FIELD_INDEX_STATE_READY,
    IndexState.TOO_LARGE: inventory_pb2.FIELD_INDEX_STATE_TOO_LARGE,
}


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)
