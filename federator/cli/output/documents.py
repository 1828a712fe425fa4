"""Objects as JSON, YAML and names, for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from federator.cli.output.writer import Write
from federator.client import EventType, InventoryObject

CLUSTER_ANNOTATION = "federator.io/cluster"
"""Annotation that names an object's cluster: metadata takes no unknown fields."""


def manifest(item: InventoryObject) -> dict[str, Any]:
    """The object's JSON, annotated with its cluster."""
    body = item.to_dict()
    metadata = body.setdefault("metadata", {})
    metadata["annotations"] = (metadata.get("annotations") or {}) | {CLUSTER_ANNOTATION: item.cluster_id}
    return {"apiVersion": item.api_version, "kind": item.kind} | body


def to_json(document: Any) -> str:
    """A document as JSON, indented as kubectl does."""
    return msgspec.json.format(msgspec.json.encode(document), indent=4).decode() + "\n"


class DocumentWriter:
    """Writes a list as one Kubernetes List, and a watch as one document after the other.

    Args:
        write: takes the text.
        encode: writes a document down.
        separator: stands between documents.
        following: the list is the beginning of a watch, so its objects are documents too.
        show_events: put each object of a watch beside what happened to it: `{"type": …, "object": …}`.
    """

    def __init__(
        self, write: Write, encode: Callable[[Any], str], *, separator: str = "", following: bool, show_events: bool
    ) -> None:
        self._write = write
        self._encode = encode
        self._separator = separator
        self._pending_separator = ""
        self._following = following
        self._show_events = show_events

    async def write_list(self, items: Sequence[InventoryObject], *, revision: int | None, single: bool) -> None:
        """Writes a List, or the object alone; of nothing an empty List, which is a document too."""
        if self._following:
            for item in items:
                await self.write_change(EventType.ADDED, item)
            return
        if single and len(items) == 1:
            self._write_document(manifest(items[0]))
            return
        self._write_document(
            {
                "apiVersion": "v1",
                "kind": "List",
                "metadata": {"resourceVersion": "" if revision is None else str(revision)},
                "items": list(map(manifest, items)),
            }
        )

    async def write_change(self, change: EventType, item: InventoryObject) -> None:
        """Writes one document."""
        self._write_document({"type": str(change), "object": manifest(item)} if self._show_events else manifest(item))

    def _write_document(self, document: Any) -> None:
        self._write(self._pending_separator + self._encode(document))
        self._pending_separator = self._separator


class LineWriter:
    """Writes one line for each object, as soon as it is there."""

    def __init__(self, write: Write, line: Callable[[EventType, InventoryObject], str]) -> None:
        self._write = write
        self._line = line

    async def write_list(self, items: Sequence[InventoryObject], *, revision: int | None, single: bool) -> None:
        """Writes the lines."""
        del revision, single
        self._write("".join(f"{self._line(EventType.ADDED, item)}\n" for item in items))

    async def write_change(self, change: EventType, item: InventoryObject) -> None:
        """Writes the line."""
        self._write(f"{self._line(change, item)}\n")


def json_writer(write: Write, *, following: bool, show_events: bool) -> DocumentWriter:
    """Writer of `-o json`."""
    return DocumentWriter(write, to_json, following=following, show_events=show_events)


def yaml_writer(write: Write, *, following: bool, show_events: bool) -> DocumentWriter:
    """Writer of `-o yaml`."""
    from federator.cli.output.yaml import to_yaml  # here, so that nobody else need wait for the library

    return DocumentWriter(write, to_yaml, separator="---\n", following=following, show_events=show_events)


def json_lines_writer(write: Write, *, following: bool, show_events: bool) -> LineWriter:
    """Writer of `-o jsonl`: one object a line."""
    del following

    def line(change: EventType, item: InventoryObject) -> str:
        document = {"type": str(change), "object": manifest(item)} if show_events else manifest(item)
        return msgspec.json.encode(document).decode()

    return LineWriter(write, line)


def name_writer(write: Write, *, following: bool, show_events: bool) -> LineWriter:
    """Writer of `-o name`: federation keys, which `get` takes as arguments again."""
    del following
    return LineWriter(write, lambda change, item: f"{change} {item.key}" if show_events else str(item.key))
