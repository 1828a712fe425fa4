"""The shipped bases, applied to a real kube-apiserver as an operator does it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from federator.errors import KubeStatusError
from federator.testing.control_plane import ControlPlane
from tests.integration.deploy.guide import overlay
from tests.integration.deploy.kubectl import DEPLOY, NAMESPACE, Kubectl

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(240)]

RESTRICTED = "pod-security.kubernetes.io/enforce"


@pytest.mark.parametrize("base", ["agent", "aggregator"])
async def test_a_base_is_admitted_without_a_warning_and_may_be_applied_again(member: ControlPlane, base: str) -> None:
    kubectl = await Kubectl.of(member)
    manifests = await kubectl.build(DEPLOY / base)
    (namespace,) = (each for each in manifests if each["kind"] == "Namespace")
    assert namespace["metadata"]["labels"][RESTRICTED] == "restricted"
    await kubectl.apply(namespace)
    await kubectl.apply(*manifests, arguments=("--dry-run=server",))
    await kubectl.apply(*manifests)
    # That a workload is taken does not say that its pods are: those meet admission later.
    selector = f"app.kubernetes.io/component={base}"
    async with asyncio.timeout(60):
        while not (pods := (await kubectl.get("pods", f"-n{NAMESPACE}", f"-l{selector}"))["items"]):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    assert pods[0]["spec"]["containers"][0]["image"] == "federator:0.2.0"
    await kubectl.apply(*manifests)


async def test_the_namespace_takes_no_pod_that_is_less_restricted(member: ControlPlane) -> None:
    """Else that the shipped pods are taken would say nothing."""
    kubectl = await Kubectl.of(member)
    await kubectl.apply(*(each for each in await kubectl.build(DEPLOY / "agent") if each["kind"] == "Namespace"))
    pod = {"metadata": {"name": "lax"}, "spec": {"containers": [{"name": "lax", "image": "lax"}]}}
    async with member.client() as admin:
        with pytest.raises(KubeStatusError, match="violates PodSecurity"):
            await admin.create(f"/api/v1/namespaces/{NAMESPACE}/pods", pod)


@pytest.mark.parametrize("name", ["hub", "eu-1"])
async def test_the_overlays_of_the_guide_build_and_are_admitted(
    member: ControlPlane, name: str, tmp_path: Path
) -> None:
    kubectl = await Kubectl.of(member)
    manifests = await kubectl.build(overlay(name, tmp_path))
    await kubectl.apply(*(each for each in manifests if each["kind"] == "Namespace"))
    await kubectl.apply(*manifests, arguments=("--dry-run=server",))
    (workload,) = (each for each in manifests if each["kind"] in {"Deployment", "StatefulSet"})
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "registry.example.com/federator:0.2.0"
    configured = {each["metadata"]["name"]: each["data"] for each in manifests if each["kind"] == "ConfigMap"}
    for volume in pod["volumes"]:
        if "configMap" in volume:
            assert "ca.crt" in configured[volume["configMap"]["name"]]
    if name == "eu-1":
        (source,) = container["envFrom"]
        assert configured[source["configMapRef"]["name"]]["FEDERATOR_CLUSTER_ID"] == "eu-1"
        assert {"federator-agent-secrets", "federator-agent-spool"} <= {each["metadata"]["name"] for each in manifests}
        (spool,) = (each for each in container["volumeMounts"] if each["name"] == "spool")
        assert {"name": "FEDERATOR_SPOOL", "value": f"{spool['mountPath']}/spool"} in container["env"]
        assert {"name": "tmp", "emptyDir": {}} in pod["volumes"], "the others stay"
    assert yaml.safe_dump(manifests).count("federator-agent-tls") == (1 if name == "eu-1" else 0)
