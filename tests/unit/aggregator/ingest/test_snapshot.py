"""Snapshot: what the end of a listing deletes, and what it must not."""

from __future__ import annotations

import pytest

from federator.aggregator.ingest.snapshot import Snapshot
from federator.aggregator.ledger.records import Delete, Put, StoredKey
from tests.unit.agent.scripted_cluster import PODS


def doomed(snapshot: Snapshot, *stored: tuple[str, str, str], version: str = "100") -> list[str]:
    """What is doomed of objects that are stored with these namespaces, names and resourceVersions."""
    keys = [StoredKey(namespace, name, revision) for revision, (namespace, name, _) in enumerate(stored)]
    found = snapshot.doomed(keys, version, lambda revision: stored[revision][2])
    return [f"{each.namespace}/{each.name}" for each in found]


def test_what_was_not_named_is_doomed() -> None:
    snapshot = Snapshot(PODS)
    snapshot.name([Put("ns", "a", "u", "5", 1, b""), Delete("ns", "b")])
    snapshot.refused("ns", "c")
    stored = [("ns", name, "5") for name in "abcd"] + [("other", "a", "5")]
    assert doomed(snapshot, *stored) == ["ns/d", "other/a"]


@pytest.mark.parametrize(
    ("stored", "listed", "is_doomed"),
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
def test_a_lagging_list_does_not_delete_what_is_newer(stored: str, listed: str, *, is_doomed: bool) -> None:
    assert bool(doomed(Snapshot(PODS), ("ns", "a", stored), version=listed)) is is_doomed


def test_namespace_and_name_are_not_confused() -> None:
    snapshot = Snapshot(PODS)
    snapshot.name([Put("", "a", "u", "5", 1, b"")])
    assert doomed(snapshot, ("a", "a", "5"), ("", "a", "5")) == ["a/a"]
