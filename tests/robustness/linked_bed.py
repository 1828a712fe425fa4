"""Agents of fake apiservers, an aggregator, and a fault proxy on each link between them; all in the test's own process.

Everything but the apiservers is the real thing: informers over HTTP, sessions over gRPC, a ledger on disk.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

from federator.agent.agent import Agent
from federator.agent.member import KubeMember
from federator.agent.settings import AgentSettings
from federator.agent.transforms import drop_bookkeeping
from federator.aggregator.aggregator import Aggregator
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.settings import AggregatorSettings
from federator.api.cluster import ClusterID, ClusterState
from federator.api.list_watch import ListOptions
from federator.cache.backoff import Backoff
from federator.client import Event, InventoryClient, InventoryObject, aconnect
from federator.kube.member_client import MemberClient
from federator.kube.resource_list_watch import ResourceListWatch
from federator.testing import FakeApiServer
from federator.testing.fault_proxy import FaultProxy
from federator.wire.body import content_hash
from federator.wire.digest import Digest, HashedState, digest_of, key_hash, state_hash
from tests.integration.federation.recorder import Recorder
from tests.integration.federation.truth import Key, collected_types

HEARTBEAT = 0.5
"""Seconds; the loop that all share stalls for some tenths on a busy machine, and for longer on a very busy one: then a
cluster is told to be STALE that is not, and its agent comes back. No test may mind that."""

FIRST_WAIT, LONGEST_WAIT = 0.1, 1.0
"""Seconds between two tries of a reflector, before the jitter."""

TOLD_WITHIN = 60.0
"""Seconds after which what has not come never will, on the busiest of machines."""

TYPES = ("configmaps", "deployments.apps", "namespaces", "nodes", "pods")
"""What the fake apiservers serve and agents collect."""

State = tuple[str, str, bytes]
"""Of an object: UID, apiVersion, bytes."""


class Member:
    """A cluster and its agent.

    Attributes:
        name: its ClusterID.
        apiserver: the cluster.
        kubeconfig: file that leads to it.
        agent: the newest one that was started.
        task: that it runs in.
    """

    agent: Agent
    task: asyncio.Task[None]

    def __init__(self, name: str, apiserver: FakeApiServer, folder: Path) -> None:
        """Describes the cluster; its apiserver runs.

        Args:
            name: see the attribute.
            apiserver: see the attribute.
            folder: for the kubeconfig.
        """
        self.name = name
        self.apiserver = apiserver
        self.kubeconfig = apiserver.kubeconfig(folder / f"{name}.kubeconfig", context=name)
        self._own_lists = 0

    def client(self) -> MemberClient:
        """A new client of the apiserver."""
        return MemberClient.from_kubeconfig(self.name, path=self.kubeconfig)

    def start_agent(self, aggregator: str, **changes: Any) -> asyncio.Task[None]:
        """Starts an agent that pushes to an address, with short times."""
        values: dict[str, Any] = {"discovery_interval": 5, "stale_after": 1, "backoff_min": 0.05, "backoff_max": 0.5}
        settings = AgentSettings(cluster_id=ClusterID(self.name), aggregator=aggregator, **(values | changes))
        self.agent = Agent(settings, KubeMember(self.client()))
        self.task = asyncio.create_task(self.agent.run(), name=f"agent {self.name}")
        return self.task

    async def stop_agent(self) -> None:
        """Ends the agent in order."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def lists(self) -> int:
        """How often agents asked the apiserver for a list."""
        return len(self.apiserver.requests.of("list")) - self._own_lists

    async def listed(self) -> dict[Key, State]:
        """What the apiserver has of every collected type, after the agent's transforms."""
        found: dict[Key, State] = {}
        async with self.client() as client:
            for each in await collected_types(client):
                self._own_lists += 1
                page = await ResourceListWatch(client, each).list(ListOptions())
                for obj in page.objects:
                    raw = drop_bookkeeping(obj).raw
                    found[self.name, each.group, each.resource, obj.namespace, obj.name] = (
                        obj.uid,
                        each.api_version,
                        raw,
                    )
        return found


class LinkedMember(Member):
    """One whose agent reaches the aggregator over a link that can be spoilt.

    Attributes:
        link: between agent and aggregator.
    """

    def __init__(self, name: str, apiserver: FakeApiServer, folder: Path, link: FaultProxy) -> None:
        """Describes the cluster; its apiserver and its link run."""
        super().__init__(name, apiserver, folder)
        self.link = link


class LinkedBed:
    """The whole, from apiserver to client; an async context manager.

    It is there once the aggregator serves. Leaving it stops everything in order, and leaves no task.

    Attributes:
        members: by name.
        aggregator: the newest one that was started.
        fed: a client of it.
    """

    aggregator: Aggregator

    def __init__(self, folder: Path, names: Iterable[str], **settings: Any) -> None:
        """Describes it.

        Args:
            folder: empty; for sockets, kubeconfigs and the ledger.
            names: of the clusters.
            settings: of the aggregator, beside its addresses.
        """
        self._folder = folder
        self._names = tuple(names)
        self._settings = {"ingest": IngestSettings(heartbeat_interval=HEARTBEAT), "shutdown_grace": 0.5} | settings
        self._stack = AsyncExitStack()
        self._serving: asyncio.Task[None] | None = None
        self.members: dict[str, LinkedMember] = {}
        self.fed: InventoryClient = aconnect(self.address)

    @property
    def address(self) -> str:
        """Of the aggregator's reading side."""
        return f"unix:{self._folder / 'read.sock'}"

    @property
    def ingest_address(self) -> str:
        """Of its pushing side."""
        return f"unix:{self._folder / 'ingest.sock'}"

    async def __aenter__(self) -> Self:
        try:
            hasty = partial(Backoff, base=FIRST_WAIT, cap=LONGEST_WAIT)
            self._stack.enter_context(mock.patch("federator.cache.reflector.Backoff", hasty))
            for number, name in enumerate(self._names):
                apiserver = await self._stack.enter_async_context(FakeApiServer(bookmark_interval=1.0))
                link = await self._stack.enter_async_context(FaultProxy(self.ingest_address, seed=number))
                self.members[name] = LinkedMember(name, apiserver, self._folder, link)
            await self.start_aggregator()
            await self._stack.enter_async_context(self.fed)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for member in self.members.values():
                member.link.heal()
            running = [member.task for member in self.members.values() if hasattr(member, "task")]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self.stop_aggregator()
        finally:
            await self._stack.aclose()

    def __getitem__(self, name: str) -> LinkedMember:
        return self.members[name]

    async def start_aggregator(self, **changes: Any) -> Aggregator:
        """Starts the aggregator, on the ledger that is there, and waits until it serves."""
        values: dict[str, Any] = {
            "listen": self.address,
            "ingest_listen": self.ingest_address,
            "http_listen": "",
            "state_directory": self._folder / "state",
        }
        self.aggregator = Aggregator(AggregatorSettings(**(values | self._settings | changes)))
        self._serving = asyncio.create_task(self.aggregator.run(), name="aggregator")
        started = asyncio.create_task(self.aggregator.started.wait())
        await asyncio.wait([self._serving, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._serving.done():
            self._serving.result()
        return self.aggregator

    async def stop_aggregator(self) -> None:
        """Stops it in order."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
            self._serving = None

    async def start_agents(self, *names: str, **changes: Any) -> None:
        """Starts the agents of some clusters (all if none is named), and waits until they are LIVE."""
        for name in names or self._names:
            self[name].start_agent(self[name].link.address, **changes)
        await self.wait_state(ClusterState.LIVE, *names)

    async def wait_state(self, state: ClusterState, *names: str, timeout: float = TOLD_WITHIN) -> None:
        """Waits until some clusters (all if none is named) are in a state."""
        seen: dict[str, tuple[ClusterState, str]] = {}
        try:
            async with asyncio.timeout(timeout):
                while True:
                    clusters = (await self.fed.clusters(timeout=10)).clusters
                    seen = {cluster.cluster_id: (cluster.state, cluster.reason) for cluster in clusters}
                    if all(seen.get(name, ("",))[0] is state for name in names or self._names):
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not {state}: {seen}") from None

    async def equal(self, *names: str, types: Sequence[str] = TYPES, timeout: float = TOLD_WITHIN) -> dict[Key, State]:
        """Waits until apiservers, ledger and client have the same objects in the same states; returns them.

        Compared object by object, and by what the objects of each type of each cluster add up to.
        """
        resources = {each.partition(".")[0] for each in types}
        names = names or self._names
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            theirs: dict[Key, State] = {}
            for name in names:
                theirs |= {key: state for key, state in (await self[name].listed()).items() if key[2] in resources}
            ledger = {key: state for key, state in self._in_ledger().items() if key[0] in names and key[2] in resources}
            answer = await self.fed.list(types, clusters=names, timeout=30)
            mine = {_key(item): (item.uid, item.api_version, item.body) for item in answer.items}
            if theirs == ledger == mine and answer.complete:
                assert digests(theirs) == digests(ledger) == digests(mine)
                return theirs
            if asyncio.get_running_loop().time() > deadline:
                break
            await asyncio.sleep(0.1)
        for side, objects in (("ledger", ledger), ("client", mine)):
            missing, extra = sorted(theirs.keys() - objects.keys()), sorted(objects.keys() - theirs.keys())
            other = sorted(key for key in theirs.keys() & objects.keys() if theirs[key] != objects[key])
            if missing or extra or other:
                raise AssertionError(f"{side}: missing {missing[:5]}, extra {extra[:5]}, different {other[:5]}")
        raise AssertionError(f"equal and not complete: {answer.clusters}")

    def _in_ledger(self) -> dict[Key, State]:
        parts = self.aggregator._parts
        assert parts is not None
        found: dict[Key, State] = {}
        for entry in parts.ledger.present():
            assert isinstance(entry, ObjectEntry)
            raw = parts.ledger.bodies.decode(entry.body)
            assert content_hash(raw) == entry.content_hash
            key = entry.key
            found[key.cluster_id, key.group, key.resource, key.namespace, key.name] = entry.uid, entry.api_version, raw
        return found


def digests(objects: Mapping[Key, State]) -> dict[tuple[str, str, str], Digest]:
    """What the objects of each type of each cluster add up to."""
    by_type: dict[tuple[str, str, str], list[HashedState]] = {}
    for (cluster, group, resource, namespace, name), (uid, api_version, raw) in objects.items():
        state = state_hash(content_hash(raw), api_version, uid)
        by_type.setdefault((cluster, group, resource), []).append(HashedState(key_hash(namespace, name), state))
    return {each: digest_of(states) for each, states in by_type.items()}


def changes(events: Iterable[Event], cluster: str, *, resource: str = "pods") -> list[tuple[str, str]]:
    """ADDED, MODIFIED or DELETED, and the name, of one type of one cluster, in order."""
    return [
        (str(event.type), event.object.name)
        for event in events
        if event.object is not None and (event.object.cluster_id, event.object.resource) == (cluster, resource)
    ]


def snapshots(bed: LinkedBed, cluster: str) -> Counter[str]:
    """Listings of a cluster that the aggregator took, by how they ended."""
    return _of_cluster(bed.aggregator.statistics()["ingest"]["snapshots"], cluster)


def deltas(bed: LinkedBed, cluster: str) -> Counter[str]:
    """Changes of a cluster's objects that its sessions have committed, by kind."""
    counts: Counter[str] = Counter()
    committed: Any = bed.aggregator.statistics()["ingest"]["deltas"]
    for (of, _, kind), number in committed.items():
        if of == cluster:
            counts[kind] += number
    return counts


def terms(bed: LinkedBed, cluster: str) -> int:
    """How often a session of a cluster was opened."""
    parts = bed.aggregator._parts
    assert parts is not None
    return parts.ledger.clusters()[ClusterID(cluster)].term


async def eventually(condition: Callable[[], object], *, timeout: float = TOLD_WITHIN) -> None:
    """Waits until a condition holds; the loops under test run in real time."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - the state has no event
            await asyncio.sleep(0.02)


@asynccontextmanager
async def linked_bed(folder: Path, *names: str, **settings: Any) -> AsyncIterator[LinkedBed]:
    """A bed whose agents run and whose clusters are LIVE."""
    async with LinkedBed(folder, names, **settings) as bed:
        await bed.start_agents()
        yield bed


@asynccontextmanager
async def recorded(bed: LinkedBed) -> AsyncIterator[Recorder]:
    """A watch of everything that has its present state; its history is checked, and it must not have to start over."""
    async with Recorder(bed.fed, TYPES) as recorder:
        await asyncio.wait_for(recorder.synced.wait(), TOLD_WITHIN)
        recorder.events.clear()
        yield recorder
        recorder.check_running()
        assert recorder.starts == 1


def fill(apiserver: FakeApiServer, count: int, *, resource: str = "pods", text: str = "x" * 200) -> Sequence[str]:
    """Puts objects, and returns their names."""
    names = [f"{resource[:2]}-{number}" for number in range(count)]
    for name in names:
        apiserver.put(resource, name, spec={"text": text})
    return names


def _key(item: InventoryObject) -> Key:
    return item.cluster_id, item.group, item.resource, item.namespace, item.name


def _of_cluster(counts: Any, cluster: str) -> Counter[str]:
    return Counter({what: number for (of, what), number in counts.items() if of == cluster})
