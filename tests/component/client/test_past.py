"""`history` and `changes` of the client."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from federator.api.cluster import ClusterID, ClusterState
from federator.client import EventType, Gap, Limits, ObjectVersion, aconnect
from federator.errors import AggregatorUnreachable, InvalidInput, RevisionExpired
from federator.v1 import inventory_pb2, types_pb2
from tests.component.client.scripted_inventory import ScriptedInventory, freshness, inventory_object

THEN = datetime(2026, 11, 29, 10, 0, tzinfo=UTC)
THEN_MS = int(THEN.timestamp() * 1000)


def version(revision: int, kind: str = "MODIFIED", **fields: object) -> inventory_pb2.HistoryEntry:
    """A version, a second for each revision after `THEN`."""
    number = inventory_pb2.WatchEventType.Value(f"WATCH_EVENT_TYPE_{kind}")
    known = {"uid": "uid-web", "resource_version": "7", "time_ms": THEN_MS + 1000 * revision} | fields
    return inventory_pb2.HistoryEntry(
        version=inventory_pb2.ObjectVersion(type=number, revision=revision, **known)  # type: ignore[arg-type]
    )


def gap(begin: int, end: int, reason: str = "agent silent") -> inventory_pb2.HistoryGap:
    """A gap, likewise; 0 for one that lasts."""
    return inventory_pb2.HistoryGap(
        from_revision=begin,
        to_revision=end,
        from_ms=THEN_MS + 1000 * begin,
        to_ms=THEN_MS + 1000 * end if end else 0,
        state=types_pb2.CLUSTER_STATE_STALE,
        reason=reason,
    )


def history_summary(**fields: object) -> inventory_pb2.HistorySummary:
    known = {"revision": 20, "oldest_revision": 2, "freshness": freshness("eu-1")} | fields
    return inventory_pb2.HistorySummary(**known)  # type: ignore[arg-type]


async def test_history(inventory: ScriptedInventory) -> None:
    web = inventory_object("eu-1", "web", revision=9)
    inventory.history_parts = [
        inventory_pb2.GetHistoryResponse(
            entries=[
                version(9, previous_revision=5, patch=b'[{"op":"add","path":"/a","value":1}]', object=web),
                inventory_pb2.HistoryEntry(gap=gap(6, 8)),
            ]
        ),
        inventory_pb2.GetHistoryResponse(
            entries=[version(5, "ADDED")], summary=history_summary(next_before_revision=5)
        ),
    ]
    async with aconnect(inventory.address) as fed:
        found = await fed.history(
            "pods",
            "web",
            namespace="shop",
            cluster="eu-1",
            before_revision=11,
            since=THEN,
            limit=7,
            with_objects=True,
            limits=Limits(time=2),
        )
    (asked,) = inventory.requests
    assert asked == inventory_pb2.GetHistoryRequest(
        cluster_id="eu-1",
        resource="pods",
        namespace="shop",
        name="web",
        before_revision=11,
        since_ms=THEN_MS,
        limit=7,
        with_objects=True,
        limits=inventory_pb2.Limits(time_ms=2000),
    )
    newest, between, first = found.entries
    assert isinstance(newest, ObjectVersion)
    assert (newest.type, newest.revision, newest.previous_revision) == (EventType.MODIFIED, 9, 5)
    assert newest.time == THEN.timestamp() + 9
    assert (newest.uid, newest.resource_version) == ("uid-web", "7")
    assert newest.operations() == [{"op": "add", "path": "/a", "value": 1}]
    assert newest.object is not None
    assert newest.object.name == "web"
    assert between == Gap(6, 8, THEN.timestamp() + 6, THEN.timestamp() + 8, ClusterState.STALE, "agent silent")
    assert found.versions == (newest, first)
    assert isinstance(first, ObjectVersion)
    assert (first.operations(), first.object) == ([], None)
    assert (found.revision, found.oldest_revision, found.next_before_revision) == (20, 2, 5)
    assert found.freshness.cluster_id == "eu-1"


async def test_changes(inventory: ScriptedInventory) -> None:
    web = inventory_object("eu-1", "web", revision=9)
    change = inventory_pb2.ObjectChange(
        type=inventory_pb2.WATCH_EVENT_TYPE_MODIFIED,
        object=web,
        previous_revision=3,
        revision=9,
        time_ms=THEN_MS,
        versions=4,
        patch=b'[{"op":"remove","path":"/a"}]',
    )
    inventory.change_parts = [
        inventory_pb2.GetChangesResponse(changes=[change]),
        inventory_pb2.GetChangesResponse(
            changes=[change],
            summary=inventory_pb2.ChangesSummary(
                after_revision=4,
                until_revision=12,
                total=5,
                complete=True,
                clusters=[freshness("eu-1")],
                gaps=[inventory_pb2.ClusterGap(cluster_id="eu-1", gap=gap(6, 0))],
                scan=inventory_pb2.Scan(objects=30, history=True),
            ),
        ),
    ]
    async with aconnect(inventory.address) as fed:
        found = await fed.changes(
            "pods,nodes",
            after=THEN,
            until=12,
            clusters="eu-*",
            cluster_labels="env=prod",
            namespace="shop",
            name="web",
            labels="app=web",
            fields="spec.x=1",
            with_transient=True,
            with_patches=True,
            limit=2,
            limits=Limits(scanned_objects=9),
        )
        await fed.changes("pods", after=4)
    asked, plain = inventory.requests
    assert asked == inventory_pb2.GetChangesRequest(
        selection=inventory_pb2.Selection(
            resources=["pods", "nodes"],
            clusters=["eu-*"],
            cluster_selector="env=prod",
            namespace="shop",
            name="web",
            label_selector="app=web",
            field_selector="spec.x=1",
        ),
        after_time_ms=THEN_MS,
        until_revision=12,
        with_transient=True,
        with_patches=True,
        limit=2,
        limits=inventory_pb2.Limits(scanned_objects=9),
    )
    assert (plain.after_revision, plain.WhichOneof("until")) == (4, None)
    first, second = found.changes
    assert first == second
    assert (first.type, first.previous_revision, first.revision, first.versions) == (EventType.MODIFIED, 3, 9, 4)
    assert first.time == THEN.timestamp()
    assert first.operations() == [{"op": "remove", "path": "/a"}]
    assert first.object.key.name == "web"
    assert (found.after_revision, found.until_revision, found.total, found.complete) == (4, 12, 5, True)
    (lasting,) = found.gaps[ClusterID("eu-1")]
    assert (lasting.end, lasting.to_revision) == (None, 0)
    assert list(found.clusters) == ["eu-1"]
    assert found.scan is not None
    assert (found.scan.objects, found.scan.history) == (30, True)


async def test_an_answer_without_its_end_is_none(inventory: ScriptedInventory) -> None:
    inventory.history_parts = [inventory_pb2.GetHistoryResponse(entries=[version(5)])]
    inventory.change_parts = [inventory_pb2.GetChangesResponse()]
    async with aconnect(inventory.address) as fed:
        with pytest.raises(AggregatorUnreachable, match="before its last part"):
            await fed.history("pods", "web")
        with pytest.raises(AggregatorUnreachable, match="before their last part"):
            await fed.changes("pods", after=1)


async def test_refusals_are_raised(inventory: ScriptedInventory) -> None:
    inventory.history_parts = inventory.change_parts = [RevisionExpired(3, 7)]
    async with aconnect(inventory.address) as fed:
        for call in (fed.history("pods", "web", before_revision=3), fed.changes("pods", after=3)):
            with pytest.raises(RevisionExpired) as raised:
                await call
            assert raised.value.oldest == 7
        with pytest.raises(InvalidInput, match="since"):
            await fed.history("pods", "web", since=datetime(2026, 11, 29))
