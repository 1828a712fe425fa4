"""The shipped roles are enough for an agent and no more than reading; with one right less it says which and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from federator.api.cluster import ClusterState, TypeState, is_stand_in
from federator.api.resource import GroupResource
from federator.client import Cluster, InventoryClient
from federator.testing.control_plane import ControlPlane
from federator.testing.federation import Federation
from tests.integration.deploy.kubectl import DEPLOY, NAMESPACE, Kubectl, agent_token, kubeconfig_with, without
from tests.integration.federation.commands import federator

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(300)]

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
LIVE_OR_LEFT_OUT = {TypeState.LIVE, TypeState.NOT_COLLECTED}


class Right(NamedTuple):
    """One verb on one type."""

    verb: str
    group: str
    resource: str

    @property
    def type(self) -> str:
        """The type as people write it."""
        return str(GroupResource(self.group, self.resource))

    def __str__(self) -> str:
        return f"{self.verb} {self.type}"


@asynccontextmanager
async def agent_of_a_service_account(
    member: ControlPlane, folder: Path, *, missing: Sequence[Right] = ()
) -> AsyncIterator[tuple[Federation, InventoryClient]]:
    """A federation whose agent has the token and the rights of the shipped service account, or some rights less."""
    kubectl = await Kubectl.of(member)
    shipped = await kubectl.build(DEPLOY / "agent")
    await kubectl.apply(*shipped)
    await until_allowed(member, *(missing or [Right("list", "", "pods")]), allowed=True)
    async with member.client() as admin:
        kubeconfig = kubeconfig_with(await agent_token(admin), member, folder / "kubeconfig")
    left = shipped
    for right in missing:
        siblings = (await kubectl("api-resources", f"--api-group={right.group}", "-oname")).split()
        role = without(left, *right, [each.partition(".")[0] for each in siblings])
        left = [role if each["metadata"]["name"] == role["metadata"]["name"] else each for each in left]
    if missing:
        await kubectl.apply(*left)
        await until_allowed(member, *missing, allowed=False)
    try:
        async with Federation(kubeconfig, ("eu-1",)) as federation, federation.client() as fed:
            yield federation, fed
    finally:
        await give_back(kubectl)


async def give_back(kubectl: Kubectl) -> None:
    """Applies what is shipped."""
    await kubectl.apply(*await kubectl.build(DEPLOY / "agent"))


async def until_allowed(member: ControlPlane, *rights: Right, allowed: bool) -> None:
    """Waits until the apiserver itself says that the agent may do something, or may not: its authorizer follows."""
    async with member.client() as admin, asyncio.timeout(60):
        for right in rights:
            attributes = {"verb": right.verb, "group": right.group, "resource": right.resource}
            user = f"system:serviceaccount:{NAMESPACE}:federator-agent"
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "spec": {"user": user, "resourceAttributes": attributes},
            }
            while (await admin.create(REVIEWS, review))["status"]["allowed"] is not allowed:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def the_cluster(fed: InventoryClient) -> Cluster:
    (cluster,) = (await fed.clusters()).clusters
    return cluster


async def until_state(fed: InventoryClient, name: str, state: TypeState, *, timeout: float = 90) -> Cluster:
    """Waits until one type is in a state, and returns the cluster as it was then."""
    try:
        async with asyncio.timeout(timeout):
            while True:
                cluster = await the_cluster(fed)
                if any(str(each.group_resource) == name and each.state is state for each in cluster.types):
                    return cluster
                await asyncio.sleep(0.2)
    except TimeoutError:
        found = [(str(each.group_resource), each.state, each.reason) for each in cluster.types]
        raise AssertionError(f"{name} is not {state}: {found}") from None


async def until_said(federation: Federation, *command: str, text: str) -> None:
    """Runs a command until it says something, on stdout or stderr."""
    async with asyncio.timeout(60):
        while True:
            said = await federator(*command, server=federation.address)
            if text in said.out + said.err:
                return
            await asyncio.sleep(0.2)


async def test_an_agent_with_the_shipped_rights_collects_every_type(member: ControlPlane, tmp_path: Path) -> None:
    async with agent_of_a_service_account(member, tmp_path) as (federation, fed):
        cluster = await the_cluster(fed)
        assert not is_stand_in(cluster.cluster_uid)
        states = {str(each.group_resource): each.state for each in cluster.types}
        assert {name for name, state in states.items() if state is TypeState.DENIED} == set()
        assert states["pods"] is states["deployments.apps"] is TypeState.LIVE
        assert states["secrets"] is TypeState.NOT_COLLECTED
        # Asked for without the component, they are DENIED, and the others go on.
        assert await federation.processes["agent-eu-1"].stop(10)
        federation.start_agent("eu-1", "--secrets=metadata")
        cluster = await until_state(fed, "secrets", TypeState.DENIED)
        await until_state(fed, "pods", TypeState.LIVE)


async def test_a_missing_right_is_named_where_people_look_and_the_others_go_on(
    member: ControlPlane, tmp_path: Path
) -> None:
    missing = [Right("watch", "", "pods"), Right("list", "apps", "deployments")]
    said = {
        right.type: f'cannot {right.verb} resource "{right.resource}" in API group "{right.group}"' for right in missing
    }
    async with agent_of_a_service_account(member, tmp_path, missing=missing) as (federation, fed):
        for named in said:
            cluster = await until_state(fed, named, TypeState.DENIED)
            assert cluster.state is ClusterState.LIVE
        for each in cluster.types:
            if (named := str(each.group_resource)) in said:
                assert said[named] in each.reason
            else:
                assert each.state in LIVE_OR_LEFT_OUT, each
        log = (federation.folder / "agent-eu-1.log").read_text()
        for named, text in said.items():
            await until_said(federation, "clusters", "-o", "wide", text=f"{named} DENIED: ")
            await until_said(federation, "clusters", "-o", "wide", text=text)
            await until_said(federation, "get", named, text=f"{named} DENIED in eu-1")
            assert [line for line in log.splitlines() if "DENIED" in line and text in line]
        # Given back, they are used without anybody's doing.
        await give_back(await Kubectl.of(member))
        await until_allowed(member, *missing, allowed=True)
        for named in said:
            await until_state(fed, named, TypeState.LIVE)
            await until_said(federation, "get", named, text="NAMESPACE")


async def test_without_get_of_namespaces_a_stand_in_is_used_and_said(member: ControlPlane, tmp_path: Path) -> None:
    """It is the one thing that is read by get: the namespace kube-system, for the cluster's UID."""
    missing = Right("get", "", "namespaces")
    async with agent_of_a_service_account(member, tmp_path, missing=[missing]) as (federation, fed):
        cluster = await the_cluster(fed)
        assert is_stand_in(cluster.cluster_uid)
        assert {each.state for each in cluster.types} <= LIVE_OR_LEFT_OUT
        assert "get of namespaces" in (federation.folder / "agent-eu-1.log").read_text()
        await give_back(await Kubectl.of(member))
        await until_allowed(member, missing, allowed=True)
        # Known with the next session.
        assert await federation.processes["agent-eu-1"].stop(10)
        federation.start_agent("eu-1")
        async with asyncio.timeout(60):
            while is_stand_in((await the_cluster(fed)).cluster_uid):  # noqa: ASYNC110 - nothing to wait for
                await asyncio.sleep(0.2)
