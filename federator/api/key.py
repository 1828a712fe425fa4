"""Keys: which object, in which cluster."""

from __future__ import annotations

from typing import NamedTuple

from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource
from federator.errors import InvalidInput

_FIELDS = 5


class ObjectKey(NamedTuple):
    """Key of one object of the federation: always five fields, group and namespace may be empty.

    Written `<ClusterID>/<group>/<resource>/<namespace>/<name>`; the text is never split inside a name.
    """

    cluster_id: ClusterID
    group: str
    resource: str
    namespace: str
    name: str

    @property
    def group_resource(self) -> GroupResource:
        """The object's type."""
        return GroupResource(self.group, self.resource)

    def __str__(self) -> str:
        return "/".join(self)

    @classmethod
    def parse(cls, text: str) -> ObjectKey:
        """Reads what `str()` wrote.

        Raises:
            InvalidInput: there are fewer than five fields, or cluster, resource or name is empty.
        """
        fields = text.split("/", _FIELDS - 1)
        if len(fields) != _FIELDS or not (fields[0] and fields[2] and fields[4]):
            raise InvalidInput("key", text, "<ClusterID>/<group>/<resource>/<namespace>/<name>")
        cluster_id, group, resource, namespace, name = fields
        return cls(ClusterID(cluster_id), group, resource, namespace, name)


def local_key(namespace: str, name: str) -> str:
    """Key of an object inside one cluster and type, as client-go writes it: `namespace/name`, or `name`."""
    return f"{namespace}/{name}" if namespace else name


def split_local_key(key: str) -> tuple[str, str]:
    """Namespace and name of a local key."""
    namespace, _, name = key.rpartition("/")
    return namespace, name
