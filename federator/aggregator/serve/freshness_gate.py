"""Read your writes: answers that wait until the aggregator has what the asker knows to have happened."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from federator.aggregator.merge.freshness import FreshnessTable, TypeFreshness
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.api.cluster import ClusterID, ClusterState, TypeState, parse_cluster_id
from federator.api.resource import GroupResource
from federator.api.resource_version import compare, is_ordered
from federator.errors import InvalidInput, LimitReached, NotFreshYet, UnknownCluster
from federator.v1 import inventory_pb2

DEFAULT_WITHIN = 5.0
MAX_WITHIN = 60.0
"""Seconds that an answer may wait."""

MAX_CONDITIONS = 100
"""Conditions of one question: more than one script writes before it reads."""

MAX_WAITING = 1000
"""Questions that may wait at once, each with at most `MAX_CONDITIONS` small conditions."""

_HOPELESS = {TypeState.ABSENT, TypeState.NOT_COLLECTED, TypeState.DENIED}


class FreshAsOf(msgspec.Struct, frozen=True):
    """One condition: everything of a type and cluster up to a resourceVersion is here.

    Attributes:
        cluster_id: a cluster that is or was a member.
        resource: the type.
        resource_version: of the member, comparable.
    """

    cluster_id: ClusterID
    resource: GroupResource
    resource_version: str


class FreshnessGate:
    """Holds answers back until conditions are met.

    A condition is met for good: low water does not sink while its cluster and type stay what they are. It speaks of
    what the agent collects; a question beyond its narrowing is told so by the answer's freshness.
    """

    def __init__(self, table: FreshnessTable, types: ResourceTypes, *, max_waiting: int = MAX_WAITING) -> None:
        self._table = table
        self._types = types
        self._max_waiting = max_waiting
        self._waiting = 0

    def conditions(self, messages: Iterable[inventory_pb2.FreshAsOf]) -> tuple[FreshAsOf, ...]:
        """Reads what a request asks for.

        Raises:
            InvalidInput: a field has a value that is not allowed; the error names it.
            UnknownResourceType: no member has ever named a type like one of these.
            UnknownCluster: no such member.
        """
        conditions = tuple(map(self._condition, messages))
        if len(conditions) > MAX_CONDITIONS:
            raise InvalidInput("fresh_as_of", f"{len(conditions)} of them", f"at most {MAX_CONDITIONS}")
        return conditions

    async def wait(self, conditions: Iterable[FreshAsOf], within_ms: int) -> None:
        """Returns once all conditions are met. A caller that is cancelled leaves nothing behind.

        Args:
            conditions: from `conditions`.
            within_ms: milliseconds; 0 for `DEFAULT_WITHIN`.

        Raises:
            NotFreshYet: one is not met in time, or waiting cannot help.
            LimitReached: as many as may wait do so already.
            InvalidInput: the time is longer than `MAX_WITHIN`.
        """
        seconds = within_ms / 1000 or DEFAULT_WITHIN
        if seconds > MAX_WITHIN:
            raise InvalidInput("fresh_within_ms", within_ms, f"at most {MAX_WITHIN * 1000:.0f}")
        missing = [condition for condition in conditions if not self._is_met(condition)]
        if not missing:
            return
        if self._waiting >= self._max_waiting:
            raise LimitReached("calls that wait for freshness", self._max_waiting)
        deadline = asyncio.get_running_loop().time() + seconds
        self._waiting += 1
        try:
            for condition in missing:
                await self._wait_for(condition, deadline, seconds)
        finally:
            self._waiting -= 1

    def statistics(self) -> Mapping[str, int]:
        """How many wait."""
        return {"waiting_for_freshness": self._waiting}

    def _condition(self, message: inventory_pb2.FreshAsOf) -> FreshAsOf:
        cluster_id = parse_cluster_id(message.cluster_id, field="fresh_as_of.cluster_id")
        if self._table.state(cluster_id) is None:
            raise UnknownCluster(cluster_id, tuple(sorted(self._table.members())))
        resources = self._types.resolve((message.resource,), field="fresh_as_of.resource")
        if len(resources) != 1:
            raise InvalidInput("fresh_as_of.resource", message.resource, "one resource type")
        if not is_ordered(message.resource_version):
            allowed = "a resourceVersion as an apiserver gave it: decimal digits, not 0"
            raise InvalidInput("fresh_as_of.resource_version", message.resource_version[:64], allowed)
        (resource,) = resources
        return FreshAsOf(cluster_id, resource, message.resource_version)

    async def _wait_for(self, condition: FreshAsOf, deadline: float, seconds: float) -> None:
        while not self._is_met(condition):
            try:
                async with asyncio.timeout_at(deadline):
                    await self._table.changed(condition.cluster_id, condition.resource)
            except TimeoutError:
                raise self._not_fresh(condition, f"not within {seconds:g} s", helps_to_wait=True) from None

    def _is_met(self, condition: FreshAsOf) -> bool:
        """Whether a condition is met.

        Raises:
            NotFreshYet: it is not, and will not be as things are.
        """
        fresh = self._fresh(condition)
        if self._table.state(condition.cluster_id) is ClusterState.REMOVED:
            raise self._not_fresh(condition, "the cluster was removed", helps_to_wait=False)
        if fresh.state in _HOPELESS:
            cause = fresh.reason or f"the type is {fresh.state}"
            raise self._not_fresh(condition, cause, helps_to_wait=False)
        if not fresh.low_water:
            return False
        order = compare(fresh.low_water, condition.resource_version)
        if order is None:
            cause = "the two cannot be compared, so they are not of one store of the cluster"
            raise self._not_fresh(condition, cause, helps_to_wait=False)
        return order >= 0

    def _fresh(self, condition: FreshAsOf) -> TypeFreshness:
        (fresh,) = self._table.of(condition.cluster_id, (condition.resource,)).types
        return fresh

    def _not_fresh(self, condition: FreshAsOf, cause: str, *, helps_to_wait: bool) -> NotFreshYet:
        fresh = self._fresh(condition)
        return NotFreshYet(
            condition.cluster_id,
            str(condition.resource),
            condition.resource_version,
            low_water=fresh.low_water,
            state=fresh.state,
            cause=f"{cause} ({fresh.reason})" if helps_to_wait and fresh.reason else cause,
            proved_age=fresh.proved_age,
            helps_to_wait=helps_to_wait,
        )
