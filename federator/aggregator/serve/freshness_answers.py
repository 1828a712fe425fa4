"""The freshness that answers carry, put together once for those that are given at about the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.freshness import ClusterFreshness
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.completeness import asked_freshness
from federator.aggregator.serve.messages import cluster_freshness_to_proto
from federator.v1 import inventory_pb2

MAX_AGE = 0.1
"""Seconds for which an answer is repeated: what its ages, and how far data reaches, may be behind. A change of state is
told at once."""

_MAX_KEPT = 256


class AskedFreshness(NamedTuple):
    """Freshness of the clusters of one question.

    Attributes:
        clusters: of each, sorted by ID.
        is_complete: whether an answer lacks nothing.
        messages: the same as messages, with all types.
        bookmark: the same as encoded fields of a WatchEvent, with the types that lack something.
    """

    clusters: tuple[ClusterFreshness, ...]
    is_complete: bool
    messages: Sequence[inventory_pb2.ClusterFreshness]
    bookmark: bytes


class FreshnessAnswers:
    """Freshness of the asked clusters, at most `MAX_AGE` old."""

    def __init__(self, view: MergedView, ledger: Ledger) -> None:
        self._view = view
        self._ledger = ledger
        self._kept: dict[tuple[Selection, bool], AskedFreshness] = {}
        self._version = 0
        self._until = 0.0

    def of(self, selection: Selection) -> bytes:
        """Returns what a bookmark carries.

        Raises:
            UnknownCluster: a cluster is named that never was a member.
        """
        return self._find(selection, is_bookmark=True).bookmark

    def asked(self, selection: Selection) -> AskedFreshness:
        """Returns what an answer carries; its `bookmark` is empty.

        Raises:
            UnknownCluster: a cluster is named that never was a member.
        """
        return self._find(selection, is_bookmark=False)

    def forget(self) -> None:
        """Lets what is asked next be of now: the asker knows of something that has happened."""
        self._kept.clear()

    def _find(self, selection: Selection, *, is_bookmark: bool) -> AskedFreshness:
        now, version = asyncio.get_running_loop().time(), self._view.freshness.version
        if now >= self._until or self._version != version or len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
            self._version, self._until = version, now + MAX_AGE
        found = self._kept.get((selection, is_bookmark))
        if found is None:
            found = self._kept[selection, is_bookmark] = self._ask(selection, is_bookmark=is_bookmark)
        return found

    def _ask(self, selection: Selection, *, is_bookmark: bool) -> AskedFreshness:
        clusters = asked_freshness(self._view, self._ledger.clusters(), selection)
        is_complete = all(cluster.is_complete for cluster in clusters)
        messages = [cluster_freshness_to_proto(cluster, with_types=not is_bookmark) for cluster in clusters]
        if is_bookmark:
            bookmark = inventory_pb2.WatchEvent(freshness=messages).SerializeToString()
            return AskedFreshness(clusters, is_complete, (), bookmark)
        return AskedFreshness(clusters, is_complete, messages, b"")
