"""Printers of custom resources, from the columns that their CustomResourceDefinitions ask for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import cache
from typing import NamedTuple

import jsonpath
import msgspec

from federator.cli.age import age, parse_timestamp
from federator.cli.printers.default import NAME_AND_AGE
from federator.cli.printers.printer import (
    Cell,
    Column,
    Manifest,
    Printer,
    count_at,
    entries_at,
    name_of,
    text_at,
)

_STEP = re.compile(r"\[[^\]]*\]|(\.{1,2})((?:[^.\[\]\\]|\\.)+)")
_ESCAPED = re.compile(r"\\(.)")


class _Path(NamedTuple):
    """Where a column's value is, and the type its definition gives it."""

    path: str
    kind: str

    def cell(self, manifest: Manifest, now: datetime) -> Cell:
        compiled = _compiled(self.path)
        match = None if compiled is None else compiled.match(manifest)
        return None if match is None else _cell(match.obj, self.kind, now)


@cache
def _compiled(path: str) -> jsonpath.JSONPath | jsonpath.CompoundJSONPath | None:
    """None where the library does not take the path: its column stays empty, as an apiserver leaves it on an error."""
    try:
        return jsonpath.compile(standard_path(path))
    except jsonpath.JSONPathError:
        return None


def custom_printer(definitions: Iterable[Manifest], versions: Collection[str]) -> Printer:
    """The printer of a custom resource type.

    Args:
        definitions: the type's CustomResourceDefinitions, one of each cluster that has it. Their columns are united by
            name; where two define a column differently, the first that has a value in the object counts.
        versions: versions of the objects to print, e.g. `{"v1"}`.
    """
    paths: dict[Column, dict[_Path, None]] = {}
    for definition in definitions:
        for version in entries_at(definition, "spec", "versions"):
            if version.get("name") not in versions:
                continue
            for given in entries_at(version, "additionalPrinterColumns"):
                column = Column(text_at(given, "name").upper(), wide=count_at(given, "priority") != 0)
                paths.setdefault(column, {})[_Path(text_at(given, "jsonPath"), text_at(given, "type"))] = None
    if not paths:
        return NAME_AND_AGE

    def row(manifest: Manifest, now: datetime) -> Sequence[Cell]:
        found = ((path.cell(manifest, now) for path in of_column) for of_column in paths.values())
        return (name_of(manifest), *(next((cell for cell in cells if cell is not None), None) for cells in found))

    return Printer((Column("NAME"), *paths), row)


def standard_path(path: str) -> str:
    r"""A JSONPath as Kubernetes writes it, in the standard's terms: `.a.b\.c` is `.a['b.c']`."""
    return _STEP.sub(_standard_step, path)


def _standard_step(step: re.Match[str]) -> str:
    text = step[0]
    if "\\" not in text:
        return text
    if text.startswith("["):
        return _ESCAPED.sub(r"\1", text)
    name = _ESCAPED.sub(r"\1", step[2])
    return f"..['{name}']" if step[1] == ".." else f"['{name}']"


def _cell(value: object, kind: str, now: datetime) -> Cell:
    """A cell of the given type; None where the value is of another, as the apiserver has it."""
    match kind, value:
        case "string", dict() | list():
            return msgspec.json.encode(value).decode()
        case "string", bool() | str() | int():
            return value
        case "string" | "number" | "integer", float():
            return int(value) if kind == "integer" or value.is_integer() else value
        case "boolean", bool():
            return value
        case "integer" | "number", int() if not isinstance(value, bool):
            return value
        case "date", str():
            return age(value, now) if parse_timestamp(value) else "<invalid>"
        case _:
            return None
