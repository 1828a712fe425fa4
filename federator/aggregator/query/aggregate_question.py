"""What an aggregate is asked for: by what objects are grouped, and what is computed of each group."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from federator.aggregator.merge.selection import NAME, NAMESPACE, NODE_NAME, Selection
from federator.api.field_path import EVERY, FieldPath, parse_field_path
from federator.errors import InvalidInput

MAX_GROUP_BY = 8
MAX_MEASURES = 16

CREATED: FieldPath = ("metadata", "creationTimestamp")
_LABELS: FieldPath = ("metadata", "labels")
_LABEL = "label:"
_CLUSTER_LABEL = "cluster_label:"


class Function(Enum):
    """What is computed of a group."""

    COUNT = "count"
    """Objects; with a field, those that have it."""
    SUM = "sum"
    """Of numbers and quantities; where a group has none of these, of durations."""
    MIN = "min"
    """Smallest value, in the order of `federator.aggregator.query.values`."""
    MAX = "max"
    """Largest value, in the same order."""
    DISTINCT = "distinct"
    """How many different texts."""


class PropertyKind(Enum):
    """What a property reads of an object."""

    CLUSTER = "cluster"
    NAMESPACE = "namespace"
    TYPE = "type"
    NAME = "name"
    NODE = "node"
    OWNER_KIND = "owner_kind"
    LABEL = "label"
    CLUSTER_LABEL = "cluster_label"
    FIELD = "field"


_PLAIN = {
    kind.value: kind
    for kind in (
        PropertyKind.CLUSTER,
        PropertyKind.NAMESPACE,
        PropertyKind.TYPE,
        PropertyKind.NODE,
        PropertyKind.OWNER_KIND,
    )
}
_GRAMMAR = "cluster, namespace, type, node, owner_kind, label:KEY, cluster_label:KEY or .PATH of a field"


class Property(NamedTuple):
    """One property of objects, which they may have no value of, or several.

    Attributes:
        kind: what is read.
        name: key of the label.
        path: of the FIELD.
    """

    kind: PropertyKind
    name: str = ""
    path: FieldPath = ()

    @property
    def is_repeated(self) -> bool:
        """Whether one object may have the same value more than once."""
        return EVERY in self.path


class Measure(NamedTuple):
    """One thing that is computed of each group.

    Attributes:
        function: what.
        of: of which property; None for COUNT of objects.
    """

    function: Function
    of: Property | None = None

    @property
    def reads_texts(self) -> bool:
        """Whether it matters what values are, and not only which are equal."""
        return self.function not in {Function.COUNT, Function.DISTINCT}


class AggregateQuestion(msgspec.Struct, frozen=True):
    """A whole question.

    Attributes:
        selection: which objects.
        group_by: by what; empty for one group of everything.
        measures: at least one.
        top: only so many groups, those with the largest first measure; 0 for all.
    """

    selection: Selection
    group_by: tuple[Property, ...] = ()
    measures: tuple[Measure, ...] = (Measure(Function.COUNT),)
    top: int = 0


def parse_group_by(terms: Sequence[str], *, field: str = "group_by") -> tuple[Property, ...]:
    """Reads by what objects are to be grouped.

    Raises:
        InvalidInput: a term is not of the grammar, or there are more than `MAX_GROUP_BY`.
    """
    if len(terms) > MAX_GROUP_BY:
        raise InvalidInput(field, f"{len(terms)} of them", f"at most {MAX_GROUP_BY}")
    return tuple(_group_by(term, field) for term in terms)


def parse_measures(terms: Sequence[tuple[Function, str]], *, field: str = "measures") -> tuple[Measure, ...]:
    """Reads what is to be computed, each a function and the path of a field; COUNT where there is nothing.

    Raises:
        InvalidInput: a path is none or is missing, or there are more than `MAX_MEASURES`.
    """
    if len(terms) > MAX_MEASURES:
        raise InvalidInput(field, f"{len(terms)} of them", f"at most {MAX_MEASURES}")
    return tuple(_measure(function, path, field) for function, path in terms) or (Measure(Function.COUNT),)


def property_of(path: FieldPath) -> Property:
    """Returns the property that a field is: some are indexed under another name."""
    if path == NAME:
        return Property(PropertyKind.NAME)
    if path == NAMESPACE:
        return Property(PropertyKind.NAMESPACE)
    if path == NODE_NAME:
        return Property(PropertyKind.NODE)
    if path[:-1] == _LABELS and path[-1] != EVERY:
        return Property(PropertyKind.LABEL, path[-1])
    return Property(PropertyKind.FIELD, path=path)


def _group_by(term: str, field: str) -> Property:
    if term in _PLAIN:
        return Property(_PLAIN[term])
    if term.startswith("."):
        return property_of(parse_field_path(term, field=field))
    for prefix, kind in ((_LABEL, PropertyKind.LABEL), (_CLUSTER_LABEL, PropertyKind.CLUSTER_LABEL)):
        if term.startswith(prefix) and term != prefix:
            return Property(kind, term.removeprefix(prefix))
    raise InvalidInput(field, term[:64], _GRAMMAR)


def _measure(function: Function, path: str, field: str) -> Measure:
    if not path:
        if function is Function.COUNT:
            return Measure(function)
        raise InvalidInput(f"{field}.field", "", f"the path of a field, of which {function.value} is computed")
    return Measure(function, property_of(parse_field_path(path, field=f"{field}.field")))
