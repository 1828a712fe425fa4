"""Objects as the aggregator hands them out: their key, and their JSON for whoever wants it."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from federator.api.cluster import ClusterID
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource
from federator.v1 import inventory_pb2


class InventoryObject(msgspec.Struct, frozen=True, kw_only=True):
    """One state of one object of the federation; immutable.

    Attributes:
        cluster_id: member cluster.
        group: API group, empty for core.
        version: API version of `body`.
        resource: plural name of the type.
        kind: kind.
        namespace: empty for cluster-scoped types.
        name: the object's name.
        uid: its UID; differs when the name was deleted and created again.
        resource_version: the member's own; comparable only inside one cluster and type.
        revision: revision of the federation at which the object took this state.
        body: its JSON as the member serves it, after the agent's transforms.
    """

    cluster_id: ClusterID
    group: str
    version: str
    resource: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    revision: int
    body: bytes

    @property
    def key(self) -> ObjectKey:
        """Its key in the federation; `str()` of it is what `federator get -o name` prints."""
        return ObjectKey(self.cluster_id, self.group, self.resource, self.namespace, self.name)

    @property
    def group_resource(self) -> GroupResource:
        """Its type, whatever the version."""
        return GroupResource(self.group, self.resource)

    @property
    def api_version(self) -> str:
        """`group/version`, or the bare version for core."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def to_dict(self) -> dict[str, Any]:
        """Decodes the body, anew with each call, so the caller may change what it gets.

        Raises:
            msgspec.DecodeError: the body is not JSON.
        """
        return cast(dict[str, Any], msgspec.json.decode(self.body))

    @classmethod
    def from_message(cls, message: inventory_pb2.InventoryObject) -> InventoryObject:
        """Takes the object out of its message."""
        return cls(
            cluster_id=ClusterID(message.cluster_id),
            group=message.group,
            version=message.version,
            resource=message.resource,
            kind=message.kind,
            namespace=message.namespace,
            name=message.name,
            uid=message.uid,
            resource_version=message.resource_version,
            revision=message.revision,
            body=message.body,
        )
