"""A watch opened before, during and after changes sees each object's states in order and ends as List does."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from federator.api.cluster import ClusterState
from federator.api.key import ObjectKey
from federator.client import Event, EventType, FreshAsOf, InventoryClient, TransitionType
from federator.testing.testbed import Testbed
from federator.testing.workload import Workload
from tests.integration.federation.in_process import federated
from tests.integration.federation.recorder import Recorder

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

TYPES = ("pods", "deployments", "replicasets", "configmaps", "services")


async def test_watches_opened_before_during_and_after_changes_end_as_list_does(
    living_bed: Testbed, tmp_path: Path
) -> None:
    async with federated(living_bed, tmp_path) as (_, fed):
        workloads = [Workload(plane, namespaces=("watched",), seed=3) for plane in living_bed]
        await asyncio.gather(*(workload.fill(applications=4) for workload in workloads))
        async with AsyncExitStack() as recorders:
            before = await recorders.enter_async_context(Recorder(fed, TYPES))
            selected = await recorders.enter_async_context(Recorder(fed, TYPES, labels="track=stable"))
            async with asyncio.TaskGroup() as churns:
                running = [churns.create_task(workload.churn(rate=6)) for workload in workloads]
                await asyncio.sleep(4)
                during = await recorders.enter_async_context(Recorder(fed, TYPES))
                await asyncio.sleep(4)
                for churn in running:
                    churn.cancel()
            after = await recorders.enter_async_context(Recorder(fed, TYPES))
            wanted = await _settled(fed)
            for recorder in (before, during, after):
                await recorder.wait_for(wanted)
            await selected.wait_for(await _revisions(fed, labels="track=stable"))
            kinds = {event.type for event in before.events}
            assert {EventType.ADDED, EventType.MODIFIED, EventType.DELETED, EventType.INITIAL_END} <= kinds
            left = [event for event in selected.events if event.type is EventType.DELETED and event.object]
            assert any(event.object and event.object.key in wanted for event in left), "relabelled objects left"


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
            for number, event in enumerate(first, 1):
                rest = await _events(fed, event.cursor, len(wanted) - number)
                assert rest == first[number:], "from any cursor, exactly the rest"
            await client.delete(f"{path}/kept")


async def test_a_cluster_that_goes_away_is_stale_its_objects_stay_and_no_watch_ends(
    living_bed: Testbed, tmp_path: Path
) -> None:
    async with (
        federated(living_bed, tmp_path, resources=("pods", "namespaces")) as (federation, fed),
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
        await recorder.wait_for(await _settled(fed, resources=("pods", "namespaces")))
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


async def _settled(fed: InventoryClient, resources: tuple[str, ...] = TYPES) -> dict[ObjectKey, int]:
    """What List holds once nothing has changed for two seconds and nobody is behind."""
    async with asyncio.timeout(90):
        last: dict[ObjectKey, int] | None = None
        while True:
            answer = await fed.list(resources)
            now = {item.key: item.revision for item in answer.items} if answer.complete else None
            if now is not None and now == last:
                return now
            last = now
            await asyncio.sleep(2)


async def _revisions(
    fed: InventoryClient, *, resources: tuple[str, ...] = TYPES, labels: str = "", clusters: str = ""
) -> dict[ObjectKey, int]:
    answer = await fed.list(resources, labels=labels, clusters=clusters)
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
