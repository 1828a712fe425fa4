"""The examples of the informer library, as processes on a real cluster."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from federator.testing import ControlPlane
from federator.testing.manifests import deployment
from tests.integration.examples import program
from tests.integration.examples.program import TIMEOUT, Example

pytestmark = pytest.mark.testbed

_numbers = itertools.count(1)


def running(
    plane: ControlPlane, namespace: str, name: str, *arguments: str | Path
) -> AbstractAsyncContextManager[Example]:
    words = ("--context", plane.context, "--namespace", namespace, *arguments)
    return program.running(name, *words, kubeconfig=plane.kubeconfig)


@pytest.fixture
async def namespace(living_cluster: ControlPlane) -> AsyncIterator[str]:
    """A new namespace; what runs in it ends after the test."""
    name = f"library-examples-{next(_numbers)}"
    async with living_cluster.client() as admin:
        await admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
        async with asyncio.timeout(TIMEOUT):  # no pod can be created before its service account is there
            while not (await admin.get(f"/api/v1/namespaces/{name}/serviceaccounts"))["items"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        yield name
        await admin.delete(f"/api/v1/namespaces/{name}")


async def test_read_cache_prints_pods_by_node_and_follows_changes(living_cluster: ControlPlane, namespace: str) -> None:
    async with (
        living_cluster.client() as admin,
        running(living_cluster, namespace, "read_cache", "--every", "0.2") as example,
    ):
        assert "NODE" in await example.prints("0 pods\n", "NODE")
        await admin.create(
            f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment(namespace, "web", replicas=2)
        )
        await example.prints("2 pods\n", f"  {namespace}/web-", "\n\n")
        await admin.patch(f"/apis/apps/v1/namespaces/{namespace}/deployments/web", {"spec": {"replicas": 0}})
        await example.prints("0 pods\n")
        ended = await example.interrupt()
        assert (ended.code, ended.stderr) == (0, "")


async def test_audit_appends_every_change_with_its_manager_and_fields(
    living_cluster: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    log = tmp_path / "audit.jsonl"
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    arguments = ("--type", "configmaps", "--log", log)

    def entries(name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [line for line in lines if line.get("key", line["event"]) in (f"{namespace}/{name}", name)]

    async with living_cluster.client() as admin:
        async with running(living_cluster, namespace, "audit", *arguments) as example:
            await example.until(lambda: bool(entries("watching")))
            await admin.create(path, {"metadata": {"name": "settings"}, "data": {"colour": "secret-blue"}})
            await admin.patch(f"{path}/settings", {"data": {"colour": "secret-red", "size": "1"}})
            await admin.delete(f"{path}/settings")
            await example.until(lambda: len(entries("settings")) == 3)
            assert await example.interrupt() == (0, "", "")
        created, changed, deleted = entries("settings")
        assert (created["event"], changed["event"], deleted["event"]) == ("created", "changed", "deleted")
        assert created["manager"] and created["manager"] == changed["manager"]
        assert changed["fields"] == ["/data/colour", "/data/size"]
        assert deleted["seen"] is True
        assert created["at"] <= changed["at"] <= deleted["at"]
        assert int(created["resourceVersion"]) < int(changed["resourceVersion"]) < int(deleted["resourceVersion"])
        assert {each["uid"] for each in (created, changed, deleted)} == {created["uid"]}
        assert [(each["skipped"], each["failed"]) for each in entries("ended")] == [(0, 0)]
        assert "secret" not in log.read_text()

        async with running(living_cluster, namespace, "audit", *arguments) as example:
            await example.until(lambda: len(entries("watching")) == 2)
            assert await example.interrupt() == (0, "", "")
        assert len(entries("settings")) == 3, "it appends"
        assert entries("kube-root-ca.crt")[-1]["event"] == "present"


async def test_event_driven_tells_of_a_pod_that_is_not_ready_for_long_once_and_of_its_end(
    living_cluster: ControlPlane, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    stuck = {
        "metadata": {"name": "stuck"},
        "spec": {"nodeSelector": {"no": "such-node"}, "containers": [{"name": "main", "image": "registry.test/main"}]},
    }
    async with (
        living_cluster.client() as admin,
        running(living_cluster, namespace, "event_driven", "--longer-than", "2") as example,
    ):
        await example.prints("watching ")
        await admin.create(pods, stuck)
        await admin.create(
            f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment(namespace, "quick", replicas=1)
        )
        told = await example.prints(f"{namespace}/stuck is not Ready since ")
        assert float(told.split()[-2]) >= 2
        await admin.patch(f"{pods}/stuck", {"metadata": {"labels": {"looked": "at"}}})
        await admin.delete(f"{pods}/stuck", gracePeriodSeconds="0")
        assert await example.prints("stuck is gone\n") == f"{namespace}/stuck is gone\n", "nothing is told twice"
        assert await example.interrupt() == (0, "", "")
