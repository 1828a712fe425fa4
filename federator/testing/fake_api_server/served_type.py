"""Which resource types the fake serves, and how their objects are written down."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from federator.api.resource import GroupResource, ResourceType
from federator.testing.fake_api_server.status import Json, not_found_page

_METADATA_FIELDS = ("metadata.name", "metadata.namespace")

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclasses.dataclass(frozen=True, slots=True)
class ServedType:
    """One resource type and what sets it apart from others on the wire.

    Attributes:
        type: its names.
        custom: written as custom resources are: all keys sorted, so that a list has its items before its metadata, and
            items that carry apiVersion and kind. Otherwise as built-in types: metadata first, items without either.
        generation: objects carry `metadata.generation`, which counts changes outside of metadata and status.
        fields: paths a field selector may name.
        stub: what the object of a bookmark carries beside its metadata, because Go writes empty structs.
    """

    type: ResourceType
    custom: bool = False
    generation: bool = False
    fields: tuple[str, ...] = _METADATA_FIELDS
    stub: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def group_resource(self) -> GroupResource:
        """What its objects are stored under: versions are only ways to write them down."""
        return self.type.group_resource

    @property
    def qualified(self) -> str:
        """Its name in error messages, e.g. `deployments.apps`."""
        return str(self.group_resource)

    def key(self, name: str, namespace: str) -> str:
        """Where an object is stored; keys of one type sort as those of etcd do."""
        return f"{namespace}/{name}" if self.type.namespaced else name

    def encode(self, obj: Json) -> bytes:
        """An object as it stands alone or in a watch event, with apiVersion and kind."""
        named = {"kind": self.type.kind, "apiVersion": self.type.api_version, **obj}
        return msgspec.json.encode(named, order="sorted" if self.custom else None)

    def encode_item(self, obj: Json) -> bytes:
        """An object as it stands in a list."""
        return self.encode(obj) if self.custom else msgspec.json.encode(obj)

    def encode_list(self, metadata: Json, items: list[bytes]) -> bytes:
        """A list, of items that are encoded already."""
        if self.custom:
            head = b'{"apiVersion":%b,"items":[' % msgspec.json.encode(self.type.api_version)
            # Custom resources have this key even where there is no further page.
            metadata = {"continue": "", **metadata}
            rest = b'],"kind":%b,"metadata":%b}' % (
                msgspec.json.encode(f"{self.type.kind}List"),
                msgspec.json.encode(metadata, order="sorted"),
            )
            return head + b",".join(items) + rest
        head = b'{"kind":%b,"apiVersion":%b,"metadata":%b,"items":[' % (
            msgspec.json.encode(f"{self.type.kind}List"),
            msgspec.json.encode(self.type.api_version),
            msgspec.json.encode(metadata),
        )
        return head + b",".join(items) + b"]}"


def encode_partial(obj: Json) -> bytes:
    """An object's metadata alone, as PartialObjectMetadata."""
    named = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
    return msgspec.json.encode(named)


def encode_partial_list(metadata: Json, items: list[bytes]) -> bytes:
    """A PartialObjectMetadataList of items that are encoded already."""
    head = b'{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":%b,"items":['
    return head % msgspec.json.encode(metadata) + b",".join(items) + b"]}"


def _core(resource: str, kind: str, short: str = "", *, namespaced: bool = True, categories: str = "") -> ResourceType:
    return ResourceType(
        group="",
        version="v1",
        resource=resource,
        kind=kind,
        namespaced=namespaced,
        singular=kind.lower(),
        short_names=(short,) if short else (),
        categories=(categories,) if categories else (),
    )


PRESET: tuple[ServedType, ...] = (
    ServedType(_core("configmaps", "ConfigMap", "cm")),
    ServedType(
        _core("namespaces", "Namespace", "ns", namespaced=False),
        fields=("metadata.name", "status.phase", "name"),
        stub={"spec": {}, "status": {}},
    ),
    ServedType(
        _core("nodes", "Node", "no", namespaced=False),
        fields=("metadata.name", "spec.unschedulable"),
        stub={
            "spec": {},
            "status": {
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
                "nodeInfo": dict.fromkeys(
                    (
                        "machineID",
                        "systemUUID",
                        "bootID",
                        "kernelVersion",
                        "osImage",
                        "containerRuntimeVersion",
                        "kubeletVersion",
                        "kubeProxyVersion",
                        "operatingSystem",
                        "architecture",
                    ),
                    "",
                ),
            },
        },
    ),
    ServedType(
        _core("pods", "Pod", "po", categories="all"),
        generation=True,
        fields=(*_METADATA_FIELDS, "spec.nodeName", "status.phase"),
        stub={"spec": {"containers": None}, "status": {}},
    ),
    ServedType(_core("secrets", "Secret"), fields=(*_METADATA_FIELDS, "type")),
    ServedType(
        ResourceType(
            group="apps",
            version="v1",
            resource="deployments",
            kind="Deployment",
            namespaced=True,
            singular="deployment",
            short_names=("deploy",),
            categories=("all",),
        ),
        generation=True,
        stub={
            "spec": {
                "replicas": 0,
                "selector": None,
                "template": {"metadata": {}, "spec": {"containers": None}},
                "strategy": {},
            },
            "status": {},
        },
    ),
)
"""The types every fake begins with."""


class ServedTypes:
    """The types a fake serves at the moment, in the order of discovery."""

    def __init__(self, types: tuple[ServedType, ...] = PRESET) -> None:
        self._types: dict[tuple[GroupResource, str], ServedType] = {}
        for served in types:
            self.add(served)

    def __iter__(self) -> Iterator[ServedType]:
        return iter(list(self._types.values()))

    def add(self, served: ServedType) -> None:
        """Serves a type from now on."""
        self._types[served.group_resource, served.type.version] = served

    def remove(self, served: ServedType) -> None:
        """Ends to serve a type."""
        del self._types[served.group_resource, served.type.version]

    def named(self, name: str) -> ServedType:
        """The first type of this plural, `plural.group`, singular, short name or kind.

        Raises:
            LookupError: there is none.
        """
        for served in self._types.values():
            kind = served.type
            if name in {kind.resource, served.qualified, kind.singular, kind.kind, *kind.short_names}:
                return served
        known = ", ".join(served.qualified for served in self._types.values())
        raise LookupError(f"the fake serves no resource type {name!r}; it serves: {known}")

    def of_manifest(self, obj: Json) -> ServedType:
        """The type that an object's apiVersion and kind name.

        Raises:
            LookupError: there is none.
        """
        wanted = (obj.get("apiVersion", ""), obj.get("kind", ""))
        for served in self._types.values():
            if (served.type.api_version, served.type.kind) == wanted:
                return served
        raise LookupError(f"the fake serves no {wanted[0]} {wanted[1]}")

    def at(self, group: str, version: str, resource: str) -> ServedType | None:
        """The type under a URL path; None where the group's version has no such resource.

        Raises:
            ApiError: there is no such group and version.
        """
        found = False
        for served in self._types.values():
            if (served.type.group, served.type.version) == (group, version):
                if served.type.resource == resource:
                    return served
                found = True
        if not found:
            raise not_found_page()
        return None
