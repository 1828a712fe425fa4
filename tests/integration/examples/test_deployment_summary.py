"""The example of a controller, as a process on three real clusters."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from federator.errors import KubeStatusError
from federator.testing import AdminClient, Testbed
from federator.testing.manifests import deployment
from tests.integration.examples import program
from tests.integration.examples.program import TIMEOUT, Example

pytestmark = pytest.mark.testbed

NAMES = ("eu-1", "us-1", "ap-1")
TARGET = "us-1"

Figures = tuple[int, int, int]
"""Deployments of a cluster, replicas wanted, replicas ready."""


class Bed:
    """One namespace in each cluster, and the ConfigMap in that of the target."""

    def __init__(self, kubeconfig: Path, namespace: str, admins: dict[str, AdminClient]) -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self._admins = admins
        self._path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        self._config_maps = f"/api/v1/namespaces/{namespace}/configmaps"

    async def create(self, cluster: str, name: str, *, replicas: int) -> None:
        obj = deployment(self.namespace, name, replicas=replicas)
        obj["metadata"]["labels"] = {"of": self.namespace}
        await self._admins[cluster].create(self._path, obj)

    async def scale(self, cluster: str, name: str, replicas: int) -> None:
        await self._admins[cluster].patch(f"{self._path}/{name}", {"spec": {"replicas": replicas}})

    async def become_ready(self, cluster: str, name: str, replicas: int) -> None:
        """As its controller would say, of which these clusters have none."""
        status = {"replicas": replicas, "readyReplicas": replicas}
        await self._admins[cluster].patch(f"{self._path}/{name}/status", {"status": status})

    async def delete(self, cluster: str, name: str) -> None:
        await self._admins[cluster].delete(f"{self._path}/{name}")

    async def touch(self, cluster: str, name: str, text: str) -> None:
        """Changes what is not summed up."""
        await self._admins[cluster].patch(f"{self._path}/{name}", {"metadata": {"annotations": {"note": text}}})

    async def note(self, text: str) -> None:
        """Somebody else writes something else into the ConfigMap."""
        await self._admins[TARGET].patch(f"{self._config_maps}/deployment-summary", {"data": {"note": text}})

    async def summary(self) -> dict[str, Any]:
        """What the ConfigMap says; empty where it is not there."""
        try:
            config_map = await self._admins[TARGET].get(f"{self._config_maps}/deployment-summary")
        except KubeStatusError as error:
            if error.code != 404:
                raise
            return {}
        lines = {cluster: json.loads(line) for cluster, line in config_map["data"].items()}
        return {
            cluster: (line["deployments"], line["wanted"], line["ready"]) if cluster in NAMES else line
            for cluster, line in lines.items()
        }

    async def writes(self) -> int:
        """ConfigMaps that were replaced in the target cluster so far, as its apiserver counts them."""
        metrics = await self._admins[TARGET].text("/metrics")
        return sum(
            int(line.rpartition(" ")[2])
            for line in metrics.splitlines()
            if line.startswith("apiserver_request_total{")
            and all(label in line for label in ('code="200"', 'resource="configmaps"', 'verb="PUT"'))
        )

    async def says(self, **expected: Figures | str) -> None:
        """Waits until the summary says this."""
        wanted = {name.replace("_", "-"): figures for name, figures in expected.items()}
        said: dict[str, Any] = {}
        try:
            async with asyncio.timeout(TIMEOUT):
                while (said := await self.summary()) != wanted:  # noqa: ASYNC110 - a ConfigMap has no event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"the summary says {said}, not {wanted}")


@pytest.fixture
async def bed(three_clusters: Testbed, shared_namespace: str) -> AsyncIterator[Bed]:
    async with (
        three_clusters["eu-1"].client() as eu,
        three_clusters["us-1"].client() as us,
        three_clusters["ap-1"].client() as ap,
    ):
        yield Bed(three_clusters.kubeconfig, shared_namespace, dict(zip(NAMES, (eu, us, ap), strict=True)))


def running(bed: Bed) -> AbstractAsyncContextManager[Example]:
    contexts = [f"--context={name}" for name in NAMES]
    words = (f"--target={TARGET}", f"--namespace={bed.namespace}", f"--selector=of={bed.namespace}")
    return program.running("deployment_summary", *contexts, *words, kubeconfig=bed.kubeconfig)


async def test_the_summary_follows_all_clusters_over_a_kill_and_ends_with_ctrl_c(bed: Bed) -> None:
    await bed.create("eu-1", "web", replicas=3)
    await bed.create("eu-1", "api", replicas=2)
    await bed.create("us-1", "web", replicas=1)
    await bed.become_ready("eu-1", "web", 3)

    async with running(bed) as example:
        await bed.says(eu_1=(2, 5, 3), us_1=(1, 1, 0), ap_1=(0, 0, 0))
        await bed.create("ap-1", "web", replicas=4)
        await bed.scale("eu-1", "api", 7)
        await bed.become_ready("us-1", "web", 1)
        await bed.says(eu_1=(2, 10, 3), us_1=(1, 1, 1), ap_1=(1, 4, 0))
        await bed.delete("us-1", "web")
        await bed.says(eu_1=(2, 10, 3), us_1=(0, 0, 0), ap_1=(1, 4, 0))
        assert await example.kill() == (-signal.SIGKILL, "", "")

    await bed.delete("eu-1", "web")
    await bed.create("us-1", "late", replicas=6)
    await bed.note('"by somebody else"')
    written = await bed.writes()
    async with running(bed) as example:
        await bed.says(eu_1=(1, 7, 0), us_1=(1, 6, 0), ap_1=(1, 4, 0), note="by somebody else")
        await bed.touch("ap-1", "web", "again")
        await asyncio.sleep(0.3)
        await bed.delete("ap-1", "web")
        await bed.says(eu_1=(1, 7, 0), us_1=(1, 6, 0), ap_1=(0, 0, 0), note="by somebody else")
        assert await bed.writes() - written == 3, "one for each line that has changed"
        assert await example.interrupt() == (0, "", "")
