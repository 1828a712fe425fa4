"""Frames as they come from an agent, checked: nothing unchecked goes further."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import lru_cache
from typing import TypeVar

import msgspec

from federator.aggregator.ledger.indexed_state import read_facts
from federator.aggregator.ledger.records import MAX_CHANGES, Delete, Put
from federator.api.cluster import TypeState
from federator.api.resource import GroupResource, ResourceType
from federator.errors import InvalidInput
from federator.v1 import ingest_pb2, types_pb2
from federator.wire.body import BodyCodec, content_hash
from federator.wire.digest import MAX_BITS, MAX_LEFT_OUT, Digest, bucket
from federator.wire.resource_type import resource_type_from_proto, type_state_from_proto

_NAME = re.compile(r"(?!\.{1,2}$)[^/%\x00-\x1f\x7f]{1,253}")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_TOKEN = re.compile(r"[\x21-\x7e]{1,128}")
_PERHAPS_TOKEN = re.compile(r"[\x21-\x7e]{0,128}")  # aggregated APIs serve objects without uid or resourceVersion
_MAX_ECHO = 256
"""Characters of a refused text that are given back."""

_ITEMS_PER_SLICE = 64
"""Items checked before other tasks get their turn: about 2 ms."""

_PARSED_TYPES = 4096
_PARSED_LENGTH = 512
"""Types that are remembered as they were checked, and bytes of one: what most have takes a fifth of that."""

Change = Put | Delete
_Item = TypeVar("_Item", ingest_pb2.PushedObject, ingest_pb2.Delta)


class Changes(msgspec.Struct, frozen=True):
    """Changes of one type, of a listing or as they happened.

    Attributes:
        type: the type.
        changes: at most MAX_CHANGES.
        in_snapshot: they are of a listing.
        low_water: resourceVersion up to which the type is complete with them, or "".
        is_replayed: they have waited, and may be older than what is stored.
    """

    type: ResourceType
    changes: tuple[Change, ...]
    in_snapshot: bool
    low_water: str = ""
    is_replayed: bool = False


Names = frozenset[tuple[str, str]]
"""Namespaces and names of objects, unchecked: some of them may have been refused for just that."""


class PushedDigest(msgspec.Struct, frozen=True):
    """What an agent says that its objects of a type add up to.

    Attributes:
        digest: number and sum.
        left_out: objects that are in neither, at most MAX_LEFT_OUT.
    """

    digest: Digest
    left_out: Names = frozenset()


class SnapshotBegin(msgspec.Struct, frozen=True):
    """A listing begins.

    Attributes:
        type: the type.
        resource_version: of the list; "" from agents that do not tell.
        digest: of the listing; None where the agent streams all of it without waiting for a plan.
        is_restored: the cluster was restored since the last listing.
    """

    type: ResourceType
    resource_version: str = ""
    digest: PushedDigest | None = None
    is_restored: bool = False


class StateBuckets(msgspec.Struct, frozen=True):
    """What the objects of a listing add up to, by bucket.

    Attributes:
        type: the type.
        bits: of a key hash that tell its bucket.
        sums: 2^bits of them.
    """

    type: ResourceType
    bits: int
    sums: tuple[int, ...]


class StateItems(msgspec.Struct, frozen=True):
    """The objects of a listing that are in some buckets, by their hashes.

    Attributes:
        type: the type.
        bits: as in StateBuckets.
        buckets: their numbers.
        keys: key hashes, at most MAX_STATES, each of one of the buckets.
        states: state hashes, one for each key.
    """

    type: ResourceType
    bits: int
    buckets: frozenset[int]
    keys: tuple[int, ...]
    states: tuple[int, ...]


class SnapshotEnd(msgspec.Struct, frozen=True):
    """A listing is complete, as of a resourceVersion, but for objects that exist and could not be sent.

    Its apiserver gave a sign for the type so many seconds ago, where that was told.
    """

    type: ResourceType
    resource_version: str
    left_out: Names = frozenset()
    proof_age: float | None = None


class Bookmark(msgspec.Struct, frozen=True):
    """A type is complete up to a resourceVersion; with a digest, what it adds up to."""

    type: ResourceType
    resource_version: str
    digest: PushedDigest | None = None


class TypeStatus(msgspec.Struct, frozen=True):
    """How the agent sees a type."""

    type: ResourceType
    state: TypeState
    reason: str


Frame = Changes | SnapshotBegin | StateBuckets | StateItems | SnapshotEnd | Bookmark | TypeStatus

MAX_REASON = 1024
"""Characters of a reason that are kept."""

MAX_STATES = 16384
"""Objects in one StateItems frame: 256 KiB, compared in some 10 ms."""


class ItemRefused(msgspec.Struct, frozen=True):
    """An item that cannot be taken, while the rest of its frame can."""

    namespace: str
    name: str
    message: str


class Proof(msgspec.Struct, frozen=True):
    """The apiserver gave a sign for a type, so many seconds ago."""

    resource: GroupResource
    age: float


async def decode(
    request: ingest_pb2.PushRequest, bodies: BodyCodec, turn: Callable[[], Awaitable[None]]
) -> tuple[Frame, list[ItemRefused]]:
    """Returns the frame of a numbered request and the items in it that were left out.

    Each body is decompressed and looked at once, here: what is stored can be read again, is the object it is said to
    be, and carries what the indexes need.

    Args:
        request: what came.
        bodies: decompresses.
        turn: awaited before each slice of items, so that others get theirs.

    Raises:
        InvalidInput: the frame as a whole is malformed.
    """
    match request.WhichOneof("frame"):
        case "snapshot_items":
            items = request.snapshot_items
            resource_type = _resource_type(items.type)
            read_item = _ItemReader(resource_type, bodies).put
            return await _changes(resource_type, items.objects, read_item, turn, in_snapshot=True)
        case "deltas":
            deltas = request.deltas
            resource_type = _resource_type(deltas.type)
            low_water = _version(deltas.resource_version) if deltas.resource_version else ""
            read = _ItemReader(resource_type, bodies).delta
            changes, refused = await _changes(resource_type, deltas.deltas, read, turn, in_snapshot=False)
            return msgspec.structs.replace(changes, low_water=low_water, is_replayed=deltas.replayed), refused
        case "snapshot_begin":
            return _begin(request.snapshot_begin), []
        case "state_buckets":
            return _buckets(request.state_buckets), []
        case "state_items":
            return _states(request.state_items), []
        case "snapshot_end":
            end = request.snapshot_end
            left_out = _names(end.left_out)
            age = end.proof_age_ms / 1000 if end.HasField("proof_age_ms") else None
            return SnapshotEnd(_resource_type(end.type), _version(end.resource_version), left_out, age), []
        case "bookmark":
            mark = request.bookmark
            digest = _digest(mark.digest) if mark.HasField("digest") else None
            return Bookmark(_resource_type(mark.type), _version(mark.resource_version), digest), []
        case "type_status":
            status = request.type_status
            state = type_state_from_proto(status.state)
            return TypeStatus(_resource_type(status.type), state, status.reason[:MAX_REASON]), []
        case other:
            raise InvalidInput("frame", other or "nothing", "a numbered frame")


def proofs(heartbeat: ingest_pb2.Heartbeat) -> Iterable[Proof]:
    """Yields what a heartbeat proves; whoever takes it must not believe in types it has never heard of."""
    for proof in heartbeat.proofs:
        yield Proof(GroupResource(proof.group, proof.resource), proof.age_ms / 1000)


def _begin(begin: ingest_pb2.SnapshotBegin) -> SnapshotBegin:
    return SnapshotBegin(
        _resource_type(begin.type),
        _version(begin.resource_version) if begin.resource_version else "",
        _digest(begin.digest) if begin.HasField("digest") else None,
        begin.restored,
    )


def _digest(digest: ingest_pb2.Digest) -> PushedDigest:
    if len(digest.left_out) > MAX_LEFT_OUT:
        raise InvalidInput("left_out", f"{len(digest.left_out)} objects", f"at most {MAX_LEFT_OUT}, else no digest")
    return PushedDigest(Digest(digest.count, digest.sum), _names(digest.left_out))


def _names(objects: Iterable[ingest_pb2.ObjectName]) -> Names:
    return frozenset((each.namespace, each.name) for each in objects)


def _buckets(buckets: ingest_pb2.StateBuckets) -> StateBuckets:
    if buckets.bits > MAX_BITS:
        raise InvalidInput("bits", buckets.bits, f"at most {MAX_BITS}")
    if len(buckets.sums) != 1 << buckets.bits:
        raise InvalidInput("sums", f"{len(buckets.sums)} of them", f"{1 << buckets.bits}, with {buckets.bits} bits")
    return StateBuckets(_resource_type(buckets.type), buckets.bits, tuple(buckets.sums))


def _states(items: ingest_pb2.StateItems) -> StateItems:
    bits = items.bits
    if bits > MAX_BITS:
        raise InvalidInput("bits", bits, f"at most {MAX_BITS}")
    if len(items.keys) > MAX_STATES:
        raise InvalidInput("keys", f"{len(items.keys)} of them", f"at most {MAX_STATES}")
    if len(items.states) != len(items.keys):
        raise InvalidInput("states", f"{len(items.states)} of them", f"one for each of the {len(items.keys)} keys")
    if len(items.buckets) > 1 << bits:
        raise InvalidInput("buckets", f"{len(items.buckets)} of them", f"at most {1 << bits}, with {bits} bits")
    buckets, keys = frozenset(items.buckets), tuple(items.keys)
    for key in keys:
        if bucket(key, bits) not in buckets:
            raise InvalidInput("keys", f"one of bucket {bucket(key, bits)}", "those of the buckets that are named")
    return StateItems(_resource_type(items.type), bits, buckets, keys, tuple(items.states))


async def _changes(
    resource_type: ResourceType,
    items: Collection[_Item],
    read: Callable[[_Item], Change],
    turn: Callable[[], Awaitable[None]],
    *,
    in_snapshot: bool,
) -> tuple[Changes, list[ItemRefused]]:
    if len(items) > MAX_CHANGES:
        raise InvalidInput("frame", f"{len(items)} items", f"at most {MAX_CHANGES}")
    changes: list[Change] = []
    refused: list[ItemRefused] = []
    for position, item in enumerate(items):
        if position % _ITEMS_PER_SLICE == 0 and len(items) >= _ITEMS_PER_SLICE:
            await turn()
        try:
            changes.append(read(item))
        except InvalidInput as error:
            refused.append(_refusal(item, error))
    return Changes(resource_type, tuple(changes), in_snapshot), refused


def _refusal(item: ingest_pb2.PushedObject | ingest_pb2.Delta, error: InvalidInput) -> ItemRefused:
    obj = item.object if isinstance(item, ingest_pb2.Delta) else item
    return ItemRefused(obj.namespace[:_MAX_ECHO], obj.name[:_MAX_ECHO], str(error)[:MAX_REASON])


class _ItemReader:
    """Reads and checks the items of one frame."""

    def __init__(self, resource_type: ResourceType, bodies: BodyCodec) -> None:
        self._type = resource_type
        self._decode = bodies.decode
        self._namespaces: set[str] = set()  # that were found to be right: most items share a few

    def delta(self, delta: ingest_pb2.Delta) -> Change:
        operation = delta.operation
        if operation == ingest_pb2.Delta.OPERATION_PUT:
            return self.put(delta.object)
        if operation == ingest_pb2.Delta.OPERATION_DELETE:
            namespace, name = delta.object.namespace, delta.object.name
            self._check_key(namespace, name)
            return Delete(namespace, name)
        raise InvalidInput("operation", operation, "PUT, DELETE")

    def put(self, obj: ingest_pb2.PushedObject) -> Put:
        namespace, name, uid, version = obj.namespace, obj.name, obj.uid, obj.resource_version
        self._check_key(namespace, name)
        _check("uid", uid, _PERHAPS_TOKEN)
        _check("resource_version", version, _PERHAPS_TOKEN)
        body, hash_ = obj.body, obj.content_hash
        raw = self._decode(body)
        if content_hash(raw) != hash_:
            raise InvalidInput("content_hash", hash_, "the xxh3-64 of the object's JSON")
        try:
            facts = read_facts(raw)
        except msgspec.MsgspecError as error:
            raise InvalidInput("body", f"{len(raw)} bytes", f"the JSON of an object ({error})") from error
        if facts.name != name or facts.namespace != namespace or facts.uid != uid:
            given = f"{facts.namespace}/{facts.name} {facts.uid}"
            raise InvalidInput("body", given, f"the object {namespace}/{name} {uid}")
        return Put(namespace, name, uid, version, hash_, body, facts.indexed)

    def _check_key(self, namespace: str, name: str) -> None:
        _check("name", name, _NAME)
        if namespace in self._namespaces:
            return
        if self._type.namespaced:
            _check("namespace", namespace, _NAMESPACE)
        elif namespace:
            raise InvalidInput("namespace", namespace, f"none: {self._type} have no namespace")
        self._namespaces.add(namespace)


def _resource_type(message: types_pb2.ResourceType) -> ResourceType:
    serialized = message.SerializeToString()
    return _parsed_type(serialized) if len(serialized) <= _PARSED_LENGTH else resource_type_from_proto(message)


@lru_cache(maxsize=_PARSED_TYPES)
def _parsed_type(serialized: bytes) -> ResourceType:
    """Checked once: each frame names a type, and all clusters have mostly the same."""
    return resource_type_from_proto(types_pb2.ResourceType.FromString(serialized))


def _version(resource_version: str) -> str:
    _check("resource_version", resource_version, _TOKEN)
    return resource_version


def _check(field: str, given: str, allowed: re.Pattern[str]) -> None:
    if not allowed.fullmatch(given):
        raise InvalidInput(field, given[:_MAX_ECHO], allowed.pattern)
