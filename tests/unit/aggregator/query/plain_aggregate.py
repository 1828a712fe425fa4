"""Aggregates over plain dicts, the slow and obvious way: what the aggregator's answers have to equal."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

NUMBERS = {
    "-5": Fraction(-5),
    "0": Fraction(0),
    "1n": Fraction(1, 10**9),
    "250m": Fraction(1, 4),
    "0.5": Fraction(1, 2),
    "1": Fraction(1),
    "1e3": Fraction(1000),
    "1Ki": Fraction(1024),
    "1536Mi": Fraction(1536 * 2**20),
}
DURATIONS = {"1500ms": Fraction(3, 2), "30s": Fraction(30), "1h30m": Fraction(5400)}
TIMES = {"2026-01-02T04:04:05+01:00": Fraction(1767323045), "2026-01-02T03:04:06Z": Fraction(1767323046)}
TEXTS = ["", "1.2.3", "abc", "b", "true"]
ORDER = [*NUMBERS, *DURATIONS, *TIMES, *TEXTS]
"""All values that are drawn, smallest first."""


class PlainObject(NamedTuple):
    """One object: where it is, and its JSON."""

    cluster: str
    resource: str
    body: dict[str, Any]


class PlainMeasure(NamedTuple):
    """What has to come out: a text; a number, where there is one; and how many values are left out."""

    value: str | None
    number: Fraction | None
    ignored: int = 0


CLUSTER_LABELS = {"a": {"env": "prod"}, "b": {"env": ""}, "c": {}}


def values(of: str, found: PlainObject) -> list[str]:
    """The values of a property, as `group_by` names it, or as a measure's field does with a leading dot."""
    metadata = found.body["metadata"]
    match of.split(":"):
        case ["cluster"]:
            return [found.cluster]
        case ["type"]:
            return [found.resource]
        case ["namespace"]:
            return [metadata["namespace"]] if metadata["namespace"] else []
        case ["node"]:
            return [node for node in [found.body["spec"].get("nodeName")] if node]
        case ["owner_kind"]:
            return [owner["kind"] for owner in metadata.get("ownerReferences", ()) if owner["controller"]]
        case ["label", key]:
            return [metadata["labels"][key]] if key in metadata["labels"] else []
        case ["cluster_label", key]:
            return [CLUSTER_LABELS[found.cluster][key]] if key in CLUSTER_LABELS[found.cluster] else []
        case _:
            return list(_walk(found.body, of.removeprefix(".").split(".")))


def _walk(value: Any, path: Sequence[str]) -> Iterable[str]:
    if not path:
        if isinstance(value, str):
            yield value
        elif isinstance(value, int):
            yield str(value)
        return
    first, *rest = path
    if isinstance(value, list):
        for element in value if first == "*" else ():
            yield from _walk(element, rest)
    elif isinstance(value, dict) and first in value:
        yield from _walk(value[first], rest)


def grouped(objects: Iterable[PlainObject], group_by: Sequence[str]) -> dict[tuple[str | None, ...], list[PlainObject]]:
    """The objects of each group; one that has several values is in several."""
    groups: dict[tuple[str | None, ...], list[PlainObject]] = defaultdict(list)
    if not group_by:
        groups[()] = []
    for found in objects:
        for key in itertools.product(*[dict.fromkeys(values(of, found)) or [None] for of in group_by]):
            groups[key].append(found)
    return groups


def measured(function: str, field: str, objects: Iterable[PlainObject]) -> PlainMeasure:
    """What a measure of a group comes to."""
    by_object = [values(f".{field}", found) for found in objects]
    everything = [text for texts in by_object for text in texts]
    match function:
        case "COUNT":
            number = sum(1 for texts in by_object if texts) if field else len(by_object)
            return PlainMeasure(str(number), Fraction(number))
        case "DISTINCT":
            return PlainMeasure(str(len(set(everything))), Fraction(len(set(everything))))
        case "SUM":
            return _sum(everything)
        case _:
            ordered = sorted(set(everything), key=ORDER.index)
            if not ordered:
                return PlainMeasure("", None)
            best = ordered[0] if function == "MIN" else ordered[-1]
            return PlainMeasure(best, (NUMBERS | DURATIONS | TIMES).get(best))


def _sum(texts: list[str]) -> PlainMeasure:
    numbers = [NUMBERS[text] for text in texts if text in NUMBERS]
    durations = [DURATIONS[text] for text in texts if text in DURATIONS]
    zeros = texts.count("0")
    if len(numbers) > zeros:
        return PlainMeasure(None, sum(numbers, Fraction()), len(texts) - len(numbers))
    if durations:
        return PlainMeasure(None, sum(durations, Fraction()), len(texts) - len(durations) - zeros)
    return PlainMeasure("0", Fraction(0), len(texts) - zeros) if zeros else PlainMeasure("", None, len(texts))
