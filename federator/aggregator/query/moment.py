"""Moments: revisions that a question names by themselves or by a time."""

from __future__ import annotations

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.merge.cluster_labels import ClusterLabels
from federator.aggregator.merge.selection import Selection
from federator.errors import InvalidInput, RevisionExpired


def revision_of(ledger: Ledger, revision: int | None, time_ms: int | None, *, field: str) -> int:
    """Returns the revision that is meant; the newest where neither is given.

    Args:
        ledger: has the history.
        revision: as asked for.
        time_ms: or the newest one committed by then, milliseconds since 1970.
        field: of the request, without `_revision` and `_time_ms`, for messages.

    Raises:
        InvalidInput: the revision is yet to come.
        RevisionExpired: history does not reach back to it.
    """
    oldest = ledger.oldest_revision
    if time_ms is not None:
        if time_ms < ledger.oldest_time_ms:
            raise RevisionExpired(oldest - 1, oldest)
        revision = ledger.revision_at(time_ms)
    elif revision is None:
        return ledger.revision
    elif revision > ledger.revision:
        raise InvalidInput(f"{field}_revision", revision, f"at most the newest, {ledger.revision}")
    if revision < oldest:
        raise RevisionExpired(revision, oldest)
    return revision


def selection_as_of(selection: Selection, labels: ClusterLabels, ledger: Ledger, revision: int) -> Selection:
    """Returns a selection whose clusters are selected by the labels that they had at a revision.

    Raises:
        RevisionExpired: the labels of then are not known any more.
    """
    known = selection.as_of(labels, revision)
    if known is None:
        raise RevisionExpired(revision, ledger.oldest_revision)
    return known
