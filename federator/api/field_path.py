"""Field paths: dotted ways into an object's JSON, as selectors, field indexes, masks and aggregates write them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from federator.errors import InvalidInput

FieldPath = tuple[str, ...]
"""A path into an object, e.g. `("spec", "nodeName")`; a decimal part indexes an array."""

FieldValue = str | tuple[str, ...] | None
"""What a field selector compares: of a path with `EVERY` in it every value that is there, else as `read_field`."""

EVERY = "*"
"""A part that stands for all elements of an array, where several values of one object are meant."""

MAX_PARTS = 32
"""Parts of one path; Kubernetes' own types are not half as deep."""

_INDEX = re.compile(r"[0-9]{1,9}")
_PART = re.compile(r"(?:[^\\.,=!\s]|\\[\\.,=!])+")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
FIELD_PATH_GRAMMAR = (
    r"a dotted path such as spec.nodeName or spec.containers.*.image, of at most 32 parts, with a backslash before "
    r"each '.', ',', '=', '!' and '\' that is meant literally"
)


def parse_field_path(text: str, *, field: str = "path") -> FieldPath:
    r"""Reads a dotted path; one leading dot means nothing.

    Args:
        text: parts joined by dots, in which `\.`, `\,`, `\=`, `\!` and `\\` stand for themselves.
        field: name of the field the text came in, for the message.

    Raises:
        InvalidInput: it is empty, a part is empty or has white space or an operator, or there are more than
            `MAX_PARTS`.
    """
    path, end = scan_field_path(text, 1 if text.startswith(".") else 0)
    if not path or end < len(text):
        raise InvalidInput(field, text[:64], FIELD_PATH_GRAMMAR)
    return path


def scan_field_path(text: str, start: int) -> tuple[FieldPath, int]:
    """Reads the path that stands at an offset of a longer text.

    Returns:
        The path, and the offset behind it, where a character stands that is in no path, or the text ends. Where no path
        stands there: an empty one, and the offset at which a part was expected, or at which there is one too many.
    """
    parts: list[str] = []
    position = start
    while True:
        part = _PART.match(text, position)
        if part is None or len(parts) == MAX_PARTS:
            return (), position
        parts.append(_ESCAPED.sub(r"\1", part[0]))
        position = part.end()
        if not text.startswith(".", position):
            return tuple(parts), position
        position += 1


def format_field_path(path: FieldPath) -> str:
    """Returns the text of a path, without a leading dot; `parse_field_path` reads it back."""
    return ".".join(re.sub(r"([\\.,=!])", r"\\\1", part) for part in path)


def read_field(decoded: object, path: FieldPath) -> str | None:
    """Returns a field of a decoded object as a selector compares it.

    A string is itself, a number or boolean its JSON, null or nothing there is "". An object or array is None, which
    equals no value.
    """
    for part in path:
        if isinstance(decoded, dict):
            decoded = decoded.get(part)
        elif isinstance(decoded, list) and _INDEX.fullmatch(part) and int(part) < len(decoded):
            decoded = decoded[int(part)]
        else:
            return ""
    return _text(decoded)


def read_values(decoded: object, path: FieldPath) -> tuple[str, ...]:
    """Returns every value that a decoded object has at a path, in order, with repeats.

    As `read_field`, with `EVERY` for all elements of an array; what is null, not there, an object or an array is no
    value, and "" is one.
    """
    found = [decoded]
    for part in path:
        found = list(_step(found, part))
    return tuple([text for value in found if value is not None and (text := _text(value)) is not None])


def read_comparable(decoded: object, path: FieldPath) -> FieldValue:
    """Returns what a field selector compares: `read_values` of a path with `EVERY` in it, else `read_field`."""
    return read_values(decoded, path) if EVERY in path else read_field(decoded, path)


def _step(found: list[object], part: str) -> Iterator[object]:
    for value in found:
        if isinstance(value, dict):
            yield value.get(part)
        elif isinstance(value, list):
            if part == EVERY:
                yield from value
            elif _INDEX.fullmatch(part) and int(part) < len(value):
                yield value[int(part)]


def _text(value: object) -> str | None:
    match value:
        case None:
            return ""
        case str():
            return value
        case dict() | list():
            return None
        case _:
            return msgspec.json.encode(value).decode()
