"""The load: clients of one apiserver that create, change, delete and create again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import NamedTuple

from federator.errors import KubeStatusError, MemberUnreachable
from federator.testing import manifests
from federator.testing.admin_client import AdminClient, Json
from federator.testing.control_plane import ControlPlane

WIDGETS = "widgets.testing.federator.io"
ANCHOR = "anchor"
"""Namespace, and prefix of what has no namespace, of objects that nobody touches."""

ANCHORS = 10
"""Anchors of each namespaced type."""

SETTLED = ("load-0", "load-1")
FLEETING = "fleeting"
"""Namespace that is deleted and created again."""

_NAMES = 24
"""Names of each type in each namespace. Few, so that they come again."""

_PAUSE = 0.5
"""Seconds between two tries while the apiserver is away."""

_WIDGET_WAIT = 30.0
"""Seconds within which a type that was defined is served, or is gone after its definition was deleted."""

Key = tuple[str, str, str]
"""Type, namespace, name."""

_OPERATIONS = {
    "create": 30,
    "change": 35,
    "delete": 15,
    "recreate": 12,
    "sweep": 4,
    "drop namespace": 3,
    "redefine": 1,
}
"""How often each operation is drawn, in percent."""


class _Type(NamedTuple):
    path: str
    kind: str
    namespaced: bool = True

    def collection(self, namespace: str) -> str:
        return self.path.format(namespace=namespace)


TYPES: Mapping[str, _Type] = {
    "configmaps": _Type("/api/v1/namespaces/{namespace}/configmaps", "ConfigMap"),
    "pods": _Type("/api/v1/namespaces/{namespace}/pods", "Pod"),
    "deployments": _Type("/apis/apps/v1/namespaces/{namespace}/deployments", "Deployment"),
    "widgets": _Type("/apis/testing.federator.io/v1/namespaces/{namespace}/widgets", "Widget"),
    "clusterroles": _Type("/apis/rbac.authorization.k8s.io/v1/clusterroles", "ClusterRole", namespaced=False),
}

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_GONE_OR_CHANGED = {404, 409}
_ENDING = {403, 405, 422}
"""Of a namespace that is being deleted, of a type that is not served any more, of a name that an object still has."""


class Traffic:
    """The clients of one cluster.

    The seed decides which operations come in which order; how far they come depends on the faults. What an operation
    leaves half done, a later one takes up.
    """

    def __init__(self, plane: ControlPlane, source: random.Random, *, redefines: bool) -> None:
        """Describes the load.

        Args:
            plane: the cluster.
            source: decides everything.
            redefines: deletes the custom type's definition now and then, and makes it again.
        """
        self._plane = plane
        self._random = source
        self._redefines = redefines
        self._exists: set[Key] = set()
        self._number = 0
        self._done: Counter[str] = Counter()

    @staticmethod
    async def prepare(plane: ControlPlane, *, redefines: bool) -> None:
        """Makes the namespaces, the custom type and the anchors; what exists is left as it is.

        Raises:
            KubeStatusError, MemberUnreachable: the apiserver did not do as it should.
        """
        async with plane.client() as client:
            await _define(client)
            for namespace in (*SETTLED, FLEETING, ANCHOR):
                await _create_namespace(client, namespace)
            for name, described in TYPES.items():
                if name == "widgets" and redefines:
                    continue  # they go with their definition
                for number in range(ANCHORS):
                    obj = _object(name, ANCHOR, f"{ANCHOR}-{number}", version=0)
                    await _tolerant(client.create(described.collection(ANCHOR), obj), {409})

    async def run(self, rate: float) -> None:
        """Operates until cancelled. While the apiserver is away it keeps trying.

        Args:
            rate: operations per second, at most.

        Raises:
            KubeStatusError: a refusal that nothing of what happens here explains.
        """
        async with self._plane.client() as client:
            while True:
                await asyncio.sleep(self._random.expovariate(rate))
                try:
                    await self._operate(client)
                except (MemberUnreachable, TimeoutError):
                    self._done["unreachable"] += 1
                    await asyncio.sleep(_PAUSE)
                except KubeStatusError as error:
                    if error.code < 500 and error.code not in {429, *_GONE_OR_CHANGED, *_ENDING}:
                        raise
                    self._done["refused"] += 1

    async def finish(self) -> None:
        """Takes up what was left half done, and makes a last object of each type: everything has to be followed still.

        Raises:
            KubeStatusError, MemberUnreachable, TimeoutError: the apiserver did not do as it should.
        """
        async with self._plane.client() as client:
            await _define(client)
            await _create_namespace(client, SETTLED[0])
            for name, described in TYPES.items():
                namespace = SETTLED[0] if described.namespaced else ""
                await _tolerant(client.delete(f"{described.collection(namespace)}/last", gracePeriodSeconds="0"), {404})
                await client.create(described.collection(namespace), _object(name, namespace, "last", version=0))

    def statistics(self) -> Mapping[str, int]:
        """Operations by kind; `unreachable` of them found no apiserver, `refused` were refused."""
        return dict(self._done)

    async def _operate(self, client: AdminClient) -> None:
        (operation,) = self._random.choices(list(_OPERATIONS), list(_OPERATIONS.values()))
        name = self._random.choice(list(TYPES))
        namespace = self._random.choice((*SETTLED, FLEETING)) if TYPES[name].namespaced else ""
        key = (name, namespace, f"{name}-{self._random.randrange(_NAMES)}")
        existing = sorted(self._exists)
        if operation in {"change", "delete", "recreate"}:
            if existing:
                key = self._random.choice(existing)
            else:
                operation = "create"
        self._done[operation] += 1
        match operation:
            case "create":
                await self._create(client, key)
            case "change":
                await self._change(client, key)
            case "delete":
                await self._delete(client, key)
            case "recreate":
                await self._delete(client, key)
                await self._create(client, key)
            case "sweep":
                if namespace:
                    await client.delete(TYPES[name].collection(namespace), gracePeriodSeconds="0")
                    self._exists -= {one for one in self._exists if one[:2] == (name, namespace)}
            case "drop namespace":
                await self._drop_namespace(client)
            case "redefine" if self._redefines:
                await self._redefine(client)

    async def _create(self, client: AdminClient, key: Key) -> None:
        name, namespace, object_name = key
        obj = _object(name, namespace, object_name, version=self._next())
        await client.create(TYPES[name].collection(namespace), obj)
        self._exists.add(key)

    async def _change(self, client: AdminClient, key: Key) -> None:
        name, namespace, object_name = key
        labels = {"track": self._random.choice(["stable", "canary", "beta"]), "change": str(self._next())}
        try:
            await client.patch(f"{TYPES[name].collection(namespace)}/{object_name}", {"metadata": {"labels": labels}})
        except KubeStatusError as error:
            if error.code == 404:
                self._exists.discard(key)
            raise

    async def _delete(self, client: AdminClient, key: Key) -> None:
        name, namespace, object_name = key
        self._exists.discard(key)
        await client.delete(f"{TYPES[name].collection(namespace)}/{object_name}", gracePeriodSeconds="0")

    async def _drop_namespace(self, client: AdminClient) -> None:
        """What the controllers of a cluster do when a namespace is deleted, and then the namespace anew."""
        path = f"/api/v1/namespaces/{FLEETING}"
        await _tolerant(client.delete(path), {404, 409})
        for described in TYPES.values():
            if described.namespaced:
                await _tolerant(client.delete(described.collection(FLEETING), gracePeriodSeconds="0"), {404})
        self._exists -= {one for one in self._exists if one[1] == FLEETING}
        with suppress(KubeStatusError):
            ending = await client.get(path)
            if ending["metadata"].get("deletionTimestamp"):
                ending["spec"]["finalizers"] = []
                await client.replace(f"{path}/finalize", ending)
        await _create_namespace(client, FLEETING)

    async def _redefine(self, client: AdminClient) -> None:
        await _tolerant(client.delete(f"{_DEFINITIONS}/{WIDGETS}"), {404})
        self._exists -= {one for one in self._exists if one[0] == "widgets"}
        # Gone for long enough, or not, that agents take the type for gone.
        await asyncio.sleep(self._random.choice((0.0, 2.0, 8.0)))
        await _define(client)

    def _next(self) -> int:
        self._number += 1
        return self._number


async def _create_namespace(client: AdminClient, namespace: str) -> None:
    await _tolerant(client.create("/api/v1/namespaces", manifests.namespace(namespace)), {409})


async def _define(client: AdminClient) -> None:
    async with asyncio.timeout(_WIDGET_WAIT):
        while True:
            # Still there while the instances of one that was deleted are being removed.
            await _tolerant(client.create(_DEFINITIONS, _definition()), {409})
            with suppress(KubeStatusError):
                await client.get(TYPES["widgets"].collection("default"))
                defined = await client.get(f"{_DEFINITIONS}/{WIDGETS}")
                if not defined["metadata"].get("deletionTimestamp"):
                    return
            await asyncio.sleep(0.1)


async def _tolerant(call: Awaitable[Json], codes: set[int]) -> None:
    try:
        await call
    except KubeStatusError as error:
        if error.code not in codes:
            raise


def _object(type_name: str, namespace: str, name: str, *, version: int) -> Json:
    match type_name:
        case "configmaps":
            return manifests.config_map(namespace, name, revision=version)
        case "deployments":
            return manifests.deployment(namespace, name, replicas=version % 5)
        case "pods":
            spec = {"containers": [manifests.container(name, f"1.{version}")]}
            return {"metadata": _meta(namespace, name), "spec": spec}
        case "widgets":
            return {
                "apiVersion": "testing.federator.io/v1",
                "kind": "Widget",
                "metadata": _meta(namespace, name),
                "spec": {"size": version},
            }
        case _:
            rules = [{"apiGroups": [""], "resources": ["pods"], "resourceNames": [f"pod-{version}"], "verbs": ["get"]}]
            return {"metadata": _meta("", name), "rules": rules}


def _meta(namespace: str, name: str) -> Json:
    meta: Json = {"name": name, "labels": manifests.labels(name)}
    return meta | ({"namespace": namespace} if namespace else {})


def _definition() -> Json:
    spec = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": WIDGETS},
        "spec": {
            "group": "testing.federator.io",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
                }
            ],
        },
    }
