"""Labels of clusters as users give, show, select and change them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing

import pytest

from federator.client import EventType, InventoryClient
from federator.errors import AggregatorUnreachable
from federator.testing.federation import Federation
from federator.testing.testbed import Testbed
from tests.integration.federation.commands import federator
from tests.integration.federation.conftest import NAMES

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]


async def _relabel(federation: Federation, context: str, *labels: str) -> None:
    """Starts the agent of a context anew, with other labels."""
    assert await federation.processes[f"agent-{context}"].stop(20)
    federation.start_agent(context, *(f"--cluster-label={label}" for label in labels))


async def _asked(federation: Federation, selector: str) -> set[str]:
    """The clusters of what is shown of clusters with these labels."""
    asked = ("namespaces", f"--cluster-selector={selector}", "-o", "name")
    shown = await federator("get", *asked, server=federation.address)
    return {line.split("/")[0] for line in shown.out.splitlines()}


async def _wait_labels(fed: InventoryClient, expected: dict[str, dict[str, str]]) -> None:
    async with asyncio.timeout(60):
        while await _labels(fed) != expected:  # noqa: ASYNC110 - what another process does sets no event
            await asyncio.sleep(0.1)


async def _labels(fed: InventoryClient) -> dict[str, Mapping[str, str]] | None:
    """Labels by cluster; None while the aggregator starts."""
    try:
        return {each.cluster_id: each.labels for each in (await fed.clusters()).clusters}
    except AggregatorUnreachable:
        return None


async def test_labels_choose_clusters_and_watches_notice_when_they_change(living_bed: Testbed) -> None:
    async with (
        Federation(living_bed.kubeconfig, NAMES, agent_arguments=["--resource=namespaces"]) as federation,
        federation.client() as fed,
    ):
        await _relabel(federation, "eu-1", "env=prod", "example.com/region=eu")
        await _wait_labels(fed, {"ap-1": {}, "eu-1": {"env": "prod", "example.com/region": "eu"}, "us-1": {}})
        assert await _asked(federation, "env=prod") == {"eu-1"}
        columns = await federator("clusters", "-L", "env", "--no-headers", server=federation.address)
        assert [line.split()[-1] for line in columns.out.splitlines()] == ["<none>", "prod", "<none>"]

        async with aclosing(fed.watch("namespaces", cluster_labels="env=prod", timeout=90)) as events:
            clusters: set[str] = set()
            async for event in events:
                if event.object is not None:
                    clusters.add(event.object.cluster_id)
                elif event.type is EventType.RELISTED:
                    clusters.clear()
                elif event.type is EventType.INITIAL_END and clusters == {"eu-1"}:
                    await _relabel(federation, "us-1", "env=prod")
                elif event.type is EventType.INITIAL_END:
                    break
            assert clusters == {"eu-1", "us-1"}

        assert await federation.processes["aggregator"].stop(20)
        federation.start_aggregator()
        await _wait_labels(
            fed, {"ap-1": {}, "eu-1": {"env": "prod", "example.com/region": "eu"}, "us-1": {"env": "prod"}}
        )
        for selector, chosen in (("env=prod", {"eu-1", "us-1"}), ("example.com/region=eu", {"eu-1"})):
            assert await _asked(federation, selector) == chosen
