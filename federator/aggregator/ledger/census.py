"""Census: what a ledger holds, and what takes its room."""

from __future__ import annotations

from collections import Counter

import msgspec

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.codec import ObjectRow
from federator.aggregator.ledger.maintenance import WholeLog, identity_of, transaction_of
from federator.aggregator.ledger.tables import Tables, Transaction
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource
from federator.errors import InvalidInput
from federator.wire.body import BodyCodec, dictionary_of


class TypeCount(msgspec.Struct, frozen=True):
    """What one type of one cluster has in a ledger.

    Attributes:
        cluster_id: the cluster.
        resource: the type.
        objects: present objects.
        entries: entries in the log, those of present objects included.
        bytes: of the log's records of them, compressed as they are.
        history_bytes: of these, what is not the newest state of a present object.
    """

    cluster_id: ClusterID
    resource: GroupResource
    objects: int
    entries: int
    bytes: int
    history_bytes: int


class DictionaryCount(msgspec.Struct, frozen=True):
    """One dictionary and what it does.

    Attributes:
        dictionary_id: its ID.
        resource: the type it was trained for.
        bytes: its length.
        bodies: bodies that need it.
        ratio: how many times longer their JSON is than they are; None where there is no body.
    """

    dictionary_id: int
    resource: GroupResource
    bytes: int
    bodies: int
    ratio: float | None


class Census(msgspec.Struct, frozen=True):
    """One state of a ledger in numbers.

    Attributes:
        ledger_id: of the ledger, hexadecimal.
        schema_version: of its records.
        revision: newest revision.
        time_ms: of the newest entry, milliseconds since 1970; 0 where there was none.
        oldest_revision: where history begins.
        oldest_time_ms: when: of the first entry after it; None where there is none.
        entries: entries in the log.
        objects: present objects.
        clusters: members, the removed ones too.
        file_bytes: length of the file; it never shrinks by itself.
        used_bytes: of the pages with records; the rest is used again.
        history_share: part of the log's bytes that is not the newest state of a present object.
        types: by cluster and type, those with most bytes first.
        dictionaries: in the order in which they came.
    """

    ledger_id: str
    schema_version: int
    revision: int
    time_ms: int
    oldest_revision: int
    oldest_time_ms: int | None
    entries: int
    objects: int
    clusters: int
    file_bytes: int
    used_bytes: int
    history_share: float
    types: tuple[TypeCount, ...]
    dictionaries: tuple[DictionaryCount, ...]


def take_census(tables: Tables) -> Census:
    """Reads the whole log, in one state. Blocks, some 10 µs per entry.

    Raises:
        LedgerCorrupt: a record is damaged.
        LedgerError: there is no ledger, its schema is not the present one, or it cannot be read.
    """
    identity = identity_of(tables, must_be_present=True)
    with transaction_of(tables) as transaction:
        counting = _Counting(tables, transaction)
        oldest, position = counting.oldest_revision(), counting.position()
        first = next(counting.rows(oldest), None)
        counting.count_log()
        counting.count_objects()
        return Census(
            ledger_id=identity.ledger_id.hex(),
            schema_version=identity.schema_version,
            revision=position.revision,
            time_ms=position.time_ms,
            oldest_revision=oldest,
            oldest_time_ms=None if first is None else counting.as_entry(*first).time_ms,
            entries=counting.count("log"),
            objects=counting.count("current"),
            clusters=counting.count("clusters"),
            file_bytes=tables.file_bytes(),
            used_bytes=counting.used_bytes(),
            history_share=counting.history_share(),
            types=counting.types_by_bytes(),
            dictionaries=counting.dictionary_counts(),
        )


class _Counting(WholeLog):
    """One pass over one state. Pairs of numbers stand for a type of a cluster."""

    def __init__(self, tables: Tables, transaction: Transaction) -> None:
        super().__init__(tables, transaction)
        self._bodies = BodyCodec()
        for dictionary in self.dictionaries():
            self._bodies.add(dictionary)
        self._objects: Counter[tuple[int, int]] = Counter()
        self._entries: Counter[tuple[int, int]] = Counter()
        self._bytes: Counter[tuple[int, int]] = Counter()
        self._present_bytes: Counter[tuple[int, int]] = Counter()
        self._log_bytes = 0
        self._with_dictionary: Counter[int] = Counter()
        self._compressed: Counter[int] = Counter()
        self._raw: Counter[int] = Counter()

    def count_log(self) -> None:
        log = self._transaction.cursor(self._tables.handle("log"))
        for key, sealed in log:
            self._log_bytes += len(sealed)
            row = self._unseal(codec.ROW, "log", key, sealed)
            if not isinstance(row, ObjectRow):
                continue
            of = row.cluster, row.resource
            self._entries[of] += 1
            self._bytes[of] += len(sealed)
            if dictionary_id := dictionary_of(row.body):
                self._count_body(dictionary_id, row.body)

    def _count_body(self, dictionary_id: int, body: bytes) -> None:
        try:
            raw = len(self._bodies.decode(body))
        except InvalidInput:
            return
        self._with_dictionary[dictionary_id] += 1
        self._compressed[dictionary_id] += len(body)
        self._raw[dictionary_id] += raw

    def count_objects(self) -> None:
        log = self._tables.handle("log")
        for key, sealed in self._starting_with("current", b""):
            of = int.from_bytes(key[:4]), int.from_bytes(key[4:8])
            head = self._unseal(codec.HEAD, "current", key, sealed)
            self._objects[of] += 1
            self._present_bytes[of] += len(self._transaction.get(codec.encode_revision(head.revision), b"", log))

    def history_share(self) -> float:
        return 1 - self._present_bytes.total() / self._log_bytes if self._log_bytes else 0.0

    def types_by_bytes(self) -> tuple[TypeCount, ...]:
        counts = []
        for (cluster, type_), entries in self._entries.items():
            of = cluster, type_
            (cluster_id,), resource = self._name(cluster), GroupResource(*self._name(type_))
            total = self._bytes[of]
            counts.append(
                TypeCount(
                    ClusterID(cluster_id),
                    resource,
                    self._objects[of],
                    entries,
                    total,
                    total - self._present_bytes[of],
                )
            )
        return tuple(sorted(counts, key=lambda count: (-count.bytes, count.cluster_id, count.resource)))

    def dictionary_counts(self) -> tuple[DictionaryCount, ...]:
        return tuple(
            DictionaryCount(
                each.dictionary_id,
                each.resource,
                len(each.content),
                self._with_dictionary[each.dictionary_id],
                self._raw[each.dictionary_id] / self._compressed[each.dictionary_id]
                if self._compressed[each.dictionary_id]
                else None,
            )
            for each in self._bodies
        )
