"""What the indexes read of an object: labels, owners, node and age, and nothing else.

Read once, when an agent's object comes in, and kept beside the body in the ledger: so neither a restart nor a watch
with a label selector has to decompress and decode it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from federator.api.object import decode_meta

UNREAD = -1
"""Age of a state that was written by a program that did not read it."""


class IndexedState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The indexed part of one state of one object.

    Attributes:
        labels: metadata.labels.
        node_name: spec.nodeName, "" where there is none.
        owner_uids: the UIDs in metadata.ownerReferences.
        is_whole: False where a part had a shape that no apiserver serves, and was left out.
        created: metadata.creationTimestamp, seconds since 1970; 0 where there is none, `UNREAD` in states that were
            written before it was read: the object tells.
        owner_kind: the kind of the owner that is the object's controller, "" where there is none, and where `created`
            is `UNREAD`.
    """

    labels: Mapping[str, str] = {}
    node_name: str = ""
    owner_uids: tuple[str, ...] = ()
    is_whole: bool = True
    created: int = UNREAD
    owner_kind: str = ""


NOTHING_INDEXED = IndexedState(created=0)
"""Of an object that is gone."""

UNKNOWN = IndexedState(is_whole=False, created=0)
"""Of a state that nobody knows here; told apart by identity."""


class ObjectFacts(NamedTuple):
    """What one look at an object's JSON tells: which object it is, and what the indexes need.

    Attributes:
        namespace: metadata.namespace.
        name: metadata.name.
        uid: metadata.uid.
        indexed: its indexed part.
    """

    namespace: str
    name: str
    uid: str
    indexed: IndexedState


class _Owner(msgspec.Struct, gc=False):
    uid: str = ""
    kind: str = ""
    controller: bool | None = None


class _Metadata(msgspec.Struct, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    ownerReferences: tuple[_Owner, ...] | None = None  # noqa: N815 - the field's name in JSON
    creationTimestamp: str | None = None  # noqa: N815 - the field's name in JSON


class _Spec(msgspec.Struct, gc=False):
    nodeName: str | None = None  # noqa: N815 - the field's name in JSON


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata | None = None
    spec: _Spec | None = None


_decode = msgspec.json.Decoder(_Object).decode


def read_facts(raw: bytes) -> ObjectFacts:
    """Reads an object's JSON once, for everything that the ledger and the indexes want to know.

    Raises:
        msgspec.MsgspecError: the bytes are not JSON or nested too deeply, or metadata has a shape that no apiserver
            serves. Any `spec` is taken, as a custom resource may have any.
    """
    try:
        decoded = _decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        meta = decode_meta(raw)
        return ObjectFacts(meta.namespace, meta.name, meta.uid, _read_leniently(raw))
    metadata = decoded.metadata or _Metadata()
    return ObjectFacts(metadata.namespace, metadata.name, metadata.uid, _indexed(decoded))


def read_indexed_state(raw: bytes) -> IndexedState:
    """Reads the indexed part of an object's JSON; never fails.

    What has another shape than apiservers serve is left out, the rest is read.
    """
    try:
        return _indexed(_decode(raw))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _read_leniently(raw)


def _indexed(decoded: _Object) -> IndexedState:
    metadata, spec = decoded.metadata or _Metadata(), decoded.spec
    owners = metadata.ownerReferences
    return IndexedState(
        metadata.labels or {},
        (spec.nodeName or "") if spec else "",
        tuple([owner.uid for owner in owners if owner.uid]) if owners else (),
        created=_seconds(metadata.creationTimestamp),
        owner_kind=next((owner.kind for owner in owners if owner.controller), "") if owners else "",
    )


def _seconds(timestamp: object) -> int:
    """Seconds since 1970 of a time as apiservers write it; 0 for anything else, and for times before."""
    if not isinstance(timestamp, str) or not timestamp:
        return 0
    try:
        moment = datetime.fromisoformat(timestamp)
        return 0 if moment.tzinfo is None else max(0, min(int(moment.timestamp()), _LATEST))
    except (ValueError, OverflowError):
        return 0


_LATEST = 2**32 - 2
"""In the year 2106: what the merged Indexer's columns hold."""


def _read_leniently(raw: bytes) -> IndexedState:
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return IndexedState(is_whole=False, created=0)
    metadata = _mapping(_mapping(decoded).get("metadata"))
    labels, owners = metadata.get("labels"), metadata.get("ownerReferences")
    node_name = _mapping(_mapping(decoded).get("spec")).get("nodeName")
    read_labels = {key: value for key, value in _mapping(labels).items() if isinstance(value, str)}
    uids = [_mapping(owner).get("uid") for owner in owners] if isinstance(owners, list) else []
    read_uids = tuple(uid for uid in uids if isinstance(uid, str) and uid)
    is_whole = (
        metadata is not _NOTHING
        and (labels is None or labels == read_labels)
        and (owners is None or len(read_uids) == (len(owners) if isinstance(owners, list) else -1))
    )
    listed = owners if isinstance(owners, list) else []
    kinds = [_mapping(owner).get("kind") for owner in listed if _mapping(owner).get("controller") is True]
    return IndexedState(
        read_labels,
        node_name if isinstance(node_name, str) else "",
        read_uids,
        is_whole,
        _seconds(metadata.get("creationTimestamp")),
        next((kind for kind in kinds if isinstance(kind, str)), ""),
    )


_NOTHING: Mapping[str, object] = {}


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else _NOTHING
