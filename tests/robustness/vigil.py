"""Asks the aggregator all through the faults, and holds each answer against what cannot have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from federator.api.cluster import ClusterState
from federator.api.key import ObjectKey
from federator.client import InventoryClient, ListResult
from federator.errors import AggregatorUnreachable
from tests.robustness.traffic import ANCHOR, ANCHORS

INTERVAL = 0.5
"""Seconds between two questions."""

ANCHORED = ("configmaps", "pods", "deployments.apps", "widgets.testing.federator.io")

TOLD_WITHIN = 120.0
"""Seconds in which a cluster that is out of reach, or in again, is told to be, on a machine with other things to do."""


class Vigil:
    """Two questions a second for objects that nobody touches.

    Attributes:
        answers: how many were held against what they have to be.
        unanswered: how many questions found no aggregator.
    """

    def __init__(self, fed: InventoryClient, clusters: Collection[str]) -> None:
        """Asks nothing yet; `clusters` are those that have to be in each answer."""
        self._fed = fed
        self._clusters = frozenset(clusters)
        self._anchors: dict[ObjectKey, bytes] = {}
        self.answers = 0
        self.unanswered = 0

    async def begin(self) -> None:
        """Notes what has to stay."""
        answer = await self._ask()
        assert answer.complete, answer.clusters
        self._anchors = _bodies(answer)
        assert len(self._anchors) >= len(self._clusters) * (len(ANCHORED) - 1) * ANCHORS

    async def keep(self) -> None:
        """Asks until cancelled.

        Raises:
            AssertionError: an object that nobody touched is missing or different, in whatever state its cluster is; a
                cluster is missing; an answer calls itself complete while a cluster is not LIVE.
        """
        while True:
            try:
                self.check(await self._ask())
            except AggregatorUnreachable:
                self.unanswered += 1
            await asyncio.sleep(INTERVAL)

    def check(self, answer: ListResult) -> None:
        """Holds an answer against what has to be in it."""
        bodies = _bodies(answer)
        missing = sorted(self._anchors.keys() - bodies.keys())
        states = {cluster_id: cluster.state for cluster_id, cluster in answer.clusters.items()}
        assert not missing, f"not listed any more: {missing[:5]}; {states}"
        other = sorted(key for key, body in bodies.items() if self._anchors.get(key) != body)
        assert not other, f"changed by nobody, or made by nobody: {other[:5]}"
        assert set(answer.clusters) == self._clusters, states
        if answer.complete:
            assert set(states.values()) == {ClusterState.LIVE}, f"complete with {states}"
        self.answers += 1

    async def held(self, cluster: str) -> dict[ObjectKey, bytes]:
        """What is listed of a cluster, of the types that the load changes."""
        while True:
            try:
                return _bodies(await self._fed.list(ANCHORED, clusters=cluster, timeout=60))
            except AggregatorUnreachable:
                await asyncio.sleep(INTERVAL)

    async def wait_state(self, cluster: str, state: ClusterState) -> None:
        """Waits until a cluster is told to be in a state.

        Raises:
            AssertionError: it is not, or a part of an answer is called complete while its cluster is not LIVE.
        """
        seen: object = "no answer"
        try:
            async with asyncio.timeout(TOLD_WITHIN):
                while True:
                    try:
                        answer = await self._fed.list("configmaps", clusters=cluster, timeout=30)
                    except AggregatorUnreachable:
                        await asyncio.sleep(INTERVAL)
                        continue
                    (seen,) = answer.clusters.values()
                    assert seen.state is ClusterState.LIVE or not answer.complete, f"complete, though {seen}"
                    if seen.state is state:
                        return
                    await asyncio.sleep(INTERVAL)
        except TimeoutError:
            raise AssertionError(f"{cluster} is not told to be {state}: {seen}") from None

    async def _ask(self) -> ListResult:
        return await self._fed.list(ANCHORED, namespace=ANCHOR, timeout=60)


def _bodies(answer: ListResult) -> dict[ObjectKey, bytes]:
    # kube-root-ca.crt would come with controllers; everything else in the namespace is an anchor.
    return {item.key: item.body for item in answer.items}
