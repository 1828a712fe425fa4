"""One state of one object, decoded as far as somebody asked for it, and encoded once for all who get it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.merge.selection import NAME, NAMESPACE, NODE_NAME
from federator.aggregator.query.encoding import BODY
from federator.api.field_path import FieldPath, read_field
from federator.api.key import ObjectKey
from federator.errors import InvalidInput
from federator.v1 import inventory_pb2
from federator.wire.body import BodyCodec

OVERHEAD_BYTES = 256
"""Counted for what is kept of a state besides its bytes: the state itself and what holds it."""


def _uncounted(_: int) -> None:
    """For states that nobody keeps."""


class ObjectState:
    """What a ledger entry says about its object.

    Decoding and encoding are lazy and their results are kept, since one state may be looked at by every watcher. What
    is kept is told to `count` in bytes; the decoded object as a whole is not kept beyond `settle`.
    """

    __slots__ = ("_bodies", "_body_size", "_count", "_decoded", "_encoded", "_entry", "_fields", "_types")

    def __init__(
        self,
        entry: ObjectEntry,
        bodies: BodyCodec,
        types: ResourceTypes,
        count: Callable[[int], None] = _uncounted,
    ) -> None:
        self._entry = entry
        self._bodies = bodies
        self._types = types
        self._count = count
        self._encoded = b""
        self._body_size = 0
        self._fields: dict[FieldPath, str | None] | None = None
        self._decoded: object = None

    @property
    def key(self) -> ObjectKey:
        """Which object."""
        return self._entry.key

    @property
    def encoded(self) -> bytes:
        """The object as clients get it: an encoded InventoryObject."""
        if not self._encoded:
            self._encoded = self._encode()
            self._count(len(self._encoded) + OVERHEAD_BYTES)
        return self._encoded

    @property
    def message(self) -> inventory_pb2.InventoryObject:
        """The object as a message, anew with each call."""
        return inventory_pb2.InventoryObject.FromString(self.encoded)

    @property
    def size(self) -> int:
        """Bytes of the message."""
        return len(self.encoded)

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        return self._entry.indexed.labels

    def field(self, path: FieldPath) -> str | None:
        """A field, as `federator.api.field_path.read_field` returns it."""
        if path == NAME:
            return self.key.name
        if path == NAMESPACE:
            return self.key.namespace
        if path == NODE_NAME:
            return self._entry.indexed.node_name
        if self._fields is None:
            self._fields = {}
        if path not in self._fields:
            value = self._fields[path] = read_field(self._decode(), path)
            self._count(OVERHEAD_BYTES + len(value or ""))
        return self._fields[path]

    def settle(self) -> None:
        """Lets go of the decoded object: its fields have been asked for."""
        self._decoded = None

    def _encode(self) -> bytes:
        entry, key = self._entry, self._entry.key
        body = _raw(entry, self._bodies)
        self._body_size = len(body)
        message = inventory_pb2.InventoryObject(
            cluster_id=key.cluster_id,
            group=key.group,
            version=entry.api_version.rpartition("/")[2],
            resource=key.resource,
            kind=self._types.kind(key.cluster_id, key.group_resource),
            namespace=key.namespace,
            name=key.name,
            uid=entry.uid,
            resource_version=entry.resource_version,
            revision=entry.revision,
        )
        # The body last, so that it can be read where it stands.
        return b"".join((message.SerializeToString(), BODY.prefix(len(body)), body))

    def _decode(self) -> object:
        if self._decoded is None:
            encoded = self.encoded
            try:
                self._decoded = msgspec.json.decode(memoryview(encoded)[len(encoded) - self._body_size :])
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                self._decoded = {}  # not an object any apiserver serves: it has no fields
        return self._decoded


def _raw(entry: ObjectEntry, bodies: BodyCodec) -> bytes:
    try:
        return bodies.decode(entry.body)
    except InvalidInput:
        return b""  # as the merged Indexer sees it
