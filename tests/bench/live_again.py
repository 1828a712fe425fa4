"""Waits until a cluster is LIVE by a new session: one that has just lost its agent is LIVE for a while still."""

from __future__ import annotations

import asyncio

from federator.api.cluster import ClusterState
from federator.client import Cluster
from federator.errors import AggregatorUnreachable
from federator.testing.federation import Federation

_POLL = 0.05
_PATIENCE = 120.0


async def live_since(federation: Federation) -> float:
    """When the one cluster entered its present state, seconds since 1970; 0.0 where there is none."""
    found = await _cluster(federation)
    return found.state_since if found is not None else 0.0


async def wait_live_again(federation: Federation, earlier: float) -> None:
    """Waits until the one cluster has become LIVE after an earlier `live_since`.

    Raises:
        TimeoutError: it has not.
    """
    async with asyncio.timeout(_PATIENCE):
        while True:
            found = await _cluster(federation)
            if found is not None and found.state is ClusterState.LIVE and found.state_since > earlier:
                return
            await asyncio.sleep(_POLL)


async def _cluster(federation: Federation) -> Cluster | None:
    async with federation.client() as fed:
        try:
            clusters = (await fed.clusters(timeout=5)).clusters
        except AggregatorUnreachable:
            return None
    return clusters[0] if clusters else None
