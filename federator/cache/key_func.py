"""Keys inside one cluster and type.

Objects and tombstones both have a `key`, so that nothing that handles keys can forget the tombstones.
"""

from __future__ import annotations

from federator.api.delta import Tombstone
from federator.api.object import KubeObject
from federator.errors import InvalidInput


def meta_namespace_key(obj: KubeObject | Tombstone) -> str:
    """Key of an object or of the object a tombstone stands for: `namespace/name`, or `name`."""
    return obj.key


def split_meta_namespace_key(key: str) -> tuple[str, str]:
    """Returns namespace (empty for cluster-scoped objects) and name of a key.

    Raises:
        InvalidInput: more than one slash, or no name.
    """
    namespace, slash, name = key.rpartition("/")
    if not name or "/" in namespace or (slash and not namespace):
        raise InvalidInput("key", key, "namespace/name, or name")
    return namespace, name
