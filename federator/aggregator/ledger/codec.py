"""How the LMDB driver writes things down: keys, rows and their checksums.

| table | key | value |
|---|---|---|
| log | revision | `ObjectRow`, `ClusterRow` or `TypeRow` |
| current | cluster number, type number, namespace and name | `HeadRow` |
| deletions | the same, of an object that is not present | revision of its DELETED, while the log has that |
| dictionaries | a number, in the order in which they came | `Dictionary` |
| clusters | ClusterID | ClusterRecord |
| types | ClusterID, group, resource | TypeRecord |
| transitions | the same, both empty for the cluster itself, and a revision | `TransitionRow` |
| numbers | a name's text | its number |
| names | a number | its name's parts: a ClusterID, or group and resource |
| meta | `identity`, `position`, `oldest`, `migrated` | `Identity`, `Position`, a revision, a revision |
| meta | `oldest-time` | the time of the entry at `oldest`, milliseconds since 1970 |
| meta | `sums` | see `sums` |

Every value starts with the xxh3-64 of its key and the rest, so that a record that was damaged, or stands at another
key, is never taken for one that was written. Cluster and type are written as numbers that are given once and never
reused: with their texts a key could be longer than the 511 bytes LMDB takes, and each object would pay for them twice.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import msgspec
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from federator.aggregator.ledger.indexed_state import IndexedState
from federator.aggregator.ledger.planning import Head
from federator.aggregator.ledger.records import (
    ClusterEntry,
    ClusterRecord,
    EntryType,
    TypeEntry,
    TypeRecord,
)
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource
from federator.errors import LedgerError
from federator.wire.body import Dictionary

T = TypeVar("T")

SCHEMA_VERSION = 3
"""Of all that this module describes; `migration` brings older ones here, newer ones are refused.

1. No `deletions`, no `dictionaries`; object rows without indexed state (`ObjectRowV1`), larger heads (`HeadRowV1`).
2. No `transitions`; heads and rows whose indexed state has no age and no kind of the owner.
"""

_CHECKSUM_LENGTH = 8
_REVISION = struct.Struct(">Q")
_NUMBER = struct.Struct(">I")
_OBJECT_PREFIX = struct.Struct(">II")
PREFIX_LENGTH = _OBJECT_PREFIX.size
"""Bytes of a cluster's and a type's number at the start of an object's key."""

_MAX_KEY = 511  # LMDB's bound
_DIGEST_MARK = b"\xff"  # stands where the namespace's length would, which is at most 254 in a plain key
_SEPARATOR = "\0"
_NO_TYPE = GroupResource("", "")  # of a cluster's own transitions: every type has a name


class ObjectRowV1(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """An ObjectEntry as schema 1 wrote it, without its revision (the key) and with numbers for cluster and type."""

    change: EntryType
    previous_revision: int
    time_ms: int
    cluster: int
    resource: int
    namespace: str
    name: str
    api_version: str
    uid: str
    resource_version: str
    content_hash: int
    body: bytes


class ObjectRow(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """An ObjectEntry, without its revision (the key) and with numbers for its cluster and type."""

    change: EntryType
    previous_revision: int
    follows: int
    time_ms: int
    cluster: int
    resource: int
    namespace: str
    name: str
    api_version: str
    uid: str
    resource_version: str
    content_hash: int
    indexed: IndexedState
    body: bytes


class ClusterRow(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A ClusterEntry, as it is: these are few."""

    entry: ClusterEntry


class TypeRow(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A TypeEntry, as it is: these are few."""

    entry: TypeEntry


Row = ObjectRow | ClusterRow | TypeRow
AnyRow = ObjectRowV1 | Row


class HeadRowV1(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A head as schema 1 wrote it."""

    revision: int
    uid: str
    resource_version: str
    content_hash: int
    api_version: str
    namespace: str = ""
    name: str = ""


class HeadRow(Head, frozen=True, array_like=True, gc=False):
    """A Head, with the object's namespace and name where the key has only their digest."""

    namespace: str = ""
    name: str = ""


class TransitionRow(msgspec.Struct, frozen=True, array_like=True):
    """A Transition, without its revision (in the key)."""

    since_ms: int
    state: str
    reason: str


class Identity(msgspec.Struct, frozen=True):
    """What a ledger is, for good.

    Attributes:
        schema_version: of its records.
        ledger_id: see CursorCodec.
        secret: see CursorCodec.
    """

    schema_version: int
    ledger_id: bytes
    secret: bytes


def require_known_schema(identity: Identity, path: Path) -> None:
    """Checks that this program can read a ledger.

    Raises:
        LedgerError: it has a schema of a newer program, or none there ever was.
    """
    if not 1 <= identity.schema_version <= SCHEMA_VERSION:
        raise LedgerError(
            f"the ledger in {path} has schema {identity.schema_version}, this program reads 1 to {SCHEMA_VERSION}"
        )


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where the order stands.

    Attributes:
        revision: newest given away.
        time_ms: of its entry, milliseconds since 1970.
    """

    revision: int
    time_ms: int


class Numbers(NamedTuple):
    """Numbers of one cluster and one type.

    Attributes:
        cluster: the cluster's.
        resource: the type's.
        prefix: what the keys of the present objects of that type in that cluster, and no others, start with.
    """

    cluster: int
    resource: int
    prefix: bytes


class Kind(Generic[T]):
    """Values of one type: sealed bytes to and fro."""

    def __init__(self, type_: object) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(type_).decode

    def seal(self, key: bytes, value: T) -> bytes:
        """Encodes a value that will stand at a key."""
        payload = self._encode(value)
        return _checksum(key, payload) + payload

    def unseal(self, key: bytes, sealed: bytes) -> T:
        """Decodes what `seal` made.

        Raises:
            ValueError: it is not what was written at this key.
        """
        payload = memoryview(sealed)[_CHECKSUM_LENGTH:]
        if not sealed.startswith(_checksum(key, payload)):
            raise ValueError("checksum differs")
        value: T = self._decode(payload)
        return value


def _checksum(key: bytes, payload: bytes | memoryview) -> bytes:
    return xxh3_64_digest(payload, seed=xxh3_64_intdigest(key))


def is_sound(key: bytes, sealed: bytes) -> bool:
    """Whether a record, of whatever kind, is what was written at a key."""
    return _checksum(key, memoryview(sealed)[_CHECKSUM_LENGTH:]) == sealed[:_CHECKSUM_LENGTH]


def encode_revision(revision: int) -> bytes:
    """Key of an entry; keys sort as revisions do."""
    return _REVISION.pack(revision)


def decode_revision(key: bytes) -> int:
    """Revision of a log key."""
    return int(_REVISION.unpack(key)[0])


def encode_number(number: int) -> bytes:
    """Key of a name."""
    return _NUMBER.pack(number)


def cluster_text(cluster_id: ClusterID) -> bytes:
    """Text of a cluster; of one part, so never that of a type."""
    return cluster_id.encode()


def type_text(resource: GroupResource) -> bytes:
    """Text of a type."""
    return _SEPARATOR.join(resource).encode()


def type_key(cluster_id: ClusterID, resource: GroupResource) -> bytes:
    """Key of a TypeRecord."""
    return types_prefix(cluster_id) + type_text(resource)


def types_prefix(cluster_id: ClusterID) -> bytes:
    """What the keys of one cluster's TypeRecords, and no others, start with."""
    return cluster_text(cluster_id) + _SEPARATOR.encode()


def transitions_prefix(cluster_id: ClusterID, resource: GroupResource | None) -> bytes:
    """What the keys of one type's transitions, or of the cluster's own (None), start with, and no others."""
    return type_key(cluster_id, resource or _NO_TYPE) + _SEPARATOR.encode()


def transition_key(cluster_id: ClusterID, resource: GroupResource | None, revision: int) -> bytes:
    """Key of a transition; those of one subject sort as their revisions do."""
    return transitions_prefix(cluster_id, resource) + encode_revision(revision)


def transition_subject(key: bytes) -> tuple[ClusterID, GroupResource | None]:
    """Of what a transition is, from its key.

    Raises:
        ValueError: it is no such key.
    """
    cluster_id, group, resource, _ = key[: -_REVISION.size].decode().split(_SEPARATOR)
    named = GroupResource(group, resource)
    return ClusterID(cluster_id), None if named == _NO_TYPE else named


def transition_revision(key: bytes) -> int:
    """Revision of a transition, from its key."""
    return decode_revision(key[-_REVISION.size :])


def is_of_same_subject(key: bytes, other: bytes) -> bool:
    """Whether two keys are of transitions of one type or cluster."""
    return key[: -_REVISION.size] == other[: -_REVISION.size]


def moved_transition(key: bytes, revision: int) -> bytes:
    """Key of the same transition at another revision."""
    return key[: -_REVISION.size] + encode_revision(revision)


def numbers(cluster: int, resource: int) -> Numbers:
    """The two numbers with the prefix they make."""
    return Numbers(cluster, resource, _OBJECT_PREFIX.pack(cluster, resource))


def numbers_of(object_key: bytes) -> tuple[int, int]:
    """The cluster's and the type's number in the key of a present object."""
    cluster, resource = _OBJECT_PREFIX.unpack_from(object_key)
    return cluster, resource


def object_key(prefix: bytes, namespace: str, name: str) -> tuple[bytes, bool]:
    """Key of a present object, given its numbers' prefix; and whether it has only a digest of namespace and name.

    Names that Kubernetes' own rules allow always fit. Some types take longer ones; a member that has such an object
    must not be able to stop its own sync, so they are neither refused nor cut.
    """
    encoded_namespace, encoded_name = namespace.encode(), name.encode()
    length = len(encoded_namespace)
    if length < _DIGEST_MARK[0] and len(prefix) + 1 + length + len(encoded_name) <= _MAX_KEY:
        return prefix + bytes((length,)) + encoded_namespace + encoded_name, False
    digest = hashlib.sha256(_NUMBER.pack(length) + encoded_namespace + encoded_name).digest()
    return prefix + _DIGEST_MARK + digest, True


def object_name(key: bytes, row: HeadRow) -> tuple[str, str]:
    """Namespace and name of a present object, from its key or, where that has only a digest, from its row."""
    start = _OBJECT_PREFIX.size + 1
    length = key[start - 1]
    if length == _DIGEST_MARK[0]:
        return row.namespace, row.name
    return key[start : start + length].decode(), key[start + length :].decode()


ROW: Kind[Row] = Kind(Row)
ANY_ROW: Kind[AnyRow] = Kind(AnyRow)
DICTIONARY: Kind[Dictionary] = Kind(Dictionary)
HEAD: Kind[HeadRow] = Kind(HeadRow)
HEAD_V1: Kind[HeadRowV1] = Kind(HeadRowV1)
CLUSTER: Kind[ClusterRecord] = Kind(ClusterRecord)
TYPE: Kind[TypeRecord] = Kind(TypeRecord)
TRANSITION: Kind[TransitionRow] = Kind(TransitionRow)
NUMBER: Kind[int] = Kind(int)
NAME: Kind[tuple[str, ...]] = Kind(tuple[str, ...])
IDENTITY: Kind[Identity] = Kind(Identity)
POSITION: Kind[Position] = Kind(Position)
