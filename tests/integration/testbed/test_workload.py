from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from federator.errors import InvalidInput
from federator.testing import AdminClient, ControlPlane, Testbed, Workload
from federator.testing.admin_client import Json
from federator.testing.manifests import deployment

pytestmark = pytest.mark.testbed

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - what other processes do sets no event here
            await asyncio.sleep(0.1)


async def running(admin: AdminClient, app: str) -> list[Json]:
    pods = await admin.get("/api/v1/namespaces/default/pods", labelSelector=f"app.kubernetes.io/instance={app}")
    return [pod for pod in pods["items"] if pod["status"]["phase"] == "Running"]


async def test_a_deployment_lives(living_cluster: ControlPlane) -> None:
    async with living_cluster.client() as admin:

        async def count_is(count: int) -> bool:
            pods = await admin.get("/api/v1/namespaces/default/pods", labelSelector="app.kubernetes.io/instance=web")
            return len(pods["items"]) == len(await running(admin, "web")) == count

        await admin.create(DEPLOYMENTS, deployment("default", "web", replicas=3))
        await until(lambda: count_is(3))
        pods = await running(admin, "web")
        assert {pod["metadata"]["ownerReferences"][0]["kind"] for pod in pods} == {"ReplicaSet"}
        assert {pod["spec"]["nodeName"] for pod in pods} <= {"node-0", "node-1", "node-2"}
        # Tokens come with service accounts: admission is as in any cluster.
        assert any(volume["name"].startswith("kube-api-access") for volume in pods[0]["spec"]["volumes"])

        await admin.patch(f"{DEPLOYMENTS}/web", {"spec": {"replicas": 5}})
        await until(lambda: count_is(5))
        await admin.delete(f"{DEPLOYMENTS}/web")
        await until(lambda: count_is(0))


async def test_a_filled_living_cluster_runs_its_applications(living_cluster: ControlPlane) -> None:
    workload = Workload(living_cluster, namespaces=["fleet"])
    assert await workload.fill(applications=2) == 7
    async with living_cluster.client() as admin:

        async def available() -> bool:
            found = await admin.get("/apis/apps/v1/namespaces/fleet/deployments")
            return all(
                each["status"].get("availableReplicas") == each["spec"]["replicas"] for each in found["items"]
            ) and bool(found["items"])

        await until(available)


async def test_clusters_of_one_seed_have_the_same_applications(three_clusters: Testbed) -> None:
    seen = []
    for plane in list(three_clusters)[:2]:
        workload = Workload(plane, namespaces=["alike-a", "alike-b"], seed=7)
        assert await workload.fill(applications=4) == 2 + 3 * 4
        assert await Workload(plane, namespaces=["alike-a", "alike-b"], seed=7).fill(applications=4) == 0
        async with plane.client() as admin:
            found = await admin.get("/api/v1/namespaces/alike-b/services")
        seen.append({item["metadata"]["name"] for item in found["items"]})
    assert seen[0] == seen[1]
    assert len(seen[0]) == 2


async def test_stored_pods_are_as_real_as_created_ones(three_clusters: Testbed) -> None:
    plane = three_clusters["eu-1"]
    workload = Workload(plane, namespaces=["stored"])
    assert await workload.fill(applications=0, pods=200) == 201
    async with plane.client() as admin:

        async def listed() -> list[Json]:
            return list((await admin.get("/api/v1/namespaces/stored/pods", resourceVersion="0"))["items"])

        async def cached() -> bool:
            return len(await listed()) == 200

        await until(cached)
        pods = await listed()
        assert len({pod["metadata"]["uid"] for pod in pods}) == 200
        assert len({pod["metadata"]["resourceVersion"] for pod in pods}) == 200
        assert all(pod["status"]["phase"] == "Running" and pod["spec"]["restartPolicy"] == "Always" for pod in pods)

        path = f"/api/v1/namespaces/stored/pods/{pods[0]['metadata']['name']}"
        await admin.patch(path, {"metadata": {"labels": {"track": "canary"}}})
        await admin.delete(path, gracePeriodSeconds="0")
        await until(lambda: _count_is(listed, 199))


async def _count_is(listed: Callable[[], Awaitable[list[Json]]], count: int) -> bool:
    return len(await listed()) == count


async def test_churn_goes_on_over_an_apiserver_that_is_away(expendable_cluster: ControlPlane) -> None:
    plane = expendable_cluster
    workload = Workload(plane, seed=1)
    await workload.fill(applications=6)
    churning = asyncio.create_task(workload.churn(rate=200))

    async def done(*kinds: str) -> bool:
        assert not churning.done()
        return all(workload.statistics().get(kind) for kind in kinds)

    await until(lambda: done("scale", "roll", "relabel", "configure", "create", "delete"))
    plane.kill()
    await until(lambda: done("unreachable"))
    await plane.start()
    before = sum(workload.statistics().values())

    async def moved_on() -> bool:
        return sum(workload.statistics().values()) > before + 50

    await until(moved_on)
    churning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await churning
    async with plane.client() as admin:
        found = await admin.get("/apis/apps/v1/deployments")
    assert 3 <= len(found["items"]) <= 12


async def test_churn_of_nothing_is_refused(three_clusters: Testbed) -> None:
    plane = three_clusters["eu-1"]
    with pytest.raises(InvalidInput, match="applications"):
        await Workload(plane).churn(rate=1)
    with pytest.raises(InvalidInput, match="rate"):
        await Workload(plane).churn(rate=0)
