"""What an agent sends, before it becomes messages: changes, markers, and the numbered frames that carry them."""

from __future__ import annotations

import msgspec

from federator.api.cluster import TypeState
from federator.api.key import local_key, split_local_key
from federator.api.object import KubeObject
from federator.api.resource import ResourceType
from federator.v1 import ingest_pb2, types_pb2
from federator.wire.digest import Digest
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
        base: state hash (`federator.wire.digest`) of what the aggregator was sent of the object before; 0 for nothing.
    """

    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    content_hash: int = 0
    body: bytes | None = None
    base: int = 0

    @classmethod
    def put(cls, obj: KubeObject, body: bytes, base: int = 0) -> Change:
        """The object exists in this state; `body` is its JSON as a body."""
        return cls(obj.namespace, obj.name, obj.uid, obj.resource_version, obj.content_hash, body, base)

    @classmethod
    def delete(cls, key: str, base: int = 0) -> Change:
        """The object with this key is gone."""
        return cls(*split_local_key(key), base=base)

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
        is_replayed: they were left by an earlier process.
    """

    changes: tuple[Change, ...]
    low_water: str = ""
    is_replayed: bool = False


class StatedDigest(msgspec.Struct, frozen=True):
    """What the agent says that its objects of a type add up to.

    Attributes:
        digest: number and sum.
        left_out: keys of the objects that are not in it.
    """

    digest: Digest
    left_out: tuple[str, ...] = ()


class Bookmark(msgspec.Struct, frozen=True):
    """Everything up to a resourceVersion stands before this.

    Attributes:
        resource_version: the version.
        digest: of what was sent before it; None where that is not known, and while it waits.
    """

    resource_version: str
    digest: StatedDigest | None = None


class TypeStatus(msgspec.Struct, frozen=True):
    """How the agent sees the type from here on."""

    state: TypeState
    reason: str = ""


class SnapshotBegin(msgspec.Struct, frozen=True):
    """A full listing begins.

    Attributes:
        resource_version: of the list.
        digest: of the listing; None where nobody would answer with a plan.
        is_restored: the cluster was restored since the last one.
    """

    resource_version: str
    digest: StatedDigest | None = None
    is_restored: bool = False


class StateBuckets(msgspec.Struct, frozen=True):
    """What a listing adds up to, by bucket: 2^bits sums."""

    bits: int
    sums: tuple[int, ...]


class StateItems(msgspec.Struct, frozen=True):
    """All objects of a listing that are in some buckets, by key and state hash."""

    bits: int
    buckets: tuple[int, ...]
    keys: tuple[int, ...]
    states: tuple[int, ...]


class SnapshotItems(msgspec.Struct, frozen=True):
    """Objects of a listing."""

    changes: tuple[Change, ...]


class SnapshotEnd(msgspec.Struct, frozen=True):
    """A full listing is complete, but for the objects with the keys left out, which exist and cannot be sent."""

    resource_version: str
    left_out: tuple[str, ...] = ()


Content = Deltas | Bookmark | TypeStatus | SnapshotBegin | StateBuckets | StateItems | SnapshotItems | SnapshotEnd


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
        match self.content:
            case Deltas(changes) | SnapshotItems(changes):
                return _FRAME_OVERHEAD + sum(change.size for change in changes)
            case StateBuckets(_, sums):
                return _FRAME_OVERHEAD + 8 * len(sums)
            case StateItems(_, buckets, keys):
                return _FRAME_OVERHEAD + 3 * len(buckets) + 16 * len(keys)
            case Bookmark(_, StatedDigest(_, left_out)) | SnapshotBegin(_, StatedDigest(_, left_out)):
                return _FRAME_OVERHEAD + sum(map(len, left_out))
            case SnapshotEnd(_, left_out):
                return _FRAME_OVERHEAD + sum(map(len, left_out))
        return _FRAME_OVERHEAD

    def to_message(self, *, is_type_known: bool = False) -> ingest_pb2.PushRequest:
        """Returns the frame as it is sent; of a type that the other side knows from this session only the name."""
        if is_type_known:
            resource_type = types_pb2.ResourceType(group=self.type.group, resource=self.type.resource)
        else:
            resource_type = resource_type_to_proto(self.type)
        match self.content:
            case Deltas(changes, low_water, is_replayed):
                message = ingest_pb2.PushRequest(sequence=self.sequence)
                deltas = message.deltas
                deltas.type.CopyFrom(resource_type)
                deltas.resource_version = low_water
                deltas.replayed = is_replayed
                for change in changes:
                    _fill_delta(deltas.deltas.add(), change)
                return message
            case Bookmark(version, digest):
                bookmark = ingest_pb2.Bookmark(type=resource_type, resource_version=version, digest=_digest(digest))
                return ingest_pb2.PushRequest(sequence=self.sequence, bookmark=bookmark)
            case TypeStatus(state, reason):
                number = type_state_to_proto(state)
                status = ingest_pb2.TypeStatus(type=resource_type, state=number, reason=reason)
                return ingest_pb2.PushRequest(sequence=self.sequence, type_status=status)
            case SnapshotBegin(version, digest, is_restored):
                begin = ingest_pb2.SnapshotBegin(
                    type=resource_type, resource_version=version, digest=_digest(digest), restored=is_restored
                )
                return ingest_pb2.PushRequest(sequence=self.sequence, snapshot_begin=begin)
            case StateBuckets(bits, sums):
                states = ingest_pb2.StateBuckets(type=resource_type, bits=bits, sums=sums)
                return ingest_pb2.PushRequest(sequence=self.sequence, state_buckets=states)
            case StateItems(bits, buckets, keys, states_):
                listed = ingest_pb2.StateItems(
                    type=resource_type, bits=bits, buckets=buckets, keys=keys, states=states_
                )
                return ingest_pb2.PushRequest(sequence=self.sequence, state_items=listed)
            case SnapshotItems(changes):
                message = ingest_pb2.PushRequest(sequence=self.sequence)
                message.snapshot_items.type.CopyFrom(resource_type)
                for change in changes:
                    _fill_object(message.snapshot_items.objects.add(), change)
                return message
            case SnapshotEnd(version, left_out):
                end = ingest_pb2.SnapshotEnd(
                    type=resource_type, resource_version=version, left_out=map(_name, left_out)
                )
                return ingest_pb2.PushRequest(sequence=self.sequence, snapshot_end=end)


def _digest(stated: StatedDigest | None) -> ingest_pb2.Digest | None:
    if stated is None:
        return None
    digest = stated.digest
    return ingest_pb2.Digest(count=digest.count, sum=digest.sum, left_out=map(_name, stated.left_out))


def _name(key: str) -> ingest_pb2.ObjectName:
    namespace, name = split_local_key(key)
    return ingest_pb2.ObjectName(namespace=namespace, name=name)


# Both fill in place: a message that is given to another's constructor is copied, with its body.


def _fill_delta(delta: ingest_pb2.Delta, change: Change) -> None:
    is_gone = change.body is None
    delta.operation = ingest_pb2.Delta.OPERATION_DELETE if is_gone else ingest_pb2.Delta.OPERATION_PUT
    _fill_object(delta.object, change)


def _fill_object(pushed: ingest_pb2.PushedObject, change: Change) -> None:
    pushed.namespace = change.namespace
    pushed.name = change.name
    pushed.uid = change.uid
    pushed.resource_version = change.resource_version
    pushed.content_hash = change.content_hash
    pushed.body = change.body or b""
