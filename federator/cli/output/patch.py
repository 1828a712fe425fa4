"""JSON patches for people: in one line, or operation by operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

NOISE = ("/metadata/resourceVersion", "/metadata/generation", "/metadata/managedFields", "/status/observedGeneration")
"""What changes with every change, and is left out of summaries. `-p` shows it."""

_SHOWN = 3
"""Operations in a summary."""

_MAX_PATH = 48
_MAX_VALUE = 32
_ABSENT = object()


def summary(operations: Iterable[dict[str, Any]], before: Any = None) -> str:
    """The first operations in a line, e.g. `.status.readyReplicas 3 → 2`.

    Args:
        operations: of the patch.
        before: what the patch is applied to, for former values and the names of elements; None where it is not known.
    """
    told = [each for each in operations if not each["path"].startswith(NOISE)]
    shown = [_text(each, before) for each in told[:_SHOWN]]
    hidden = len(told) - len(shown)
    return ", ".join(shown) + (f" and {hidden} more" if hidden else "")


def lines(operations: Iterable[dict[str, Any]]) -> list[str]:
    """Each operation as one line of JSON."""
    return [msgspec.json.encode(each).decode() for each in operations]


def _text(operation: dict[str, Any], before: Any) -> str:
    pointer = _parts(operation["path"])
    path = _path(pointer, before)
    match operation["op"]:
        case "remove":
            return f"-{path}"
        case "move" | "copy":
            return f"{path} ← {_path(_parts(operation['from']), before)}"
        case "add":
            return f"+{path} {_value(operation['value'])}"
        case _:
            former = _at(pointer, before)
            old = "" if former is _ABSENT else f"{_value(former)} "
            return f"{path} {old}→ {_value(operation['value'])}"


def _parts(pointer: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _path(pointer: Sequence[str], before: Any) -> str:
    """A path as people write it; an element that has a name goes by it."""
    if not pointer:
        return "."
    written: list[str] = []
    here = before
    for part in pointer:
        if isinstance(here, list):
            here = _step(here, part)
            name = here.get("name") if isinstance(here, dict) else None
            written.append(f"[{name if isinstance(name, str) else part}]")
        else:
            here = _step(here, part)
            is_plain = part.replace("_", "").replace("-", "").isalnum()
            written.append(f".{part}" if is_plain else f"[{msgspec.json.encode(part).decode()}]")
    whole = "".join(written)
    if len(whole) <= _MAX_PATH or len(written) <= 3:
        return whole
    return f"{written[0]}…{''.join(written[-2:]).removeprefix('.')}"


def _at(pointer: Sequence[str], document: Any) -> Any:
    here = _ABSENT if document is None else document
    for part in pointer:
        here = _step(here, part)
    return here


def _step(here: Any, part: str) -> Any:
    if isinstance(here, dict):
        return here.get(part, _ABSENT)
    if isinstance(here, list) and part.isdigit() and int(part) < len(here):
        return here[int(part)]
    return _ABSENT


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{…}" if value else "{}"
    if isinstance(value, list):
        return "[…]" if value else "[]"
    text = value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
    text = " ".join(text.split())
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"
