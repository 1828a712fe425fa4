"""Changes objects, straight at the apiserver, and knows afterwards what each of them went through."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping

from federator.api.resource import ResourceType
from federator.errors import KubeStatusError, MemberUnreachable
from federator.testing import manifests
from federator.testing.admin_client import AdminClient, Json
from federator.testing.control_plane import ControlPlane
from tests.robustness.differential.history import Held, History, Key, State

RESOURCES = (
    ResourceType(group="", version="v1", resource="configmaps", kind="ConfigMap", namespaced=True),
    ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True),
    ResourceType(
        group="rbac.authorization.k8s.io", version="v1", resource="clusterroles", kind="ClusterRole", namespaced=False
    ),
)
"""What is followed, and changed."""

_MARKED = ("pods",)
"""What is changed once more before it is deleted, also where nothing waits for it."""

NAMESPACES = ("churn-0", "churn-1")

_NAMES = 5
"""Objects of a worker, of each type and namespace: few, so that the same names are deleted and made again."""

_WORKERS = 2
"""For each type, each with objects of its own: so at most one write is under way for an object."""

_OPERATIONS = {"change": 6, "create": 3, "delete": 2, "recreate": 2}

_LARGE = 20_000
"""Bytes of the text in some objects, so that connections break in the midst of one."""

_PAUSE = 0.2
"""Seconds between two attempts to learn what became of a write."""

_UNKNOWN = {404, 409, 429}
"""Refusals after which it has to be looked at what there is: the same request was sent twice, or is to come later."""


class Load:
    """Clients of one apiserver that write down each state that it answered.

    A write without an answer, and one that was refused, is followed by a read: then it is known whether it was done.
    """

    def __init__(self, plane: ControlPlane, source: random.Random) -> None:
        """Describes the load.

        Args:
            plane: the cluster.
            source: decides which operations come in which order.
        """
        self.history = History(_MARKED)
        self._plane = plane
        self._sources = {(each, n): random.Random(source.random()) for each in RESOURCES for n in range(_WORKERS)}
        self._number = 0
        self._done: Counter[str] = Counter()

    async def prepare(self) -> None:
        """Makes the namespaces, and some of the objects.

        Raises:
            KubeStatusError, MemberUnreachable: the apiserver did not do as it should.
        """
        async with self._plane.client() as client:
            for namespace in NAMESPACES:
                await client.create("/api/v1/namespaces", manifests.namespace(namespace))
            for (resource, worker), source in self._sources.items():
                for key in source.sample(_keys(resource, worker), _NAMES):
                    await self._operate(client, resource, key, "create", source)

    async def run(self, rate: float, ending: asyncio.Event) -> None:
        """Operates until it is to end, and finishes what is under way then; the apiserver has to be there for that.

        Args:
            rate: operations per second of each worker, at most.
            ending: tells that it is to end.

        Raises:
            KubeStatusError: a refusal that nothing of what happens here explains.
        """
        async with self._plane.client() as client, asyncio.TaskGroup() as workers:
            for (resource, number), source in self._sources.items():
                working = self._work(client, resource, _keys(resource, number), source, rate, ending)
                workers.create_task(working, name=f"load {resource.resource} {number}")

    async def finish(self) -> None:
        """Makes a last object of each type: everything has to be followed still.

        Raises:
            KubeStatusError, MemberUnreachable: the apiserver did not do as it should.
        """
        async with self._plane.client() as client:
            for resource in RESOURCES:
                key = Key(resource.resource, f"{NAMESPACES[0]}/last" if resource.namespaced else "last")
                await self._operate(client, resource, key, "create", random.Random(0))

    async def listed(self) -> Held:
        """What there is of all that is followed, also what others made.

        Raises:
            KubeStatusError, MemberUnreachable: the apiserver did not do as it should.
        """
        held: dict[Key, State] = {}
        async with self._plane.client() as client:
            for resource in RESOURCES:
                for item in (await client.get(resource.path()))["items"]:
                    meta = item["metadata"]
                    name = f"{meta['namespace']}/{meta['name']}" if resource.namespaced else meta["name"]
                    held[Key(resource.resource, name)] = _state(item)
        return held

    def statistics(self) -> Mapping[str, int]:
        """Operations by kind; the outcome of `unknown` of them had to be read."""
        return dict(self._done)

    async def _work(
        self,
        client: AdminClient,
        resource: ResourceType,
        keys: list[Key],
        source: random.Random,
        rate: float,
        ending: asyncio.Event,
    ) -> None:
        while not ending.is_set():
            await asyncio.sleep(source.expovariate(rate))
            key = source.choice(keys)
            (operation,) = source.choices(list(_OPERATIONS), list(_OPERATIONS.values()))
            exists = self.history.last(key) is not None
            if exists == (operation == "create"):
                operation = "change" if exists else "create"
            for step in ("delete", "create") if operation == "recreate" else (operation,):
                try:
                    await self._operate(client, resource, key, step, source)
                except (MemberUnreachable, TimeoutError):
                    await self._find_out(client, resource, key)
                except KubeStatusError as error:
                    if error.code < 500 and error.code not in _UNKNOWN:
                        raise
                    await self._find_out(client, resource, key)

    async def _operate(
        self, client: AdminClient, resource: ResourceType, key: Key, operation: str, source: random.Random
    ) -> None:
        self._number += 1
        path = _path(resource, key)
        match operation:
            case "create":
                collection = path.rpartition("/")[0]
                created = await client.create(collection, _object(resource, key, self._number, source))
                self.history.observe(key, _state(created))
            case "change":
                changes = {"metadata": {"labels": {"change": str(self._number)}}}
                self.history.observe(key, _state(await client.patch(path, changes)))
            case "delete":
                await client.delete(path, gracePeriodSeconds="0")
                self.history.observe(key, None)
        self._done[operation] += 1

    async def _find_out(self, client: AdminClient, resource: ResourceType, key: Key) -> None:
        """Reads until there is an answer."""
        self._done["unknown"] += 1
        while True:
            try:
                self.history.observe(key, _state(await client.get(_path(resource, key))))
                return
            except (MemberUnreachable, TimeoutError):
                pass
            except KubeStatusError as error:
                if error.code == 404:
                    self.history.observe(key, None)
                    return
            await asyncio.sleep(_PAUSE)


def _keys(resource: ResourceType, worker: int) -> list[Key]:
    """What a worker writes to."""
    names = [f"churn-{worker}-{number}" for number in range(_NAMES)]
    if not resource.namespaced:
        return [Key(resource.resource, name) for name in names]
    return [Key(resource.resource, f"{namespace}/{name}") for namespace in NAMESPACES for name in names]


def _path(resource: ResourceType, key: Key) -> str:
    namespace, _, name = key.name.rpartition("/")
    return f"{resource.path(namespace)}/{name}"


def _state(obj: Json) -> State:
    return State(obj["metadata"]["uid"], obj["metadata"]["resourceVersion"])


def _object(resource: ResourceType, key: Key, number: int, source: random.Random) -> Json:
    name = key.name.rpartition("/")[2]
    obj: Json = {"metadata": {"name": name, "labels": {**manifests.labels(name), "change": str(number)}}}
    match resource.resource:
        case "configmaps":
            return obj | {"data": {"text": "ä漢🚀 " * (source.choice((1, _LARGE)) // 10)}}
        case "pods":
            return obj | {"spec": {"containers": [manifests.container(name, "1.0.0")]}}
        case _:
            return obj | {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}
