"""Messages put together from encoded parts.

In protobuf's encoding a message is its fields, one after the other in any order, and a field that is itself a message
is a tag, a length and bytes. So what many answers have in common is encoded once, and an answer is a join of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from google.protobuf.message import Message

from federator.v1 import inventory_pb2

_LENGTH_DELIMITED = 2

_SHORT_TEXT = 256
"""Bytes; names are shorter, so what stands before them is looked up."""


class NumberField:
    """A field of a message type that holds an unsigned number."""

    def __init__(self, message_type: type[Message], name: str) -> None:
        self._tag = _varint(message_type.DESCRIPTOR.fields_by_name[name].number << 3)

    def number(self, value: int) -> bytes:
        """Returns the field with a number as its value; for a field that is not optional, one that is not 0."""
        return self._tag + _varint(value)


class EmbeddedField:
    """A field of a message type that holds a message, bytes or text."""

    def __init__(self, message_type: type[Message], name: str) -> None:
        self._tag = _varint(message_type.DESCRIPTOR.fields_by_name[name].number << 3 | _LENGTH_DELIMITED)
        self._short = [self._tag + _varint(length) for length in range(_SHORT_TEXT)]

    def prefix(self, length: int) -> bytes:
        """What stands before a value of so many bytes."""
        return self._short[length] if length < _SHORT_TEXT else self._tag + _varint(length)

    def text(self, value: str) -> bytes:
        """Returns the field with a text as its value; nothing for an empty one, as is proto3's way."""
        if not value:
            return b""
        encoded = value.encode()
        return self.prefix(len(encoded)) + encoded

    def encode(self, messages: Iterable[bytes]) -> bytes:
        """Returns the field with encoded messages as its values."""
        return b"".join([part for message in messages for part in (self.prefix(len(message)), message)])


_SHORT = [bytes((value,)) for value in range(0x80)]


def _varint(value: int) -> bytes:
    if value <= 0x7F:
        return _SHORT[value]
    if value <= 0x3FFF:
        return bytes((value & 0x7F | 0x80, value >> 7))
    # Revisions near each other have the upper part in common.
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80)) + _upper(value >> 14)


@lru_cache(maxsize=1024)
def _upper(value: int) -> bytes:
    return _varint(value)


EVENTS = EmbeddedField(inventory_pb2.WatchResponse, "events")
OBJECT = EmbeddedField(inventory_pb2.WatchEvent, "object")
PREVIOUS = EmbeddedField(inventory_pb2.WatchEvent, "previous")
BODY = EmbeddedField(inventory_pb2.InventoryObject, "body")
OBJECTS = EmbeddedField(inventory_pb2.ListResponse, "objects")
SUMMARY_CLUSTERS = EmbeddedField(inventory_pb2.ListSummary, "clusters")
REVISION = NumberField(inventory_pb2.InventoryObject, "revision")

_TEXTS = [
    EmbeddedField(inventory_pb2.InventoryObject, each) for each in ("namespace", "name", "uid", "resource_version")
]
_SHORT_TEXTS = "".join(field.prefix(0)[:-1].decode("ascii") + "%c%s" for field in _TEXTS)


def encode_identity(namespace: str, name: str, uid: str, resource_version: str) -> bytes:
    """Returns the fields of an InventoryObject that tell which object and state it is."""
    text = _SHORT_TEXTS % (
        len(namespace),
        namespace,
        len(name),
        name,
        len(uid),
        uid,
        len(resource_version),
        resource_version,
    )
    if text.isascii():  # so are the lengths, which are below 128 then: each is one byte, and counts bytes
        return text.encode("ascii")
    values = namespace, name, uid, resource_version
    return b"".join([field.text(value) for field, value in zip(_TEXTS, values, strict=True)])
