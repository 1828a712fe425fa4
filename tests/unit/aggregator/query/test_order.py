from __future__ import annotations

import pytest

from federator.aggregator.merge.axis import Axis, AxisKind
from federator.aggregator.query.order import BY_KEY, MAX_TERMS, Term, parse_order
from federator.errors import InvalidInput

NAME = Term(Axis(AxisKind.NAME))
INDEXED = {"spec.replicas", r"metadata.annotations.a\.b/c", r"spec.a\,b", "spec.containers.*.image"}


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        (" ", []),
        ("name", [NAME]),
        ("name desc", [Term(Axis(AxisKind.NAME), descending=True)]),
        ("age", [Term(Axis(AxisKind.CREATED), descending=True)]),
        ("age desc", [Term(Axis(AxisKind.CREATED))]),
        ("created asc , cluster", [Term(Axis(AxisKind.CREATED)), Term(Axis(AxisKind.CLUSTER))]),
        (".metadata.name", [NAME]),
        ("metadata.creationTimestamp", [Term(Axis(AxisKind.CREATED))]),
        ("spec.nodeName", [Term(Axis(AxisKind.NODE))]),
        (r"metadata.labels.app\.kubernetes\.io/name", [Term(Axis(AxisKind.LABEL, "app.kubernetes.io/name"))]),
        (".spec.replicas  desc", [Term(Axis(AxisKind.FIELD, "spec.replicas"), descending=True)]),
        (r"metadata.annotations.a\.b/c", [Term(Axis(AxisKind.FIELD, r"metadata.annotations.a\.b/c"))]),
        (r"spec.a\,b,name", [Term(Axis(AxisKind.FIELD, r"spec.a\,b")), NAME]),
        ("spec.containers.*.image", [Term(Axis(AxisKind.FIELD, "spec.containers.*.image"))]),
        ("name,name desc", [NAME]),
    ],
)
def test_terms_are_completed_by_what_breaks_ties(text: str, terms: list[Term]) -> None:
    order = parse_order(text, INDEXED)
    asked = {term.axis for term in terms}
    assert order == (*terms, *(term for term in BY_KEY if term.axis not in asked))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "colour",
            "spec.unknown",
            "name down",
            "name,",
            ",name",
            "name,,age",
            "desc",
            "name desc desc",
            ".name",
            "a..b",
        ),
        ",".join(["name"] * (MAX_TERMS + 1)),
    ],
)
def test_refusals_name_the_field_and_what_can_be_sorted_by(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_order(text, INDEXED)
    assert refused.value.field == "order_by"
    assert "spec.replicas" in refused.value.allowed or "terms" in refused.value.allowed


def test_where_nothing_is_indexed_the_refusal_says_so() -> None:
    with pytest.raises(InvalidInput, match="none is ready"):
        parse_order("spec.replicas")
