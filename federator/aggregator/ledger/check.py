"""What a ledger is asked before it serves, and how what is damaged is found again.

The check passes over every table but the log, which loading and readers look at row by row: each record's checksum, the
order of the keys, whether a search finds what the pass found, and the sum (`sums`). Together they notice any damage,
of records and of LMDB's pages, by which a key could be missed or be taken for what it was before. A thorough one passes
over the log too: where a page of it kills who reads it, it does so before anybody is served.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.codec import ObjectRow, Row
from federator.aggregator.ledger.reader import Reader, reading
from federator.aggregator.ledger.records import EntryType
from federator.aggregator.ledger.sums import SUMMED, added, checksum
from federator.aggregator.ledger.tables import Tables
from federator.aggregator.ledger.writer import Writer, writing
from federator.api.key import ObjectKey
from federator.errors import LedgerCorrupt

SLICE = 20_000
"""Records looked at in one read transaction, some 50 ms: while it is open no page that it sees is used again."""

Entries = Mapping[bytes, tuple[int, ObjectRow]]
"""Newest entries of present objects, with their revisions, by key in the table `current`."""


def check(tables: Tables, *, thorough: bool = False) -> int:
    """Checks a ledger that nobody uses yet, and repairs its heads; returns how many it has repaired.

    Args:
        tables: the ledger's.
        thorough: look at the log, too; entries that are damaged are left to whoever reads them.

    Raises:
        LedgerCorrupt: something else is damaged, or a head could not be repaired for certain.
    """
    with reading(tables) as reader:
        reader.require_end()
        stored, newest = reader.sums(), reader.position().revision
        damaged: dict[bytes, bytes] = {}
        sums = {table: _add_up(tables, reader, table, damaged) for table in SUMMED}
        if thorough:
            _add_up(tables, reader, "log", {})
    if not damaged and stored == sums:
        return 0
    entries = find_newest(tables, damaged, newest) if damaged else {}
    with writing(tables) as writer:
        repaired = repair(writer, entries)
        sums["current"] = added(sums["current"], map(checksum, repaired), (-checksum(old) for old in damaged.values()))
        if stored is None:
            writer.set_sums(sums)
        for table, total in sums.items():
            if stored is not None and stored.get(table) != total:
                raise LedgerCorrupt(str(tables.path), f"{table}, where records are missing or out of date")
    return len(repaired)


def _add_up(tables: Tables, reader: Reader, table: str, damaged: dict[bytes, bytes]) -> int:
    """The sum of a table; damaged heads are collected, with what stands at them."""
    total, previous, number = 0, b"", 0
    for key, sealed in reader.scan(table):
        if not codec.is_sound(key, sealed):
            if table not in {"current", "log"}:
                raise LedgerCorrupt.at(str(tables.path), table, key)
            damaged[key] = sealed
        if key <= previous or not reader.finds(table, key, sealed):
            raise LedgerCorrupt(str(tables.path), f"{table}, whose pages do not lead to {key.hex()}")
        total += checksum(sealed)
        previous, number = key, number + 1
    return added(total)


def find_newest(tables: Tables, keys: Collection[bytes], up_to: int) -> Entries:
    """Finds the newest entries of some present objects, at most as new as a revision. Takes a pass over the log.

    Args:
        tables: the ledger's.
        keys: of the objects, in the table `current`.
        up_to: the revision.

    Raises:
        LedgerCorrupt: one of them has no entry, is gone by its newest, or may have a newer one that is damaged.
    """
    wanted, found = set(keys), dict[bytes, tuple[int, ObjectRow]]()
    revision = up_to
    while wanted:
        with reading(tables) as reader:
            rows = list(islice(reader.backwards(revision), SLICE))
        if not rows:
            break
        found.update(_newest(tables, wanted, rows))
        wanted -= found.keys()
        revision = rows[-1][0] - 1
    if wanted:
        raise LedgerCorrupt.at(str(tables.path), "current", min(wanted))
    return found


def _newest(
    tables: Tables, wanted: Collection[bytes], rows: Iterable[tuple[int, Row | None]]
) -> Iterator[tuple[bytes, tuple[int, ObjectRow]]]:
    """Of rows, the newer first, those that are the newest of a wanted key."""
    wanted = set(wanted)
    for revision, row in rows:
        if row is None:  # it may be the newest of any of them
            raise LedgerCorrupt.at(str(tables.path), "log", codec.encode_revision(revision))
        if not wanted or not isinstance(row, ObjectRow):
            continue
        prefix = codec.numbers(row.cluster, row.resource).prefix
        key = codec.object_key(prefix, row.namespace, row.name)[0]
        if key in wanted:
            if row.change is EntryType.DELETED:
                break
            wanted.discard(key)
            yield key, (revision, row)


def repair(writer: Writer, entries: Entries) -> list[bytes]:
    """Writes heads anew, each equal to what was written there before; returns them as they stand."""
    return [writer.repair_head(key, revision, row) for key, (revision, row) in entries.items()]


def repair_while_serving(writer: Writer, tables: Tables, entries: Entries, after_revision: int) -> None:
    """The same, where others may have committed since: looks at what came after a revision first.

    Raises:
        LedgerCorrupt: a newer entry is damaged.
    """
    newer = list(writer.sound_history(after_revision, writer.revision))
    repair(writer, {**entries, **dict(_newest(tables, set(entries), reversed(newer)))})


def find_heads(tables: Tables, revisions: Collection[int]) -> Mapping[ObjectKey, int]:
    """Of some revisions, those that are newest states of present objects. Takes a pass over the heads."""
    found: dict[ObjectKey, int] = {}
    key: bytes | None = b""
    while key is not None:
        with reading(tables) as reader:
            key = reader.heads_at(revisions, key, SLICE, found)
    return found
