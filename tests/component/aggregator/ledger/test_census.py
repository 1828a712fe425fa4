"""The census agrees with what was put in."""

from __future__ import annotations

from pathlib import Path

import pytest

from federator.aggregator.ledger.census import Census, take_census
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.maintenance import snapshot
from federator.aggregator.ledger.records import ObjectEntry
from federator.errors import LedgerCorrupt
from tests.component.aggregator.ledger.filled import CONFIG_MAPS, THEN, filled


def census_of(path: Path) -> Census:
    with snapshot(path) as tables:
        return take_census(tables)


async def test_a_census_counts_what_is_there(tmp_path: Path) -> None:
    await filled(tmp_path)
    census = census_of(tmp_path)
    ledger = LmdbLedger.open(tmp_path)
    statistics = ledger.statistics()
    assert census.ledger_id == ledger.cursors.ledger_id.hex()
    assert (census.revision, census.oldest_revision) == (ledger.revision, ledger.oldest_revision)
    assert (census.entries, census.objects) == (statistics["entries"], statistics["objects"])
    assert census.time_ms == census.oldest_time_ms == int(THEN * 1000)
    assert (tmp_path / "ledger" / "data.mdb").stat().st_size >= census.used_bytes > 0

    present = [entry for entry in ledger.present() if isinstance(entry, ObjectEntry)]
    assert [(each.cluster_id, each.resource) for each in census.types] == [
        ("berlin", CONFIG_MAPS.group_resource),
        ("paris", CONFIG_MAPS.group_resource),
    ]
    for each in census.types:
        assert each.objects == sum(entry.key.cluster_id == each.cluster_id for entry in present)
    berlin, paris = census.types
    assert (berlin.entries, paris.entries) == (27, 1)
    assert 0 < berlin.history_bytes < berlin.bytes
    assert paris.history_bytes == 0
    assert 0 < census.history_share < 1

    (dictionary,) = census.dictionaries
    (known,) = ledger.bodies
    assert (dictionary.dictionary_id, dictionary.bytes) == (known.dictionary_id, len(known.content))
    assert dictionary.bodies == 7
    assert dictionary.ratio is not None
    assert dictionary.ratio > 2
    await ledger.close()


async def test_a_new_ledger_has_nothing(tmp_path: Path) -> None:
    await LmdbLedger.open(tmp_path).close()
    census = census_of(tmp_path)
    assert (census.objects, census.entries, census.clusters, census.types) == (0, 0, 0, ())
    assert (census.oldest_time_ms, census.history_share) == (None, 0.0)


async def test_damage_is_said(tmp_path: Path) -> None:
    await filled(tmp_path)
    data_file = tmp_path / "ledger" / "data.mdb"
    data_file.write_bytes(data_file.read_bytes().replace(b'{"apiVersion', b'{"epiVersion'))
    with pytest.raises(LedgerCorrupt, match="damaged at"):
        census_of(tmp_path)
