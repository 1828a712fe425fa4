"""The member cluster, as the agent sees it."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.cache.list_watch import ListWatch
from federator.kube.discovery import Discovery, discover
from federator.kube.member_client import MemberClient
from federator.kube.resource_list_watch import ResourceListWatch


class ObjectAccess(ListWatch, Protocol):
    """Lists, watches and gets the objects of one type, perhaps narrowed to a namespace or selector."""

    async def get(self, namespace: str, name: str) -> KubeObject | None:
        """Reads one object as it is now; None where there is none. Raises what `list` raises."""
        ...


class Member(Protocol):
    """One cluster. Its functions raise KubeStatusError, MemberUnreachable or CredentialsError."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def cluster_uid(self) -> str:
        """UID of the cluster, or what stands in for it."""
        ...

    async def server_version(self) -> str:
        """Version of the apiserver."""
        ...

    async def discover(self) -> Discovery:
        """The types that can be listed and watched."""
        ...

    def list_watch(
        self, resource_type: ResourceType, *, namespace: str, label_selector: str, metadata_only: bool
    ) -> ObjectAccess:
        """Access to the objects of a type."""
        ...


class KubeMember:
    """A `Member` behind a MemberClient, which it opens and closes."""

    def __init__(self, client: MemberClient) -> None:
        self._client = client

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._client.__aexit__(exc_type, exc, traceback)

    async def cluster_uid(self) -> str:
        """UID of the cluster, or what stands in for it."""
        return await self._client.cluster_uid()

    async def server_version(self) -> str:
        """Version of the apiserver."""
        return await self._client.server_version()

    async def discover(self) -> Discovery:
        """The types that can be listed and watched."""
        return await discover(self._client)

    def list_watch(
        self, resource_type: ResourceType, *, namespace: str, label_selector: str, metadata_only: bool
    ) -> ObjectAccess:
        """Access to the objects of a type."""
        return ResourceListWatch(
            self._client,
            resource_type,
            namespace=namespace,
            label_selector=label_selector,
            metadata_only=metadata_only,
        )
