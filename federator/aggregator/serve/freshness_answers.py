"""The freshness that bookmarks carry, encoded once for those that are told at about the same time."""

from __future__ import annotations

import asyncio

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.completeness import asked_freshness
from federator.aggregator.serve.messages import cluster_freshness_to_proto
from federator.v1 import inventory_pb2

MAX_AGE = 0.1
"""Seconds for which an answer is repeated: what its ages may be off by. A change of state is told at once."""

_MAX_KEPT = 256


class FreshnessAnswers:
    """Freshness of the asked clusters, as encoded fields of a WatchEvent."""

    def __init__(self, view: MergedView, ledger: Ledger) -> None:
        self._view = view
        self._ledger = ledger
        self._kept: dict[Selection, bytes] = {}
        self._revision = 0
        self._until = 0.0

    def of(self, selection: Selection) -> bytes:
        """Returns it, at most `MAX_AGE` old.

        Raises:
            UnknownCluster: a cluster is named that never was a member.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._until or self._revision != self._view.revision or len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
            self._revision, self._until = self._view.revision, now + MAX_AGE
        encoded = self._kept.get(selection)
        if encoded is None:
            asked = asked_freshness(self._view, self._ledger.clusters(), selection)
            fresh = [cluster_freshness_to_proto(cluster) for cluster in asked]
            encoded = self._kept[selection] = inventory_pb2.WatchEvent(freshness=fresh).SerializeToString()
        return encoded
