"""What is taken out of an object before anything else sees it.

A transform returns the object with the content hash of what is left; an object that has a hash already is returned as
it is, so transforms are idempotent. Objects are not decoded as a whole: only the top level and `metadata`
are opened, everything else is copied as bytes, in its order.

Dropped from every object: `metadata.managedFields` (half of many objects, and no inventory) and the annotation
`kubectl.kubernetes.io/last-applied-configuration` (the object a second time, as it was). `annotations` that become
empty go with it, so that an object applied by kubectl equals the same object created otherwise.

From Secrets all annotations are dropped: kubectl is not alone in keeping a copy of the applied object, values included,
in an annotation of its own (kapp and Rancher do, the latter compressed), and nobody knows all of them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from federator.agent.settings import SecretMode
from federator.api.object import KubeObject
from federator.api.resource import GroupResource, ResourceType
from federator.errors import InvalidInput
from federator.wire.body import content_hash

Transform = Callable[[KubeObject], KubeObject]

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
SECRETS = GroupResource("", "secrets")
MIN_KEY_BYTES = 16
"""Shortest key of fingerprints: one that could be guessed would give away every short value."""

_METADATA_NAME = b'"metadata":'
_MANAGED_FIELDS_NAME = b'"managedFields":'
_ANNOTATIONS_NAME = b'"annotations":'
_LAST_APPLIED_NAME = b'"' + LAST_APPLIED.encode() + b'":'
_MANAGED_FIELDS_MARKER = b"managedFields"
_LAST_APPLIED_MARKER = b"last-applied-configuration"
_COMMA = ord(",")
_SECRET_FIELDS = frozenset({"apiVersion", "kind", "metadata", "type", "immutable", "data", "stringData"})

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_annotations = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode
_decode_strings = msgspec.json.Decoder(dict[str, str]).decode
_encode = msgspec.json.Encoder().encode


class _Bookkeeping(msgspec.Struct, frozen=True, rename="camel"):
    managed_fields: msgspec.Raw = msgspec.Raw()
    annotations: msgspec.Raw = msgspec.Raw()


class _WithMetadata(msgspec.Struct, frozen=True):
    metadata: msgspec.Raw


_decode_metadata = msgspec.json.Decoder(_WithMetadata).decode
_decode_bookkeeping = msgspec.json.Decoder(_Bookkeeping).decode


def transform_for(resource_type: ResourceType, mode: SecretMode, key: bytes | None) -> Transform:
    """Returns the transform of a type: Secrets by their mode, everything else `drop_bookkeeping`."""
    if resource_type.group_resource != SECRETS:
        return drop_bookkeeping
    if mode is SecretMode.FINGERPRINT:
        return SecretFingerprint(key)
    return secret_metadata


def read_key(path: Path | None) -> bytes | None:
    """Returns the key of the fingerprints: the file's content without surrounding white space. Blocks briefly.

    Raises:
        InvalidInput: the file cannot be read, or the key is shorter than `MIN_KEY_BYTES`.
    """
    if path is None:
        return None
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise InvalidInput("secrets key file", path, f"a readable file ({error.strerror})") from error
    if len(key) < MIN_KEY_BYTES:
        raise InvalidInput("secrets key file", path, f"a file with at least {MIN_KEY_BYTES} bytes")
    return key


def drop_bookkeeping(obj: KubeObject) -> KubeObject:
    """The transform of everything but Secrets.

    Raises:
        msgspec.MsgspecError: the bytes are no object with an object as `metadata`.
    """
    if obj.content_hash:
        return obj
    raw = obj.raw
    # An apiserver writes these names without escapes, so bytes that lack them have nothing to drop.
    if _MANAGED_FIELDS_MARKER in raw or _LAST_APPLIED_MARKER in raw:
        raw = _without_bookkeeping(raw)
    return _with_raw(obj, raw)


def secret_metadata(obj: KubeObject) -> KubeObject:
    """The transform of Secrets in metadata mode: `metadata` and nothing else.

    The apiserver was asked for metadata only; this holds even where more came.

    Raises:
        msgspec.MsgspecError: the bytes are no object with an object as `metadata`.
    """
    if obj.content_hash:
        return obj
    return _with_raw(obj, _encode(_secret_skeleton(_decode_fields(obj.raw))))


class SecretFingerprint:
    """The transform of Secrets in fingerprint mode: each value becomes its length and a keyed hash.

    A value of `data` turns into base64 of `length=<bytes> hmac-sha256=<hex>`, which typed clients can still decode; a
    value of `stringData` into the same text. The hash is that of the value alone: under one key, equal values have
    equal fingerprints, in any Secret of any cluster. Without key there is no hash.

    What does not look like a Secret (unknown fields, values that are no strings, bad base64) becomes metadata only.
    """

    def __init__(self, key: bytes | None) -> None:
        self._key = key

    def __call__(self, obj: KubeObject) -> KubeObject:
        """Returns the object without its values.

        Raises:
            msgspec.MsgspecError: the bytes are no object with an object as `metadata`.
        """
        if obj.content_hash:
            return obj
        fields = _decode_fields(obj.raw)
        kept = _secret_skeleton(fields)
        try:
            kept |= self._fingerprints(fields)
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            kept = _secret_skeleton(fields)
        return _with_raw(obj, _encode(kept))

    def _fingerprints(self, fields: Mapping[str, msgspec.Raw]) -> dict[str, object]:
        if not fields.keys() <= _SECRET_FIELDS:
            raise ValueError("not a Secret as the API defines it")
        kept: dict[str, object] = {}
        if "type" in fields:
            kept["type"] = msgspec.json.decode(fields["type"], type=str)
        if "immutable" in fields:
            kept["immutable"] = msgspec.json.decode(fields["immutable"], type=bool | None)
        if "data" in fields:
            kept["data"] = {
                name: base64.b64encode(self._fingerprint(base64.b64decode(value, validate=True)).encode()).decode()
                for name, value in _decode_strings(fields["data"]).items()
            }
        if "stringData" in fields:
            kept["stringData"] = {
                name: self._fingerprint(value.encode()) for name, value in _decode_strings(fields["stringData"]).items()
            }
        return kept

    def _fingerprint(self, value: bytes) -> str:
        length = f"length={len(value)}"
        if self._key is None:
            return length
        return f"{length} hmac-sha256={hmac.new(self._key, value, hashlib.sha256).hexdigest()}"


def _without_bookkeeping(raw: bytes) -> bytes:
    metadata = bytes(_decode_metadata(raw).metadata)
    # Metadata names the object's own resourceVersion, which no other part of it can know: its text is there once.
    place = _find_member(raw, _METADATA_NAME, metadata)
    if place is None:
        return _reencoded_without_bookkeeping(raw)
    kept = metadata
    for name, value in _bookkeeping(metadata):
        cut = _find_member(kept, name, value)
        if cut is None:
            return _reencoded_without_bookkeeping(raw)
        kept = _without_member(kept, cut)
    return b"".join((raw[: place.stop - len(metadata)], kept, raw[place.stop :]))


def _bookkeeping(metadata: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields name and value, as written, of each member to drop."""
    found = _decode_bookkeeping(metadata)
    if managed_fields := bytes(found.managed_fields):
        yield _MANAGED_FIELDS_NAME, managed_fields
    if _LAST_APPLIED_MARKER in (annotations := bytes(found.annotations)):
        values = _decode_fields(annotations)
        if (last_applied := values.pop(LAST_APPLIED, None)) is not None:
            yield (_LAST_APPLIED_NAME, bytes(last_applied)) if values else (_ANNOTATIONS_NAME, annotations)


def _find_member(raw: bytes, name: bytes, value: bytes) -> slice | None:
    """Returns where the first `"name":value` is; quotes inside a string are escaped, so it can be no part of one.

    The name is searched and the value compared: preparing a search for a long text costs more than all the rest.
    """
    start = raw.find(name)
    while start >= 0 and not raw.startswith(value, start + len(name)):
        start = raw.find(name, start + len(name))
    return slice(start, start + len(name) + len(value)) if start >= 0 else None


def _without_member(raw: bytes, cut: slice) -> bytes:
    if raw[cut.stop] == _COMMA:
        return raw[: cut.start] + raw[cut.stop + 1 :]
    return raw[: cut.start - (raw[cut.start - 1] == _COMMA)] + raw[cut.stop :]


def _reencoded_without_bookkeeping(raw: bytes) -> bytes:
    """What `_without_bookkeeping` does, for JSON with white space."""
    fields = _decode_fields(raw)
    metadata = _decode_fields(fields["metadata"])
    metadata.pop("managedFields", None)
    if "annotations" in metadata:
        annotations = _decode_annotations(metadata["annotations"]) or {}
        if annotations.pop(LAST_APPLIED, None) is not None:
            metadata["annotations"] = msgspec.Raw(_encode(annotations))
            if not annotations:
                del metadata["annotations"]
    fields["metadata"] = msgspec.Raw(_encode(metadata))
    return _encode(fields)


def _secret_skeleton(fields: Mapping[str, msgspec.Raw]) -> dict[str, object]:
    metadata = _decode_fields(fields.get("metadata", msgspec.Raw(b"null")))
    metadata.pop("managedFields", None)
    metadata.pop("annotations", None)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}


def _with_raw(obj: KubeObject, raw: bytes) -> KubeObject:
    return KubeObject(obj.namespace, obj.name, obj.uid, obj.resource_version, raw, content_hash(raw))
