"""Repairs: what was wrong with a type whose digest differed."""

from __future__ import annotations

from collections import Counter

import structlog

from federator.aggregator.ingest.session_counts import SessionCounts
from federator.aggregator.ledger.records import Commit, EntryType, ObjectEntry
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource

log = structlog.get_logger(__name__)

LOGGED_KEYS = 20
"""Keys of one repair that go into the log."""


class Repairs:
    """What a listing changes that was asked for because of a mismatch."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._keys: dict[str, list[str]] = {}

    def add(self, commit: Commit) -> None:
        """Takes in what was committed of the listing."""
        kinds: dict[ObjectKey, str] = {}
        for entry in commit.entries:
            if isinstance(entry, ObjectEntry):
                is_new_uid = entry.type is EntryType.ADDED and entry.key in kinds
                kinds[entry.key] = "changed" if is_new_uid else _KINDS[entry.type]
        for key, kind in kinds.items():
            self._counts[kind] += 1
            if self._counts.total() <= LOGGED_KEYS:
                self._keys.setdefault(kind, []).append(str(key))

    def tell(self, cluster_id: ClusterID, resource: GroupResource, counts: SessionCounts) -> None:
        """Counts and logs them."""
        for kind, number in self._counts.items():
            counts.repaired[cluster_id, str(resource), kind] += number
        if self._counts:
            log.warning("objects repaired", cluster=cluster_id, resource=str(resource), **self._counts, keys=self._keys)


_KINDS = {EntryType.ADDED: "missing", EntryType.MODIFIED: "changed", EntryType.DELETED: "extra"}
