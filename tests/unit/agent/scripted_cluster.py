"""A member cluster that does what a test says: objects, versions, watches, outages and refusals, without a server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from federator.agent.member import ObjectAccess
from federator.api.list_watch import Known, ListOptions, ListPage, WatchEvent, WatchEventType, nothing_known
from federator.api.object import KubeObject
from federator.api.resource import GroupResource, ResourceType
from federator.errors import KubeStatusError, MemberUnreachable
from federator.kube.discovery import Discovery

PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True, singular="pod")
NODES = ResourceType(group="", version="v1", resource="nodes", kind="Node", namespaced=False, singular="node")
DEPLOYMENTS = ResourceType(
    group="apps", version="v1", resource="deployments", kind="Deployment", namespaced=True, short_names=("deploy",)
)
WIDGETS = ResourceType(group="example.com", version="v1", resource="widgets", kind="Widget", namespaced=True)
CRDS = ResourceType(
    group="apiextensions.k8s.io",
    version="v1",
    resource="customresourcedefinitions",
    kind="CustomResourceDefinition",
    namespaced=False,
)


class ScriptedCluster:
    """One cluster. Changes made to it reach the watches that are open, in order."""

    def __init__(self, *types: ResourceType, uid: str = "uid-of-cluster") -> None:
        self.uid = uid
        self.types = list(types)
        self.failed_groups: tuple[str, ...] = ()
        self.is_down = False
        self.denied: set[GroupResource] = set()
        self.unreachable: set[GroupResource] = set()
        self.silent: set[GroupResource] = set()  # their lists are never answered
        self.lists: Counter[GroupResource] = Counter()
        self.gets: Counter[GroupResource] = Counter()
        self.discoveries = 0
        self.version = 100
        self.objects: dict[GroupResource, dict[tuple[str, str], KubeObject]] = defaultdict(dict)
        self._history: dict[GroupResource, list[tuple[int, WatchEvent]]] = defaultdict(list)
        self._watches: dict[GroupResource, set[asyncio.Queue[WatchEvent | Exception | None]]] = defaultdict(set)

    # What a test does to it.

    def put(
        self, resource_type: ResourceType, name: str, *, namespace: str = "", uid: str = "", **spec: object
    ) -> None:
        """Creates or updates an object."""
        if resource_type.namespaced:
            namespace = namespace or "default"
        key = (namespace, name)
        known = self.objects[resource_type.group_resource].get(key)
        uid = uid or (known.uid if known else f"uid-{namespace}-{name}-{self.version}")
        obj = self._make(resource_type, namespace, name, uid, spec)
        self.objects[resource_type.group_resource][key] = obj
        self._tell(resource_type, WatchEventType.MODIFIED if known else WatchEventType.ADDED, obj)

    def delete(self, resource_type: ResourceType, name: str, *, namespace: str = "") -> None:
        """Deletes an object."""
        key = (namespace or ("default" if resource_type.namespaced else ""), name)
        known = self.objects[resource_type.group_resource].pop(key)
        self.version += 1
        gone = KubeObject(known.namespace, known.name, known.uid, str(self.version), known.raw)
        self._tell(resource_type, WatchEventType.DELETED, gone)

    def bookmark(self, resource_type: ResourceType) -> None:
        """Sends a bookmark."""
        self._tell(resource_type, WatchEventType.BOOKMARK, KubeObject("", "", "", str(self.version)))

    def go_down(self) -> None:
        """Cuts all watches and answers nobody."""
        self.is_down = True
        for watches in self._watches.values():
            for watch in watches:
                watch.put_nowait(None)

    def cut_off(self, resource_type: ResourceType) -> None:
        """Cuts the watches of one type and lets nobody reach it."""
        self.unreachable.add(resource_type.group_resource)
        for watch in self._watches[resource_type.group_resource]:
            watch.put_nowait(None)

    def come_back(self) -> None:
        """Answers again."""
        self.is_down = False

    def restore(self, version: int) -> None:
        """Puts the cluster back to a version: objects made since are gone, and so are the watches."""
        self.version = version
        for resource, held in self.objects.items():
            self.objects[resource] = {key: obj for key, obj in held.items() if int(obj.resource_version) <= version}
            self._history[resource] = [one for one in self._history[resource] if one[0] <= version]
        for watches in self._watches.values():
            for watch in watches:
                watch.put_nowait(None)

    def names(self, resource_type: ResourceType) -> set[str]:
        """Keys of the objects there are."""
        return {obj.key for obj in self.objects[resource_type.group_resource].values()}

    # What an agent sees of it (federator.agent.member.Member).

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    async def cluster_uid(self) -> str:
        self._refuse_if_down()
        return self.uid

    async def server_version(self) -> str:
        self._refuse_if_down()
        return "v1.37.2"

    async def discover(self) -> Discovery:
        self.discoveries += 1
        self._refuse_if_down()
        return Discovery(tuple(self.types), self.failed_groups)

    def list_watch(
        self, resource_type: ResourceType, *, namespace: str, label_selector: str, metadata_only: bool
    ) -> ObjectAccess:
        return ScriptedListWatch(self, resource_type)

    def _make(
        self, resource_type: ResourceType, namespace: str, name: str, uid: str, spec: dict[str, object]
    ) -> KubeObject:
        self.version += 1
        metadata = {"name": name, "uid": uid, "resourceVersion": str(self.version)}
        if namespace:
            metadata["namespace"] = namespace
        content = {
            "apiVersion": resource_type.api_version,
            "kind": resource_type.kind,
            "metadata": metadata,
            "spec": spec,
        }
        raw = json.dumps(content, separators=(",", ":")).encode()
        return KubeObject(namespace, name, uid, str(self.version), raw)

    def _tell(self, resource_type: ResourceType, event_type: WatchEventType, obj: KubeObject) -> None:
        event = WatchEvent(event_type, obj)
        self._history[resource_type.group_resource].append((int(obj.resource_version), event))
        for watch in self._watches[resource_type.group_resource]:
            watch.put_nowait(event)

    def _refuse_if_down(self) -> None:
        if self.is_down:
            raise MemberUnreachable("https://scripted", "connection refused")

    def _refuse(self, resource: GroupResource) -> None:
        self._refuse_if_down()
        if resource in self.unreachable:
            raise MemberUnreachable("https://scripted", "no answer in time")
        if resource in self.denied:
            raise KubeStatusError(403, "Forbidden", f"{resource} is forbidden")
        if resource not in {served.group_resource for served in self.types}:
            raise KubeStatusError(404, "NotFound", "the server could not find the requested resource")

    def _listed(self, resource: GroupResource) -> ListPage:
        self.lists[resource] += 1
        return ListPage(str(self.version), list(self.objects[resource].values()))

    @asynccontextmanager
    async def _watch(self, resource: GroupResource, options: ListOptions) -> AsyncGenerator[AsyncIterator[WatchEvent]]:
        queue: asyncio.Queue[WatchEvent | Exception | None] = asyncio.Queue()
        if options.send_initial_events:
            for obj in self._listed(resource).objects:
                queue.put_nowait(WatchEvent(WatchEventType.ADDED, obj))
            end = KubeObject("", "", "", str(self.version))
            queue.put_nowait(WatchEvent(WatchEventType.BOOKMARK, end, initial_events_end=True))
        else:
            for version, event in self._history[resource]:
                if version > int(options.resource_version or 0):
                    queue.put_nowait(event)
        self._watches[resource].add(queue)
        try:
            yield _drain(queue)
        finally:
            self._watches[resource].discard(queue)


async def _drain(queue: asyncio.Queue[WatchEvent | Exception | None]) -> AsyncIterator[WatchEvent]:
    while (event := await queue.get()) is not None:
        if isinstance(event, Exception):
            raise event
        yield event


class ScriptedListWatch:
    """One type of a scripted cluster."""

    def __init__(self, cluster: ScriptedCluster, resource_type: ResourceType) -> None:
        self._cluster = cluster
        self._resource = resource_type.group_resource

    async def list(self, options: ListOptions, *, known: Known = nothing_known) -> ListPage:
        await asyncio.sleep(0)
        if self._resource in self._cluster.silent:
            await asyncio.Event().wait()
        self._cluster._refuse(self._resource)
        if int(options.resource_version or 0) > self._cluster.version:
            raise KubeStatusError(504, "Timeout", "Too large resource version", causes=("ResourceVersionTooLarge",))
        return self._cluster._listed(self._resource)

    async def get(self, namespace: str, name: str) -> KubeObject | None:
        await asyncio.sleep(0)
        self._cluster._refuse(self._resource)
        self._cluster.gets[self._resource] += 1
        return self._cluster.objects[self._resource].get((namespace, name))

    @asynccontextmanager
    async def watch(self, options: ListOptions) -> AsyncGenerator[AsyncIterator[WatchEvent]]:
        await asyncio.sleep(0)
        self._cluster._refuse(self._resource)
        async with self._cluster._watch(self._resource, options) as events:
            yield events
