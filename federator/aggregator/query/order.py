"""Orders: by what a list is sorted."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import total_ordering
from typing import NamedTuple

from federator.aggregator.merge.axis import Axis, AxisKind
from federator.aggregator.merge.selection import NAME, NAMESPACE, NODE_NAME
from federator.aggregator.query.object_state import ObjectState
from federator.aggregator.query.values import sort_key
from federator.api.field_path import FieldPath, format_field_path, parse_field_path
from federator.errors import InvalidInput

MAX_TERMS = 8
"""Terms of one order, without those that break ties."""


class Term(NamedTuple):
    """One thing that objects are sorted by.

    Attributes:
        axis: what is compared.
        descending: the largest first. What has no value comes last either way.
    """

    axis: Axis
    descending: bool = False


Order = tuple[Term, ...]
"""What objects are sorted by, the weightiest first. The last terms tell any two objects apart."""

BY_KEY: Order = tuple(Term(Axis(kind)) for kind in (AxisKind.TYPE, AxisKind.CLUSTER, AxisKind.NAMESPACE, AxisKind.NAME))
"""The order where none is asked for, and where all that is asked for is equal. Types sort as kubectl writes them."""

_WORDS: Mapping[str, Term] = {
    "name": Term(Axis(AxisKind.NAME)),
    "namespace": Term(Axis(AxisKind.NAMESPACE)),
    "cluster": Term(Axis(AxisKind.CLUSTER)),
    "type": Term(Axis(AxisKind.TYPE)),
    "created": Term(Axis(AxisKind.CREATED)),
    "age": Term(Axis(AxisKind.CREATED), descending=True),
}
_CREATED: FieldPath = ("metadata", "creationTimestamp")
_PATHS: Mapping[FieldPath, AxisKind] = {
    NAME: AxisKind.NAME,
    NAMESPACE: AxisKind.NAMESPACE,
    NODE_NAME: AxisKind.NODE,
    _CREATED: AxisKind.CREATED,
}
_LABELS: FieldPath = ("metadata", "labels")
_COMMA = re.compile(r"((?:[^\\,]|\\.)*),", re.DOTALL)
_DIRECTION = re.compile(r"(.*?)(?:\s+(asc|desc))?", re.DOTALL)


def parse_order(text: str, indexed: Collection[str] = (), *, field: str = "order_by") -> Order:
    """Reads what a list is to be sorted by, and completes it with what breaks ties.

    Args:
        text: comma-joined terms, each perhaps with " desc"; empty for `BY_KEY`.
        indexed: paths of the field indexes that are ready, as `format_field_path` writes them.
        field: name of the field the text came in, for the message.

    Raises:
        InvalidInput: a term is none of those that can be sorted by, or there are more than `MAX_TERMS`.
    """
    terms: dict[Axis, Term] = {}
    if text.strip():
        given = _COMMA.findall(f"{text},")
        if len(given) > MAX_TERMS:
            raise InvalidInput(field, text[:256], f"at most {MAX_TERMS} terms")
        for part in given:
            term = _term(part.strip(), indexed, field)
            terms.setdefault(term.axis, term)
    for term in BY_KEY:
        terms.setdefault(term.axis, term)
    return tuple(terms.values())


def _term(text: str, indexed: Collection[str], field: str) -> Term:
    parts = _DIRECTION.fullmatch(text)
    assert parts is not None, "it takes any text"
    name, direction = parts.groups()
    term = _WORDS.get(name) or Term(_field_axis(name, indexed, field))
    return Term(term.axis, not term.descending) if direction == "desc" else term


def _field_axis(text: str, indexed: Collection[str], field: str) -> Axis:
    try:
        path = parse_field_path(text, field=field)
    except InvalidInput:
        raise _unknown_term(text, indexed, field) from None
    if path in _PATHS:
        return Axis(_PATHS[path])
    if len(path) == len(_LABELS) + 1 and path[: len(_LABELS)] == _LABELS:
        return Axis(AxisKind.LABEL, path[-1])
    name = format_field_path(path)
    if name not in indexed:
        raise _unknown_term(text, indexed, field)
    return Axis(AxisKind.FIELD, name)


def _unknown_term(text: str, indexed: Collection[str], field: str) -> InvalidInput:
    known = ", ".join(sorted(indexed)) or "none is ready now"
    return InvalidInput(
        field,
        text[:256],
        f"{', '.join(_WORDS)}, metadata.labels.KEY or the path of a field index ({known}), each perhaps with ' desc'; "
        "an operator can index another field while the aggregator runs",
    )


# -------------------------------------------------------------------------------------------------------- comparing


@total_ordering
class _Descending:
    """A value that compares the other way round."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(self.value == other.value)

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)  # type: ignore[operator]

    def __hash__(self) -> int:
        return hash(self.value)


PlaceKey = tuple[tuple[object, ...], ...]
"""What one state is compared by in an order."""

_LAST: tuple[object, ...] = (1,)
"""Of what has no value."""


def place_key(state: ObjectState, order: Order) -> PlaceKey:
    """Returns what a state is compared by: states sort by it as rows do by their ranks."""
    return tuple([_comparable(_value(state, term.axis), term.descending) for term in order])


def _comparable(value: object, descending: bool) -> tuple[object, ...]:
    if value is None:
        return _LAST
    return (0, _Descending(value)) if descending else (0, value)


def _value(state: ObjectState, axis: Axis) -> object:
    """What a state has on an axis, in a form that compares as ranks do; None where it has nothing."""
    key = state.key
    match axis.kind:
        case AxisKind.CLUSTER:
            return key.cluster_id
        case AxisKind.TYPE:
            return str(key.group_resource)
        case AxisKind.NAMESPACE:
            return key.namespace or None
        case AxisKind.NAME:
            return key.name
        case AxisKind.CREATED:
            return state.created or None
        case AxisKind.NODE:
            return state.field(NODE_NAME) or None
        case AxisKind.LABEL:
            return state.labels.get(axis.name)
        case AxisKind.FIELD:
            values = state.values(parse_field_path(axis.name))
            return sort_key(values[0]) if values else None
        case AxisKind.OWNER_KIND:
            raise ValueError("lists are not sorted by owner kind")
