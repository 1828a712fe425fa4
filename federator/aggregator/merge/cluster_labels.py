"""The clusters' own labels, by which questions select clusters: as they are, and as they were at a revision."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import ClusterEntry, Commit
from federator.api.cluster import ClusterID
from federator.api.selector import ClusterSelector, LabelSelector

MAX_KEPT = 256
"""Changes of labels that are remembered; labels change when an operator restarts an agent with others."""

_NONE: Mapping[str, str] = {}


class LabelledClusters:
    """All clusters' labels from one revision on, up to the next change of any.

    It decides the same of a cluster for as long as it is asked, so whoever resolves a question with it gets one answer,
    also on later pages or in a watch. Clusters that join later are known, with the labels they join with: of a new
    member nothing was decided before.

    Attributes:
        since: revision of the change that they begin with; 0 where there was none.
    """

    __slots__ = ("_labels", "_next", "since")

    def __init__(self, labels: Mapping[ClusterID, Mapping[str, str]], since: int = 0) -> None:
        self.since = since
        self._labels = dict(labels)
        self._next: LabelledClusters | None = None

    def of(self, cluster_id: ClusterID) -> Mapping[str, str]:
        """The labels of a cluster; none of one that never was a member."""
        known = self._find(cluster_id)
        return _NONE if known is None else known

    def matches(self, selector: LabelSelector, cluster_id: ClusterID) -> bool:
        """Whether a cluster is selected by its labels."""
        return not selector or selector.matches(self.of(cluster_id))

    def join(self, cluster_id: ClusterID, labels: Mapping[str, str]) -> None:
        """Takes in a cluster that was no member before."""
        self._labels[cluster_id] = labels

    def relabelled(self, cluster_id: ClusterID, labels: Mapping[str, str], revision: int) -> LabelledClusters:
        """Returns the labels from a change on."""
        self._next = LabelledClusters({**self._labels, cluster_id: labels}, revision)
        return self._next

    def _find(self, cluster_id: ClusterID) -> Mapping[str, str] | None:
        clusters: LabelledClusters | None = self
        while clusters is not None:  # who joined after a change is in what came with that change
            labels = clusters._labels.get(cluster_id)
            if labels is not None:
                return labels
            clusters = clusters._next
        return None


UNLABELLED = LabelledClusters({})
"""No cluster has labels."""


class ClusterLabels:
    """The table of clusters' labels; it changes by committed ledger entries alone."""

    def __init__(self) -> None:
        self._kept: deque[LabelledClusters] = deque([LabelledClusters({})], maxlen=MAX_KEPT)
        self._changed: dict[ClusterID, int] = {}

    @property
    def now(self) -> LabelledClusters:
        """The labels at the newest revision."""
        return self._kept[-1]

    def load(self, ledger: Ledger) -> None:
        """Takes in the labels of all clusters, once, before anything is applied."""
        records = ledger.clusters()
        self._changed = {cluster_id: record.labels_revision for cluster_id, record in records.items()}
        labels = {cluster_id: record.labels for cluster_id, record in records.items()}
        self._kept.clear()
        self._kept.append(LabelledClusters(labels, max(self._changed.values(), default=0)))

    def apply(self, commit: Commit) -> None:
        """Takes in the cluster entries of a commit."""
        for entry in commit.entries:
            if not isinstance(entry, ClusterEntry):
                continue
            if entry.previous_labels is not None:
                self._changed[entry.cluster_id] = entry.revision
                self._kept.append(self.now.relabelled(entry.cluster_id, entry.labels, entry.revision))
            elif entry.previous_state is None:
                self._changed[entry.cluster_id] = 0
                self.now.join(entry.cluster_id, entry.labels)

    def at(self, revision: int) -> LabelledClusters | None:
        """Returns the labels as they were at a revision; None where they have changed since in a way not known here.

        Clusters that joined since are among them.
        """
        return next((known for known in reversed(self._kept) if known.since <= revision), None)

    def changed_since(self, revision: int, clusters: ClusterSelector) -> ClusterID | None:
        """Returns one of some clusters whose labels have changed after a revision; None where there is none."""
        changed = (each for each, changed_at in self._changed.items() if changed_at > revision)
        return next((cluster_id for cluster_id in changed if clusters.matches(cluster_id)), None)
