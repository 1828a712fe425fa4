"""Objects: JSON bytes, with only as much decoded as a step needs."""

from __future__ import annotations

from typing import Any

import msgspec

from federator.api.key import local_key


class OwnerReference(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of `metadata.ownerReferences`."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel"):
    """The part of `metadata` that federator reads.

    Decoded when a step needs it and dropped afterwards: kept, it costs about three times the compressed object.
    """

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class _WithMeta(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_decode_with_meta = msgspec.json.Decoder(_WithMeta).decode


def decode_meta(raw: bytes) -> ObjectMeta:
    """Decodes only `metadata` of an object's JSON.

    Raises:
        msgspec.MsgspecError: the bytes are not JSON or nested too deeply, or metadata has a wrong shape.
    """
    try:
        return _decode_with_meta(raw).metadata
    except RecursionError:
        raise msgspec.DecodeError("JSON is nested too deeply") from None


class KubeObject(msgspec.Struct, frozen=True, gc=False):
    """One state of one object of one cluster and type; immutable.

    Attributes:
        namespace: empty for cluster-scoped types.
        name: the object's name.
        uid: its UID; differs when the name was deleted and created again.
        resource_version: verbatim; compare only within one cluster and type (`federator.api.resource_version`).
        raw: its JSON, with apiVersion and kind; empty where a store was told to keep metadata only.
        content_hash: xxh3-64 of `raw` after the transforms, 0 where nobody asked for it.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    raw: bytes = b""
    content_hash: int = 0

    @property
    def key(self) -> str:
        """Key inside its cluster and type: `namespace/name`, or `name`."""
        return local_key(self.namespace, self.name)

    def is_state(self, uid: str, resource_version: str) -> bool:
        """Whether it is this state: of one key in one cluster, UID and resourceVersion tell all states apart."""
        return self.resource_version == resource_version and self.uid == uid

    def meta(self) -> ObjectMeta:
        """Decodes and returns the metadata; call it once per step, nothing is kept."""
        return decode_meta(self.raw)

    def json(self) -> Any:
        """Decodes and returns the object as a whole, as `json.loads` would; nothing is kept.

        Raises:
            msgspec.MsgspecError: the bytes are not JSON.
        """
        return msgspec.json.decode(self.raw)

    def without_raw(self) -> KubeObject:
        """The same state without its bytes, for stores that keep metadata only."""
        return KubeObject(self.namespace, self.name, self.uid, self.resource_version, b"", self.content_hash)
