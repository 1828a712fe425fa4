"""Bugs of what is between many clusters and one reader: outages of one that others, or later watches, suffer from."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from federator.agent.agent import AgentPhase
from federator.aggregator.ingest.settings import IngestSettings
from federator.api.cluster import ClusterState, TypeState
from federator.client import EventType
from federator.testing import faults
from tests.robustness.linked_bed import TYPES, LinkedBed, changes, eventually, fill, recorded
from tests.scale import scale, scaled

pytestmark = pytest.mark.timeout(120)

MANY = scale(50, quick=10)
DARK = ("c00", "c04", f"c{MANY - 1:02}")
"""The first, the last, and one in between: whoever went through all in order would be kept by one of them."""


@pytest.mark.parametrize("is_known", [True, False], ids=["seen before", "never seen"])
async def test_bug41_a_cluster_that_recovers_comes_on_watches_opened_meanwhile_and_says_when_it_is_whole(
    tmp_path: Path, is_known: bool
) -> None:
    """A watch is opened while a cluster is out of reach; what it then brings comes on that watch, and a mark after."""
    async with LinkedBed(tmp_path, ("c0", "c1")) as bed:
        lost = bed["c1"]
        fill(lost.apiserver, 40)
        if is_known:
            await bed.start_agents()
        else:
            await bed.start_agents("c0")
        lost.link.black_hole()
        if is_known:
            await bed.wait_state(ClusterState.STALE, "c1")
        else:
            lost.start_agent(lost.link.address, welcome_timeout=0.5)
        async with recorded(bed) as recorder:
            for number in range(20):
                lost.apiserver.put("pods", f"new-{number}")
            lost.apiserver.delete("pods", "po-0")
            if is_known:  # its agent has given the session up, so there is another one to begin with
                await eventually(lambda: lost.agent.status().phase is AgentPhase.WAITING_FOR_AGGREGATOR)
            lost.link.heal()
            await eventually(lambda: recorder.members.get("c1") is ClusterState.LIVE, timeout=20)  # type: ignore[call-overload]
            whole = [
                number
                for number, event in enumerate(recorder.events)
                if event.type is EventType.CLUSTER
                and event.cluster is not None
                and (event.cluster.cluster_id, event.cluster.state) == ("c1", ClusterState.LIVE)
            ]
            brought = Counter(changes(recorder.events[: whole[0]], "c1"))
            assert len(whole) == 1
            assert {("ADDED", f"new-{number}") for number in range(20)} <= brought.keys()
            if is_known:
                assert brought["DELETED", "po-0"] == 1
                assert sum(brought.values()) == 21
            else:
                assert sum(brought.values()) == 59
            assert changes(recorder.events[whole[0] :], "c1") == [], "nothing of it came after it was said to be whole"
            await bed.equal()


@scaled
async def test_bug42_clusters_out_of_reach_keep_nobody_waiting_and_are_named(tmp_path: Path) -> None:
    """Three of many links carry nothing from before the aggregator starts: it serves the others, and names these."""
    names = tuple(f"c{number:02}" for number in range(MANY))
    async with LinkedBed(tmp_path, names, ingest=IngestSettings(heartbeat_interval=MANY / 16)) as bed:
        for name in names:
            fill(bed[name].apiserver, 3)
        await bed.start_agents(resources=("pods",), welcome_timeout=MANY / 25)
        await bed.stop_aggregator()
        for name in DARK:
            bed[name].link.black_hole()
            bed[name].apiserver.touch("pods", "po-0")
        await bed.start_aggregator()
        reached = [name for name in names if name not in DARK]
        await bed.wait_state(ClusterState.LIVE, *reached, timeout=60)
        answer = await bed.fed.list("pods", timeout=10)
        assert not answer.complete
        assert {name for name, cluster in answer.clusters.items() if cluster.incomplete_types} == set(DARK)
        assert {answer.clusters[name].state for name in DARK} == {ClusterState.STALE}  # type: ignore[index]
        assert len(answer.items) == 3 * MANY, "what was known of them is still there"
        listed = await bed.fed.clusters()
        assert {one.cluster_id: one.reason for one in listed.clusters if one.state is ClusterState.STALE} == (
            dict.fromkeys(DARK, "aggregator restarted")
        )
        assert (await bed.fed.list("pods", clusters=reached, timeout=10)).complete
        await _tried(bed, 1)
        tasks = _tasks()
        await _tried(bed, 1)
        assert _tasks() == tasks, "another try leaves no task"
        for name in DARK:
            assert bed[name].agent.status().phase is AgentPhase.WAITING_FOR_AGGREGATOR
            bed[name].link.heal()
        await bed.wait_state(ClusterState.LIVE, timeout=30)
        await bed.equal(*DARK, "c01", types=("pods",))


async def _tried(bed: LinkedBed, tries: int) -> None:
    """Each agent out of reach has tried so often more to open a session."""
    links = [bed[name].link for name in DARK]
    wanted = [link.statistics()["accepted"] + tries for link in links]
    await eventually(
        lambda: all(link.statistics()["accepted"] >= number for link, number in zip(links, wanted, strict=True)),
        timeout=60,
    )


def _tasks() -> set[str]:
    """Named tasks of the product that run now."""
    names = {task.get_name() for task in asyncio.all_tasks()}
    return {name for name in names if not name.startswith(("Task-", "fault proxy", "fake apiserver", "rpc"))}


@pytest.mark.parametrize("when", ["at the start", "later"])
@pytest.mark.usefixtures("quick_retries")
async def test_bug46_a_type_that_is_forbidden_concerns_no_other(tmp_path: Path, when: str) -> None:
    """Lists and watches of one type are answered 403; the others of the cluster, and of other clusters, go on."""
    async with LinkedBed(tmp_path, ("c0", "c1")) as bed:
        member = bed["c0"]
        for each in bed.members.values():
            fill(each.apiserver, 10)
            fill(each.apiserver, 4, resource="deployments.apps")
        if when == "later":
            await bed.start_agents()
        forbidding = [
            member.apiserver.fail(verb, "deployments.apps", faults.HttpError(403), times=None)
            for verb in ("list", "watch")
        ]
        if when == "later":
            member.apiserver.end_watches("deployments.apps")
        else:
            await bed.start_agents()
        await eventually(lambda: _state(bed, "deployments.apps") is TypeState.DENIED, timeout=30)
        assert {_state(bed, name) for name in TYPES if name != "deployments.apps"} == {TypeState.LIVE}
        await bed.wait_state(ClusterState.LIVE)
        async with recorded(bed) as recorder:
            member.apiserver.touch("pods", "po-0")
            await eventually(lambda: ("MODIFIED", "po-0") in changes(recorder.events, "c0"))
            assert (await bed.fed.list("pods")).complete
            degraded = await bed.fed.list("deployments.apps")
            assert not degraded.complete
            (incomplete,) = degraded.clusters["c0"].incomplete_types  # type: ignore[index]
            assert (incomplete.group_resource.resource, incomplete.state) == ("deployments", TypeState.DENIED)
            assert not degraded.clusters["c1"].incomplete_types  # type: ignore[index]
            assert len(degraded.items) == (8 if when == "later" else 4), "what was seen before stays"
            for injection in forbidding:
                injection.cancel()
            await eventually(lambda: _state(bed, "deployments.apps") is TypeState.LIVE, timeout=30)
            await bed.equal()


def _state(bed: LinkedBed, resource: str) -> TypeState | None:
    return next(
        (
            health.state
            for health in bed["c0"].agent.status().types
            if str(health.resource_type.group_resource) == resource
        ),
        None,
    )
