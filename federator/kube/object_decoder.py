"""From an apiserver's JSON to `KubeObject`s of one type, decoding no more than who it is.

Items of built-in lists carry no apiVersion and kind, watch events carry both with kind first, custom resources carry
them in alphabetical order. Here they all come out alike: apiVersion, kind, then the rest as the server wrote it, so the
bytes of one state are the same by whichever way it came.
"""

from __future__ import annotations

import codecs
import sys

import msgspec
from msgspec import UNSET, UnsetType

from federator.api.list_watch import Known, WatchEvent, WatchEventType, kept, nothing_known
from federator.api.object import KubeObject
from federator.api.resource import ResourceType

PARTIAL_METADATA_VERSION = "meta.k8s.io/v1"
PARTIAL_METADATA_KIND = "PartialObjectMetadata"

_INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None


class _Head(msgspec.Struct, rename="camel", gc=False):
    api_version: str | UnsetType | None = UNSET
    kind: str | UnsetType | None = UNSET
    metadata: _Metadata | None = None


class _BookmarkMetadata(msgspec.Struct, rename="camel"):
    resource_version: str | None = None
    annotations: dict[str, str] | None = None


class _Bookmark(msgspec.Struct):
    metadata: _BookmarkMetadata | None = None


_decode_head = msgspec.json.Decoder(_Head).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_bookmark = msgspec.json.Decoder(_Bookmark).decode


class UnusableObject(Exception):
    """An object that cannot be kept: no name, no resourceVersion, or of another type. The text says which and why."""


class ObjectDecoder:
    """Decodes the objects of one type.

    With `metadata_only` the server sends PartialObjectMetadata; the objects get their own type's apiVersion and kind.
    """

    def __init__(self, resource_type: ResourceType, *, metadata_only: bool = False) -> None:
        sent = (PARTIAL_METADATA_VERSION, PARTIAL_METADATA_KIND) if metadata_only else None
        own = (resource_type.api_version, resource_type.kind)
        self._sent_version, self._sent_kind = sent or own
        self._stamp = b'{"apiVersion":%b,"kind":%b,' % tuple(map(msgspec.json.encode, own))
        # The two orders servers write, each with all that the stamp replaces.
        self._prefixes = (
            b'{"kind":%b,"apiVersion":%b,' % (_json(self._sent_kind), _json(self._sent_version)),
            b'{"apiVersion":%b,"kind":%b,' % (_json(self._sent_version), _json(self._sent_kind)),
        )

    def decode(self, raw: bytes | msgspec.Raw, known: Known = nothing_known) -> KubeObject:
        """Returns the object, with bytes of its own that pin nothing else, or the one known in this state.

        A new one comes in the form in which it is to be kept.

        Raises:
            UnusableObject: it has no name or resourceVersion, is of another type, or is not UTF-8.
        """
        try:
            head = _decode_head(raw)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UnusableObject(f"metadata of a wrong shape, or nested too deeply: {error}") from None
        metadata = head.metadata
        if metadata is None or not metadata.name:
            raise UnusableObject("no metadata.name")
        namespace = metadata.namespace or ""
        if not metadata.resource_version:
            raise UnusableObject(f"{namespace}/{metadata.name}: no metadata.resourceVersion")
        self._check_type(head, namespace, metadata.name)
        held = known(namespace, metadata.name)
        if held is not None and held.is_state(metadata.uid or "", metadata.resource_version):
            return held
        _check_text(raw, namespace, metadata.name)
        uid, version = metadata.uid or "", metadata.resource_version
        obj = KubeObject(sys.intern(namespace), metadata.name, uid, version, self._stamped(raw, head))
        return kept(obj, known)

    def decode_bookmark(self, raw: bytes | msgspec.Raw) -> WatchEvent:
        """Returns the bookmark; its object is a stub, of which nothing but resourceVersion and annotations is read.

        Raises:
            UnusableObject: it has not even the shape of a stub.
        """
        try:
            metadata = _decode_bookmark(raw).metadata or _BookmarkMetadata()
        except msgspec.MsgspecError as error:
            raise UnusableObject(f"bookmark of a wrong shape: {error}") from None
        stub = KubeObject("", "", "", metadata.resource_version or "")
        ends_initial_events = (metadata.annotations or {}).get(_INITIAL_EVENTS_END) == "true"
        return WatchEvent(WatchEventType.BOOKMARK, stub, ends_initial_events)

    def _check_type(self, head: _Head, namespace: str, name: str) -> None:
        for given, expected in ((head.kind, self._sent_kind), (head.api_version, self._sent_version)):
            if given and given != expected:
                raise UnusableObject(f"{namespace}/{name}: is a {given}, not a {expected}")

    def _stamped(self, raw: bytes | msgspec.Raw, head: _Head) -> bytes:
        view = memoryview(raw)
        if head.kind is UNSET and head.api_version is UNSET:
            if view[1] == ord('"'):
                return b"".join((self._stamp, view[1:]))
        else:
            for prefix in self._prefixes:
                if view[: len(prefix)] == prefix:
                    return b"".join((self._stamp, view[len(prefix) :]))
        return self._rebuilt(raw)

    def _rebuilt(self, raw: bytes | msgspec.Raw) -> bytes:
        """The slow way, for any order and any whitespace."""
        fields = _decode_fields(msgspec.json.format(bytes(raw), indent=-1))
        rest = (
            b"%b:%b" % (_json(name), bytes(value))
            for name, value in fields.items()
            if name not in {"apiVersion", "kind"}
        )
        return self._stamp + b",".join(rest) + b"}"


def _check_text(raw: bytes | msgspec.Raw, namespace: str, name: str) -> None:
    # The decoder skips what it does not decode without a look at its characters; readers of the bytes would stumble.
    try:
        codecs.utf_8_decode(raw, "strict", True)
    except UnicodeDecodeError as error:
        raise UnusableObject(f"{namespace}/{name}: not UTF-8, {error.reason} at byte {error.start}") from None


def _json(text: str) -> bytes:
    return msgspec.json.encode(text)
