"""A cluster to follow, and what a federation should have of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from federator.api.cluster import ClusterState
from federator.api.list_watch import ListOptions
from federator.errors import AggregatorUnreachable
from federator.kube.member_client import MemberClient
from federator.kube.resource_list_watch import ResourceListWatch
from federator.testing.fake_api_server import FakeApiServer
from federator.testing.federation import Federation
from tests.integration.federation.truth import Key, collected_types, held

CONTEXT = "eu-1"
TYPES = ("configmaps", "deployments.apps", "namespaces", "nodes", "pods")
"""What an agent collects of a fake apiserver."""

_OBJECTS = 40
_PATIENCE = 60.0

Objects = Mapping[Key, Any]


class Traffic:
    """Objects of several types that come, change and go, no two times the same."""

    def __init__(self, server: FakeApiServer) -> None:
        self._server = server
        self._round = 0
        for number in range(_OBJECTS):
            server.put("configmaps", f"c-{number:02}", f"team-{number % 3}", data={"colour": "red", "n": str(number)})
            server.put("pods", f"p-{number:02}", labels={"app": f"app-{number % 4}"}, spec={"nodeName": "node-0"})
        for number in range(3):
            server.put("nodes", f"node-{number}")
            server.put("deployments", f"d-{number}", spec={"replicas": number})

    def go_on(self) -> None:
        """Changes, deletes, creates, and creates anew what was deleted."""
        self._round += 1
        server, round_ = self._server, self._round
        for number in range(round_, _OBJECTS, 5):
            server.put("configmaps", f"c-{number:02}", f"team-{number % 3}", data={"colour": f"blue-{round_}"})
        for number in (round_, round_ + 20):
            server.delete("pods", f"p-{number:02}")
        server.put("pods", f"p-{round_:02}", labels={"app": "again"})
        server.put("pods", f"new-{round_}", labels={"app": "new"})
        server.patch("deployments", "d-1", {"spec": {"replicas": 10 + round_}})
        server.touch("nodes", "node-2")


async def listening(federation: Federation) -> None:
    """Waits until an agent may be started that is to find its aggregator at once."""
    socket = federation.ingest_address.removeprefix("unix:")
    async with asyncio.timeout(_PATIENCE):
        while not await asyncio.to_thread(os.path.exists, socket):  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.05)


async def wait_state(federation: Federation, state: ClusterState) -> None:
    """Waits until the cluster is in a state, whoever runs."""
    last: object = None
    try:
        async with asyncio.timeout(_PATIENCE), federation.client() as fed:
            while True:
                with contextlib.suppress(AggregatorUnreachable):
                    last = {each.cluster_id: each.state for each in (await fed.clusters(timeout=5)).clusters}
                    if last == {CONTEXT: state}:
                        return
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"not {state}: {last}") from None


async def wait_equal(federation: Federation, kubeconfig: Path) -> Objects:
    """Waits until the federation holds what the cluster does, object by object, and returns that.

    Raises:
        AssertionError: it does not.
    """
    theirs: Objects = {}
    mine: Objects = {}
    try:
        async with asyncio.timeout(_PATIENCE), federation.client() as fed:
            while not theirs or mine != theirs:
                await asyncio.sleep(0.1)
                theirs = await _listed(kubeconfig)
                mine = {key: msgspec.json.decode(body) for key, body in (await held(fed, TYPES)).items()}
    except TimeoutError:
        differing = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
        first = [(key, mine.get(key), theirs.get(key)) for key in differing[:3]]
        raise AssertionError(f"{len(differing)} differ, as (key, held, there): {first}") from None
    return theirs


async def _listed(kubeconfig: Path) -> Objects:
    found: dict[Key, Any] = {}
    async with MemberClient.from_kubeconfig(CONTEXT, path=kubeconfig) as client:
        for each in await collected_types(client):
            for obj in (await ResourceListWatch(client, each).list(ListOptions())).objects:
                key = (CONTEXT, each.group, each.resource, obj.namespace, obj.name)
                found[key] = msgspec.json.decode(obj.raw)
    return found
