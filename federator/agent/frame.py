"""What an agent sends, before it becomes messages: changes, markers, and the numbered frames that carry them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from federator.api.cluster import TypeState
from federator.api.key import local_key
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.v1 import ingest_pb2
from federator.wire.resource_type import resource_type_to_proto, type_state_to_proto

_ITEM_OVERHEAD = 48
"""Bytes of an item's message besides its texts and body, rounded up: an agent that counts too much keeps its window."""

_FRAME_OVERHEAD = 256
"""The same for a frame, with its type."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """The latest state of one object: it exists like this, or it is gone.

    Attributes:
        namespace: empty for cluster-scoped types.
        name: the object's name.
        uid: its UID; empty for a deletion.
        resource_version: the member's, verbatim; empty for a deletion.
        content_hash: xxh3-64 of its JSON; 0 for a deletion.
        body: its JSON as a body; None for a deletion.
    """

    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    content_hash: int = 0
    body: bytes | None = None

    @classmethod
    def put(cls, obj: KubeObject, body: bytes) -> Change:
        """The object exists in this state; `body` is its JSON as a body."""
        return cls(obj.namespace, obj.name, obj.uid, obj.resource_version, obj.content_hash, body)

    @classmethod
    def delete(cls, key: str) -> Change:
        """The object with this key is gone."""
        namespace, _, name = key.rpartition("/")
        return cls(namespace, name)

    @property
    def key(self) -> str:
        """Key inside cluster and type."""
        return local_key(self.namespace, self.name)

    @property
    def size(self) -> int:
        """About how many bytes it takes on the wire and in memory."""
        texts = len(self.namespace) + len(self.name) + len(self.uid) + len(self.resource_version)
        return _ITEM_OVERHEAD + texts + len(self.body or b"")


class Deltas(msgspec.Struct, frozen=True):
    """Changes, at most one per object.

    Attributes:
        changes: the changes.
        low_water: resourceVersion up to which everything of the type has been sent with them, or "".
    """

    changes: tuple[Change, ...]
    low_water: str = ""


class Bookmark(msgspec.Struct, frozen=True):
    """Everything up to a resourceVersion stands before this."""

    resource_version: str


class TypeStatus(msgspec.Struct, frozen=True):
    """How the agent sees the type from here on."""

    state: TypeState
    reason: str = ""


class SnapshotBegin(msgspec.Struct, frozen=True):
    """A full listing begins."""


class SnapshotItems(msgspec.Struct, frozen=True):
    """Objects of a listing."""

    changes: tuple[Change, ...]


class SnapshotEnd(msgspec.Struct, frozen=True):
    """A full listing is complete."""

    resource_version: str


Content = Deltas | Bookmark | TypeStatus | SnapshotBegin | SnapshotItems | SnapshotEnd


class Frame(msgspec.Struct, frozen=True):
    """Content of one type with its place in the agent instance's stream.

    Attributes:
        sequence: from 1 without gaps.
        type: the type of everything in it.
        content: what it carries.
    """

    sequence: int
    type: ResourceType
    content: Content

    @property
    def size(self) -> int:
        """About how many bytes it takes on the wire, rounded up."""
        changes = self.content.changes if isinstance(self.content, Deltas | SnapshotItems) else ()
        return _FRAME_OVERHEAD + sum(change.size for change in changes)

    def to_message(self) -> ingest_pb2.PushRequest:
        """Returns the frame as it is sent."""
        resource_type = resource_type_to_proto(self.type)
        match self.content:
            case Deltas(changes, low_water):
                deltas = ingest_pb2.Deltas(type=resource_type, deltas=map(_delta, changes), resource_version=low_water)
                return ingest_pb2.PushRequest(sequence=self.sequence, deltas=deltas)
            case Bookmark(version):
                bookmark = ingest_pb2.Bookmark(type=resource_type, resource_version=version)
                return ingest_pb2.PushRequest(sequence=self.sequence, bookmark=bookmark)
            case TypeStatus(state, reason):
                number = type_state_to_proto(state)
                status = ingest_pb2.TypeStatus(type=resource_type, state=number, reason=reason)
                return ingest_pb2.PushRequest(sequence=self.sequence, type_status=status)
            case SnapshotBegin():
                begin = ingest_pb2.SnapshotBegin(type=resource_type)
                return ingest_pb2.PushRequest(sequence=self.sequence, snapshot_begin=begin)
            case SnapshotItems(changes):
                items = ingest_pb2.SnapshotItems(type=resource_type, objects=_objects(changes))
                return ingest_pb2.PushRequest(sequence=self.sequence, snapshot_items=items)
            case SnapshotEnd(version):
                end = ingest_pb2.SnapshotEnd(type=resource_type, resource_version=version)
                return ingest_pb2.PushRequest(sequence=self.sequence, snapshot_end=end)


def _objects(changes: Iterable[Change]) -> Iterable[ingest_pb2.PushedObject]:
    return (_object(change) for change in changes)


def _delta(change: Change) -> ingest_pb2.Delta:
    is_gone = change.body is None
    operation = ingest_pb2.Delta.OPERATION_DELETE if is_gone else ingest_pb2.Delta.OPERATION_PUT
    return ingest_pb2.Delta(operation=operation, object=_object(change))


def _object(change: Change) -> ingest_pb2.PushedObject:
    return ingest_pb2.PushedObject(
        namespace=change.namespace,
        name=change.name,
        uid=change.uid,
        resource_version=change.resource_version,
        content_hash=change.content_hash,
        body=change.body or b"",
    )
