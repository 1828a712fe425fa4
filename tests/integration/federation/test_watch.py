"""A watch sees each object's states in order, over restarts of aggregator and agent, and ends as List does."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from federator.api.cluster import ClusterState
from federator.api.key import ObjectKey
from federator.client import Event, EventType, FreshAsOf, InventoryClient, TransitionType
from federator.testing.testbed import Testbed
from tests.integration.federation.in_process import federated
from tests.integration.federation.recorder import Recorder, settled

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]


async def test_a_stored_cursor_resumes_without_loss_or_repeat_over_a_restart_of_the_aggregator(
    living_bed: Testbed, tmp_path: Path
) -> None:
    async with federated(living_bed, tmp_path, ["eu-1"], resources=("configmaps",)) as (federation, fed):
        cursor = await _first_cursor(fed)
        async with living_bed["eu-1"].client() as client:
            path = "/api/v1/namespaces/default/configmaps"
            await client.create(path, _config_map("kept", "1"))
            await client.create(path, _config_map("gone", "1"))
            await _until_held(fed, "gone")
            await federation.end("aggregator")
            await client.patch(f"{path}/kept", {"data": {"key": "2"}})
            await client.delete(f"{path}/gone")
            await federation.start_aggregator()
            await federation.wait_state(fed, ClusterState.LIVE)
            wanted = [
                (EventType.ADDED, "kept"),
                (EventType.ADDED, "gone"),
                (EventType.MODIFIED, "kept"),
                (EventType.DELETED, "gone"),
            ]
            first = await _events(fed, cursor, len(wanted))
            seen = [(event.type, event.object.name) for event in first if event.object]
            assert sorted(seen) == sorted(wanted)
            assert seen.index((EventType.ADDED, "gone")) < seen.index((EventType.DELETED, "gone"))
            numbers = range(1, len(first) + 1)
            rests = await asyncio.gather(
                *(_events(fed, first[number - 1].cursor, len(wanted) - number) for number in numbers)
            )
            assert rests == [first[number:] for number in numbers], "from any cursor, exactly the rest"
            await client.delete(f"{path}/kept")


async def test_a_cluster_that_goes_away_is_stale_its_objects_stay_and_no_watch_ends(
    living_bed: Testbed, tmp_path: Path
) -> None:
    async with (
        federated(living_bed, tmp_path, heartbeat=1.0, resources=("pods", "namespaces")) as (federation, fed),
        Recorder(fed, ["pods", "namespaces"]) as recorder,
    ):
        await recorder.synced.wait()
        before = await _revisions(fed, resources=("pods", "namespaces"), clusters="us-1")
        await federation.end("us-1")
        await federation.wait_state(fed, ClusterState.STALE, "us-1")
        answer = await fed.list("pods,namespaces", clusters="us-1")
        assert {item.key: item.revision for item in answer.items} == before, "nothing is deleted by silence"
        assert not answer.complete
        assert (await fed.list("pods,namespaces", clusters="!us-1")).complete, "the others are as they were"
        federation.start_agent("us-1", resources=("pods", "namespaces"))
        await federation.wait_state(fed, ClusterState.LIVE)
        await settled(recorder)
        states = [event.cluster.state for event in recorder.events if event.cluster]
        assert states == [ClusterState.STALE, ClusterState.RECOVERING, ClusterState.LIVE]
        meanings = [event.cluster.type for event in recorder.events if event.cluster]
        assert meanings == [TransitionType.STALE, None, TransitionType.RECOVERED]
        assert EventType.RELISTED not in {event.type for event in recorder.events}


async def test_what_was_written_to_a_member_is_in_the_next_answer_that_asks_for_it(
    living_bed: Testbed, tmp_path: Path
) -> None:
    async with (
        federated(living_bed, tmp_path, ["eu-1"], resources=("configmaps",)) as (_, fed),
        living_bed["eu-1"].client() as client,
    ):
        path = "/api/v1/namespaces/default/configmaps"
        cursor = await _first_cursor(fed)
        for value in ("1", "2", "3"):
            name = f"written-{value}"
            created = await client.create(path, _config_map(name, value))
            listed = await fed.list("configmaps", name=name, fresh_as_of=_as_of(created), fresh_within=60)
            assert [item.to_dict()["data"] for item in listed.items] == [{"key": value}]
            changed = await client.patch(f"{path}/{name}", {"data": {"key": f"changed-{value}"}})
            got = await fed.get("configmaps", name, namespace="default", fresh_as_of=_as_of(changed), fresh_within=60)
            assert got.object.to_dict()["data"] == {"key": f"changed-{value}"}
            await client.delete(f"{path}/{name}")
        changes = await _previous(fed, cursor, 3)
        assert [(before["data"], after["data"]) for before, after in changes] == [
            ({"key": value}, {"key": f"changed-{value}"}) for value in ("1", "2", "3")
        ]


def _as_of(written: dict[str, Any]) -> FreshAsOf:
    return FreshAsOf("eu-1", "configmaps", written["metadata"]["resourceVersion"])


async def _previous(
    fed: InventoryClient, cursor: bytes, number: int
) -> list[tuple[dict[str, object], dict[str, object]]]:
    """The object before and after each of the first modifications after a cursor."""
    found = []
    watch = fed.watch("configmaps", cursor=cursor, with_previous=True, timeout=20)
    async with aclosing(watch) as events:
        async for event in events:
            if event.type is EventType.MODIFIED and event.object and event.object.name.startswith("written-"):
                assert event.previous is not None
                found.append((event.previous.to_dict(), event.object.to_dict()))
                if len(found) == number:
                    break
    return found


async def _revisions(fed: InventoryClient, *, resources: tuple[str, ...], clusters: str) -> dict[ObjectKey, int]:
    answer = await fed.list(resources, clusters=clusters)
    return {item.key: item.revision for item in answer.items}


async def _first_cursor(fed: InventoryClient) -> bytes:
    return (await fed.list("configmaps")).cursor


async def _until_held(fed: InventoryClient, name: str) -> None:
    async with asyncio.timeout(20):
        async with aclosing(fed.watch("configmaps", name=name)) as events:
            async for event in events:
                if event.object is not None:
                    return


async def _events(fed: InventoryClient, cursor: bytes, number: int) -> list[Event]:
    """The first events of objects after a cursor, and the proof that no more come."""
    found: list[Event] = []
    async with aclosing(fed.watch("configmaps", cursor=cursor, bookmark_interval=1, timeout=20)) as events:
        async for event in events:
            if event.object is not None:
                found.append(event)
            elif event.type is EventType.BOOKMARK and len(found) >= number:
                break
    assert len(found) == number
    return found


def _config_map(name: str, value: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": value}}
