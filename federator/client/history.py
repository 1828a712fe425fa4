"""The past of one object: its versions, and the gaps between them."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from federator.api.cluster import ClusterState
from federator.client.connection import Connection
from federator.client.event import EventType, event_type
from federator.client.freshness import ClusterFreshness, cluster_state
from federator.client.object import InventoryObject
from federator.errors import AggregatorUnreachable
from federator.v1 import inventory_pb2


class ObjectVersion(msgspec.Struct, frozen=True):
    """One version of an object.

    Attributes:
        type: ADDED, MODIFIED or DELETED.
        revision: its revision of the federation.
        previous_revision: that of the version before, of the same UID; 0 for ADDED.
        time: when it was committed, seconds since 1970.
        uid: metadata.uid; differs where the name was deleted and created again.
        resource_version: the member's own; for DELETED the last known.
        patch: RFC 6902 JSON Patch that makes this version of the one before; empty for ADDED and DELETED, and where the
            version before is not to be had any more.
        object: the object in this version, for DELETED as it was last; with `with_objects` only.
    """

    type: EventType
    revision: int
    previous_revision: int
    time: float
    uid: str
    resource_version: str
    patch: bytes = b""
    object: InventoryObject | None = None

    def operations(self) -> list[dict[str, Any]]:
        """The operations of the patch, decoded anew with each call; none where there is no patch."""
        return operations_of(self.patch)

    @classmethod
    def from_message(cls, message: inventory_pb2.ObjectVersion) -> ObjectVersion:
        """Takes the version out of its message."""
        return cls(
            type=event_type(message.type),
            revision=message.revision,
            previous_revision=message.previous_revision,
            time=message.time_ms / 1000,
            uid=message.uid,
            resource_version=message.resource_version,
            patch=message.patch,
            object=InventoryObject.from_message(message.object) if message.HasField("object") else None,
        )


class Gap(msgspec.Struct, frozen=True):
    """A time in which a cluster was not live, or a type could not be followed.

    What happened in it is known only by its result: an object that came and went left nothing, and what changed several
    times did so once.

    Attributes:
        from_revision: revision at which it began.
        to_revision: revision at which it ended; 0 while it lasts.
        begin: when it began, seconds since 1970.
        end: when it ended; None while it lasts.
        state: the cluster's state as it began to be not live; LIVE where only a type could not be followed.
        reason: for people: why.
    """

    from_revision: int
    to_revision: int
    begin: float
    end: float | None
    state: ClusterState
    reason: str

    @classmethod
    def from_message(cls, message: inventory_pb2.HistoryGap) -> Gap:
        """Takes the gap out of its message."""
        return cls(
            from_revision=message.from_revision,
            to_revision=message.to_revision,
            begin=message.from_ms / 1000,
            end=message.to_ms / 1000 if message.to_revision else None,
            state=cluster_state(message.state),
            reason=message.reason,
        )


class HistoryResult(msgspec.Struct, frozen=True):
    """What is known of an object's past, or a part of it.

    Attributes:
        entries: versions and gaps, newest first; a gap stands before the versions that are older than its end.
        revision: revision at which the answer is true.
        oldest_revision: history reaches back to this revision: what was before is known only as it was then.
        freshness: of the object's cluster and type, now.
        next_before_revision: for `before_revision` of the next call; 0 where there is no more.
    """

    entries: tuple[ObjectVersion | Gap, ...]
    revision: int
    oldest_revision: int
    freshness: ClusterFreshness
    next_before_revision: int

    @property
    def versions(self) -> tuple[ObjectVersion, ...]:
        """The versions without the gaps."""
        return tuple(entry for entry in self.entries if isinstance(entry, ObjectVersion))


def operations_of(patch: bytes) -> list[dict[str, Any]]:
    """The operations of a JSON Patch; none where there is none."""
    return cast(list[dict[str, Any]], msgspec.json.decode(patch)) if patch else []


async def ask_history(
    connection: Connection, request: inventory_pb2.GetHistoryRequest, timeout: float | None
) -> HistoryResult:
    """Makes one call, and puts the parts of its answer together.

    Raises:
        AggregatorUnreachable: it ended before its last part, too.
        FederatorError: as the aggregator refused it.
    """
    entries: list[ObjectVersion | Gap] = []
    summary = None
    async with connection.call(lambda stub: stub.GetHistory, request, timeout) as call:
        async for part in call:
            connection.reached = True
            entries.extend(map(_entry, part.entries))
            summary = part.summary if part.HasField("summary") else None
    if summary is None:
        raise AggregatorUnreachable(connection.address, "the history ended before its last part")
    return HistoryResult(
        tuple(entries),
        summary.revision,
        summary.oldest_revision,
        ClusterFreshness.from_message(summary.freshness),
        summary.next_before_revision,
    )


def _entry(message: inventory_pb2.HistoryEntry) -> ObjectVersion | Gap:
    if message.HasField("gap"):
        return Gap.from_message(message.gap)
    return ObjectVersion.from_message(message.version)
