"""The examples of the informer library, as processes on a real cluster."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from federator.testing import ControlPlane
from federator.testing.manifests import deployment

pytestmark = pytest.mark.testbed

EXAMPLES = Path(__file__).parents[3] / "examples"
TIMEOUT = 60.0

_numbers = itertools.count(1)


class Example:
    """A running example."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def prints(self, *texts: str) -> str:
        """Waits until it has printed all of these after what was waited for before, and returns what came."""
        assert self._process.stdout is not None
        came = ""
        async with asyncio.timeout(TIMEOUT):
            while not all(text in came for text in texts):
                line = (await self._process.stdout.readline()).decode()
                assert line, f"it ended without printing {texts}, but: {came}\n{await self._stderr()}"
                came += line
        return came

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for what it does beside printing."""
        async with asyncio.timeout(TIMEOUT):
            while not condition():
                assert self._process.returncode is None, await self._stderr()
                await asyncio.sleep(0.1)

    async def interrupt(self) -> tuple[int, str]:
        """Presses Ctrl-C; exit code, and what it wrote to stderr."""
        self._process.send_signal(signal.SIGINT)
        async with asyncio.timeout(TIMEOUT):
            _, err = await self._process.communicate()
        assert self._process.returncode is not None
        return self._process.returncode, err.decode()

    async def _stderr(self) -> str:
        assert self._process.stderr is not None
        return (await self._process.stderr.read()).decode()


@asynccontextmanager
async def running(plane: ControlPlane, namespace: str, name: str, *arguments: str | Path) -> AsyncIterator[Example]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(EXAMPLES / name),
        "--context",
        plane.context,
        "--namespace",
        namespace,
        *map(str, arguments),
        env=os.environ | {"KUBECONFIG": str(plane.kubeconfig)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Example(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


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
        running(living_cluster, namespace, "read_cache.py", "--every", "0.2") as example,
    ):
        assert "NODE" in await example.prints("0 pods\n", "NODE")
        await admin.create(
            f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment(namespace, "web", replicas=2)
        )
        await example.prints("2 pods\n", f"  {namespace}/web-", "\n\n")
        await admin.patch(f"/apis/apps/v1/namespaces/{namespace}/deployments/web", {"spec": {"replicas": 0}})
        await example.prints("0 pods\n")
        assert await example.interrupt() == (0, "")


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
        async with running(living_cluster, namespace, "audit.py", *arguments) as example:
            await example.until(lambda: bool(entries("watching")))
            await admin.create(path, {"metadata": {"name": "settings"}, "data": {"colour": "secret-blue"}})
            await admin.patch(f"{path}/settings", {"data": {"colour": "secret-red", "size": "1"}})
            await admin.delete(f"{path}/settings")
            await example.until(lambda: len(entries("settings")) == 3)
            assert await example.interrupt() == (0, "")
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

        async with running(living_cluster, namespace, "audit.py", *arguments) as example:
            await example.until(lambda: len(entries("watching")) == 2)
            assert await example.interrupt() == (0, "")
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
        running(living_cluster, namespace, "event_driven.py", "--longer-than", "2") as example,
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
        assert await example.interrupt() == (0, "")
