"""Freshness: how far an answer can be trusted, per cluster and type. Ages are seconds."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import GroupResource
from federator.v1 import inventory_pb2, types_pb2

_CLUSTER_STATE_PREFIX = len("CLUSTER_STATE_")
_TYPE_STATE_PREFIX = len("TYPE_STATE_")


def cluster_state(number: types_pb2.ClusterState.ValueType) -> ClusterState:
    """The state a message's number stands for."""
    return ClusterState(types_pb2.ClusterState.Name(number)[_CLUSTER_STATE_PREFIX:])


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1000


class TypeFreshness(msgspec.Struct, frozen=True):
    """How fresh the data of one type in one cluster is.

    Attributes:
        group_resource: the type.
        state: its state.
        resource_version: the member's low-water version: everything up to it is here.
        proved_age: seconds since the apiserver last proved contact for the type; None if never.
        reason: for people: why the state is not LIVE.
    """

    group_resource: GroupResource
    state: TypeState
    resource_version: str = ""
    proved_age: float | None = None
    reason: str = ""

    @classmethod
    def from_message(cls, message: inventory_pb2.TypeFreshness) -> TypeFreshness:
        """Takes the freshness out of its message."""
        return cls(
            group_resource=GroupResource(message.group, message.resource),
            state=TypeState(types_pb2.TypeState.Name(message.state)[_TYPE_STATE_PREFIX:]),
            resource_version=message.resource_version,
            proved_age=_seconds(message.proved_age_ms) if message.HasField("proved_age_ms") else None,
            reason=message.reason,
        )


class ClusterFreshness(msgspec.Struct, frozen=True):
    """How fresh the asked data of one cluster is.

    Attributes:
        cluster_id: member cluster.
        state: its state.
        seen_age: seconds since its agent was last heard; None if never by this aggregator process.
        proved_age: seconds since the oldest proof among the asked types; None if one was never proved.
        incomplete_types: asked types that are not LIVE or ABSENT.
        types: asked types that are not ABSENT; empty in what a watch tells.
    """

    cluster_id: ClusterID
    state: ClusterState
    seen_age: float | None = None
    proved_age: float | None = None
    incomplete_types: tuple[TypeFreshness, ...] = ()
    types: tuple[TypeFreshness, ...] = ()

    @classmethod
    def from_message(cls, message: inventory_pb2.ClusterFreshness) -> ClusterFreshness:
        """Takes the freshness out of its message."""
        return cls(
            cluster_id=ClusterID(message.cluster_id),
            state=cluster_state(message.state),
            seen_age=_seconds(message.seen_age_ms) if message.HasField("seen_age_ms") else None,
            proved_age=_seconds(message.proved_age_ms) if message.HasField("proved_age_ms") else None,
            incomplete_types=tuple(map(TypeFreshness.from_message, message.incomplete_types)),
            types=tuple(map(TypeFreshness.from_message, message.types)),
        )


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """One member cluster.

    Attributes:
        cluster_id: its ID.
        display_name: its name before normalising.
        cluster_uid: UID of the cluster.
        state: its state.
        reason: for people: why the state is not LIVE.
        state_since: when it entered its state, seconds since 1970.
        objects: number of objects held.
        seen_age: seconds since its agent was last heard; None if never by this aggregator process.
        proved_age: seconds since the oldest proof among the collected types; None if one was never proved.
        server_version: the apiserver's version.
        source: where its credentials came from.
        types: freshness of each type.
        labels: the cluster's own, as its agent tells them.
    """

    cluster_id: ClusterID
    display_name: str
    cluster_uid: str
    state: ClusterState
    reason: str
    state_since: float
    objects: int
    seen_age: float | None
    proved_age: float | None
    server_version: str
    source: str
    types: tuple[TypeFreshness, ...]
    labels: Mapping[str, str] = {}

    @classmethod
    def from_message(cls, message: inventory_pb2.Cluster) -> Cluster:
        """Takes the cluster out of its message."""
        return cls(
            cluster_id=ClusterID(message.cluster_id),
            display_name=message.display_name,
            cluster_uid=message.cluster_uid,
            state=cluster_state(message.state),
            reason=message.reason,
            state_since=_seconds(message.state_since_ms),
            objects=message.objects,
            seen_age=_seconds(message.seen_age_ms) if message.HasField("seen_age_ms") else None,
            proved_age=_seconds(message.proved_age_ms) if message.HasField("proved_age_ms") else None,
            server_version=message.server_version,
            source=message.source,
            types=tuple(map(TypeFreshness.from_message, message.types)),
            labels=dict(message.labels),
        )
