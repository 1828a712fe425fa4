"""What each apiserver holds, listed apart from any agent, and its comparison with what the federation holds."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from federator.agent.transforms import drop_bookkeeping
from federator.api.list_watch import ListOptions
from federator.api.resource import GroupResource, ResourceType
from federator.client import InventoryClient
from federator.kube.discovery import discover
from federator.kube.member_client import MemberClient
from federator.kube.resource_list_watch import ResourceListWatch
from federator.testing.testbed import Testbed

Key = tuple[str, str, str, str, str]
"""Cluster, group, resource, namespace, name."""

_PAUSE = 0.3
"""Seconds between two readings of types that differed."""

NOT_COLLECTED = {
    GroupResource("", "events"),
    GroupResource("events.k8s.io", "events"),
    GroupResource("coordination.k8s.io", "leases"),
    GroupResource("coordination.k8s.io", "leasecandidates"),
    GroupResource("", "endpoints"),
    GroupResource("", "secrets"),
}
"""Written out once more: a test that asks the agent what it leaves out would not see it leave out too much."""


async def collected_types(client: MemberClient) -> list[ResourceType]:
    """The types an agent collects by default."""
    return [each for each in (await discover(client)).types if each.group_resource not in NOT_COLLECTED]


async def listed(bed: Testbed, clusters: Iterable[str], only: Collection[GroupResource] = ()) -> dict[Key, bytes]:
    """Every object of every collected type (or of those types only), by key, as bytes after the transforms."""
    found: dict[Key, bytes] = {}

    async def read(cluster: str) -> None:
        async with MemberClient.from_kubeconfig(cluster, path=bed.kubeconfig) as client:
            for each in await collected_types(client):
                if only and each.group_resource not in only:
                    continue
                page = await ResourceListWatch(client, each).list(ListOptions())
                assert not page.continue_token
                assert not page.skipped
                for obj in page.objects:
                    key = (cluster, each.group, each.resource, obj.namespace, obj.name)
                    found[key] = drop_bookkeeping(obj).raw

    await asyncio.gather(*map(read, clusters))
    return found


async def held(fed: InventoryClient, resources: Iterable[str]) -> dict[Key, bytes]:
    """Every object of these types in the federation; nothing where the answer is not complete."""
    answer = await fed.list(list(resources), timeout=60)
    if not answer.complete:
        return {}
    objects = {(item.cluster_id, item.group, item.resource, item.namespace, item.name): item for item in answer.items}
    assert len(objects) == len(answer.items) == answer.total
    return {key: item.body for key, item in objects.items()}


async def all_types(fed: InventoryClient) -> list[str]:
    """Every type the federation collects, in its unambiguous spelling."""
    served = await fed.resource_types(timeout=10)
    return [
        f"{each.type.resource}.{each.type.version}.{each.type.group}".rstrip(".")
        for each in served
        if each.type.group_resource not in NOT_COLLECTED
    ]


async def assert_equal(bed: Testbed, fed: InventoryClient, clusters: Iterable[str], timeout: float = 40) -> int:
    """Waits until the federation's List of every type equals what the apiservers list, byte for byte.

    Controllers never rest for long, so both sides are read again until they agree: at first the types that did not,
    and in the end all at once. Returns the number of objects.
    """
    clusters = list(clusters)
    deadline = asyncio.get_running_loop().time() + timeout
    only: set[GroupResource] = set()
    while True:
        mine, theirs = await asyncio.gather(_held(fed, only), listed(bed, clusters, only))
        differing = {key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)}
        if not differing and not only:
            return len(mine)
        if asyncio.get_running_loop().time() > deadline:
            missing, extra = sorted(theirs.keys() - mine.keys()), sorted(mine.keys() - theirs.keys())
            other = sorted(key for key in mine.keys() & theirs.keys() if mine[key] != theirs[key])
            first = [(mine[key], theirs[key]) for key in other[:1]]
            raise AssertionError(f"missing {missing[:5]}, extra {extra[:5]}, different {other[:5]}: {first}")
        only = {GroupResource(group, resource) for _, group, resource, _, _ in differing}
        if differing:
            await asyncio.sleep(_PAUSE)


async def _held(fed: InventoryClient, only: Collection[GroupResource]) -> dict[Key, bytes]:
    """Every object of these types in the federation, of all if none is named; see `held`."""
    return await held(fed, map(str, only) if only else await all_types(fed))
