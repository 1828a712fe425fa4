"""The rules by themselves; what they mean for a ledger is in the contract suite."""

from __future__ import annotations

import pytest

from federator.aggregator.ledger.planning import first_revision, outlived_by
from federator.aggregator.ledger.records import ClusterEntry, EntryType, ObjectEntry, TypeEntry
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.key import ObjectKey
from federator.errors import LedgerError
from tests.contract.ledger.member import PODS

BERLIN = ClusterID("berlin")


def entry(type_: EntryType, previous: int) -> ObjectEntry:
    return ObjectEntry(9, previous, type_, 1, ObjectKey(BERLIN, "", "pods", "shop", "web"), "v1", "uid", "10", 7, b"")


@pytest.mark.parametrize(
    ("type_", "previous", "gone"),
    [(EntryType.ADDED, 0, ()), (EntryType.MODIFIED, 4, (4,)), (EntryType.DELETED, 4, (4, 9))],
)
def test_a_change_outlives_the_state_before_it_and_a_deletion_itself(
    type_: EntryType, previous: int, gone: tuple[int, ...]
) -> None:
    assert outlived_by(entry(type_, previous)) == gone


def test_states_live_on_in_their_records_only() -> None:
    assert outlived_by(ClusterEntry(9, 1, BERLIN, ClusterState.LIVE)) == (9,)
    assert outlived_by(TypeEntry(9, 1, BERLIN, PODS, TypeState.LIVE)) == (9,)


def test_the_first_revision_leaves_room_below_what_a_float_holds() -> None:
    assert first_revision(1_800_000_000_999) == 1_800_000_000 << 20
    latest = ((1 << 32) - 1) * 1000
    assert first_revision(latest) < 1 << 52
    for now_ms in (latest + 1000, 0, -5000):
        with pytest.raises(LedgerError):
            first_revision(now_ms)
