"""Recent changes: which states of objects the newest commits have replaced."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.records import Commit, ObjectEntry

MAX_CHANGES = 200_000
"""Changes that are kept: 100 s at 2,000 a second, in which a client reads many pages of a list. 16 bytes each."""


class RecentChanges:
    """The revisions at which the newest changes were committed, each with that of the state it replaced.

    Whoever wants to know what was present at a revision need not read the log behind it: of each object that changed
    since, the first change names the state that it had.
    """

    def __init__(self, max_changes: int = MAX_CHANGES) -> None:
        self._max_changes = max_changes
        self._revisions = array("Q")
        self._replaced = array("Q")
        self._floor = 0

    @property
    def floor(self) -> int:
        """Oldest revision after which all changes are here."""
        return self._floor

    def load(self, ledger: Ledger) -> None:
        """Starts at a ledger's newest revision, once, before anything is applied."""
        self._floor = ledger.revision

    def apply(self, commit: Commit) -> None:
        """Takes in the object entries of a commit."""
        for entry in commit.entries:
            if isinstance(entry, ObjectEntry):
                self._revisions.append(entry.revision)
                self._replaced.append(entry.previous_revision)
        if len(self._revisions) > self._max_changes:
            # A quarter at a time: what stays is moved, and need not be for each commit.
            left = len(self._revisions) - self._max_changes * 3 // 4
            self._floor = self._revisions[left - 1]
            del self._revisions[:left], self._replaced[:left]

    def replaced_after(self, revision: int) -> Sequence[int]:
        """Returns the revisions of the states that changes after a revision, not below `floor`, replaced, in order.

        0 stands for a change that replaced nothing.
        """
        return self._replaced[bisect_right(self._revisions, revision) :]

    def statistics(self) -> Mapping[str, int]:
        """How many are kept."""
        return {"recent_changes": len(self._revisions)}
