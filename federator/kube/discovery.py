"""Which resource types a member cluster serves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from federator.api.resource import ResourceType
from federator.errors import KubeStatusError
from federator.kube.member_client import MemberClient
from federator.kube.status import undecodable

ACCEPT = ",".join(
    [
        *(f"application/json;g=apidiscovery.k8s.io;v={v};as=APIGroupDiscoveryList" for v in ("v2", "v2beta1")),
        "application/json",
    ]
)
"""Asks for the whole of discovery in one answer, in the versions of Kubernetes 1.30 and 1.26, else the old way."""


_T = TypeVar("_T")


class Discovery(msgspec.Struct, frozen=True):
    """The types of one cluster at one moment.

    Attributes:
        types: those that can be listed and watched, each in its preferred version: the first in its group's order that
            can be. No subresources. In the server's order.
        failed_groups: groups whose types are not known at the moment, because the server that has them does not answer
            (it is asked through the apiserver, which then calls them stale). None of their types is in `types`, and
            none is known to be absent.
    """

    types: tuple[ResourceType, ...]
    failed_groups: tuple[str, ...] = ()


class _Group(msgspec.Struct):
    """One API group, from either kind of discovery; versions in the group's order, each with its watchable types."""

    name: str
    versions: list[list[ResourceType]]
    failed: bool = False


async def discover(client: MemberClient) -> Discovery:
    """Asks a cluster for its types.

    Two requests where the server has aggregated discovery; otherwise one more for each version of each group, one
    after the other.

    Raises:
        KubeStatusError: the root of discovery cannot be read; a single group that cannot is a failed group instead.
        MemberUnreachable, CredentialsError: as for every request.
    """
    groups = [*await _core(client), *await _named_groups(client)]
    return Discovery(
        tuple(resource_type for group in groups if not group.failed for resource_type in _preferred(group)),
        tuple(group.name for group in groups if group.failed),
    )


def _preferred(group: _Group) -> Iterable[ResourceType]:
    chosen: dict[str, ResourceType] = {}
    for version in group.versions:
        for resource_type in version:
            chosen.setdefault(resource_type.resource, resource_type)
    return chosen.values()


async def _core(client: MemberClient) -> list[_Group]:
    body = await client.get("/api", accept=ACCEPT, verb="discover")
    if _kind(body) == _AGGREGATED_KIND:
        return _aggregated(body)
    versions = _decode(body, _CoreVersions).versions
    return [await _legacy_group(client, "", versions)]


async def _named_groups(client: MemberClient) -> list[_Group]:
    body = await client.get("/apis", accept=ACCEPT, verb="discover")
    if _kind(body) == _AGGREGATED_KIND:
        return _aggregated(body)
    groups = _decode(body, _GroupList).groups or []
    return [await _legacy_group(client, group.name, [v.version for v in group.versions]) for group in groups]


# Aggregated discovery, apidiscovery.k8s.io.

_AGGREGATED_KIND = "APIGroupDiscoveryList"


class _ResponseKind(msgspec.Struct):
    kind: str = ""


class _AggregatedResource(msgspec.Struct, rename="camel"):
    resource: str
    verbs: list[str] | None = None
    response_kind: _ResponseKind | None = None
    scope: str = ""
    singular_resource: str = ""
    short_names: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None


class _AggregatedVersion(msgspec.Struct):
    version: str
    resources: list[_AggregatedResource] | None = None
    freshness: str = "Current"


class _AggregatedName(msgspec.Struct, frozen=True):
    name: str = ""


class _AggregatedGroup(msgspec.Struct):
    metadata: _AggregatedName = _AggregatedName()
    versions: list[_AggregatedVersion] | None = None


class _AggregatedList(msgspec.Struct):
    items: list[_AggregatedGroup] | None = None


def _aggregated(body: bytes) -> list[_Group]:
    return [
        _Group(
            group.metadata.name,
            [list(_aggregated_types(group.metadata.name, version)) for version in group.versions or ()],
            failed=any(version.freshness == "Stale" for version in group.versions or ()),
        )
        for group in _decode(body, _AggregatedList).items or ()
    ]


def _aggregated_types(group: str, version: _AggregatedVersion) -> Iterator[ResourceType]:
    for resource in version.resources or ():
        kind = resource.response_kind.kind if resource.response_kind else ""
        if kind and _watchable(resource.verbs):
            yield ResourceType(
                group=group,
                version=version.version,
                resource=resource.resource,
                kind=kind,
                namespaced=resource.scope == "Namespaced",
                singular=resource.singular_resource,
                short_names=resource.short_names or (),
                categories=resource.categories or (),
            )


# Legacy discovery: a document for each version of each group.


class _CoreVersions(msgspec.Struct):
    versions: list[str]


class _GroupVersion(msgspec.Struct):
    version: str


class _LegacyGroup(msgspec.Struct):
    name: str
    versions: list[_GroupVersion]


class _GroupList(msgspec.Struct):
    groups: list[_LegacyGroup] | None = None


class _LegacyResource(msgspec.Struct, rename="camel"):
    name: str
    kind: str
    namespaced: bool
    verbs: list[str] | None = None
    singular_name: str = ""
    short_names: tuple[str, ...] | None = None
    categories: tuple[str, ...] | None = None


class _ResourceList(msgspec.Struct):
    resources: list[_LegacyResource] | None = None


async def _legacy_group(client: MemberClient, name: str, versions: Sequence[str]) -> _Group:
    group = _Group(name, [])
    for version in versions:
        path = f"/apis/{name}/{version}" if name else f"/api/{version}"
        try:
            listed = _decode(await client.get(path, verb="discover"), _ResourceList)
        except KubeStatusError:
            group.failed = True  # its server's trouble, told through failed_groups
            break
        group.versions.append(list(_legacy_types(name, version, listed)))
    return group


def _legacy_types(group: str, version: str, listed: _ResourceList) -> Iterator[ResourceType]:
    for resource in listed.resources or ():
        if "/" not in resource.name and _watchable(resource.verbs):
            yield ResourceType(
                group=group,
                version=version,
                resource=resource.name,
                kind=resource.kind,
                namespaced=resource.namespaced,
                singular=resource.singular_name,
                short_names=resource.short_names or (),
                categories=resource.categories or (),
            )


class _Kind(msgspec.Struct):
    kind: str = ""


def _kind(body: bytes) -> str:
    return _decode(body, _Kind).kind


def _watchable(verbs: Sequence[str] | None) -> bool:
    return {"list", "watch"} <= set(verbs or ())


def _decode(body: bytes, shape: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.MsgspecError as error:
        raise undecodable(f"discovery cannot be read: {error}", in_stream=False) from None
