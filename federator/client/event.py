"""Events of a watch."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from federator.api.cluster import ClusterID, ClusterState
from federator.client.freshness import ClusterFreshness, cluster_state
from federator.client.object import InventoryObject
from federator.v1 import inventory_pb2

_TYPE_PREFIX = len("WATCH_EVENT_TYPE_")
_TRANSITION_PREFIX = len("CLUSTER_TRANSITION_")


class EventType(StrEnum):
    """Types of events. All but RELISTED are the aggregator's; RELISTED is the client's own.

    RELISTED: the stream broke before its first cursor, or a cluster's labels have changed what it selects, and it
    starts over: the present state follows as ADDED events up to INITIAL_END, and what was told before and does not come
    again is gone.
    """

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    INITIAL_END = "INITIAL_END"
    CLUSTER = "CLUSTER"
    RELISTED = "RELISTED"


def event_type(number: inventory_pb2.WatchEventType.ValueType) -> EventType:
    """The type a message's number stands for."""
    return EventType(inventory_pb2.WatchEventType.Name(number)[_TYPE_PREFIX:])


class TransitionType(StrEnum):
    """What a change of a cluster's state means.

    JOINED: it is a new member, or one that was removed and comes back. SYNCED: it is LIVE for the first time. STALE: it
    was lost sight of, what is here may be old. RECOVERED: it is LIVE again. REMOVED: it is no member any more.
    """

    JOINED = "JOINED"
    SYNCED = "SYNCED"
    STALE = "STALE"
    RECOVERED = "RECOVERED"
    REMOVED = "REMOVED"


class ClusterTransition(msgspec.Struct, frozen=True):
    """A member cluster changed state. No watch ends because of it.

    Attributes:
        cluster_id: member cluster.
        state: state it entered.
        previous_state: state it left; None where the cluster was not a member before.
        reason: for people: why.
        type: what the step means; None for one in between, such as to SYNCING.
    """

    cluster_id: ClusterID
    state: ClusterState
    previous_state: ClusterState | None = None
    reason: str = ""
    type: TransitionType | None = None

    @classmethod
    def from_message(cls, message: inventory_pb2.ClusterEvent) -> ClusterTransition:
        """Takes the transition out of its message."""
        previous = message.previous_state
        return cls(
            ClusterID(message.cluster_id),
            cluster_state(message.state),
            cluster_state(previous) if previous else None,
            message.reason,
            _transition_type(message.transition),
        )


def _transition_type(number: inventory_pb2.ClusterTransition.ValueType) -> TransitionType | None:
    if number == inventory_pb2.CLUSTER_TRANSITION_UNSPECIFIED:
        return None
    return TransitionType(inventory_pb2.ClusterTransition.Name(number)[_TRANSITION_PREFIX:])


class Event(msgspec.Struct, frozen=True):
    """One event of a watch.

    Attributes:
        type: what happened.
        object: the object, for ADDED, MODIFIED and DELETED (its last selected state).
        cursor: where to continue after this event; empty before INITIAL_END, where nothing may be stored yet.
        revision: revision of the change; only grows within a stream.
        cluster: the transition, for CLUSTER.
        freshness: freshness of each asked cluster, for BOOKMARK and INITIAL_END.
        previous: with `with_previous`, the state before the change, for MODIFIED and DELETED. An object that enters the
            selection has none, though it may have existed before.
    """

    type: EventType
    object: InventoryObject | None = None
    cursor: bytes = b""
    revision: int = 0
    cluster: ClusterTransition | None = None
    freshness: tuple[ClusterFreshness, ...] = ()
    previous: InventoryObject | None = None

    @classmethod
    def from_message(cls, message: inventory_pb2.WatchEvent) -> Event:
        """Takes the event out of its message."""
        return cls(
            type=event_type(message.type),
            object=InventoryObject.from_message(message.object) if message.HasField("object") else None,
            cursor=message.cursor,
            revision=message.revision,
            cluster=ClusterTransition.from_message(message.cluster) if message.HasField("cluster") else None,
            freshness=tuple(map(ClusterFreshness.from_message, message.freshness)),
            previous=InventoryObject.from_message(message.previous) if message.HasField("previous") else None,
        )
