"""Patches: what differs between two states of an object, as RFC 6902 JSON Patch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import jsonpatch

from federator.aggregator.query.budget import Budget

FINE_VALUES = 10_000
"""Values that two states may have together to be compared one by one. The library takes some 0.1 ms for each value that
differs, so at worst half a second; beyond, arrays are compared as wholes."""

_HELD_PER_BYTE = 10
"""Bytes of memory that a decoded byte of JSON takes, about, while it is compared."""


class Patches:
    """Makes patches on a thread, one at a time.

    What is long must not keep the event loop, and several at once would only take the interpreter from each other.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def between(self, before: bytes, after: bytes, budget: Budget) -> bytes:
        """Returns the patch that makes one JSON document another; empty where one of them is no JSON.

        Raises:
            QueryTooCostly: the budget has no room for the two, decoded.
        """
        if before == after:
            return b"[]"
        held = _HELD_PER_BYTE * (len(before) + len(after))
        budget.hold(held)
        try:
            async with self._turn:
                return await asyncio.to_thread(make_patch, before, after)
        finally:
            budget.hold(-held)


def make_patch(before: bytes, after: bytes) -> bytes:
    """Returns the patch that makes one JSON document another; empty where one of them is no JSON.

    Documents of more than `FINE_VALUES` values, by the commas in them, get a coarser patch, in which an array that
    differs is replaced whole; those that are nested too deeply one that replaces everything.
    """
    try:
        source, target = json.loads(before), json.loads(after)
        if before.count(b",") + after.count(b",") > FINE_VALUES:
            operations = list(_coarse(source, target, ""))
        else:
            operations = jsonpatch.make_patch(source, target).patch
        return json.dumps(operations, separators=(",", ":")).encode()
    except RecursionError:
        return b'[{"op":"replace","path":"","value":' + after + b"}]"
    except ValueError:  # no JSON, or no UTF-8
        return b""


def _coarse(source: object, target: object, path: str) -> Iterator[dict[str, object]]:
    """Operations that go into mappings, and replace everything else that differs."""
    if not isinstance(source, dict) or not isinstance(target, dict):
        if not _is_same(source, target):
            yield {"op": "replace", "path": path, "value": target}
        return
    for key, value in source.items():
        inner = f"{path}/{_escaped(key)}"
        if key in target:
            yield from _coarse(value, target[key], inner)
        else:
            yield {"op": "remove", "path": inner}
    for key, value in target.items():
        if key not in source:
            yield {"op": "add", "path": f"{path}/{_escaped(key)}", "value": value}


def _is_same(one: object, other: object) -> bool:
    return one == other and json.dumps(one) == json.dumps(other)  # Python takes True for 1


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
