"""Processes of the release before beside those of this one: an upgrade is never made everywhere at once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from federator.api.cluster import ClusterState
from federator.client import EventType
from federator.testing.fake_api_server import FakeApiServer
from federator.testing.federation import Federation
from federator.testing.process_group import Process, ProcessGroup
from tests.integration.federation.commands import federator, launch
from tests.integration.federation.recorder import OBJECT_EVENTS
from tests.integration.releases import which
from tests.integration.releases.member import (
    CONTEXT,
    TYPES,
    Objects,
    Traffic,
    listening,
    wait_equal,
    wait_state,
)
from tests.integration.releases.previous_release import PreviousRelease, program, wheel
from tests.programs import run_module

AGENT = f"agent-{CONTEXT}"

pytestmark = pytest.mark.timeout(300)


def test_the_release_before_is_what_runs(previous_release: PreviousRelease) -> None:
    with previous_release.is_started():
        path, version = run_module(which.__name__).stdout.split()
    assert Path(path).is_relative_to(program())
    assert wheel().name.startswith(f"federator-{version}-")


async def test_agent_and_client_of_the_release_before(
    federation: Federation,
    kubeconfig: Path,
    server: FakeApiServer,
    traffic: Traffic,
    previous_release: PreviousRelease,
) -> None:
    federation.start_aggregator()
    await listening(federation)
    with previous_release.is_started():
        federation.start_agent(CONTEXT)
    await wait_state(federation, ClusterState.LIVE)
    assert previous_release.is_release_of(federation.processes[AGENT].pid)
    assert not previous_release.is_release_of(federation.processes["aggregator"].pid)
    objects = await wait_equal(federation, kubeconfig)
    with previous_release.is_started():
        await _ask(federation, objects, server)
    traffic.go_on()
    await wait_equal(federation, kubeconfig)

    # It reconnects: to an aggregator that was killed meanwhile.
    federation.kill("aggregator")
    traffic.go_on()
    federation.start_aggregator()
    await wait_state(federation, ClusterState.LIVE)
    await wait_equal(federation, kubeconfig)

    # Another instance of it finds what changed meanwhile, and what is gone.
    await _stop_agent(federation)
    traffic.go_on()
    assert await federation.processes["aggregator"].stop(60)
    federation.start_aggregator()  # the one before would wait for a while whether the agent comes back
    await wait_state(federation, ClusterState.STALE)
    with previous_release.is_started():
        shown = await federator("get", "pods", "-A", server=federation.address)
        assert shown.code == 0
        assert f"{CONTEXT} STALE" in shown.err
        federation.start_agent(CONTEXT)
    await wait_equal(federation, kubeconfig)
    await wait_state(federation, ClusterState.LIVE)
    assert await _counted(federation, "snapshot_plans") == {}
    assert await _counted(federation, "ingest_digest_comparisons") == {}

    # An agent of this release takes over, and what the one before had sent is what it would send.
    await _stop_agent(federation)
    federation.start_agent(CONTEXT)
    assert set(await _wait_counted(federation, "ingest_digest_comparisons")) == {"equal"}
    assert set(await _counted(federation, "snapshot_plans")) == {"nothing"}
    await wait_state(federation, ClusterState.LIVE)
    await wait_equal(federation, kubeconfig)


async def test_an_aggregator_of_the_release_before(
    federation: Federation,
    kubeconfig: Path,
    server: FakeApiServer,
    traffic: Traffic,
    previous_release: PreviousRelease,
) -> None:
    with previous_release.is_started():
        federation.start_aggregator()
    await listening(federation)
    federation.start_agent(CONTEXT)
    await wait_state(federation, ClusterState.LIVE)
    assert previous_release.is_release_of(federation.processes["aggregator"].pid)
    assert not previous_release.is_release_of(federation.processes[AGENT].pid)
    objects = await wait_equal(federation, kubeconfig)
    await _ask(federation, objects, server)
    traffic.go_on()
    await wait_equal(federation, kubeconfig)

    federation.kill("aggregator")
    traffic.go_on()
    with previous_release.is_started():
        federation.start_aggregator()
    await wait_state(federation, ClusterState.LIVE)
    await wait_equal(federation, kubeconfig)

    await _stop_agent(federation)
    traffic.go_on()
    federation.start_agent(CONTEXT)
    await wait_equal(federation, kubeconfig)


async def test_a_ledger_of_the_release_before(
    federation: Federation, kubeconfig: Path, traffic: Traffic, previous_release: PreviousRelease
) -> None:
    with previous_release.is_started():
        federation.start_aggregator()
        await listening(federation)
        federation.start_agent(CONTEXT)
    await wait_state(federation, ClusterState.LIVE)
    before = await wait_equal(federation, kubeconfig)
    async with federation.client() as fed:
        cursor = (await fed.list(list(TYPES), limit=1)).cursor
    traffic.go_on()
    after = await wait_equal(federation, kubeconfig)
    await federation.stop()

    # Nothing is lost, and nobody is there who could bring it anew.
    federation.start_aggregator()
    await wait_state(federation, ClusterState.STALE)
    assert not previous_release.is_release_of(federation.processes["aggregator"].pid)
    async with federation.client() as fed:
        held = await fed.list(list(TYPES))
        found = {(item.cluster_id, *item.key[1:]): msgspec.json.decode(item.body) for item in held.items}
        assert found == after

        # The cursor from before leads to the same, by the changes since.
        state = dict(before)
        async with asyncio.timeout(60):
            watch = fed.watch(list(TYPES), cursor=cursor)
            while state != after:
                event = await anext(watch)
                if event.type not in OBJECT_EVENTS:
                    continue
                assert event.object is not None
                key = (event.object.cluster_id, *event.object.key[1:])
                if event.type is EventType.DELETED:
                    del state[key]
                else:
                    assert (key in state) == (event.type is EventType.MODIFIED)
                    state[key] = msgspec.json.decode(event.object.body)
            await watch.aclose()

    federation.start_agent(CONTEXT)
    await wait_state(federation, ClusterState.LIVE)
    assert await wait_equal(federation, kubeconfig) == after
    assert set(await _counted(federation, "snapshot_plans")) == {"nothing"}
    traffic.go_on()
    await wait_equal(federation, kubeconfig)
    await federation.stop()
    checked = await federator("ledger", "verify", f"--state-directory={federation.folder / 'state'}")
    assert checked.code == 0, checked


async def _ask(federation: Federation, objects: Objects, server: FakeApiServer) -> None:
    """Asks what users ask, and compares the answers."""
    with _following(federation, "get", "configmaps", "-A", "-w", "-o", "name") as follower:
        commands = (
            ("get", ",".join(TYPES), "-A", "-o", "json"),
            ("get", "pods", "-A", "-l", "app=app-1"),
            ("clusters",),
            ("api-resources",),
        )
        outputs = await asyncio.gather(*(federator(*each, server=federation.address) for each in commands))
        assert [(output.code, output.err) for output in outputs] == [(0, "")] * len(commands)
        everything, pods, clusters, types = (output.out for output in outputs)
        listed = json.loads(everything)["items"]
        assert sorted(map(_identity, listed)) == sorted(map(_identity, objects.values()))
        names = [f"p-{number:02}" for number in range(1, 40, 4)]
        assert [line.split()[:3] for line in pods.splitlines()[1:]] == [[CONTEXT, "default", name] for name in names]
        assert [line.split()[:2] for line in clusters.splitlines()[1:]] == [[CONTEXT, "LIVE"]]
        shown = {line.split()[0] for line in types.splitlines()}
        assert {name.partition(".")[0] for name in TYPES} <= shown

        maps = [f"{CONTEXT}//configmaps/team-{number % 3}/c-{number:02}" for number in range(40)]
        assert sorted(await _lines(follower, 40)) == sorted(maps)
        server.put("configmaps", "late", "team-0", data={"colour": "green"})
        assert (await _lines(follower, 41))[40:] == [f"{CONTEXT}//configmaps/team-0/late"]
        server.delete("configmaps", "late", "team-0")
        assert (await _lines(follower, 42))[41:] == [f"{CONTEXT}//configmaps/team-0/late"]


def _identity(obj: Mapping[str, Any]) -> tuple[str, str]:
    metadata = obj["metadata"]
    return metadata["uid"], metadata["resourceVersion"]


async def _stop_agent(federation: Federation) -> None:
    """Ends the agent in order: of one that is killed, the aggregator waits for a while whether it comes back."""
    assert await federation.processes[AGENT].stop(60)


async def _wait_counted(federation: Federation, family: str) -> Mapping[str, float]:
    """Waits until something was counted."""
    async with asyncio.timeout(60):
        while not (counted := await _counted(federation, family)):  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.1)
    return counted


async def _counted(federation: Federation, family: str) -> Mapping[str, float]:
    """What the aggregator counted in a family, but for what is zero, by its last label."""
    async with aiohttp.ClientSession() as session, session.get(federation.metrics_url) as response:
        text = await response.text()
    samples = re.findall(rf'^federator_{family}_total{{.*="([^"]*)"}} (\S+)$', text, re.MULTILINE)
    return {label: float(value) for label, value in samples if float(value)}


@contextmanager
def _following(federation: Federation, *arguments: str) -> Iterator[Process]:
    """A command that goes on, until it is left."""
    group = ProcessGroup()
    try:
        yield launch(group, federation.folder, *arguments, f"--server={federation.address}")
    finally:
        group.close()


async def _lines(process: Process, number: int) -> Sequence[str]:
    """Waits until a command has written so many lines, and returns all."""
    async with asyncio.timeout(60):
        while (text := process.log.read_text()).count("\n") < number:  # noqa: ASYNC110 - another process writes
            await asyncio.sleep(0.05)
    return text.splitlines()
