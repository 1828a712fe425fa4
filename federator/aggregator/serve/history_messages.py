"""Parts of answers about the past as messages of inventory.proto."""

from __future__ import annotations

from federator.aggregator.ledger.records import EntryType
from federator.aggregator.query.gaps import Gap
from federator.v1 import inventory_pb2
from federator.wire.resource_type import cluster_state_to_proto

WATCH_EVENT_TYPES = {
    EntryType.ADDED: inventory_pb2.WATCH_EVENT_TYPE_ADDED,
    EntryType.MODIFIED: inventory_pb2.WATCH_EVENT_TYPE_MODIFIED,
    EntryType.DELETED: inventory_pb2.WATCH_EVENT_TYPE_DELETED,
}
"""What happened to an object, as messages say it."""


def gap_to_proto(gap: Gap) -> inventory_pb2.HistoryGap:
    """Returns the message of a gap."""
    return inventory_pb2.HistoryGap(
        from_revision=gap.from_revision,
        to_revision=gap.to_revision,
        from_ms=gap.from_ms,
        to_ms=gap.to_ms,
        state=cluster_state_to_proto(gap.state),
        reason=gap.reason,
    )
