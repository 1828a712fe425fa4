"""A full ledger."""

from __future__ import annotations

import pytest

from federator.api.cluster import ClusterState
from federator.errors import LedgerFull
from tests.contract.ledger.conftest import OpenLedger
from tests.contract.ledger.member import Member, put

ROOM = 1 << 20


async def test_a_full_ledger_changes_nothing_goes_on_reading_and_takes_more_after_compaction(
    open_ledger: OpenLedger,
) -> None:
    ledger = open_ledger(ROOM)
    berlin = await Member.join(ledger)
    sequence = 0
    with pytest.raises(LedgerFull):
        for sequence in range(1, 100):
            await berlin.push(put("web", body=bytes(100_000)), sequence=sequence)
    assert 5 < sequence < 12
    revision, present = ledger.revision, list(ledger.present())

    with pytest.raises(LedgerFull):
        await berlin.push(put("web", body=bytes(100_000)), sequence=sequence)
    assert ledger.revision == revision
    assert list(ledger.present()) == present
    assert ledger.clusters()[berlin.record.cluster_id].durable_sequence == sequence - 1
    assert ledger.read(ledger.oldest_revision, 100)

    await ledger.set_cluster_state(berlin.record.cluster_id, ClusterState.STALE, "full")
    assert (await berlin.push(put("web", content_hash=present[0].content_hash))).entries == ()

    await ledger.compact(ledger.revision)
    assert (await berlin.push(put("web", body=bytes(100_000)), sequence=sequence)).entries
