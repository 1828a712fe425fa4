"""Sums: what the records of a table add up to, so that one that is missing or out of date is noticed.

A checksum in a record tells that it is damaged, not that another one stood there: where LMDB's own pages are damaged, a
search may find nothing, or what was there some commits ago, all of it with sound checksums. So a transaction that
changes a table also changes the sum of the checksums of its records, and whoever opens the ledger adds them up again.
The log has no sum: its revisions follow each other without a gap, and a head names the one entry it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from federator.aggregator.ledger.codec import Kind

SUMS_KEY = b"sums"
"""Key of the sums in the table `meta`."""

SUMMED = ("current", "deletions", "clusters", "types", "transitions", "numbers", "names", "dictionaries")
"""The tables that have a sum."""

SUMS: Kind[dict[str, int]] = Kind(dict[str, int])
"""Sum by table."""

_MASK = (1 << 64) - 1


class Change:
    """What one transaction changes of the sums."""

    def __init__(self) -> None:
        self._by_table: dict[str, int] = {}

    def replace(self, table: str, old: bytes | None, new: bytes | None) -> None:
        """Counts a record that takes another one's place; None for no record."""
        change = (checksum(new) if new else 0) - (checksum(old) if old else 0)
        self._by_table[table] = self._by_table.get(table, 0) + change

    def applied_to(self, sums: Mapping[str, int]) -> dict[str, int]:
        """The sums after the transaction."""
        return {table: added(total, (self._by_table.get(table, 0),)) for table, total in sums.items()}

    def __bool__(self) -> bool:
        return any(self._by_table.values())


def added(total: int, *more: Iterable[int]) -> int:
    """A sum with more added to it, modulo 2^64."""
    return (total + sum(map(sum, more))) & _MASK


def checksum(sealed: bytes) -> int:
    """What a record adds to the sum: the checksum that it starts with."""
    return int.from_bytes(sealed[:8])
