"""The audit against a real kube-apiserver: it can ask what it asks of every type, and is right while much changes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from federator.agent import audit as audit_module
from federator.agent.audit import Audit, AuditedType, AuditOutcome
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache.shared_informer import SharedInformer
from federator.errors import KubeStatusError
from federator.kube import MemberClient, ResourceListWatch
from federator.kube.discovery import discover
from federator.testing import Testbed
from federator.testing.admin_client import AdminClient

pytestmark = pytest.mark.testbed

CONFIG_MAPS = ResourceType(group="", version="v1", resource="configmaps", kind="ConfigMap", namespaced=True)


@pytest.fixture
async def client(three_clusters: Testbed) -> AsyncIterator[MemberClient]:
    async with MemberClient.from_kubeconfig("eu-1", path=three_clusters.kubeconfig) as client:
        yield client


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "PAGE_SIZE", 7)
    monkeypatch.setattr(audit_module, "REQUEST_PAUSE", 0.001)


@asynccontextmanager
async def followed(client: MemberClient, *types: ResourceType, namespace: str = "") -> AsyncIterator[list[AuditedType]]:
    audited = [
        AuditedType(
            each,
            SharedInformer(
                ResourceListWatch(client, each, namespace=namespace),
                name=str(each.group_resource),
                retain=KubeObject.without_raw,
                use_watch_list=False,
            ),
            ResourceListWatch(client, each, namespace=namespace, metadata_only=True),
        )
        for each in types
    ]
    running = [asyncio.create_task(each.informer.run()) for each in audited]
    for each in audited:
        await each.informer.wait_synced()
    yield audited
    for task in running:
        task.cancel()
    await asyncio.wait(running)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - a condition over an Indexer has no event
            await asyncio.sleep(0.02)


async def test_every_type_can_be_listed_as_it_was(client: MemberClient) -> None:
    types = (await discover(client)).types
    async with followed(client, *types) as audited:
        audit = Audit(lambda: audited, interval=3600, name="eu-1")
        results = [await audit.check(each) for each in audited]
    assert len(results) > 30
    assert [result for result in results if result.outcome is not AuditOutcome.EQUAL] == []
    assert sum(result.objects for result in results) > 100


async def churn(admin: AdminClient, namespace: str) -> None:
    draws = random.Random(1)
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    while True:
        name = f"map-{draws.randrange(40)}"
        try:
            match draws.randrange(3):
                case 0:
                    await admin.create(path, {"metadata": {"name": name}})
                case 1:
                    await admin.patch(f"{path}/{name}", {"data": {"a": str(draws.random())}})
                case _:
                    await admin.delete(f"{path}/{name}")
        except KubeStatusError as error:
            assert error.code in {404, 409}


async def test_changes_are_no_differences_and_differences_are_found_and_mended(
    three_clusters: Testbed, client: MemberClient, shared_namespace: str
) -> None:
    async with (
        three_clusters["eu-1"].client() as admin,
        followed(client, CONFIG_MAPS, namespace=shared_namespace) as (audited,),
    ):
        indexer = audited.informer.indexer
        audit = Audit(lambda: [audited], interval=3600, name="eu-1")
        for name in ("kept", "lost", "odd"):
            await admin.create(f"/api/v1/namespaces/{shared_namespace}/configmaps", {"metadata": {"name": name}})
        churning = asyncio.create_task(churn(admin, shared_namespace))
        await until(lambda: len(indexer.list_keys()) > 15)
        for _ in range(15):
            result = await audit.check(audited)
            assert (result.outcome, result.keys) == (AuditOutcome.EQUAL, ())
        odd = indexer.get_by_key(f"{shared_namespace}/odd")
        assert odd is not None
        indexer.remove(f"{shared_namespace}/lost")
        indexer.put(odd.key, KubeObject(odd.namespace, odd.name, "another", odd.resource_version))
        indexer.put("ghost", KubeObject(shared_namespace, "ghost", "uid", "1"))
        result = await audit.check(audited)
        assert sorted(result.keys) == [
            f"differs {shared_namespace}/odd",
            "extra ghost",
            f"missing {shared_namespace}/lost",
        ]
        await until(lambda: indexer.get_by_key("ghost") is None)
        assert (await audit.check(audited)).outcome is AuditOutcome.EQUAL
        churning.cancel()
        await asyncio.wait([churning])
    assert audit.statistics()["relists"] == 1
