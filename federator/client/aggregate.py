"""Aggregates: what is asked of groups of objects, and what comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from federator.api.cluster import ClusterID
from federator.client.connection import Connection
from federator.client.freshness import ClusterFreshness
from federator.client.result import ListSummary, Scan
from federator.v1 import inventory_pb2


class AggregateFunction(StrEnum):
    """What is computed of a group."""

    COUNT = "count"
    """Objects; with a field, those that have it."""
    SUM = "sum"
    """Of numbers, quantities ("1536Mi", "250m") or durations."""
    MIN = "min"
    """Smallest value: numbers, durations and times as such, else texts."""
    MAX = "max"
    """Largest value."""
    DISTINCT = "distinct"
    """How many different values."""


class Measure(msgspec.Struct, frozen=True):
    """One thing to compute of each group.

    Attributes:
        function: what.
        field: dotted path of the field, a part "*" standing for all elements of an array; empty for COUNT of objects.
    """

    function: AggregateFunction
    field: str = ""

    def message(self) -> inventory_pb2.Measure:
        """The measure as a message; the aggregator checks it."""
        return inventory_pb2.Measure(
            function=inventory_pb2.AggregateFunction.Value(f"AGGREGATE_FUNCTION_{self.function.name}"), field=self.field
        )


class MeasureValue(msgspec.Struct, frozen=True):
    """What was computed of a group.

    Attributes:
        value: as people write it: a number, a quantity in the unit of its operands, a duration, an RFC 3339 time or a
            text; empty where no object has a value.
        number: the same in base units (bytes, cores, seconds; seconds since 1970 for times); None for texts.
        ignored: values that were left out, since they are not what the function works on.
    """

    value: str
    number: float | None = None
    ignored: int = 0

    @classmethod
    def from_message(cls, message: inventory_pb2.MeasureValue) -> MeasureValue:
        """Takes the value out of its message."""
        return cls(message.value, message.number if message.HasField("number") else None, message.ignored)


class Group(msgspec.Struct, frozen=True):
    """One group.

    Attributes:
        keys: by what it was formed, in the order that was asked for; None where its objects have no value.
        measures: what was computed, in the order that was asked for.
    """

    keys: tuple[str | None, ...]
    measures: tuple[MeasureValue, ...]

    @classmethod
    def from_message(cls, message: inventory_pb2.Group) -> Group:
        """Takes the group out of its message."""
        return cls(
            tuple([key.value if key.HasField("value") else None for key in message.keys]),
            tuple(map(MeasureValue.from_message, message.measures)),
        )


class AggregateResult(msgspec.Struct, frozen=True):
    """Groups of objects, exact at one revision.

    Attributes:
        groups: sorted by their keys, or by the first measure where only the largest were asked for.
        total_groups: how many there are, of which `groups` may be the largest.
        total: objects that are selected.
        revision: as in `ListSummary`, like all that follow.
        clusters: freshness of each asked cluster.
        complete: whether nothing that was asked for may be missing.
        scan: what had to be read besides the indexes.
    """

    groups: tuple[Group, ...]
    total_groups: int
    total: int
    revision: int
    clusters: Mapping[ClusterID, ClusterFreshness]
    complete: bool
    scan: Scan | None = None

    @classmethod
    def from_message(cls, message: inventory_pb2.AggregateResponse) -> AggregateResult:
        """Takes the result out of its message."""
        summary = ListSummary.from_message(message.summary)
        return cls(
            groups=tuple(map(Group.from_message, message.groups)),
            total_groups=message.total_groups,
            total=summary.total,
            revision=summary.revision,
            clusters=summary.clusters,
            complete=summary.complete,
            scan=summary.scan,
        )


def measure_messages(given: Measure | Iterable[Measure]) -> list[inventory_pb2.Measure]:
    """Writes the measures down as messages."""
    return [each.message() for each in ((given,) if isinstance(given, Measure) else given)]


async def ask_aggregate(
    connection: Connection, request: inventory_pb2.AggregateRequest, timeout: float | None
) -> AggregateResult:
    """Makes one call.

    Raises:
        FederatorError: as the aggregator refused it.
    """
    async with connection.call(lambda stub: stub.Aggregate, request, timeout) as call:
        response = await call
    connection.reached = True
    return AggregateResult.from_message(response)
