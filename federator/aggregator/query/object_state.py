"""One state of one object, decoded as far as somebody asked for it, and encoded once for all who get it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

import msgspec

from federator.aggregator.ledger.indexed_state import UNREAD, IndexedState, read_indexed_state
from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.merge.selection import NAME, NAMESPACE, NODE_NAME
from federator.aggregator.query import encoding
from federator.api.cluster import ClusterID
from federator.api.field_path import FieldPath, FieldValue, read_comparable, read_values
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
        self._fields: dict[FieldPath, FieldValue] | None = None
        self._decoded: object = None

    @property
    def key(self) -> ObjectKey:
        """Which object."""
        return self._entry.key

    @property
    def revision(self) -> int:
        """At which the object took this state."""
        return self._entry.revision

    @property
    def created(self) -> int:
        """When the object was created, seconds since 1970; 0 where that is not known."""
        return self._indexed.created

    @property
    def owner_kind(self) -> str:
        """The kind of its controller; "" where it has none."""
        return self._indexed.owner_kind

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

    @property
    def uid(self) -> str:
        """Its metadata.uid."""
        return self._entry.uid

    @property
    def owner_uids(self) -> Collection[str]:
        """UIDs of the owners that it names."""
        return self._entry.indexed.owner_uids

    def field(self, path: FieldPath) -> FieldValue:
        """A field, as `federator.api.field_path.read_comparable` returns it."""
        if path == NAME:
            return self.key.name
        if path == NAMESPACE:
            return self.key.namespace
        if path == NODE_NAME:
            return self._entry.indexed.node_name
        if self._fields is None:
            self._fields = {}
        if path not in self._fields:
            value = self._fields[path] = read_comparable(self._decode(), path)
            self._count(OVERHEAD_BYTES + len(value or ""))
        return self._fields[path]

    def values(self, path: FieldPath) -> tuple[str, ...]:
        """All values of a field, as `federator.api.field_path.read_values` returns them."""
        return read_values(self._decode(), path)

    def settle(self) -> None:
        """Lets go of the decoded object: its fields have been asked for."""
        self._decoded = None

    @property
    def _indexed(self) -> IndexedState:
        indexed = self._entry.indexed
        return read_indexed_state(raw_body(self._entry, self._bodies)) if indexed.created == UNREAD else indexed

    def _encode(self) -> bytes:
        entry, key = self._entry, self._entry.key
        body = raw_body(entry, self._bodies)
        self._body_size = len(body)
        kind = self._types.kind(key.cluster_id, key.group_resource)
        # The body last, so that it can be read where it stands.
        return b"".join(
            (
                _head(key.cluster_id, key.group, entry.api_version, key.resource, kind),
                encoding.encode_identity(key.namespace, key.name, entry.uid, entry.resource_version),
                encoding.REVISION.number(entry.revision),
                encoding.BODY.prefix(len(body)),
                body,
            )
        )

    def _decode(self) -> object:
        if self._decoded is None:
            encoded = self.encoded
            try:
                self._decoded = msgspec.json.decode(memoryview(encoded)[len(encoded) - self._body_size :])
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                self._decoded = {}  # not an object any apiserver serves: it has no fields
        return self._decoded


@lru_cache(maxsize=16_384)  # clusters times types: all of a large federation's
def _head(cluster_id: ClusterID, group: str, api_version: str, resource: str, kind: str) -> bytes:
    """What the messages of all objects of a type in a cluster begin with."""
    version = api_version.rpartition("/")[2]
    return inventory_pb2.InventoryObject(
        cluster_id=cluster_id, group=group, version=version, resource=resource, kind=kind
    ).SerializeToString()


def raw_body(entry: ObjectEntry, bodies: BodyCodec) -> bytes:
    """The JSON of a state; empty where it cannot be decompressed, as the merged Indexer sees it."""
    try:
        return bodies.decode(entry.body)
    except InvalidInput:
        return b""
