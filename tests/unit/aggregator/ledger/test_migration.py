"""A ledger that an older program wrote. `data/schema-1.mdb.zst` was written by the program that had schema 1."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard

from federator.aggregator.ledger import codec, migration
from federator.aggregator.ledger.indexed_state import NOTHING_INDEXED, IndexedState, read_indexed_state
from federator.aggregator.ledger.lmdb import FOLDER, LmdbLedger
from federator.aggregator.ledger.reader import reading
from federator.aggregator.ledger.records import EntryType, ObjectEntry
from federator.aggregator.ledger.tables import Tables
from federator.aggregator.ledger.writer import writing
from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from tests.contract.ledger.member import Member, objects, put

WRITTEN = Path(__file__).parent / "data" / "schema-1.mdb.zst"
BERLIN = ClusterID("berlin")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with a ledger of schema 1."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    data = zstandard.ZstdDecompressor().decompress(WRITTEN.read_bytes())
    (folder / "data.mdb").write_bytes(data)
    return tmp_path


def pod(name: str) -> ObjectKey:
    return ObjectKey(BERLIN, "", "pods", "shop", name)


def history(ledger: LmdbLedger) -> list[ObjectEntry]:
    return objects(ledger.read(ledger.oldest_revision, 1000))


def assert_migrated(ledger: LmdbLedger) -> None:
    present = {entry.key.name: entry for entry in ledger.present()}
    assert sorted(present) == ["api", "web-0", "web-1", "web-2", "web-4"]
    assert present["web-4"].indexed == IndexedState({"app": "web", "n": "4"}, "node-0", ("owner-1",))
    assert present["web-1"].indexed.labels == {"app": "db"}
    for entry in (*present.values(), *history(ledger)):
        is_gone = entry.type is EntryType.DELETED
        expected = NOTHING_INDEXED if is_gone else read_indexed_state(ledger.bodies.decode(entry.body))
        assert entry.indexed == expected
    assert [version.type for version in ledger.versions(pod("web-0"))][:2] == [EntryType.ADDED, EntryType.DELETED]
    assert {(known.type.resource, known.generation) for known in ledger.types(BERLIN)} == {
        ("deployments", 0),
        ("pods", 0),
    }
    assert next(ledger.versions(pod("web-3"))).type is EntryType.DELETED
    assert ledger.at(pod("web-3"), ledger.revision) is None


async def test_it_is_brought_to_the_present_schema_and_goes_on(state: Path) -> None:
    ledger = LmdbLedger.open(state)
    assert_migrated(ledger)
    before, cursor = history(ledger), ledger.cursors.encode(ledger.revision)
    berlin = await Member.join(ledger)
    await berlin.push(put("web-3"))
    assert [version.type for version in ledger.versions(pod("web-3"))][:2] == [EntryType.ADDED, EntryType.DELETED]
    await ledger.close()
    again = LmdbLedger.open(state)
    assert history(again)[: len(before)] == before
    assert again.cursors.decode(cursor)
    await again.close()


async def test_broken_off_anywhere_it_goes_on(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "SLICE", 1)
    tables = Tables(state / FOLDER)
    with reading(tables) as reader:
        rows = reader.count("log")
    for _ in range(rows // 2):
        with writing(tables) as writer:
            assert writer.convert_rows(1) == 1
    with writing(tables) as writer:
        assert writer.establish(1).schema_version == 1
    tables.close()
    ledger = LmdbLedger.open(state)
    assert_migrated(ledger)
    await ledger.close()


async def test_a_damaged_row_is_left_for_whoever_reads_it(state: Path) -> None:
    tables = Tables(state / FOLDER)
    with reading(tables) as reader:
        numbers = reader.numbers(BERLIN, "", "pods")
    assert numbers is not None
    head_key, _ = codec.object_key(numbers.prefix, "shop", "web-4")
    with tables.begin() as transaction:
        head = codec.HEAD_V1.unseal(head_key, transaction.get(head_key, None, tables.handle("current")) or b"")
    key = codec.encode_revision(head.revision)
    with tables.begin(write=True) as transaction:
        sealed = bytearray(transaction.get(key, None, tables.handle("log")) or b"")
        sealed[-1] ^= 1
        transaction.put(key, bytes(sealed), db=tables.handle("log"))
    tables.close()
    tables = Tables(state / FOLDER)
    with writing(tables) as writer:
        identity = writer.establish(1)
    assert migration.migrate(tables, identity).schema_version == codec.SCHEMA_VERSION
    with tables.begin() as transaction:
        assert transaction.get(key, None, tables.handle("log")) == bytes(sealed)
    tables.close()
