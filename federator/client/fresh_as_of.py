"""Read your writes: what a caller knows to have happened, and the answer has to contain."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from federator.v1 import inventory_pb2


class FreshAsOf(msgspec.Struct, frozen=True):
    """Asks that an answer has everything of one type and cluster up to a resourceVersion.

    Attributes:
        cluster: the member's ClusterID.
        resource: the type, as kubectl takes it.
        resource_version: as the member's apiserver gave it, for an object of the type that was written, or for a list.
    """

    cluster: str
    resource: str
    resource_version: str


def fresh_as_of_messages(given: FreshAsOf | Iterable[FreshAsOf]) -> list[inventory_pb2.FreshAsOf]:
    """Writes the conditions down as messages; the aggregator checks them."""
    conditions = (given,) if isinstance(given, FreshAsOf) else given
    return [
        inventory_pb2.FreshAsOf(cluster_id=each.cluster, resource=each.resource, resource_version=each.resource_version)
        for each in conditions
    ]
