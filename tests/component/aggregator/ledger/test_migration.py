"""A ledger that an older program wrote. `data/schema-1.mdb.zst` was written by the program that had schema 1."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import zstandard

from federator.aggregator.ledger import codec, migration
from federator.aggregator.ledger.indexed_state import NOTHING_INDEXED, IndexedState, read_indexed_state
from federator.aggregator.ledger.lmdb import FOLDER, LmdbLedger
from federator.aggregator.ledger.maintenance import snapshot
from federator.aggregator.ledger.reader import reading
from federator.aggregator.ledger.records import EntryType, ObjectEntry, Transition
from federator.aggregator.ledger.tables import Tables
from federator.aggregator.ledger.verification import verify
from federator.aggregator.ledger.writer import writing
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from tests.contract.ledger.member import PODS, Member, objects, put

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
    assert present["web-4"].indexed == IndexedState({"app": "web", "n": "4"}, "node-0", ("owner-1",), created=0)
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


async def lived(path: Path, *, compacted: bool) -> tuple[LmdbLedger, dict[GroupResource | None, list[Transition]]]:
    """A ledger of the present schema, with what berlin went through after its history begins."""
    now = iter(range(1_800_000_000, 1_900_000_000))
    ledger = LmdbLedger.open(path, clock=lambda: next(now))
    berlin = await Member.join(ledger)
    for state in (ClusterState.SYNCING, ClusterState.LIVE, ClusterState.STALE):
        await ledger.set_cluster_state(BERLIN, state, f"{state} now")
        await berlin.push(put("web"))
    if compacted:
        await ledger.compact(ledger.revision)
    await ledger.set_cluster_state(BERLIN, ClusterState.RECOVERING)
    await ledger.set_type_state(BERLIN, PODS, TypeState.DENIED, "forbidden")
    await ledger.set_cluster_state(BERLIN, ClusterState.LIVE)
    await Member.join(ledger, "paris")
    return ledger, {resource: list(ledger.transitions(BERLIN, resource)) for resource in (None, PODS.group_resource)}


def make_schema_2(path: Path) -> None:
    """Takes out what schema 2 did not have."""
    tables = Tables(path / FOLDER)
    with writing(tables) as writer:
        identity, sums = writer.establish(1), writer.sums()
        assert sums is not None
        for key, _ in list(writer.scan("transitions")):
            writer._remove("transitions", key)
        for key, sealed in list(writer.scan("current")):
            head = codec.HEAD.unseal(key, sealed)
            writer._put(codec.HEAD, "current", key, msgspec.structs.replace(head, identity=head.identity ^ 1))
        writer.set_identity(msgspec.structs.replace(identity, schema_version=2))
    with writing(tables) as writer:
        writer.set_sums({table: total for table, total in (writer.sums() or {}).items() if table != "transitions"})
    tables.close()


@pytest.mark.parametrize("is_broken_off", [False, True])
async def test_transitions_are_found_in_the_log(tmp_path: Path, is_broken_off: bool) -> None:
    ledger, expected = await lived(tmp_path, compacted=False)
    paris = ledger.transitions(ClusterID("paris"))
    await ledger.close()
    make_schema_2(tmp_path)
    if is_broken_off:
        tables = Tables(tmp_path / FOLDER)
        with writing(tables) as writer:
            writer.begin_transitions()
            assert writer.find_transitions(writer.oldest_revision(), 5)
        tables.close()
    ledger = LmdbLedger.open(tmp_path)
    assert {resource: list(ledger.transitions(BERLIN, resource)) for resource in expected} == expected
    assert ledger.transitions(ClusterID("paris")) == paris
    await ledger.close()
    with snapshot(tmp_path) as tables:
        assert verify(tables, print).problems == 0


async def test_what_was_before_the_history_is_told_as_far_as_the_log_tells(tmp_path: Path) -> None:
    ledger, expected = await lived(tmp_path, compacted=True)
    oldest, (first, *_) = ledger.oldest_revision, ledger.read(ledger.oldest_revision, 1)
    await ledger.close()
    make_schema_2(tmp_path)
    ledger = LmdbLedger.open(tmp_path)
    assert ledger.transitions(BERLIN) == [Transition(oldest, first.time_ms, "STALE"), *expected[None][1:]]
    assert ledger.transitions(BERLIN, PODS.group_resource) == expected[PODS.group_resource][1:]
    await ledger.compact(ledger.revision)
    assert [each.state for each in ledger.transitions(BERLIN)] == ["LIVE"]
    await ledger.close()
    with snapshot(tmp_path) as tables:
        assert verify(tables, print).problems == 0
