"""The shipped roles are enough for an agent, and no more than reading."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from federator.api.cluster import TypeState
from federator.errors import KubeStatusError
from federator.testing.admin_client import AdminClient
from federator.testing.federation import Federation
from federator.testing.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(180)]

DEPLOY = Path(__file__).parents[3] / "deploy"
COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/federator/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


def shipped(base: str) -> list[dict[str, Any]]:
    """The objects of a base, in the order of its kustomization."""
    folder = DEPLOY / base
    files = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [obj for file in files for obj in yaml.safe_load_all((folder / file).read_text())]


def test_the_shipped_roles_read_and_nothing_else() -> None:
    roles = [obj for base in ("agent", "agent-secrets") for obj in shipped(base) if obj["kind"] == "ClusterRole"]
    rules = [rule for role in roles for rule in role["rules"]]
    assert rules
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert not [rule for rule in rules if "*" in rule["apiGroups"]]
    core = {
        resource
        for base in ("agent",)
        for obj in shipped(base)
        for rule in obj.get("rules", ())
        if "" in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert core
    assert not core & {"*", "secrets"}


async def test_an_agent_with_the_shipped_rights_collects_every_type(living_bed: Testbed, tmp_path: Path) -> None:
    async with living_bed["us-1"].client() as admin:
        for obj in shipped("agent"):
            await _create(admin, obj)
        token = await _token(admin)
        kubeconfig = _with_token(living_bed, token, tmp_path / "kubeconfig")
        await _until_bound(admin)
    async with Federation(kubeconfig, ("us-1",)) as federation, federation.client() as fed:
        (cluster,) = (await fed.clusters()).clusters
        states = {str(each.group_resource): each.state for each in cluster.types}
        assert {name for name, state in states.items() if state is TypeState.DENIED} == set()
        assert states["pods"] is states["deployments.apps"] is TypeState.LIVE
        assert states["secrets"] is TypeState.NOT_COLLECTED
        # Asked for without the component, they are DENIED, and the others go on.
        assert await federation.processes["agent-us-1"].stop(10)
        federation.start_agent("us-1", "--secrets=metadata")
        async with asyncio.timeout(60):
            while True:
                (cluster,) = (await fed.clusters()).clusters
                states = {str(each.group_resource): each.state for each in cluster.types}
                if states["secrets"] is TypeState.DENIED and states["pods"] is TypeState.LIVE:
                    break
                await asyncio.sleep(0.2)


async def _create(admin: AdminClient, obj: dict[str, Any]) -> None:
    try:
        await admin.create(COLLECTIONS[obj["kind"]], obj)
    except KubeStatusError as error:
        assert error.status_reason == "AlreadyExists", error


async def _token(admin: AdminClient) -> str:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    path = "/api/v1/namespaces/federator/serviceaccounts/federator-agent/token"
    return str((await admin.create(path, request))["status"]["token"])


async def _until_bound(admin: AdminClient) -> None:
    """The controller-manager fills the aggregated role."""
    async with asyncio.timeout(30):
        while not (await admin.get(f"{COLLECTIONS['ClusterRole']}/federator-agent")).get("rules"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def _with_token(bed: Testbed, token: str, target: Path) -> Path:
    """The testbed's kubeconfig with the service account in place of the administrator."""
    config = yaml.safe_load(bed.kubeconfig.read_text())
    context = next(each for each in config["contexts"] if each["name"] == "us-1")
    user = next(each for each in config["users"] if each["name"] == context["context"]["user"])
    user["user"] = {"token": token}
    target.write_text(yaml.safe_dump(config))
    return target
