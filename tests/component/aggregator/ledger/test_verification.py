"""Verification: every kind of damage is told, each where it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.codec import Kind, ObjectRow, Position
from federator.aggregator.ledger.damage import LOST
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.maintenance import snapshot
from federator.aggregator.ledger.reader import OLDEST, POSITION
from federator.aggregator.ledger.records import EntryType
from federator.aggregator.ledger.tables import TABLES
from federator.aggregator.ledger.verification import Verified, verify
from federator.errors import LedgerCorrupt, LedgerError
from federator.wire.body import encode_body
from tests.component.aggregator.ledger.filled import BERLIN, filled, raw_tables
from tests.contract.ledger.member import Member, delete, put


def problems(path: Path, *, bodies: bool = False) -> list[str]:
    found: list[str] = []
    with snapshot(path) as tables:
        verified = verify(tables, found.append, bodies=bodies)
    assert verified.problems == len(found)
    return found


class Tampering:
    """Records of a closed ledger, written as the ledger would."""

    def __init__(self, transaction: Any, handles: dict[str, Any]) -> None:
        self._transaction = transaction
        self._handles = handles

    def records(self, table: str) -> list[tuple[bytes, bytes]]:
        return list(self._transaction.cursor(self._handles[table]))

    def put(self, table: str, key: bytes, kind: Kind[Any], value: object) -> None:
        self._transaction.put(key, kind.seal(key, value), db=self._handles[table])

    def put_sealed(self, table: str, key: bytes, sealed: bytes) -> None:
        self._transaction.put(key, sealed, db=self._handles[table])

    def delete(self, table: str, key: bytes) -> None:
        self._transaction.delete(key, db=self._handles[table])

    def newest(self, change: EntryType = EntryType.MODIFIED, name: str = "web") -> tuple[int, ObjectRow]:
        """The newest entry of a kind of an object in berlin."""
        rows = [(codec.decode_revision(key), codec.ROW.unseal(key, sealed)) for key, sealed in self.records("log")]
        return next(
            (revision, row)
            for revision, row in reversed(rows)
            if isinstance(row, ObjectRow) and (row.change, row.name, row.cluster) == (change, name, 1)
        )

    def change(self, revision: int, row: ObjectRow, **changes: object) -> None:
        """Writes an entry anew."""
        self.put("log", codec.encode_revision(revision), codec.ROW, msgspec.structs.replace(row, **changes))

    def transitions(self) -> list[tuple[bytes, codec.TransitionRow]]:
        """Those of berlin itself."""
        prefix = codec.transitions_prefix(BERLIN, None)
        return [
            (key, codec.TRANSITION.unseal(key, sealed))
            for key, sealed in self.records("transitions")
            if key.startswith(prefix)
        ]

    def head(self, name: str) -> tuple[bytes, codec.HeadRow]:
        """The head of an object in berlin."""
        for key, sealed in self.records("current"):
            head = codec.HEAD.unseal(key, sealed)
            if codec.object_name(key, head)[1] == name and codec.numbers_of(key)[0] == 1:
                return key, head
        raise LookupError(name)


def tamper(path: Path, change: Callable[[Tampering], None]) -> None:
    with raw_tables(path) as environment, environment.begin(write=True) as transaction:
        handles = {table: environment.open_db(table.encode(), transaction) for table in TABLES}
        change(Tampering(transaction, handles))


async def test_a_sound_ledger_has_no_problem(tmp_path: Path) -> None:
    await filled(tmp_path)
    assert problems(tmp_path) == []
    assert problems(tmp_path, bodies=True) == []
    ledger = LmdbLedger.open(tmp_path)
    expected, ledger_id = ledger.revision, ledger.cursors.ledger_id.hex()
    entries = ledger.statistics()["entries"]
    await ledger.close()
    with snapshot(tmp_path) as tables:
        verified = verify(tables, print, bodies=True)
    assert verified == Verified(ledger_id, expected, verified.records, verified.bodies, 0)
    assert verified.records > entries
    assert verified.bodies > 20


async def test_a_new_ledger_has_no_problem(tmp_path: Path) -> None:
    await LmdbLedger.open(tmp_path).close()
    assert problems(tmp_path, bodies=True) == []


async def test_a_ledger_stays_sound_whatever_is_compacted(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    berlin = await Member.join(ledger)
    begin = ledger.revision
    for number in range(3):
        await berlin.push(put("web", uid=f"uid-{number}"), put("db"), delete("web"), put("web", uid="again"))
    end = ledger.revision
    await ledger.close()
    for revision in range(begin, end + 1):
        ledger = LmdbLedger.open(tmp_path)
        await ledger.compact(revision)
        await ledger.close()
        assert problems(tmp_path) == [], revision - begin


def _flip(table: str) -> Callable[[Tampering], None]:
    def change(ledger: Tampering) -> None:
        key, sealed = ledger.records(table)[0]
        ledger.put_sealed(table, key, sealed[:-1] + bytes((sealed[-1] ^ 1,)))

    return change


def _at_another_key(ledger: Tampering) -> None:
    (first, _), (_, second) = ledger.records("clusters")[:2]
    ledger.put_sealed("clusters", first, second)


def _no_head(ledger: Tampering) -> None:
    ledger.delete("current", ledger.head("web")[0])


def _old_head(ledger: Tampering) -> None:
    key, head = ledger.head("web")
    ledger.put("current", key, codec.HEAD, msgspec.structs.replace(head, revision=head.revision - 1))


def _head_says_otherwise(ledger: Tampering) -> None:
    key, head = ledger.head("web")
    ledger.put("current", key, codec.HEAD, msgspec.structs.replace(head, fingerprint=7))


def _head_of_a_deletion(ledger: Tampering) -> None:
    key, head = ledger.head("web")
    revision, _ = ledger.newest(EntryType.DELETED)
    ledger.put("current", key, codec.HEAD, msgspec.structs.replace(head, revision=revision))


def _head_of_another(ledger: Tampering) -> None:
    (key, head), (_, other) = ledger.head("web"), ledger.head("old-3")
    ledger.put("current", key, codec.HEAD, msgspec.structs.replace(head, revision=other.revision))


def _head_without_entry(ledger: Tampering) -> None:
    ledger.delete("log", codec.encode_revision(ledger.head("old-3")[1].revision))


def _lost(ledger: Tampering) -> None:
    key, head = ledger.head("old-3")
    ledger.put("current", key, codec.HEAD, msgspec.structs.replace(head, fingerprint=LOST))


def _no_predecessor(ledger: Tampering) -> None:
    _, row = ledger.newest()
    ledger.delete("log", codec.encode_revision(row.previous_revision))


def _predecessor_of_another(ledger: Tampering) -> None:
    revision, _ = ledger.newest()
    newest, gone = ledger.newest(EntryType.DELETED, "gone")
    ledger.change(newest, gone, previous_revision=revision)


def _predecessor_with_another_uid(ledger: Tampering) -> None:
    _, row = ledger.newest()
    before = row.previous_revision
    ledger.change(before, ledger.newest(EntryType.ADDED)[1], uid="another")


def _modified_after_a_deletion(ledger: Tampering) -> None:
    revision, row = ledger.newest()
    ledger.change(revision, row, previous_revision=ledger.newest(EntryType.DELETED)[0])


def _added_after_no_deletion(ledger: Tampering) -> None:
    revision, row = ledger.newest(EntryType.ADDED)
    ledger.change(revision, row, follows=ledger.newest(EntryType.DELETED)[1].previous_revision)


def _predecessor_in_the_future(ledger: Tampering) -> None:
    revision, row = ledger.newest()
    ledger.change(revision, row, previous_revision=revision + 1)


def _added_with_predecessor(ledger: Tampering) -> None:
    revision, row = ledger.newest()
    ledger.change(revision, row, change=EntryType.ADDED)


def _no_change_of_an_object(ledger: Tampering) -> None:
    revision, row = ledger.newest()
    ledger.change(revision, row, change=EntryType.CLUSTER)


def _unknown_number(ledger: Tampering) -> None:
    revision, row = ledger.newest()
    ledger.change(revision, row, resource=99)


def _older_than_before(ledger: Tampering) -> None:
    revision, row = ledger.newest()
    ledger.change(revision, row, time_ms=1)


def _deletion_with_body(ledger: Tampering) -> None:
    revision, row = ledger.newest(EntryType.DELETED)
    ledger.change(revision, row, body=b"{}")


def _position(by: int) -> Callable[[Tampering], None]:
    def change(ledger: Tampering) -> None:
        position = codec.POSITION.unseal(POSITION, dict(ledger.records("meta"))[POSITION])
        moved = Position(position.revision + by, position.time_ms)
        ledger.put("meta", POSITION, codec.POSITION, moved)

    return change


def _oldest_after_position(ledger: Tampering) -> None:
    ledger.put("meta", OLDEST, codec.NUMBER, 1 << 52)


def _no_deletion(ledger: Tampering) -> None:
    ledger.delete("deletions", ledger.records("deletions")[0][0])


def _deletion_of_what_is_present(ledger: Tampering) -> None:
    ledger.put("deletions", ledger.head("web")[0], codec.NUMBER, ledger.newest(EntryType.DELETED)[0])


def _deletion_without_entry(ledger: Tampering) -> None:
    ledger.put("deletions", ledger.records("deletions")[0][0], codec.NUMBER, 5)


def _deletion_that_is_none(ledger: Tampering) -> None:
    ledger.put("deletions", ledger.records("deletions")[0][0], codec.NUMBER, ledger.newest()[0])


def _two_texts_of_one_number(ledger: Tampering) -> None:
    ledger.put("numbers", b"rome", codec.NUMBER, 1)


def _name_without_text(ledger: Tampering) -> None:
    ledger.delete("numbers", b"paris")


def _gap_in_names(ledger: Tampering) -> None:
    ledger.put("names", codec.encode_number(9), codec.NAME, ("rome",))
    ledger.put("numbers", b"rome", codec.NUMBER, 9)


def _name_of_nothing(ledger: Tampering) -> None:
    ledger.put("names", codec.encode_number(1), codec.NAME, ("a", "b", "c"))


def _type_of_an_unknown_cluster(ledger: Tampering) -> None:
    ledger.delete("clusters", b"paris")


def _type_at_another_key(ledger: Tampering) -> None:
    (first, _), (second, sealed) = ledger.records("types")[:2]
    ledger.put("types", first, codec.TYPE, codec.TYPE.unseal(second, sealed))


def _cluster_at_another_key(ledger: Tampering) -> None:
    (first, _), (second, sealed) = ledger.records("clusters")[:2]
    ledger.put("clusters", first, codec.CLUSTER, codec.CLUSTER.unseal(second, sealed))


def _no_transition(ledger: Tampering) -> None:
    ledger.delete("transitions", ledger.transitions()[-1][0])


def _transition_says_otherwise(ledger: Tampering) -> None:
    key, row = ledger.transitions()[-1]
    ledger.put("transitions", key, codec.TRANSITION, msgspec.structs.replace(row, state="STALE"))


def _transition_without_entry(ledger: Tampering) -> None:
    key, row = ledger.transitions()[-1]
    revision = codec.transition_revision(key) + 1000
    ledger.put("transitions", codec.moved_transition(key, revision), codec.TRANSITION, row)


def _transition_of_nothing(ledger: Tampering) -> None:
    ledger.put("transitions", b"berlin" + bytes(8), codec.TRANSITION, ledger.transitions()[-1][1])


def _no_dictionary(ledger: Tampering) -> None:
    ledger.delete("dictionaries", codec.encode_number(1))


def _dictionary_that_is_none(ledger: Tampering) -> None:
    key, sealed = ledger.records("dictionaries")[0]
    dictionary = codec.DICTIONARY.unseal(key, sealed)
    ledger.put("dictionaries", key, codec.DICTIONARY, msgspec.structs.replace(dictionary, content=b"not one"))


def _dictionary_with_a_gap(ledger: Tampering) -> None:
    key, sealed = ledger.records("dictionaries")[0]
    ledger.delete("dictionaries", key)
    ledger.put("dictionaries", codec.encode_number(2), codec.DICTIONARY, codec.DICTIONARY.unseal(key, sealed))


DAMAGES: list[tuple[Callable[[Tampering], None], str]] = [
    *((_flip(table), f"{table} ") for table in TABLES if table != "meta"),
    (_at_another_key, "clusters berlin: checksum differs"),
    (_no_head, "its object is neither present nor known as deleted"),
    (_old_head, "it is newer than what is known as the newest of its object"),
    (_head_says_otherwise, "says otherwise"),
    (_head_of_a_deletion, "is a deletion"),
    (_head_of_another, "is of something else"),
    (_head_without_entry, "is missing"),
    (_lost, "the state of its object was lost"),
    (_no_predecessor, "which is missing"),
    (_predecessor_of_another, "which is of something else"),
    (_predecessor_with_another_uid, "which has another UID"),
    (_modified_after_a_deletion, "MODIFIED follows"),
    (_added_after_no_deletion, "ADDED follows"),
    (_predecessor_in_the_future, "which is not before it"),
    (_added_with_predecessor, "ADDED with previous revision"),
    (_no_change_of_an_object, "CLUSTER is no change of an object"),
    (_unknown_number, "its cluster 1 or its type 99 is unknown"),
    (_older_than_before, "it is older than the entry before it"),
    (_deletion_with_body, "a deletion with a body"),
    (_position(-1), "it is after the position"),
    (_position(2), "it is missing or damaged, up to"),
    (_oldest_after_position, "is after the position"),
    (_no_deletion, "its object is neither present nor known as deleted"),
    (_deletion_of_what_is_present, "its object is present"),
    (_deletion_without_entry, "its entry, 5, is missing"),
    (_deletion_that_is_none, "is not the deletion of that object"),
    (_two_texts_of_one_number, "numbers rome: its number 1 is not its name's"),
    (_name_without_text, "names 3: no text has this number"),
    (_gap_in_names, "names 9: numbers have a gap before it"),
    (_name_of_nothing, "is no cluster and no type"),
    (_type_of_an_unknown_cluster, "its cluster is unknown"),
    (_type_at_another_key, "it is the record of"),
    (_cluster_at_another_key, "clusters berlin: it is the record of paris"),
    (_no_transition, "its transition is not noted"),
    (_no_transition, "transitions berlin itself: it ends JOINING, not LIVE"),
    (_transition_says_otherwise, "its entry says otherwise"),
    (_transition_without_entry, "its entry is missing"),
    (_transition_of_nothing, "its key is none"),
    (_no_dictionary, "its body needs dictionary 7, which is missing"),
    (_dictionary_that_is_none, "it is no zstd dictionary of its ID"),
    (_dictionary_with_a_gap, "it should be number 1"),
]


@pytest.mark.parametrize(
    ("change", "problem"), DAMAGES, ids=lambda each: each.__name__.strip("_") if callable(each) else ""
)
async def test_damage_is_told(tmp_path: Path, change: Callable[[Tampering], None], problem: str) -> None:
    await filled(tmp_path)
    tamper(tmp_path, change)
    found = problems(tmp_path)
    assert [each for each in found if problem in each], found


@pytest.mark.parametrize("table", [table for table in TABLES if table not in {"log", "meta"}])
async def test_a_table_with_a_record_of_before_does_not_add_up(tmp_path: Path, table: str) -> None:
    """What LMDB may show where its own pages are damaged: every record is sound."""
    await filled(tmp_path)
    tamper(tmp_path, lambda ledger: ledger.delete(table, ledger.records(table)[-1][0]))
    assert f"{table}: records are missing or out of date: they do not add up" in problems(tmp_path)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"kind": "Another"}', "its body is not what its hash says"),
        (encode_body(b"x" * 1000)[:-2], "its body is a damaged zstd frame"),
        (zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 1000), "without content size"),
    ],
)
async def test_bodies_are_read_if_asked(tmp_path: Path, body: bytes, problem: str) -> None:
    await filled(tmp_path)
    tamper(tmp_path, lambda ledger: ledger.change(*ledger.newest(), body=body))
    assert problems(tmp_path) == []
    (found,) = problems(tmp_path, bodies=True)
    assert problem in found


async def test_damaged_pages_end_a_table_not_the_program(tmp_path: Path) -> None:
    await filled(tmp_path)
    data_file = tmp_path / "ledger" / "data.mdb"
    content = bytearray(data_file.read_bytes())
    for start in range(2 * 4096, len(content), 4096):
        flags = int.from_bytes(content[start + 10 : start + 12], "little")
        if flags & 2:  # a leaf: say that it is something else
            content[start + 10] = 0x40
    data_file.write_bytes(content)
    with pytest.raises(LedgerCorrupt):
        problems(tmp_path)


async def test_a_file_that_was_cut_short_is_damage_not_a_crash(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    await (await Member.join(ledger)).push(*(put(f"web-{number}", body=bytes(2000)) for number in range(1000)))
    await ledger.close()
    os.truncate(tmp_path / "ledger" / "data.mdb", 1 << 20)
    try:
        found = problems(tmp_path)
    except LedgerCorrupt:
        return
    assert found


async def test_an_older_schema_has_to_be_migrated_first(tmp_path: Path) -> None:
    await filled(tmp_path)
    from federator.aggregator.ledger.reader import IDENTITY

    def older(ledger: Tampering) -> None:
        identity = codec.Identity(1, b"8 bytes!", b"secret")
        ledger.put("meta", IDENTITY, codec.IDENTITY, identity)

    tamper(tmp_path, older)
    with pytest.raises(LedgerError, match="schema 1; an aggregator that opens it brings it to"):
        problems(tmp_path)
