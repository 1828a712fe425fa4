"""What `--sort-by` takes: kubectl's JSONPath, and the aggregator's own terms."""

from __future__ import annotations

import re

from federator.api.field_path import format_field_path, parse_field_path
from federator.errors import InvalidInput

SORTS = (
    "name, namespace, cluster, type, age or created, each perhaps with ' desc', comma-joined; or the JSONPath of an "
    "indexed field, such as .metadata.name or '{.spec.replicas}'"
)

_STEP = re.compile(
    r"""\.?(?:(?P<name>(?:[^.\[\]{}\\\s*?@'"]|\\.)+)|(?P<any>\*)|\[(?P<index>[0-9]+)\]|\[(?P<every>\*)\]"""
    r"""|\['(?P<quoted>[^']+)'\]|\["(?P<double>[^"]+)"\])"""
)


def parse_sort(text: str) -> str:
    """Returns the order that a request asks for, of what was given as `--sort-by`; the aggregator checks it.

    A JSONPath begins with "." or "{", or has brackets; a path that leads to one field is understood.

    Raises:
        InvalidInput: it is a JSONPath that does not lead to one field, or not whole.
    """
    given = text.strip()
    braced = given.startswith("{") and given.endswith("}")
    if not (braced or given.startswith((".", "{", "$")) or "[" in given):
        return given
    path = (given[1:-1].strip() if braced else given).removeprefix("$")
    parts: list[str] = []
    position = 0
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            raise InvalidInput("--sort-by", text, SORTS)
        part = step["name"]
        if part is not None:
            part = re.sub(r"\\(.)", r"\1", part)
        parts.append(part or step["any"] or step["every"] or step["index"] or step["quoted"] or step["double"])
        position = step.end()
    if not parts:
        raise InvalidInput("--sort-by", text, SORTS)
    order = "." + format_field_path(tuple(parts))
    try:
        parse_field_path(order)
    except InvalidInput:
        raise InvalidInput("--sort-by", text, SORTS) from None
    return order
