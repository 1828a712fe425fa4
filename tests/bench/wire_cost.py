"""Scenario `wire-cost`: what a session costs whose cluster has hardly changed, in bytes on the wire and in CPU time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from federator.api.resource import GroupResource
from federator.client import InventoryClient
from federator.testing.admin_client import AdminClient, Json
from federator.testing.control_plane import ControlPlane
from federator.testing.etcd_store import store_objects
from federator.testing.federation import Federation
from federator.testing.testbed import Testbed
from tests.bench.corpus import WEIGHTS, Corpus
from tests.bench.figure import FEDERATOR, MACHINE, Figure, WrongResult
from tests.bench.live_again import live_since, wait_live_again
from tests.bench.stored_corpus import stored_objects
from tests.bench.usage import cpu_seconds
from tests.bench.wire_relay import Carried, WireRelay
from tests.integration.federation import truth
from tests.integration.federation.commands import federator

PODS = 10_000

_CLUSTER = "eu-1"
_AGENT = f"agent-{_CLUSTER}"
_TRAINING_SECONDS = 10.0
"""Seconds in which the aggregator trains its dictionaries from what it got, and gives them out."""

_QUIET_SECONDS = 2.0
"""Seconds after LIVE in which what belongs to it still comes: acknowledgements, a first heartbeat."""

_STATUS_CHANGES, _STATUS_RATE = 200, 20.0
_REST_SECONDS = 20.0
_CHANGED_PERCENT = 1
_KUBELET = "kwok"
"""Who says in the sample how pods are."""

_POLL = 0.05
_PATIENCE = 120.0


class Cost(NamedTuple):
    """What something cost.

    Attributes:
        seconds: from its start until the cluster was LIVE; where it always was, until there was another connection.
        carried: bytes.
        agent: CPU-seconds of the agent; of a new process its start is part of it.
        aggregator: CPU-seconds of the aggregator.
    """

    seconds: float
    carried: Carried
    agent: float
    aggregator: float


async def wire_cost(sample: Path, pods: int) -> list[Figure]:
    """Starts with nothing, lists everything once more, then less and less.

    Args:
        sample: of objects as the apiserver serves them.
        pods: number of them.
    """
    corpus = Corpus.read(sample)
    async with Testbed((_CLUSTER,)) as bed:
        plane = bed[_CLUSTER]
        namespaces = corpus.counts(pods * 100 // WEIGHTS["pods"])["namespaces"]
        stored = stored_objects(corpus, {"namespaces": namespaces, "pods": pods})
        await store_objects(plane.etcd_socket, stored)
        federation = Federation(bed.kubeconfig, (_CLUSTER,))
        try:
            async with WireRelay(federation.folder / "relay.sock", federation.ingest_address) as relay:
                return await _Run(bed, plane, federation, relay, pods).figures()
        finally:
            federation.close()


class _Run:
    """One run, and what it needs."""

    def __init__(self, bed: Testbed, plane: ControlPlane, federation: Federation, relay: WireRelay, pods: int) -> None:
        self._bed = bed
        self._plane = plane
        self._federation = federation
        self._relay = relay
        self._pods = pods

    async def figures(self) -> list[Figure]:
        """Runs everything."""
        self._federation.start_aggregator()
        first = await self._until_live(self._start_agent)
        await asyncio.sleep(_TRAINING_SECONDS)
        await self._check()

        await self._stop_agent()
        await self._remove_cluster()
        everything = await self._until_live(self._start_agent)
        await self._check()

        rest = await self._at_rest()
        broken = await self._until_live(self._break_connection)
        await self._stop_agent()
        restarted = await self._until_live(self._start_agent)
        await self._check()

        await self._stop_agent()
        changed = max(1, self._pods * _CHANGED_PERCENT // 100)
        await self._annotate(changed)
        behind = await self._until_live(self._start_agent)
        await self._check()
        per_change, per_event = await self._status_changes()
        await self._check()

        scenario = f"1 cluster with {self._pods} pods"
        return [
            *_rows(f"{scenario}, joining an aggregator without dictionaries", first),
            *_rows(f"{scenario}, full resync: joining again", everything),
            *_rows(f"{scenario}, unchanged, the agent's connection broke", broken, everything, "<= 1"),
            *_rows(f"{scenario}, unchanged, another agent process", restarted, everything, "<= 1"),
            *_rows(f"{scenario}, {changed} changed, another agent process", behind, everything, "<= 3"),
            Figure(f"{scenario}, at rest", FEDERATOR, "bytes a second, both ways", rest, "1/s"),
            *self._status_rows(f"{scenario}, status changes one by one", per_change, per_event),
        ]

    def _status_rows(self, scenario: str, per_change: float, per_event: float) -> Sequence[Figure]:
        return (
            Figure(scenario, FEDERATOR, "bytes per change, both ways", per_change, "bytes"),
            Figure(scenario, "kube-apiserver", "bytes per watch event", per_event, "bytes"),
            Figure(scenario, MACHINE, "of the watch event", 100 * per_change / per_event, "%", "<= 15"),
        )

    # What is measured.

    async def _until_live(self, begin: Callable[[], Awaitable[None]]) -> Cost:
        """Does something after which there is another session, and measures until all of it is done."""
        aggregator = self._federation.processes["aggregator"]
        agent = self._federation.processes.get(_AGENT)
        before = 0.0 if agent is None or not agent.running else cpu_seconds(agent)
        carried, since = self._relay.carried, await live_since(self._federation)
        aggregator_before, began = cpu_seconds(aggregator), time.monotonic()
        await begin()
        if begin != self._break_connection:  # which leaves the cluster LIVE
            await wait_live_again(self._federation, since)
        seconds = time.monotonic() - began
        await asyncio.sleep(_QUIET_SECONDS)
        used = cpu_seconds(self._federation.processes[_AGENT]) - before
        return Cost(seconds, self._relay.carried.since(carried), used, cpu_seconds(aggregator) - aggregator_before)

    async def _at_rest(self) -> float:
        """Bytes a second while nothing happens."""
        carried = self._relay.carried
        await asyncio.sleep(_REST_SECONDS)
        return self._relay.carried.since(carried).both / _REST_SECONDS

    async def _status_changes(self) -> tuple[float, float]:
        """Bytes on the wire of a change, and of its event as the apiserver sends it."""
        async with self._plane.client() as admin, self._federation.client() as fed:
            listed = await admin.get("/api/v1/pods")
            pods = [pod for pod in listed["items"] if _runs(pod)][:_STATUS_CHANGES]
            carried = self._relay.carried
            due = time.monotonic()
            for pod in pods:
                await asyncio.sleep(due - time.monotonic())
                due += 1 / _STATUS_RATE
                await admin.patch(
                    f"{_path(pod)}/status?fieldManager={_KUBELET}", {"status": _fallen_over(pod["status"])}
                )
            await _wait_fallen_over(fed, pods[-1])
            carried = self._relay.carried.since(carried)
            sizes = await _event_sizes(admin, listed["metadata"]["resourceVersion"], len(pods))
        return carried.both / len(pods), sum(sizes) / len(sizes)

    # What happens.

    async def _start_agent(self) -> None:
        self._federation.start_agent(_CLUSTER, f"--aggregator={self._relay.address}")

    async def _stop_agent(self) -> None:
        if not await self._federation.processes[_AGENT].stop(15):
            raise WrongResult("the agent did not end by itself")

    async def _break_connection(self) -> None:
        connections = self._relay.connections
        self._relay.break_all()
        async with asyncio.timeout(_PATIENCE):
            while self._relay.connections == connections:  # noqa: ASYNC110 - the agent connects
                await asyncio.sleep(_POLL)

    async def _remove_cluster(self) -> None:
        """The dictionaries stay, the objects go: what joins again has to be sent whole."""
        state = self._federation.folder / "state"
        removed = await federator("clusters", "remove", _CLUSTER, "--yes", f"--state-directory={state}")
        if removed.code:
            raise WrongResult(f"the cluster could not be removed: {removed.err}")

    async def _annotate(self, changed: int) -> None:
        async with self._plane.client() as admin:
            listed = await admin.get("/api/v1/pods", limit=str(changed))
            for pod in listed["items"]:
                await admin.patch(_path(pod), {"metadata": {"annotations": {"release": "2"}}})

    async def _check(self) -> None:
        theirs = await truth.listed(self._bed, [_CLUSTER], only={GroupResource("", "pods")})
        async with self._federation.client() as fed:
            mine = await truth.held(fed, ["pods"])
        if mine != theirs or len(theirs) != self._pods:
            raise WrongResult(f"{len(mine)} of {len(theirs)} pods, or other ones")


def _rows(scenario: str, cost: Cost, whole: Cost | None = None, bar: str = "") -> list[Figure]:
    """The figures of one session; with those of a full resync, what part of it that is."""
    figures = [
        Figure(scenario, FEDERATOR, "bytes to the aggregator", cost.carried.up, "bytes"),
        Figure(scenario, FEDERATOR, "bytes to the agent", cost.carried.down, "bytes"),
        Figure(scenario, FEDERATOR, "time until LIVE", cost.seconds, "s"),
        Figure(scenario, FEDERATOR, "CPU of the agent", cost.agent, "CPU-s"),
        Figure(scenario, FEDERATOR, "CPU of the aggregator", cost.aggregator, "CPU-s"),
    ]
    if whole is not None:
        part = 100 * cost.carried.both / whole.carried.both
        figures.insert(0, Figure(scenario, FEDERATOR, "bytes, of a full resync", part, "%", bar))
    return figures


def _path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def _runs(pod: Json) -> bool:
    return any("running" in each["state"] for each in pod["status"].get("containerStatuses", ())[:1])


def _fallen_over(status: Json) -> Json:
    """What a kubelet says of a pod one of whose containers has ended and was started again."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    first, *others = status["containerStatuses"]
    ended = {"exitCode": 137, "reason": "OOMKilled", "startedAt": first["state"]["running"]["startedAt"]}
    again = {
        **first,
        "restartCount": first["restartCount"] + 1,
        "lastState": {"terminated": {**ended, "finishedAt": now}},
        "state": {"running": {"startedAt": now}},
    }
    conditions = [
        {**each, "lastTransitionTime": now} if each["type"] in {"ContainersReady", "Ready"} else each
        for each in status["conditions"]
    ]
    return {"conditions": conditions, "containerStatuses": [again, *others]}


async def _wait_fallen_over(fed: InventoryClient, pod: Json) -> None:
    metadata = pod["metadata"]
    async with asyncio.timeout(_PATIENCE):
        while True:
            found = await fed.get("pods", metadata["name"], namespace=metadata["namespace"], cluster=_CLUSTER)
            if b"OOMKilled" in found.object.body:
                return
            await asyncio.sleep(_POLL)


async def _event_sizes(admin: AdminClient, version: str, events: int) -> list[int]:
    """Bytes of the events that a watch of pods has from a resourceVersion on."""
    sizes: list[int] = []
    async with asyncio.timeout(_PATIENCE), admin.stream(f"/api/v1/pods?watch=1&resourceVersion={version}") as lines:
        async for line in lines:
            sizes.append(len(line))
            if len(sizes) == events:
                break
    return sizes
