"""Snapshot: what the end of a listing deletes, and what it must not."""

from __future__ import annotations

import pytest

from federator.aggregator.ingest.frames import PushedDigest, SnapshotBegin
from federator.aggregator.ingest.snapshot import Snapshot
from federator.aggregator.ledger.records import Delete, Put
from federator.wire.digest import Digest
from tests.unit.agent.scripted_cluster import PODS


def test_what_was_spoken_of_is_named() -> None:
    snapshot = Snapshot(SnapshotBegin(PODS, "100", PushedDigest(Digest(), frozenset({("ns", "left-out")}))))
    snapshot.name([Put("ns", "a", "u", "5", 1, b""), Delete("ns", "b")])
    snapshot.leave_out([("ns", "c")])
    assert all(snapshot.is_named("ns", name) for name in ("a", "b", "c", "left-out"))
    assert not snapshot.is_named("ns", "d")
    assert not snapshot.is_named("other", "a")


@pytest.mark.parametrize(
    ("stored", "listed", "is_gone"),
    [
        ("99", "100", True),
        ("100", "100", True),
        ("101", "100", False),
        ("1000", "999", False),
        ("abc", "100", True),
        ("", "100", True),
        ("101", "abc", True),
    ],
)
def test_a_lagging_list_does_not_delete_what_is_newer(stored: str, listed: str, *, is_gone: bool) -> None:
    assert Snapshot(SnapshotBegin(PODS)).is_gone(stored, listed) is is_gone


def test_after_a_restore_nothing_is_newer() -> None:
    assert Snapshot(SnapshotBegin(PODS, is_restored=True)).is_gone("101", "100")


def test_namespace_and_name_are_not_confused() -> None:
    snapshot = Snapshot(SnapshotBegin(PODS))
    snapshot.name([Put("", "a", "u", "5", 1, b"")])
    assert snapshot.is_named("", "a")
    assert not snapshot.is_named("a", "a")
