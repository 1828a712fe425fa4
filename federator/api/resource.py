"""Resource types, as discovery names them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class GroupResource(NamedTuple):
    """What makes a type one type: its group and plural name. Versions are ways to write it down."""

    group: str
    resource: str

    def __str__(self) -> str:
        """Kubectl's spelling: `pods`, `deployments.apps`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


class ResourceType(msgspec.Struct, frozen=True, kw_only=True):
    """One resource type in one version, e.g. `apps/v1 deployments`.

    Attributes:
        group: API group, empty for core.
        version: version inside the group.
        resource: plural lower-case name.
        kind: kind of its objects.
        namespaced: whether objects live in namespaces.
        singular: singular lower-case name, may be empty.
        short_names: e.g. `("deploy",)`.
        categories: e.g. `("all",)`.
    """

    group: str
    version: str
    resource: str
    kind: str
    namespaced: bool
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()

    @property
    def group_resource(self) -> GroupResource:
        """The version-free identity, used in keys and indexes."""
        return GroupResource(self.group, self.resource)

    @property
    def api_version(self) -> str:
        """`group/version`, or the bare version for core."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "") -> str:
        """URL path of the collection on an apiserver.

        A namespace is ignored for cluster-scoped types.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if namespace and self.namespaced:
            return f"{root}/namespaces/{namespace}/{self.resource}"
        return f"{root}/{self.resource}"

    def __str__(self) -> str:
        return f"{self.api_version} {self.resource}"
