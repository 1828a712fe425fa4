"""What goes wrong between an apiserver and its agent, as a client of the federation sees it: only real differences."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest

from federator.aggregator.ledger.records import Batch, Delete, Put
from federator.api.cluster import ClusterID, ClusterState
from federator.client import Event
from federator.testing import faults
from federator.wire.body import content_hash
from tests.fixtures import no_proxies, no_system_authorities, no_task_is_left
from tests.robustness.linked_bed import (
    TOLD_WITHIN,
    TYPES,
    LinkedBed,
    LinkedMember,
    changes,
    eventually,
    fill,
    linked_bed,
    recorded,
)

__all__ = ["no_proxies", "no_system_authorities", "no_task_is_left"]


@pytest.mark.parametrize("is_forgotten", [False, True], ids=["in history", "out of history"])
async def test_an_object_deleted_between_list_and_watch_reaches_clients_as_deleted(
    tmp_path: Path, is_forgotten: bool
) -> None:
    """An agent has listed an object that is gone before it watches; the watch replays that, or is refused with 410."""
    async with LinkedBed(tmp_path, ("c0", "c1")) as bed:
        await bed.start_agents("c1")
        member = bed["c0"]
        fill(member.apiserver, 20)
        member.apiserver.put("pods", "phantom")
        member.apiserver.fail("watch", "pods", faults.BlackHole())  # is not answered
        async with recorded(bed) as recorder:
            member.start_agent(member.link.address)
            await eventually(lambda: ("ADDED", "phantom") in changes(recorder.events, "c0"))
            assert not member.apiserver.watches("pods"), "the watch would have told it"
            member.apiserver.delete("pods", "phantom")
            if is_forgotten:
                member.apiserver.compact()
            member.apiserver.reset_connections()  # and is asked for again
            await eventually(lambda: ("DELETED", "phantom") in changes(recorder.events, "c0"))
            assert [each for each in changes(recorder.events, "c0") if each[1] == "phantom"] == [
                ("ADDED", "phantom"),
                ("DELETED", "phantom"),
            ]
            await bed.wait_state(ClusterState.LIVE)
            await bed.equal()
        assert member.apiserver.requests.of("list", "pods")


WAYS_APART = {
    "the watch is resumed": "resumed",
    "the watch is refused with 410": "forgotten",
    "the agent is another one": "restarted",
    "the aggregator is out of reach": "unlinked",
}


@pytest.mark.parametrize("how", WAYS_APART.values(), ids=list(WAYS_APART))
@pytest.mark.parametrize("name", ["another", "po-0"], ids=["another name", "the same name"])
async def test_an_object_swapped_for_another_meanwhile_is_deleted_and_added(
    tmp_path: Path, how: str, name: str
) -> None:
    """While nobody looks, one object takes another's place: as many as before, under another name or the same one."""
    async with linked_bed(tmp_path, "c0") as bed:
        member = bed["c0"]
        fill(member.apiserver, 30)
        await bed.equal()
        async with recorded(bed) as recorder:
            await part(member, how)
            first = member.apiserver.get("pods", "po-0")["metadata"]["uid"]
            member.apiserver.delete("pods", "po-0")
            member.apiserver.put("pods", name, spec={"text": "x" * 200})
            if how == "forgotten":
                member.apiserver.compact()
            await rejoin(member, how)
            await eventually(lambda: len(changes(recorder.events, "c0")) >= 2)
            await bed.wait_state(ClusterState.LIVE)
            await bed.equal()
            assert sorted(changes(recorder.events, "c0"), reverse=True) == [("DELETED", "po-0"), ("ADDED", name)]
            uids = [
                event.object.uid
                for event in recorder.events
                if event.object is not None and event.object.name in {"po-0", name}
            ]
            assert len(set(uids)) == 2
            if name == "po-0":
                assert uids[0] == first, "first the deletion of the one, then the other"


async def part(member: LinkedMember, how: str) -> None:
    """Separates the agent from its cluster, or from the aggregator."""
    if how == "unlinked":
        member.link.refuse_connections()
        member.link.reset_connections()
    elif how == "restarted":
        await member.stop_agent()
    else:
        member.apiserver.refuse_connections()
        member.apiserver.reset_connections()


async def rejoin(member: LinkedMember, how: str) -> None:
    """Undoes it."""
    if how == "unlinked":
        member.link.accept_connections()
    elif how == "restarted":
        member.start_agent(member.link.address)
    else:
        await member.apiserver.accept_connections()


async def test_410_in_the_middle_of_a_watch_shows_clients_real_differences_only(tmp_path: Path) -> None:
    """An apiserver ends every watch with 410, its history gone, while some objects change unseen."""
    async with linked_bed(tmp_path, "c0", "c1") as bed:
        member = bed["c0"]
        names = fill(member.apiserver, 100)
        fill(member.apiserver, 30, resource="configmaps")
        await bed.equal()
        lists = member.lists()
        async with recorded(bed) as recorder:
            with member.apiserver.losing_events():
                member.apiserver.touch("pods", names[0])
                member.apiserver.delete("pods", names[1])
                member.apiserver.put("pods", "new")
            member.apiserver.compact()
            for watch in member.apiserver.watches():
                watch.error(410)
            await eventually(lambda: len(changes(recorder.events, "c0")) >= 3)
            await eventually(lambda: len(member.apiserver.watches()) == len(TYPES))
            await bed.wait_state(ClusterState.LIVE)
            await bed.equal()
            assert sorted(changes(recorder.events, "c0")) == [
                ("ADDED", "new"),
                ("DELETED", names[1]),
                ("MODIFIED", names[0]),
            ]
            assert changes(recorder.events, "c0", resource="configmaps") == []
        assert member.lists() > lists


async def test_an_object_swapped_without_a_word_is_found_by_the_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch loses events: one object takes another's place, as many as before, and no version tells of it."""
    monkeypatch.setattr("federator.agent.settings.LEAST_AUDIT_INTERVAL", 0.1)
    async with LinkedBed(tmp_path, ("c0",)) as bed:
        await bed.start_agents(audit_interval=0.5)
        member = bed["c0"]
        fill(member.apiserver, 30)
        await bed.equal()
        async with recorded(bed) as recorder:
            with member.apiserver.losing_events():
                member.apiserver.delete("pods", "po-0")
                member.apiserver.put("pods", "another")
            await bed.equal()
            await eventually(lambda: len(changes(recorder.events, "c0")) >= 2)
            assert sorted(changes(recorder.events, "c0")) == [("ADDED", "another"), ("DELETED", "po-0")]


async def test_an_object_swapped_in_the_ledger_is_found_by_the_next_digest(tmp_path: Path) -> None:
    """What the aggregator holds is not what its agent sent: one object for another, as many as before."""
    async with linked_bed(tmp_path, "c0") as bed:
        member = bed["c0"]
        fill(member.apiserver, 30)
        await bed.equal()
        lists = member.lists()
        cursor = (await bed.fed.list("pods")).cursor
        await swap_in_ledger(bed, "po-0", "ghost")
        # No recorder: it would object that what was told to be deleted comes back as the same object.
        events: list[Event] = []
        async with asyncio.timeout(TOLD_WITHIN), aclosing(bed.fed.watch("pods", cursor=cursor)) as watched:
            async for event in watched:
                events.append(event)
                if len(changes(events, "c0")) == 4:
                    break
        assert changes(events, "c0")[:2] == [("DELETED", "po-0"), ("ADDED", "ghost")]
        assert sorted(changes(events, "c0")[2:]) == [("ADDED", "po-0"), ("DELETED", "ghost")]
        await bed.equal()
        assert member.lists() == lists, "what differs is fetched, and nothing is listed anew"
        await bed.wait_state(ClusterState.LIVE)


async def swap_in_ledger(bed: LinkedBed, name: str, other: str) -> None:
    """Puts an object that nobody has in the place of a pod."""
    parts = bed.aggregator._parts
    assert parts is not None
    ledger, cluster_id = parts.ledger, ClusterID("c0")
    (pods,) = [known.type for known in ledger.types(cluster_id) if known.type.resource == "pods"]
    metadata = {"name": other, "namespace": "default", "uid": "uid-of-nobody", "resourceVersion": "1"}
    raw = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata}).encode()
    ghost = Put("default", other, "uid-of-nobody", "1", content_hash(raw), raw)
    term = ledger.clusters()[cluster_id].term
    await ledger.append(Batch(cluster_id, term, 0, pods, (Delete("default", name), ghost)))
