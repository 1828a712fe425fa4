"""Links between agents and the aggregator that carry nothing, or late, or in crumbs, or break, under a watch."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from federator.agent.pusher import PusherState
from federator.aggregator.ingest.settings import IngestSettings
from federator.api.cluster import ClusterState
from federator.testing import FakeApiServer
from federator.testing.fault_proxy import Conditions
from tests.fixtures import no_proxies, no_system_authorities, no_task_is_left
from tests.robustness.linked_bed import (
    TOLD_WITHIN,
    TYPES,
    LinkedBed,
    changes,
    deltas,
    eventually,
    fill,
    linked_bed,
    recorded,
    snapshots,
    terms,
)

__all__ = ["no_proxies", "no_system_authorities", "no_task_is_left"]

BAD = Conditions(delay=0.075, jitter=0.05, loss=0.5, retransmit_after=0.03, slice_bytes=61)
"""Half of all chunks lost, half of those again and so on, which makes what follows wait for up to a second."""


async def test_a_link_that_carries_nothing_makes_its_cluster_stale_and_brings_only_what_changed_when_it_returns(
    tmp_path: Path,
) -> None:
    """The network between an agent and the aggregator swallows everything, and neither end is told."""
    async with linked_bed(tmp_path, "c0", "c1") as bed:
        lost, other = bed["c0"], bed["c1"]
        for member in (lost, other):
            fill(member.apiserver, 100)
        await bed.equal()
        async with recorded(bed) as recorder:
            lists, taken, before = lost.lists(), snapshots(bed, "c0"), deltas(bed, "c0")
            lost.link.black_hole()
            lost.apiserver.touch("pods", "po-0")
            lost.apiserver.delete("pods", "po-1")
            lost.apiserver.put("pods", "new")
            await bed.wait_state(ClusterState.STALE, "c0")
            await eventually(lambda: recorder.members.get("c0") is ClusterState.STALE)  # type: ignore[call-overload]
            other.apiserver.put("pods", "elsewhere")
            await eventually(lambda: ("ADDED", "elsewhere") in changes(recorder.events, "c1"))
            answer = await bed.fed.list("pods")
            assert not answer.complete
            assert answer.clusters["c0"].state is ClusterState.STALE  # type: ignore[index]
            assert sum(item.cluster_id == "c0" for item in answer.items) == 100, "silence deletes nothing"
            assert changes(recorder.events, "c0") == []
            await eventually(lambda: lost.agent.status().session.state is not PusherState.OPEN)
            lost.link.heal()
            await bed.wait_state(ClusterState.LIVE)
            await bed.equal()
            await eventually(lambda: len(changes(recorder.events, "c0")) == 3)
            assert sorted(changes(recorder.events, "c0")) == [
                ("ADDED", "new"),
                ("DELETED", "po-1"),
                ("MODIFIED", "po-0"),
            ]
        assert deltas(bed, "c0") - before == Counter({"ADDED": 1, "MODIFIED": 1, "DELETED": 1})
        assert lost.lists() == lists, "nothing was listed anew"
        assert snapshots(bed, "c0") == taken
        ends = bed.aggregator.statistics()["ingest"]["session_ends"]
        # On a very busy machine the other cluster's session may have ended, too.
        opened = terms(bed, "c0") + terms(bed, "c1")
        assert sum(ends.values()) == opened - 2  # type: ignore[attr-defined]
        assert set(ends) <= {"broken", "SESSION_FENCED"}  # type: ignore[call-overload]


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_link_that_carries_nothing_one_way_loses_nothing(tmp_path: Path, direction: str) -> None:
    """A middlebox lets only one direction pass: frames without acknowledgements, or the other way round."""
    async with linked_bed(tmp_path, "c0") as bed:
        member = bed["c0"]
        names = fill(member.apiserver, 50)
        await bed.equal()
        lists = member.lists()
        member.link.black_hole(direction)  # type: ignore[arg-type]
        for name in names[:20]:
            member.apiserver.touch("pods", name)
        for name in names[20:30]:
            member.apiserver.delete("pods", name)
        if direction == "up":
            await bed.wait_state(ClusterState.STALE)
        else:
            await eventually(lambda: member.agent.status().session.state is not PusherState.OPEN)
        member.link.heal()
        await bed.wait_state(ClusterState.LIVE)
        await bed.equal()
        assert member.lists() == lists


@pytest.mark.parametrize(
    "conditions",
    [pytest.param(BAD, id="late, lossy and in crumbs"), pytest.param(Conditions(reset=0.03), id="reset by chance")],
)
async def test_bad_links_change_nothing_but_the_time_it_takes(tmp_path: Path, conditions: Conditions) -> None:
    """All agents' links at once are slow, lossy and cut everything into crumbs, or break again and again."""
    names = ("c0", "c1")
    async with LinkedBed(tmp_path, names, ingest=IngestSettings(heartbeat_interval=1.5)) as bed:
        for number, name in enumerate(names):
            bed[name].link.apply(conditions)
            fill(bed[name].apiserver, 20 + number)
        await bed.start_agents()
        async with recorded(bed) as recorder:
            for round_ in range(8):
                for number, name in enumerate(names):
                    churn(bed[name].apiserver, random.Random(f"{number} {round_}"))
                await asyncio.sleep(0.1)
            await bed.equal()
            answer = await bed.fed.list(TYPES)
            await recorder.wait_for({item.key: item.revision for item in answer.items}, TOLD_WITHIN)
        totals = sum((Counter(bed[name].link.statistics()) for name in names), Counter())
        assert totals["losses"] if conditions.loss else totals["reset"]


def churn(apiserver: FakeApiServer, source: random.Random) -> None:
    """Some changes, deletions and re-creations under the same name."""
    names = [f"po-{number}" for number in range(25)]
    for name in source.sample(names, 5):
        apiserver.put("pods", name, labels={"round": str(source.random())})
    for name in source.sample(_there(apiserver), 3):
        apiserver.delete("pods", name)
        if source.random() < 0.5:
            apiserver.put("pods", name)
    apiserver.put("configmaps", "c", data={"of": str(source.random())})


def _there(apiserver: FakeApiServer) -> Sequence[str]:
    return sorted(pod["metadata"]["name"] for pod in apiserver.list("pods"))


async def test_links_that_break_all_at_once_are_resumed(tmp_path: Path) -> None:
    """Every agent's connection is reset in the same instant, as a load balancer's restart does it."""
    names = tuple(f"c{number}" for number in range(4))
    async with linked_bed(tmp_path, *names) as bed:
        for name in names:
            fill(bed[name].apiserver, 30)
        await bed.equal()
        lists = {name: bed[name].lists() for name in names}
        for _ in range(3):
            for name in names:
                bed[name].apiserver.touch("pods", "po-0")
                bed[name].link.reset_connections()
            await asyncio.sleep(0.2)
        await bed.wait_state(ClusterState.LIVE)
        await bed.equal()
        assert {name: bed[name].lists() for name in names} == lists
