"""The freshness that answers carry, put together once for those that are given at about the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.freshness import ClusterFreshness
from federator.aggregator.merge.merged_view import MergedView
from federator.aggregator.merge.selection import Selection
from federator.aggregator.query.completeness import asked_freshness
from federator.aggregator.query.encoding import EmbeddedField
from federator.aggregator.serve.messages import encode_cluster_freshness
from federator.v1 import inventory_pb2

MAX_AGE = 0.1
"""Seconds for which an answer is repeated: what its ages, and how far data reaches, may be behind. A change of state is
told at once."""

_MAX_KEPT = 256

_FRESHNESS = EmbeddedField(inventory_pb2.WatchEvent, "freshness")


class AskedFreshness(NamedTuple):
    """Freshness of the clusters of one question.

    Attributes:
        clusters: of each, sorted by ID.
        is_complete: whether an answer lacks nothing.
        messages: the same as encoded messages, with all types.
    """

    clusters: tuple[ClusterFreshness, ...]
    is_complete: bool
    messages: Sequence[bytes]


class FreshnessAnswers:
    """Freshness of the asked clusters, at most `MAX_AGE` old; and how many answers were complete."""

    def __init__(self, view: MergedView, ledger: Ledger) -> None:
        self._view = view
        self._ledger = ledger
        self._answers: dict[Selection, AskedFreshness] = {}
        self._bookmarks: dict[Selection, bytes] = {}
        self._version = 0
        self._until = 0.0
        self._told: Counter[str] = Counter()

    def count(self, method: str, *, is_complete: bool) -> None:
        """Counts an answer that has been told."""
        self._told[f"answers_{method}_{'complete' if is_complete else 'partial'}"] += 1

    def statistics(self) -> Mapping[str, int]:
        """Answers by method and completeness."""
        return dict(self._told)

    def of(self, selection: Selection) -> bytes:
        """Returns what a bookmark carries, as encoded fields of a WatchEvent: only types that lack something.

        Raises:
            UnknownCluster: a cluster is named that never was a member.
        """
        self._forget_old()
        bookmark = self._bookmarks.get(selection)
        if bookmark is None:
            asked = asked_freshness(self._view, self._ledger.clusters(), selection)
            bookmark = _FRESHNESS.encode([encode_cluster_freshness(cluster, with_types=False) for cluster in asked])
            self._bookmarks[selection] = bookmark
        return bookmark

    def asked(self, selection: Selection) -> AskedFreshness:
        """Returns what an answer carries.

        Raises:
            UnknownCluster: a cluster is named that never was a member.
        """
        self._forget_old()
        found = self._answers.get(selection)
        if found is None:
            clusters = asked_freshness(self._view, self._ledger.clusters(), selection)
            messages = [encode_cluster_freshness(cluster, with_types=True) for cluster in clusters]
            is_complete = all(cluster.is_complete for cluster in clusters)
            found = self._answers[selection] = AskedFreshness(clusters, is_complete, messages)
        return found

    def forget(self) -> None:
        """Lets what is asked next be of now: the asker knows of something that has happened."""
        self._answers.clear()
        self._bookmarks.clear()

    def _forget_old(self) -> None:
        now, version = asyncio.get_running_loop().time(), self._view.freshness.version
        is_full = len(self._answers) + len(self._bookmarks) >= _MAX_KEPT
        if now >= self._until or self._version != version or is_full:
            self.forget()
            self._version, self._until = version, now + MAX_AGE
