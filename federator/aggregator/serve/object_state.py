"""One state of one object, decoded as far as somebody asked for it, and once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from federator.aggregator.ledger.indexed_state import IndexedState, read_indexed_state
from federator.aggregator.ledger.records import ObjectEntry
from federator.aggregator.merge.resource_types import ResourceTypes
from federator.aggregator.merge.selection import NAME, NAMESPACE, NODE_NAME
from federator.api.key import ObjectKey
from federator.api.selector import FieldPath, read_field
from federator.errors import InvalidInput
from federator.v1 import inventory_pb2
from federator.wire.body import decode_body

OVERHEAD_BYTES = 512
"""Counted for a decoded state besides its JSON: the message's other fields, labels and what holds them."""


def _uncounted(_: int) -> None:
    """For states that nobody keeps."""


class ObjectState:
    """What a ledger entry says about its object.

    Decoding is lazy and its results are kept, since one state may be looked at by every watcher. What is kept is told
    to `count` in bytes; the decoded object as a whole is not kept beyond `settle`.
    """

    __slots__ = ("_count", "_decoded", "_entry", "_fields", "_indexed", "_message", "_size", "_types")

    def __init__(self, entry: ObjectEntry, types: ResourceTypes, count: Callable[[int], None] = _uncounted) -> None:
        self._entry = entry
        self._types = types
        self._count = count
        self._message: inventory_pb2.InventoryObject | None = None
        self._size = 0
        self._indexed: IndexedState | None = None
        self._fields: dict[FieldPath, str | None] = {}
        self._decoded: object = None

    @property
    def key(self) -> ObjectKey:
        """Which object."""
        return self._entry.key

    @property
    def message(self) -> inventory_pb2.InventoryObject:
        """The object as clients get it; not to be changed."""
        if self._message is None:
            self._message = self._new_message()
            self._size = self._message.ByteSize() + OVERHEAD_BYTES
            self._count(self._size)
        return self._message

    @property
    def size(self) -> int:
        """Bytes of the message, about."""
        return self._size or self.message.ByteSize() + OVERHEAD_BYTES

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        return self._read_indexed().labels

    def field(self, path: FieldPath) -> str | None:
        """A field, as `federator.api.selector.read_field` returns it."""
        if path == NAME:
            return self.key.name
        if path == NAMESPACE:
            return self.key.namespace
        if path == NODE_NAME:
            return self._read_indexed().node_name
        if path not in self._fields:
            value = self._fields[path] = read_field(self._decode(), path)
            self._count(OVERHEAD_BYTES + len(value or ""))
        return self._fields[path]

    def settle(self) -> None:
        """Lets go of the decoded object: its fields have been asked for."""
        self._decoded = None

    def _new_message(self) -> inventory_pb2.InventoryObject:
        entry, key = self._entry, self._entry.key
        return inventory_pb2.InventoryObject(
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
            body=_raw(entry),
        )

    def _read_indexed(self) -> IndexedState:
        if self._indexed is None:
            self._indexed = read_indexed_state(self.message.body)
        return self._indexed

    def _decode(self) -> object:
        if self._decoded is None:
            try:
                self._decoded = msgspec.json.decode(self.message.body)
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                self._decoded = {}  # not an object any apiserver serves: it has no fields
        return self._decoded


def _raw(entry: ObjectEntry) -> bytes:
    try:
        return decode_body(entry.body)
    except InvalidInput:
        return b""  # as the merged Indexer sees it
