"""Pins: revisions that somebody still reads at, which compaction must not pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Pins:
    """Counts readers by revision.

    A list, and the start of a watch, take their references in one step and read the bodies later, page by page. A body
    that is superseded meanwhile stays in the ledger's history, as long as compaction stays at or below its reader's
    revision.
    """

    def __init__(self) -> None:
        self._readers: Counter[int] = Counter()

    @contextmanager
    def hold(self, revision: int) -> Iterator[None]:
        """Pins a revision until the block is left."""
        self._readers[revision] += 1
        try:
            yield
        finally:
            self._readers[revision] -= 1
            if not self._readers[revision]:
                del self._readers[revision]

    def oldest(self) -> int | None:
        """The oldest pinned revision, or None."""
        return min(self._readers, default=None)

    @property
    def readers(self) -> int:
        """How many hold a pin."""
        return self._readers.total()
