"""Two agents that claim one cluster: the newer one takes over from one that is silent, and they take no turns."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from federator.agent.agent import AgentPhase
from federator.aggregator.ingest.settings import IngestSettings
from federator.api.cluster import ClusterID, ClusterState
from federator.errors import ClusterHeld
from federator.testing.process_group import Process, ProcessGroup
from tests.fixtures import no_proxies, no_system_authorities, no_task_is_left
from tests.robustness.linked_bed import (
    LinkedBed,
    Member,
    changes,
    eventually,
    fill,
    recorded,
    terms,
)

__all__ = ["no_proxies", "no_system_authorities", "no_task_is_left"]

TRIES = 80
"""Of the one that waits: as many as an agent with the default waits makes in ten minutes."""


CALM = IngestSettings(heartbeat_interval=1.5)
"""Beats slow enough that on a busy machine nobody is taken for silent who is not."""

WAITS = {"backoff_min": 0.01, "backoff_max": 0.05}
"""Seconds."""


async def test_a_frozen_agents_cluster_is_taken_over_once_and_the_frozen_one_waits(tmp_path: Path) -> None:
    """An agent's process is stopped beyond the time that its cluster is held for it; another takes over; it wakes."""
    async with LinkedBed(tmp_path, ("c0",), ingest=CALM) as bed:
        member = bed["c0"]
        names = fill(member.apiserver, 50)
        group = ProcessGroup()
        try:
            older = _agent_process(group, tmp_path, bed, member, "older")
            await bed.wait_state(ClusterState.LIVE)
            first = _holder(bed)
            newer = _agent_process(group, tmp_path, bed, member, "newer")
            await eventually(lambda: _refusals(bed).get("CLUSTER_HELD"))
            assert _holder(bed) == first
            async with recorded(bed) as recorder:
                older.pause()
                member.apiserver.delete("pods", names[0])
                await eventually(lambda: _holder(bed) != first)
                second = _holder(bed)
                await bed.wait_state(ClusterState.LIVE)
                await eventually(lambda: changes(recorder.events, "c0") == [("DELETED", names[0])])
                refused = _refusals(bed)["CLUSTER_HELD"]
                member.apiserver.touch("pods", names[1])
                older.resume()
                # It finds its session ended, tells that it is a standby now, and goes on asking.
                await eventually(lambda: _refusals(bed)["CLUSTER_HELD"] >= refused + 2)
                await bed.equal()
                await eventually(lambda: len(changes(recorder.events, "c0")) == 2)
                assert changes(recorder.events, "c0") == [("DELETED", names[0]), ("MODIFIED", names[1])]
            assert _holder(bed) == second
            assert terms(bed, "c0") == 2, "the cluster changed hands once"
            ends = bed.aggregator.statistics()["ingest"]["session_ends"]
            assert ends == {"SESSION_FENCED": 1}
            assert older.running
            assert "CLUSTER_HELD" in older.log.read_text()
            assert newer.running
        finally:
            group.close()


async def test_the_one_that_lost_its_cluster_asks_for_ten_minutes_and_no_turns_are_taken(tmp_path: Path) -> None:
    """The older agent's link carries nothing for longer than its cluster is held, and is back for good."""
    async with LinkedBed(tmp_path, ("c0",), ingest=CALM) as bed:
        await bed.start_agents(**WAITS)
        member = bed["c0"]
        fill(member.apiserver, 20)
        await bed.equal()
        older, older_task = member.agent, member.task  # the link is its own
        try:
            member.start_agent(bed.ingest_address, **WAITS)
            newer = member.agent
            await eventually(lambda: isinstance(newer.status().error, ClusterHeld))
            member.link.black_hole()
            await eventually(lambda: newer.status().phase is AgentPhase.PUSHING)
            await bed.wait_state(ClusterState.LIVE)
            holder = _holder(bed)
            member.link.heal()
            before = _refusals(bed)["CLUSTER_HELD"]
            await eventually(lambda: _refusals(bed)["CLUSTER_HELD"] >= before + TRIES, timeout=90)
            assert isinstance(older.status().error, ClusterHeld)
            assert older.status().phase is AgentPhase.WAITING_FOR_AGGREGATOR
            assert newer.status().phase is AgentPhase.PUSHING
            assert _holder(bed) == holder
            assert terms(bed, "c0") == 2, "the cluster changed hands once"
            member.apiserver.touch("pods", "po-0")
            await bed.equal()
        finally:
            older_task.cancel()
            await asyncio.gather(older_task, return_exceptions=True)


def _agent_process(group: ProcessGroup, folder: Path, bed: LinkedBed, member: Member, name: str) -> Process:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FEDERATOR_")}
    return group.launch_module(
        name,
        "tests.robustness.hasty",
        [
            "agent",
            f"--kubeconfig={member.kubeconfig}",
            f"--context={member.name}",
            f"--aggregator={bed.ingest_address}",
        ],
        log=folder / f"{name}.log",
        folder=folder,
        environment=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )


def _holder(bed: LinkedBed) -> str:
    parts = bed.aggregator._parts
    assert parts is not None
    return parts.ledger.clusters()[ClusterID("c0")].agent_instance


def _refusals(bed: LinkedBed) -> dict[str, int]:
    refusals: Any = bed.aggregator.statistics()["ingest"]["refusals"]
    return dict(refusals)
