"""Events of a watch."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from federator.api.cluster import ClusterID, ClusterState
from federator.client.freshness import ClusterFreshness, cluster_state
from federator.client.object import InventoryObject
from federator.v1 import inventory_pb2

_TYPE_PREFIX = len("WATCH_EVENT_TYPE_")


class EventType(StrEnum):
    """Types of events. All but RELISTED are the aggregator's; RELISTED is the client's own.

    RELISTED: the stream broke before its first cursor and starts over: the present state follows as ADDED events up to
    INITIAL_END, and what was told before and does not come again is gone.
    """

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    INITIAL_END = "INITIAL_END"
    CLUSTER = "CLUSTER"
    RELISTED = "RELISTED"


class ClusterTransition(msgspec.Struct, frozen=True):
    """A member cluster changed state. No watch ends because of it.

    Attributes:
        cluster_id: member cluster.
        state: state it entered.
        previous_state: state it left; None where the cluster was not a member before.
        reason: for people: why.
    """

    cluster_id: ClusterID
    state: ClusterState
    previous_state: ClusterState | None = None
    reason: str = ""

    @classmethod
    def from_message(cls, message: inventory_pb2.ClusterEvent) -> ClusterTransition:
        """Takes the transition out of its message."""
        previous = message.previous_state
        return cls(
            ClusterID(message.cluster_id),
            cluster_state(message.state),
            cluster_state(previous) if previous else None,
            message.reason,
        )


class Event(msgspec.Struct, frozen=True):
    """One event of a watch.

    Attributes:
        type: what happened.
        object: the object, for ADDED, MODIFIED and DELETED (its last selected state).
        cursor: where to continue after this event; empty before INITIAL_END, where nothing may be stored yet.
        revision: revision of the change; only grows within a stream.
        cluster: the transition, for CLUSTER.
        freshness: freshness of each asked cluster, for BOOKMARK and INITIAL_END.
    """

    type: EventType
    object: InventoryObject | None = None
    cursor: bytes = b""
    revision: int = 0
    cluster: ClusterTransition | None = None
    freshness: tuple[ClusterFreshness, ...] = ()

    @classmethod
    def from_message(cls, message: inventory_pb2.WatchEvent) -> Event:
        """Takes the event out of its message."""
        return cls(
            type=EventType(inventory_pb2.WatchEventType.Name(message.type)[_TYPE_PREFIX:]),
            object=InventoryObject.from_message(message.object) if message.HasField("object") else None,
            cursor=message.cursor,
            revision=message.revision,
            cluster=ClusterTransition.from_message(message.cluster) if message.HasField("cluster") else None,
            freshness=tuple(map(ClusterFreshness.from_message, message.freshness)),
        )
