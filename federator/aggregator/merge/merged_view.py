"""The merged view: everything that serve reads, moved forward by each commit in one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import Commit
from federator.aggregator.merge.cluster_labels import ClusterLabels
from federator.aggregator.merge.digest_table import DigestTable
from federator.aggregator.merge.freshness import FreshnessTable
from federator.aggregator.merge.merged_indexer import MergedIndexer
from federator.aggregator.merge.recent_changes import RecentChanges
from federator.aggregator.merge.resource_types import ResourceTypes


class MergedView:
    """The present state of the federation at one revision.

    Its parts are loaded together and apply each commit together, without yielding between them, so whoever reads
    several in one step reads one revision.

    Attributes:
        indexer: which objects are present, and which a selection means.
        cluster_labels: the members' own labels.
        types: which resource types the members serve.
        freshness: how far the data of each cluster and type can be trusted.
        digests: what the objects of each cluster and type add up to.
        recent: what the newest changes have replaced.
    """

    def __init__(self, freshness: FreshnessTable | None = None) -> None:
        self.indexer = MergedIndexer()
        self.cluster_labels = ClusterLabels()
        self.types = ResourceTypes()
        self.freshness = freshness or FreshnessTable()
        self.digests = DigestTable()
        self.recent = RecentChanges()

    @property
    def revision(self) -> int:
        """Newest revision applied."""
        return self.indexer.revision

    def load(self, ledger: Ledger) -> None:
        """Takes in the present state of a ledger, once, before anything is applied. Blocks until done."""
        for _ in self.loading(ledger):
            pass

    def loading(self, ledger: Ledger) -> Iterator[int]:
        """Does the same bit by bit; yields how many objects were read. It is to be iterated to its end, and alone."""
        self.cluster_labels.load(ledger)
        self.types.load(ledger)
        self.freshness.load(ledger)
        self.recent.load(ledger)
        yield from self.indexer.loading(ledger, self.digests.take_in)
        self.digests.loaded()

    def apply(self, commit: Commit) -> None:
        """Takes in a commit; the ledger's commit listener calls it for every one, in order."""
        self.cluster_labels.apply(commit)
        self.types.apply(commit)
        self.freshness.apply(commit)
        self.digests.apply(commit)
        self.recent.apply(commit)
        self.indexer.apply(commit)

    def statistics(self) -> Mapping[str, int]:
        """Those of the parts."""
        parts = (self.indexer, self.freshness, self.digests, self.recent)
        return {name: number for part in parts for name, number in part.statistics().items()}
