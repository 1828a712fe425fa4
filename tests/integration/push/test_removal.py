"""Clusters that leave a whole aggregator, by an operator's word or all at once, and what its readers see of it."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from federator.aggregator.aggregator import Aggregator
from federator.aggregator.ingest.settings import IngestSettings
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import ResourceType
from federator.cli.main import main
from federator.client import Event, EventType, InventoryClient, TransitionType, aconnect
from federator.errors import (
    AggregatorUnreachable,
    ClusterConnected,
    ClusterRemoved,
    ClusterUIDChanged,
    FederatorError,
    InvalidInput,
    UnknownCluster,
)
from federator.v1 import admin_pb2, admin_pb2_grpc, ingest_pb2
from federator.wire.body import content_hash, encode_body
from federator.wire.resource_type import resource_type_to_proto, type_state_to_proto
from federator.wire.status import from_rpc_error
from tests.component.aggregator.running import running, scrape, settings
from tests.component.aggregator.test_aggregator import health_of, listed_services
from tests.fixtures import logs
from tests.integration.push.harness import agent_settings, running_agent
from tests.integration.push.raw_agent import RawAgent, raw_agent
from tests.unit.agent.scripted_cluster import DEPLOYMENTS, PODS, WIDGETS, ScriptedCluster
from tests.unit.aggregator.federation import eventually

__all__ = ["logs"]

ADMIN = "federator.v1.AdminService"


def aggregator(folder: Path, **changes: Any) -> Aggregator:
    return Aggregator(settings(folder, state_directory=folder / "state", **changes))


def pushed(
    name: str, *, uid: str = "", version: int = 10, of: ResourceType = PODS, **labels: str
) -> ingest_pb2.PushedObject:
    """An object on its way up, with labels."""
    namespace, uid = "default", uid or f"uid-{name}"
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "resourceVersion": str(version),
        "labels": labels,
    }
    raw = json.dumps({"apiVersion": of.api_version, "kind": of.kind, "metadata": metadata}).encode()
    return ingest_pb2.PushedObject(
        namespace=namespace,
        name=name,
        uid=uid,
        resource_version=str(version),
        content_hash=content_hash(raw),
        body=encode_body(raw),
    )


async def listing(
    agent: RawAgent, sequence: int, *objects: ingest_pb2.PushedObject, of: ResourceType = PODS, version: int = 100
) -> int:
    """A whole listing of a type, acknowledged; returns the next sequence."""
    kind = resource_type_to_proto(of)
    await agent.begin(sequence, of)
    await agent.send(sequence + 1, snapshot_items=ingest_pb2.SnapshotItems(type=kind, objects=objects))
    await agent.end(sequence + 2, version=version, resource_type=of)
    await agent.acknowledged(sequence + 2)
    return sequence + 3


async def status(agent: RawAgent, sequence: int, of: ResourceType, state: TypeState) -> int:
    told = ingest_pb2.TypeStatus(type=resource_type_to_proto(of), state=type_state_to_proto(state), reason="told")
    await agent.send(sequence, type_status=told)
    await agent.acknowledged(sequence)
    return sequence + 1


@asynccontextmanager
async def administrating(running: Aggregator) -> AsyncIterator[admin_pb2_grpc.AdminServiceAsyncStub]:
    assert running.admin_address is not None
    async with grpc.aio.insecure_channel(running.admin_address) as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)


async def remove(running: Aggregator, cluster_id: str, **request: Any) -> admin_pb2.RemoveClusterResponse:
    """Removes a cluster as the command does.

    Raises:
        FederatorError: what the call was refused with.
    """
    async with administrating(running) as admin:
        try:
            return await admin.RemoveCluster(admin_pb2.RemoveClusterRequest(cluster_id=cluster_id, **request))
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, "here") from None


async def refused_hello(address: str, **hello: Any) -> FederatorError:
    """What an agent is not let in for."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async with raw_agent(address, **hello):
            pass
    return from_rpc_error(refused.value, "here")


async def ended_with(agent: RawAgent) -> FederatorError:
    """What a session has ended with."""
    trailing = grpc.aio.Metadata(*(await agent.call.trailing_metadata()))
    code, details = await agent.call.code(), await agent.call.details()
    return from_rpc_error(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details, ""), "here")


class OneAtATime:
    """A call whose writers wait for each other."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._lock = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)

    async def write(self, message: Any) -> None:
        async with self._lock:
            await self._call.write(message)


async def names(fed: InventoryClient, *resources: str, **asked: Any) -> list[str]:
    found = await fed.list(",".join(resources or ("pods",)), **asked)
    return [f"{item.key.cluster_id}/{item.name}" for item in found.items]


class Watcher:
    """Collects the events of a watch, and fails with it."""

    def __init__(self, fed: InventoryClient, **asked: Any) -> None:
        self._fed = fed
        self._asked = asked
        self.events: list[Event] = []

    async def __aenter__(self) -> Watcher:
        self._task = asyncio.create_task(self._run(), name="watcher")
        await self.until(lambda: bool(self._asked.get("cursor")) or EventType.INITIAL_END in self.types())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert not self._task.done(), "no watch ends for it"
        self._task.cancel()
        await asyncio.wait([self._task])

    def types(self) -> Counter[EventType]:
        return Counter(event.type for event in self.events)

    def of(self, kind: EventType) -> Iterator[Event]:
        return (event for event in self.events if event.type is kind)

    def names(self, kind: EventType) -> list[str]:
        """Cluster and name of the objects of events of a kind."""
        return [f"{each.object.key.cluster_id}/{each.object.name}" for each in self.of(kind) if each.object is not None]

    async def until(self, holds: Any) -> None:
        async with asyncio.timeout(20):
            while not holds():
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.01)

    async def _run(self) -> None:
        async with aclosing(self._fed.watch(**self._asked)) as events:
            async for event in events:
                self.events.append(event)


def held(running: Aggregator, cluster: str) -> dict[str, int]:
    """What is kept in memory of a cluster, as far as anything is."""
    assert running._parts is not None
    member, ledger, view = ClusterID(cluster), running._parts.ledger, running._parts.view
    totals: list[Any] = [each for each in running.statistics()["ingest"].values() if isinstance(each, dict)]
    labels = [label if isinstance(label, tuple) else (label,) for each in totals for label in each]
    kept = {
        "keys": sum(len(list(ledger.keys(member, of.type.group_resource))) for of in ledger.types(member)),
        "partitions": [of for of, _ in view.indexer.objects()].count(member),
        "types": len(view.types._types.get(member, ())),
        "freshness": len(view.freshness._clusters[member].types),
        "counts": [of for of, *_ in labels].count(member),
        "lifecycle": int(member in running._parts.lifecycle._members),
    }
    return {name: number for name, number in kept.items() if number}


async def series(running: Aggregator, cluster_id: str) -> list[str]:
    """Names of the metrics that any label ties to a cluster."""
    families = await scrape(running.http_port)
    return [each.name for family in families.values() for each in family.samples if cluster_id in each.labels.values()]


class TestAdminService:
    async def test_it_has_a_socket_of_its_own_for_its_own_user(self, tmp_path: Path) -> None:
        async with running(aggregator(tmp_path)) as serving:
            socket = tmp_path / "state" / "admin.sock"
            assert serving.admin_address == f"unix:{socket}"
            assert stat.S_IMODE(socket.stat().st_mode) == 0o600
            async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
                for name in ("", ADMIN):
                    assert await health_of(channel, name) == "SERVING"
                for version in ("v1", "v1alpha"):
                    listed = await listed_services(channel, version)
                    assert {name for name in listed if name.startswith("federator.")} == {ADMIN}
            for address in (serving.address, serving.ingest_address):
                async with grpc.aio.insecure_channel(address) as channel:
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await admin_pb2_grpc.AdminServiceStub(channel).RemoveCluster(admin_pb2.RemoveClusterRequest())
                    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED, "readers and agents cannot remove"

    async def test_where_it_is_not(self, tmp_path: Path, logs: list[Any]) -> None:
        async with running(Aggregator(settings(tmp_path))) as serving:
            assert serving.admin_address is None, "nowhere to put it"
        async with running(aggregator(tmp_path, admin_listen="")) as serving:
            assert serving.admin_address is None
        assert not (tmp_path / "state" / "admin.sock").exists()
        far = tmp_path / ("d" * 100)
        async with running(Aggregator(settings(tmp_path, state_directory=far))) as serving:
            assert serving.admin_address is None, "no reason not to serve"
        assert [each for each in logs if each["event"].startswith("no admin socket")]
        with pytest.raises(InvalidInput) as refused:
            await Aggregator(settings(tmp_path, admin_listen=f"unix:{far}/admin.sock")).run()
        assert refused.value.field == "admin-listen"
        async with running(Aggregator(settings(tmp_path, admin_listen=f"unix:{tmp_path}/a.sock"))) as serving:
            async with raw_agent(serving.ingest_address) as agent:
                await agent.snapshot(1, "a")
                await agent.goodbye()
            assert (await remove(serving, "c0")).objects == 1, "a ledger in memory will do"

    async def test_what_is_refused_and_what_would_be_removed(self, tmp_path: Path) -> None:
        async with running(aggregator(tmp_path)) as serving, raw_agent(serving.ingest_address) as agent:
            await agent.snapshot(1, "a", "b")
            with pytest.raises(UnknownCluster) as unknown:
                await remove(serving, "c9")
            assert unknown.value.known == ("c0",)
            with pytest.raises(InvalidInput, match="cluster_id"):
                await remove(serving, "")
            with pytest.raises(InvalidInput) as foreign:
                await remove(serving, "c0", cluster_uid="uid-c1", force=True)
            assert (foreign.value.field, foreign.value.given) == ("cluster_uid", "uid-c1")
            for validate_only in (True, False):
                with pytest.raises(ClusterConnected) as connected:
                    await remove(serving, "c0", validate_only=validate_only)
                assert connected.value.agent_instance == "instance-1"
            would = await remove(serving, "c0", force=True, validate_only=True)
            assert (would.cluster_uid, would.connected, would.objects) == ("uid-c0", True, 2)
            assert would.state_since_ms > 0
            async with aconnect(serving.address) as fed:
                assert await names(fed) == ["c0/a", "c0/b"], "nothing has happened yet"
                assert (await fed.clusters()).clusters[0].state is ClusterState.LIVE


async def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running(aggregator(tmp_path)) as serving:
        async with raw_agent(serving.ingest_address) as agent:
            await agent.snapshot(1, "a", "b")
            await agent.goodbye()
        arguments = ["clusters", "remove", "c0", "--yes", "--state-directory", str(tmp_path / "state")]
        assert await asyncio.to_thread(main, arguments) == 0
        assert capsys.readouterr().out.startswith("c0: removed, 2 objects deleted; nothing of it is left at revision ")
        assert await asyncio.to_thread(main, arguments) == 1
        assert capsys.readouterr().err == "Error: no member cluster 'c0'; known: none\n"
        shown = ["clusters", "--server", serving.address, "--no-headers"]
        assert await asyncio.to_thread(main, shown) == 0
        assert capsys.readouterr().out == "", "what was removed is not shown"
        assert await asyncio.to_thread(main, [*shown, "-C", "c0", "-o", "wide"]) == 0
        assert capsys.readouterr().out.split()[:3] == ["c0", "REMOVED", "0"], "unless it is named"


async def test_bug43_the_same_name_for_another_cluster_with_lower_versions_and_a_late_frame(tmp_path: Path) -> None:
    """Nothing of the old cluster is seen once the new one has it, and nothing of the old agent is taken."""
    async with running(aggregator(tmp_path)) as serving, aconnect(serving.address) as fed:
        async with raw_agent(serving.ingest_address, instance="old") as old:
            following = await listing(old, 1, pushed("a", uid="old-a", version=900), pushed("b", version=901))
            following = await listing(old, following, pushed("w", of=WIDGETS, version=902), of=WIDGETS)
            assert (await remove(serving, "c0", force=True)).objects == 3
            with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
                await old.put(following, pushed("b", version=950))
                await old.acknowledged(following)
            assert isinstance(await ended_with(old), ClusterRemoved)
        assert isinstance(await refused_hello(serving.ingest_address, instance="old"), ClusterRemoved)
        assert await names(fed) == []
        async with raw_agent(serving.ingest_address, instance="new", cluster_uid="uid-new") as new:
            assert new.welcome.snapshot_all
            assert not new.welcome.held_types
            await new.begin(1)
            items = ingest_pb2.SnapshotItems(
                type=resource_type_to_proto(PODS), objects=[pushed("a", uid="new-a", version=5)]
            )
            await new.send(2, snapshot_items=items)
            assert isinstance(await refused_hello(serving.ingest_address, instance="old"), ClusterRemoved)
            await new.end(3, version=6)
            await new.acknowledged(3)
            (a,) = (await fed.list("pods")).items
            assert (a.name, a.uid, a.resource_version) == ("a", "new-a", "5")
            proof = ingest_pb2.TypeProof(resource="pods", age_ms=1)
            await new.send(heartbeat=ingest_pb2.Heartbeat(proofs=[proof]))
            async with asyncio.timeout(10):
                # What the old cluster had and the new one does not serve makes no answer incomplete.
                while not (await fed.list("pods,widgets")).complete:  # noqa: ASYNC110 - an answer has no event
                    await asyncio.sleep(0.01)
            assert (await fed.clusters()).clusters[0].cluster_uid == "uid-new"
            await new.goodbye()
    # The next process has not seen the removal; the old agent's cluster is another one all the same.
    async with running(aggregator(tmp_path)) as serving, aconnect(serving.address) as fed:
        refused = await refused_hello(serving.ingest_address, instance="old")
        assert isinstance(refused, ClusterUIDChanged)
        assert "federator clusters remove c0" in str(refused)
        assert "--replace" in str(refused)
        assert [item.uid for item in (await fed.list("pods")).items] == ["new-a"]


async def test_bug47_a_type_goes_another_comes_and_then_the_whole_cluster_with_its_agent_dead(tmp_path: Path) -> None:
    """Deletions have the last known labels, and of the cluster nothing is kept."""
    async with AsyncExitStack() as stack:
        serving = await stack.enter_async_context(running(aggregator(tmp_path)))
        fed = await stack.enter_async_context(aconnect(serving.address))
        async with raw_agent(serving.ingest_address, cluster_id="c1", cluster_uid="uid-c1") as other:
            await listing(other, 1, pushed("web", app="web"))
            await listing(other, 4, of=DEPLOYMENTS)
            start = (await fed.list("pods")).cursor
            async with raw_agent(serving.ingest_address, types=(PODS, WIDGETS)) as agent:
                following = await listing(agent, 1, pushed("web", app="web"), pushed("db", app="db"))
                widgets = [pushed("w-1", of=WIDGETS, app="web"), pushed("w-2", of=WIDGETS, app="db")]
                following = await listing(agent, following, *widgets, of=WIDGETS)
                watch = {"resources": "pods,widgets,deployments", "labels": "app=web", "clusters": "c0"}
                live = await stack.enter_async_context(Watcher(fed, **watch))
                everything = await stack.enter_async_context(Watcher(fed, resources="pods,widgets"))
                following = await status(agent, following, WIDGETS, TypeState.ABSENT)
                await live.until(lambda: live.names(EventType.DELETED) == ["c0/w-1"])
                deployment = pushed("api", of=DEPLOYMENTS, app="web")
                following = await listing(agent, following, deployment, of=DEPLOYMENTS)
                await live.until(lambda: "c0/api" in live.names(EventType.ADDED))
                assert (await fed.clusters()).clusters[0].state is ClusterState.LIVE, "it is synced"
                assert await series(serving, "c0")
                await agent.goodbye()
            cursor = (await fed.list("pods")).cursor
            removed = await remove(serving, "c0")
            assert removed.objects == 3

            await live.until(lambda: len(live.names(EventType.DELETED)) == 3)
            assert sorted(live.names(EventType.DELETED)) == ["c0/api", "c0/w-1", "c0/web"], "of the selection alone"
            for event in live.of(EventType.DELETED):
                assert event.object is not None
                assert event.object.to_dict()["metadata"]["labels"] == {"app": "web"}
                assert event.object.kind == {"api": "Deployment", "web": "Pod", "w-1": "Widget"}[event.object.name]
            transitions = [event.cluster.type for event in everything.of(EventType.CLUSTER) if event.cluster]
            assert TransitionType.REMOVED in transitions
            assert held(serving, "c0") == {}
            assert await series(serving, "c0") == []
            assert held(serving, "c1")
            assert await names(fed, "pods") == ["c1/web"]
            assert {served.type.resource for served in await fed.resource_types()} == {"deployments", "pods"}
            # Who comes later reads the history, from before the removal and from before the cluster.
            await resumed(fed, cursor, ["c0/api", "c0/web"])
            await resumed(fed, start, ["c0/api", "c0/w-1", "c0/web"])
    async with running(aggregator(tmp_path)) as serving, aconnect(serving.address) as fed:
        assert held(serving, "c0") == {}
        assert await series(serving, "c0") == []
        await resumed(fed, start, ["c0/api", "c0/w-1", "c0/web"])


async def resumed(fed: InventoryClient, cursor: bytes, deleted: list[str]) -> None:
    """A watch with a selector, from a cursor of before, is told of these deletions with the last state."""
    async with Watcher(
        fed, resources="pods,widgets,deployments", labels="app=web", clusters="c0", cursor=cursor
    ) as late:
        await late.until(lambda: len(late.names(EventType.DELETED)) >= len(deleted))
        assert sorted(late.names(EventType.DELETED)) == deleted
        for event in late.of(EventType.DELETED):
            assert event.object is not None
            assert event.object.kind in {"Deployment", "Pod", "Widget"}
            assert event.object.to_dict()["metadata"]["labels"] == {"app": "web"}


async def test_an_agent_that_runs_on_is_kept_out_and_one_that_is_started_anew_is_let_in(tmp_path: Path) -> None:
    cluster = ScriptedCluster(PODS, uid="uid-c0")
    for name in ("a", "b"):
        cluster.put(PODS, name)
    async with running(aggregator(tmp_path)) as serving, aconnect(serving.address) as fed:
        async with running_agent(cluster, agent_settings("c0", serving.ingest_address)) as agent:
            await eventually(lambda: len(serving._parts.view.indexer) == 2)  # type: ignore[union-attr]
            assert (await remove(serving, "c0", force=True)).connected
            cluster.put(PODS, "late")
            await eventually(lambda: isinstance(agent.status().session.error, ClusterRemoved))
            counted: Any = serving.statistics
            await eventually(lambda: counted()["ingest"]["refusals"].get("CLUSTER_REMOVED", 0) >= 2)
            assert counted()["ingest"]["session_ends"] == {"CLUSTER_REMOVED": 1}
            assert await names(fed) == []
        async with running_agent(cluster, agent_settings("c0", serving.ingest_address)):
            await eventually(lambda: len(serving._parts.view.indexer) == 3)  # type: ignore[union-attr]
            assert await names(fed) == ["c0/a", "c0/b", "c0/late"]


async def test_an_aggregator_that_ends_in_the_midst_goes_on_when_it_starts_again(tmp_path: Path) -> None:
    slow = IngestSettings(removal_objects_per_second=50)
    async with running(aggregator(tmp_path, ingest=slow)) as serving, aconnect(serving.address) as fed:
        async with raw_agent(serving.ingest_address) as agent:
            await listing(agent, 1, *(pushed(f"p-{number}") for number in range(500)))
            await agent.goodbye()
        async with raw_agent(serving.ingest_address, cluster_id="c1", cluster_uid="uid-c1") as other:
            await listing(other, 1, pushed("a"))
            removing = asyncio.create_task(remove(serving, "c0"))
            await eventually(lambda: 50 <= 500 - held(serving, "c0").get("keys", 0) < 450)
            await other.send(
                4,
                deltas=ingest_pb2.Deltas(
                    type=resource_type_to_proto(PODS),
                    deltas=[ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=pushed("b"))],
                ),
            )
            await other.acknowledged(4)
            assert await names(fed, clusters="c1") == ["c1/a", "c1/b"], "the others go on meanwhile"
            assert not removing.done()
        cursor = (await fed.list("pods")).cursor
    with pytest.raises((AggregatorUnreachable, FederatorError)):
        await removing
    async with running(aggregator(tmp_path)) as serving, aconnect(serving.address) as fed:
        async with Watcher(fed, resources="pods", cursor=cursor) as watcher:
            await eventually(lambda: not held(serving, "c0"))
            left = (await fed.list("pods")).items
            assert [item.name for item in left] == ["a", "b"]
            await watcher.until(lambda: len(watcher.names(EventType.DELETED)) > 50)
        with pytest.raises(UnknownCluster):
            await remove(serving, "c0")


async def test_clusters_that_leave_at_once_end_no_watch_and_take_nothing_along(tmp_path: Path) -> None:
    """A region is lost: what it had stays as it was, marked STALE; only an operator takes it out."""
    beats = IngestSettings(heartbeat_interval=1.0)
    lost = [f"lost-{number:02}" for number in range(40)]
    async with AsyncExitStack() as stack:
        serving = await stack.enter_async_context(running(aggregator(tmp_path, ingest=beats)))
        fed = await stack.enter_async_context(aconnect(serving.address))
        kept = await stack.enter_async_context(
            raw_agent(serving.ingest_address, cluster_id="kept", cluster_uid="uid-kept")
        )
        kept.call = OneAtATime(kept.call)
        following = await listing(kept, 1, pushed("a"))
        region = await stack.enter_async_context(AsyncExitStack())
        agents = [
            await region.enter_async_context(
                raw_agent(serving.ingest_address, cluster_id=name, cluster_uid=f"uid-{name}")
            )
            for name in lost
        ]
        for agent in agents:
            agent.call = OneAtATime(agent.call)
        everything = await stack.enter_async_context(Watcher(fed, resources="pods"))
        of_others = await stack.enter_async_context(Watcher(fed, resources="pods", clusters="!lost-*"))

        sign_of_life = ingest_pb2.Heartbeat(proofs=[ingest_pb2.TypeProof(resource="pods", age_ms=1)])

        async def beat() -> None:
            while True:
                await asyncio.gather(*(agent.send(heartbeat=sign_of_life) for agent in (kept, *agents)))
                await asyncio.sleep(0.5)

        beating = asyncio.create_task(beat())
        await asyncio.gather(*(listing(agent, 1, pushed("a")) for agent in agents))
        await everything.until(lambda: len(everything.names(EventType.ADDED)) == len(lost) + 1)
        agents.clear()
        await asyncio.sleep(0)
        await region.aclose()

        def stale() -> set[str]:
            return {
                event.cluster.cluster_id
                for event in everything.of(EventType.CLUSTER)
                if event.cluster is not None and event.cluster.state is ClusterState.STALE
            }

        await everything.until(lambda: stale() == set(lost))
        changed = ingest_pb2.Delta(operation=ingest_pb2.Delta.OPERATION_PUT, object=pushed("b"))
        await kept.send(following, deltas=ingest_pb2.Deltas(type=resource_type_to_proto(PODS), deltas=[changed]))
        for watcher in (everything, of_others):
            await watcher.until(lambda watcher=watcher: "kept/b" in watcher.names(EventType.ADDED))
            assert watcher.types()[EventType.DELETED] == 0
        answer = await fed.list("pods")
        assert len(answer.items) == len(lost) + 2
        assert not answer.complete
        states = Counter(cluster.state for cluster in answer.clusters.values())
        assert states == {ClusterState.STALE: len(lost), ClusterState.LIVE: 1}
        # Only now, by an operator's word.
        await asyncio.gather(*(remove(serving, name) for name in lost))
        await everything.until(lambda: everything.types()[EventType.DELETED] == len(lost))
        assert await names(fed) == ["kept/a", "kept/b"]
        assert (await fed.list("pods")).complete
        assert all(not held(serving, name) for name in lost)
        assert of_others.types()[EventType.DELETED] == 0
        beating.cancel()
        await asyncio.wait([beating])


async def test_a_clock_that_jumps_by_an_hour_evicts_nothing_and_makes_nothing_stale(tmp_path: Path) -> None:
    program = (sys.executable, "-m", "tests.integration.push.jumping_clock", str(tmp_path))
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    seen = json.loads(out.splitlines()[-1])
    assert seen["states"] == ["LIVE"] * 3
    assert seen["complete"] == [True] * 3
    assert seen["objects"] == [2, 3, 4]
    assert seen["revisions"] == sorted(set(seen["revisions"])), "revisions grow, whatever the time is"
    assert seen["events"][-3:] == ["ADDED"] * 3
    assert "CLUSTER" not in seen["events"]
