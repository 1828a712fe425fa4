"""Both ends of Push over a real connection: an aggregator to stop and start, agents on scripted clusters."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import grpc

from federator.agent.agent import Agent
from federator.agent.settings import AgentSettings
from federator.aggregator.grpc_listener import SERVER_OPTIONS
from federator.aggregator.ingest.lifecycle import ClusterLifecycle
from federator.aggregator.ingest.servicer import IngestServicer
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import ClusterEntry, Commit, EntryType, ObjectEntry, TypeEntry
from federator.aggregator.merge.digest_table import DigestTable
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import GroupResource, ResourceType
from federator.v1 import ingest_pb2_grpc
from tests.unit.agent.scripted_cluster import ScriptedCluster

FAST = IngestSettings(heartbeat_interval=0.25)
"""Heartbeats so quick that silence shows within half a second, and no quicker than a busy machine can keep up with."""


class Recorder:
    """Everything the ledger has told, and a freshness sink."""

    def __init__(self, ledger: Ledger) -> None:
        self.commits: list[Commit] = []
        self.proved_types: set[tuple[ClusterID, GroupResource]] = set()
        self.unread: dict[ClusterID, frozenset[str]] = {}
        self.digests = DigestTable()
        for entry in ledger.present():
            self.digests.take_in(entry)
        self.digests.loaded()

    def __call__(self, commit: Commit) -> None:
        self.commits.append(commit)
        self.digests.apply(commit)

    def seen(self, cluster_id: ClusterID) -> None:
        pass

    def proved(self, cluster_id: ClusterID, resource: GroupResource, age_seconds: float) -> None:
        self.proved_types.add((cluster_id, resource))

    def unread_groups(self, cluster_id: ClusterID, groups: Collection[str]) -> None:
        self.unread[cluster_id] = frozenset(groups)

    def objects(self, cluster_id: str, resource_type: ResourceType) -> list[ObjectEntry]:
        """The object entries of a type, in order."""
        return [
            entry
            for commit in self.commits
            for entry in commit.entries
            if isinstance(entry, ObjectEntry)
            and (entry.key.cluster_id, entry.key.group_resource) == (cluster_id, resource_type.group_resource)
        ]

    def changes(self, cluster_id: str, resource_type: ResourceType) -> list[tuple[str, str]]:
        """(ADDED | MODIFIED | DELETED, name) of a type, in order."""
        return [(entry.type.name, entry.key.name) for entry in self.objects(cluster_id, resource_type)]

    def states(self, cluster_id: str) -> list[ClusterState]:
        """The states a cluster entered, in order."""
        return [
            entry.state
            for commit in self.commits
            for entry in commit.entries
            if isinstance(entry, ClusterEntry) and entry.cluster_id == cluster_id
        ]

    def reasons(self, cluster_id: str) -> list[str]:
        """The reasons of a cluster's states, in order."""
        return [
            entry.reason
            for commit in self.commits
            for entry in commit.entries
            if isinstance(entry, ClusterEntry) and entry.cluster_id == cluster_id
        ]

    def type_states(self, cluster_id: str, resource_type: ResourceType) -> list[TypeState]:
        """The states a type entered, in order."""
        return [
            entry.state
            for commit in self.commits
            for entry in commit.entries
            if isinstance(entry, TypeEntry)
            and (entry.cluster_id, entry.resource_type.group_resource) == (cluster_id, resource_type.group_resource)
        ]

    def counts(self) -> Counter[str]:
        """Object entries by kind."""
        return Counter(
            EntryType(entry.type).name
            for commit in self.commits
            for entry in commit.entries
            if isinstance(entry, ObjectEntry)
        )


class Aggregator:
    """Ingest over a ledger, behind a real listener."""

    def __init__(self, address: str, settings: IngestSettings = FAST) -> None:
        self.address = address
        self.settings = settings
        self.ahead = 0.0  # seconds by which the clock of mismatches is ahead
        self.new_ledger()

    def new_ledger(self) -> None:
        """Forgets everything, as a lost disk would."""
        self.use(MemoryLedger())

    def use(self, ledger: Ledger) -> None:
        """Takes another ledger, and a new recorder with it."""
        self.ledger = ledger
        self.recorder = Recorder(ledger)
        self.ledger.on_commit(self.recorder)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.lifecycle = ClusterLifecycle(self.ledger, self.recorder, self.settings)
        await self.lifecycle.start()
        self.servicer = IngestServicer(
            self.ledger,
            self.lifecycle,
            self.recorder,
            self.settings,
            digests=self.recorder.digests,
            clock=lambda: time.monotonic() + self.ahead,
        )
        server = grpc.aio.server(options=SERVER_OPTIONS)
        ingest_pb2_grpc.add_IngestServiceServicer_to_server(self.servicer, server)
        port = server.add_insecure_port(self.address)
        if not self.address.startswith("unix:"):
            self.address = f"127.0.0.1:{port}"
        await server.start()
        looking = asyncio.create_task(self.lifecycle.run(), name="lifecycle")
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            self.servicer.close()
            await server.stop(1)

    def state(self, cluster_id: str) -> ClusterState | None:
        record = self.ledger.clusters().get(ClusterID(cluster_id))
        return record.state if record else None

    def type_state(self, cluster_id: str, resource_type: ResourceType) -> TypeState | None:
        for record in self.ledger.types(ClusterID(cluster_id)):
            if record.type.group_resource == resource_type.group_resource:
                return record.state
        return None

    def names(self, cluster_id: str, resource_type: ResourceType) -> set[str]:
        return {
            f"{key.namespace}/{key.name}" if key.namespace else key.name
            for key in self.ledger.keys(ClusterID(cluster_id), resource_type.group_resource)
        }

    def holds(self, cluster_id: str, cluster: ScriptedCluster) -> bool:
        """Whether the ledger has exactly what the cluster has, in the newest state."""
        for resource_type in cluster.types:
            stored = {
                (entry.key.namespace, entry.key.name): entry.resource_version
                for key in self.ledger.keys(ClusterID(cluster_id), resource_type.group_resource)
                if (entry := self.ledger.entry(key.revision)) is not None
            }
            there = {key: obj.resource_version for key, obj in cluster.objects[resource_type.group_resource].items()}
            if stored != there:
                return False
        return True


def agent_settings(cluster_id: str, address: str, **changes: object) -> AgentSettings:
    """Settings with short times."""
    values: dict[str, object] = {
        "discovery_debounce": 0.05,
        "discovery_confirm": 0.1,
        "stale_after": 0.2,
        "backoff_min": 0.02,
        "backoff_max": 0.1,
        "flush_timeout": 2.0,
    }
    return AgentSettings(cluster_id=ClusterID(cluster_id), aggregator=address, **(values | changes))  # type: ignore[arg-type]


@asynccontextmanager
async def running_agent(cluster: ScriptedCluster, settings: AgentSettings) -> AsyncIterator[Agent]:
    """An agent that is stopped as SIGTERM would, and must leave no task."""
    _running[settings.cluster_id] += 1
    agent = Agent(settings, cluster)
    task = asyncio.create_task(agent.run(), name=f"agent {settings.cluster_id}")
    try:
        yield agent
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        _running[settings.cluster_id] -= 1
    if not _running[settings.cluster_id]:
        names = [task.get_name() for task in asyncio.all_tasks() if settings.cluster_id in task.get_name().split()]
        assert not [name for name in names if not name.startswith("session ")], "the session is the aggregator's"


_running: Counter[str] = Counter()


async def eventually(condition: Callable[[], object], *, timeout: float = 5.0) -> None:
    """Waits until a condition holds; the loops under test run in real time."""
    async with asyncio.timeout(timeout):
        while not condition():  # noqa: ASYNC110 - the state has no event
            await asyncio.sleep(0.01)
