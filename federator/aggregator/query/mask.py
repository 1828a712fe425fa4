"""Masks: which fields of a body are wanted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from federator.api.field_path import EVERY, FieldPath, parse_field_path
from federator.errors import InvalidInput
from federator.v1 import inventory_pb2

MAX_PATHS = 100
"""Paths of one mask: more than any table has columns."""

ALWAYS: tuple[FieldPath, ...] = (("apiVersion",), ("kind",), ("metadata", "namespace"), ("metadata", "name"))
"""Kept whatever is wanted: they say what the body is."""

_Tree: TypeAlias = "dict[str, _Tree]"
"""Wanted parts by name; a leaf, which has none, is wanted whole."""

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.encode


class ReadMask:
    """Keeps the wanted fields of a body, each as its bytes are, so that no number is written another way.

    Of an array, `*` wants every element and a number the one at that place; elements that are not wanted are left out,
    and of the wanted ones those that lack the field are empty.
    """

    __slots__ = ("_tree",)

    def __init__(self, paths: Iterable[FieldPath]) -> None:
        self._tree: _Tree = {}
        for path in (*ALWAYS, *paths):
            _want(self._tree, path)

    @classmethod
    def parse(cls, paths: Iterable[str], *, field: str = "read_mask") -> ReadMask | None:
        """Reads the mask of a request; None where it wants the whole body.

        Args:
            paths: dotted paths; one leading dot means nothing.
            field: name of the field they came in, for the message.

        Raises:
            InvalidInput: a path does not parse, or there are more than `MAX_PATHS`.
        """
        given = list(paths)
        if len(given) > MAX_PATHS:
            raise InvalidInput(field, f"{len(given)} paths", f"at most {MAX_PATHS}")
        return cls([parse_field_path(path, field=field) for path in given]) if given else None

    def apply(self, body: bytes) -> bytes:
        """Returns the body with nothing but the wanted fields; `{}` where it is no JSON object."""
        try:
            return _kept(body, self._tree) or b"{}"
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return b"{}"

    def masked(self, encoded: bytes) -> bytes:
        """Returns an encoded InventoryObject with its body masked."""
        message = inventory_pb2.InventoryObject.FromString(encoded)
        message.body = self.apply(message.body)
        return message.SerializeToString()


def _want(tree: _Tree, path: FieldPath) -> None:
    for part in path[:-1]:
        if part in tree and not tree[part]:
            return  # all of it is wanted already
        tree = tree.setdefault(part, {})
    tree[path[-1]] = {}


def _kept(raw: bytes | msgspec.Raw, tree: _Tree) -> bytes | msgspec.Raw | None:
    """What is wanted of a value; None where it has none of it."""
    if not tree:
        return raw
    first = bytes(memoryview(raw)[:32]).lstrip()[:1]
    if first == b"{":
        return _kept_fields(_decode_object(raw), tree)
    if first == b"[":
        return _kept_elements(_decode_array(raw), tree)
    return None


def _kept_fields(fields: dict[str, msgspec.Raw], tree: _Tree) -> bytes | None:
    kept = {
        name: msgspec.Raw(value)
        for name, wanted in tree.items()
        if name in fields and (value := _kept(fields[name], wanted)) is not None
    }
    return _encode(kept) if kept else None


def _kept_elements(elements: list[msgspec.Raw], tree: _Tree) -> bytes | None:
    everywhere = tree.get(EVERY)
    kept = []
    for place, element in enumerate(elements):
        here = tree.get(str(place))
        wanted = everywhere if here is None else here if everywhere is None else _united(everywhere, here)
        if wanted is not None:
            kept.append(msgspec.Raw(_kept(element, wanted) or b"{}"))
    return _encode(kept) if kept else None


def _united(one: _Tree, other: _Tree) -> _Tree:
    if not one or not other:
        return {}
    return {
        name: _united(one[name], other[name]) if name in one and name in other else one.get(name, other.get(name, {}))
        for name in {**one, **other}
    }
