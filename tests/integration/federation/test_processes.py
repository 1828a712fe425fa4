"""The commands as processes: what a user starts, asks, kills and starts again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from federator.api.cluster import ClusterState
from federator.client import InventoryClient, aconnect
from federator.errors import AggregatorUnreachable
from federator.testing.federation import Federation
from federator.testing.process_group import ProcessGroup
from federator.testing.testbed import Testbed
from federator.testing.workload import Workload
from tests.integration.federation.churn import churning
from tests.integration.federation.commands import federator, launch
from tests.integration.federation.conftest import NAMES
from tests.integration.federation.recorder import Recorder, settled
from tests.integration.federation.truth import assert_equal
from tests.robustness.federated_bed import HastyFederation

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def federation(living_bed: Testbed) -> Iterator[Federation]:
    """A federation of all clusters; whoever ends a process of it starts it again."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        running = HastyFederation(living_bed.kubeconfig, NAMES)
        try:
            runner.run(running.start())
            yield running
            assert runner.run(running.stop()), "every process ends by itself when it is told to"
        finally:
            running.close()


async def test_a_federation_follows_living_clusters_and_tells_its_metrics(
    living_bed: Testbed, federation: Federation
) -> None:
    async with federation.client() as fed:
        workloads = [Workload(plane, namespaces=("followed",), seed=4) for plane in living_bed]
        await asyncio.gather(*(workload.fill(applications=2) for workload in workloads))
        async with Recorder(fed, ["all", "configmaps"]) as recorder:
            await recorder.synced.wait()
            async with churning(workloads, rate=5) as churn:
                await churn.until_done(5)
            await assert_equal(living_bed, fed, NAMES)
            await settled(recorder)
            assert {"ADDED", "MODIFIED"} <= {event.type for event in recorder.events}
        async with aiohttp.ClientSession() as session, session.get(federation.metrics_url) as response:
            metrics = await response.text()
        for name in NAMES:
            assert f'federator_cluster_state{{member_cluster="{name}",state="LIVE"}} 1.0' in metrics
        assert 'federator_objects{member_cluster="eu-1",resource="deployments.apps"}' in metrics
        assert " cluster=" not in metrics.replace("member_cluster=", "")


async def test_run_federates_all_contexts_and_continues_where_it_stopped(living_bed: Testbed, tmp_path: Path) -> None:
    kubeconfig = _with_odd_contexts(living_bed.kubeconfig, tmp_path / "kubeconfig")
    async with _run(kubeconfig, tmp_path, "--resource=configmaps,namespaces") as address, aconnect(address) as fed:
        await _wait_live(fed)
        shown = await federator("get", "configmaps", "-n", "kube-system", "-o", "name", server=address)
        assert shown.code == 0
        first = shown.out.splitlines()
        assert {line.split("/")[0] for line in first} == set(NAMES), "the second context of eu-1 is no member"
        cursor = (await fed.list("configmaps", namespace="default")).cursor
        clusters = await federator("clusters", server=address)
        assert [line.split()[:2] for line in clusters.out.splitlines()[1:]] == [[name, "LIVE"] for name in NAMES]
    async with living_bed["us-1"].client() as admin:
        await admin.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "meanwhile"}})
    async with _run(kubeconfig, tmp_path, "--resource=configmaps,namespaces") as address, aconnect(address) as fed:
        await _wait_live(fed)
        events = fed.watch("configmaps", namespace="default", cursor=cursor, timeout=20)
        async for event in events:
            if event.object is not None:
                assert (event.type, event.object.cluster_id, event.object.name) == ("ADDED", "us-1", "meanwhile")
                break
        else:
            pytest.fail("the cursor from before the restart missed the change")
        await events.aclose()
    async with living_bed["us-1"].client() as admin:
        await admin.delete("/api/v1/namespaces/default/configmaps/meanwhile")


async def test_get_answers_for_people_and_for_programs(federation: Federation) -> None:
    address = federation.address
    table = await federator("get", "deploy", "-n", "billing", server=address)
    header, *rows = table.out.splitlines()
    assert header.split() == ["CLUSTER", "NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    assert {row.split()[0] for row in rows} == set(NAMES)
    assert table.err == ""

    listed = json.loads((await federator("get", "deployments.apps", "-A", "-ojson", server=address)).out)
    assert listed["kind"] == "List"
    assert {item["kind"] for item in listed["items"]} == {"Deployment"}
    annotations = [item["metadata"]["annotations"]["federator.io/cluster"] for item in listed["items"]]
    assert set(annotations) == set(NAMES)

    one = await federator("get", "ns/default", "-C", "eu-1", "-o", "yaml", server=address)
    assert yaml.safe_load(one.out)["metadata"]["name"] == "default"

    nothing = await federator("get", "pods", "-l", "app=nowhere", server=address)
    assert (nothing.code, nothing.out) == (0, "")
    assert "3 clusters" in nothing.err

    federation.kill("agent-us-1")
    await federation.wait_state(ClusterState.STALE, "us-1")
    stale = await federator("get", "pods", server=address)
    assert stale.code == 0
    assert "us-1 STALE" in stale.err
    assert {row.split()[0] for row in stale.out.splitlines()[1:]} == set(NAMES)
    federation.start_agent("us-1")
    await federation.wait_state(ClusterState.LIVE)


def _with_odd_contexts(source: Path, target: Path) -> Path:
    """The kubeconfig with a context more that reaches eu-1 under another name, and one that is broken."""
    config = yaml.safe_load(source.read_text())
    eu = next(entry for entry in config["contexts"] if entry["name"] == "eu-1")
    config["contexts"].append({"name": "zz-second", "context": dict(eu["context"])})
    config["contexts"].append({"name": "broken", "context": {"cluster": "nowhere", "user": "nobody"}})
    target.write_text(yaml.safe_dump(config))
    return target


@asynccontextmanager
async def _run(kubeconfig: Path, folder: Path, *arguments: str) -> AsyncIterator[str]:
    """Runs `federator run`, which ends by itself when it is told to."""
    address = f"unix:{folder / 'read.sock'}"
    group = ProcessGroup()
    try:
        process = launch(
            group,
            folder,
            "run",
            f"--kubeconfig={kubeconfig}",
            f"--state-directory={folder / 'state'}",
            f"--listen={address}",
            "--http-listen=127.0.0.1:0",
            *arguments,
        )
        yield address
        assert process.running, process.log_tail()
        assert await process.stop(20), process.log_tail()
        assert process.exit_code == 0, process.log_tail()
    finally:
        group.close()


async def _wait_live(fed: InventoryClient) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                clusters = (await fed.clusters(timeout=5)).clusters
            except AggregatorUnreachable:
                clusters = ()
            if {cluster.cluster_id for cluster in clusters if cluster.state is ClusterState.LIVE} >= set(NAMES):
                return
            await asyncio.sleep(0.2)
