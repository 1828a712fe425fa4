"""kubectl on the shipped manifests, as an operator runs it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from federator.testing.admin_client import AdminClient
from federator.testing.binaries import provide
from federator.testing.control_plane import ControlPlane

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
NAMESPACE = "federator"

Manifest = dict[str, Any]


class Kubectl:
    """kubectl of the testbed, as administrator of one control plane."""

    def __init__(self, program: Path, plane: ControlPlane) -> None:
        self._program = program
        self._plane = plane

    @classmethod
    async def of(cls, plane: ControlPlane) -> Kubectl:
        """That of a running control plane."""
        return cls((await provide(("kubectl",))).paths["kubectl"], plane)

    async def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Runs it and returns what it wrote to stdout. Anything on stderr, a warning too, fails the test."""
        done = await asyncio.to_thread(
            subprocess.run,
            [str(self._program), f"--kubeconfig={self._plane.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), (arguments, done.stderr)
        return done.stdout

    async def build(self, folder: Path) -> list[Manifest]:
        """The objects of a kustomization."""
        return list(yaml.safe_load_all(await self("kustomize", str(folder))))

    async def apply(self, *manifests: Manifest, arguments: tuple[str, ...] = ()) -> None:
        """Applies objects server-side."""
        text = "\n---\n".join(map(json.dumps, manifests))
        await self("apply", "--server-side", *arguments, "-f", "-", stdin=text)

    async def get(self, *arguments: str) -> Any:
        """An object, or a list."""
        return json.loads(await self("get", *arguments, "-o", "json"))


async def agent_token(admin: AdminClient) -> str:
    """A token of the shipped service account."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/federator-agent/token"
    return str((await admin.create(path, request))["status"]["token"])


def kubeconfig_with(token: str, plane: ControlPlane, target: Path) -> Path:
    """Writes the control plane's kubeconfig with this token in place of the administrator's certificate."""
    config = yaml.safe_load(plane.kubeconfig.read_text())
    (user,) = config["users"]
    user["user"] = {"token": token}
    target.write_text(yaml.safe_dump(config))
    return target


def without(manifests: list[Manifest], verb: str, group: str, resource: str, siblings: list[str]) -> Manifest:
    """The shipped role, one verb of one type less.

    Args:
        manifests: what is shipped.
        verb: what may not be done any more.
        group: of the type.
        resource: the type.
        siblings: all types of the group, for a rule that names none.
    """
    (role,) = (each for each in manifests if each["metadata"]["name"] == "federator-agent-builtin")
    rules = []
    for rule in role["rules"]:
        resources = siblings if rule["resources"] == ["*"] else rule["resources"]
        if group not in rule["apiGroups"] or resource not in resources:
            rules.append(rule)
            continue
        rules += [
            rule | {"apiGroups": [each for each in rule["apiGroups"] if each != group]},
            rule | {"apiGroups": [group], "resources": [each for each in resources if each != resource]},
            rule
            | {
                "apiGroups": [group],
                "resources": [resource],
                "verbs": [each for each in rule["verbs"] if each != verb],
            },
        ]
    return role | {"rules": [rule for rule in rules if rule["apiGroups"]]}
