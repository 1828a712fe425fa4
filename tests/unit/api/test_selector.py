from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.api.cluster import ClusterID
from federator.api.field_path import FieldPath, read_field
from federator.api.selector import (
    MAX_CONDITIONS,
    MAX_TEXT_BYTES,
    ClusterSelector,
    FieldRequirement,
    FieldSelector,
    LabelOperator,
    LabelRequirement,
    LabelSelector,
)
from federator.errors import MalformedSelector, UnknownCluster

IN, NOT_IN, EXISTS = LabelOperator.IN, LabelOperator.NOT_IN, LabelOperator.EXISTS
ABSENT, GREATER, LESS = LabelOperator.DOES_NOT_EXIST, LabelOperator.GREATER_THAN, LabelOperator.LESS_THAN


# ---------------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t", []),
        ("\rx", [("x", EXISTS)]),
        ("a ", [("a", EXISTS)]),
        ("!x", [("x", ABSENT)]),
        ("! x", [("x", ABSENT)]),
        ("x=a", [("x", IN, "a")]),
        ("x == a", [("x", IN, "a")]),
        ("x=", [("x", IN, "")]),
        ("x= ,z= ", [("x", IN, ""), ("z", IN, "")]),
        ("x!=a,y=b", [("x", NOT_IN, "a"), ("y", IN, "b")]),
        ("x>1,z<5", [("x", GREATER, "1"), ("z", LESS, "5")]),
        ("this-is-a-dns.domain.com/key-with-dash", [("this-is-a-dns.domain.com/key-with-dash", EXISTS)]),
        ("0.1.2.domain/99 notin (10.10.100.1, tick.tack)", [("0.1.2.domain/99", NOT_IN, "10.10.100.1", "tick.tack")]),
        ("foo  in\t (abc)", [("foo", IN, "abc")]),
        ("x notin\n (abc)", [("x", NOT_IN, "abc")]),
        ("x in (abc,def,abc)", [("x", IN, "abc", "def")]),
        ("x in (abc,)", [("x", IN, "", "abc")]),
        ("x in ()", [("x", IN, "")]),
        ("x notin ( )", [("x", NOT_IN, "")]),
        ("x notin (, a)", [("x", NOT_IN, "", "a")]),
        ("x notin (abc,,def),bar,w", [("bar", EXISTS), ("w", EXISTS), ("x", NOT_IN, "", "abc", "def")]),
        ("x,y in (a)", [("x", EXISTS), ("y", IN, "a")]),
        ("in in (in,notin)", [("in", IN, "in", "notin")]),
        ("notin=in", [("notin", IN, "in")]),
        ("x=a,x=a", [("x", IN, "a")]),
        ("k=" + "v" * 63, [("k", IN, "v" * 63)]),
    ],
)
def test_kubectls_grammar_is_read(text: str, expected: list[tuple[str, ...]]) -> None:
    requirements = tuple(LabelRequirement(key, LabelOperator(operator), tuple(v)) for key, operator, *v in expected)
    assert LabelSelector.parse(text) == LabelSelector(requirements)


@pytest.mark.parametrize(
    "text",
    [
        "x=a||y=b", "x==a==b", "!x=a", "x<a", "x>", "x>1.5", "x>99999999999999999999", "x,,y", ",x,y", "x,", ",",
        "x nott in (y)", "a in (xyz),", "a in (xyz)b notin ()", "a in (xyz abc)", "a notin(", "a in", "a in x", "a (",
        "(", ")", "x=)", "a b", "!!x", "!", "=a", "é=a", "x=é", "x=-a", "x=a-", "-x", "/x", "x/", "a/b/c", "A.b/c",
        "x=a b", "k=" + "v" * 64, "k" * 64, "d" * 254 + "/k", "x=\0", "x;y",
    ],
)  # fmt: skip
def test_malformed_label_selectors_are_refused_and_named(text: str) -> None:
    with pytest.raises(MalformedSelector) as raised:
        LabelSelector.parse(text, field="selection.label_selector")
    assert raised.value.field == "selection.label_selector"
    assert raised.value.given == text
    assert "k notin (a,b)" in raised.value.allowed


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("", {}, True),
        ("", {"x": "y"}, True),
        ("x=y", {"x": "y"}, True),
        ("x=y", {"x": "z"}, False),
        ("x=y", {}, False),
        ("x=", {"x": ""}, True),
        ("x=", {}, False),
        ("x!=y", {"x": "z"}, True),
        ("x!=y", {}, True),
        ("x!=y", {"x": "y"}, False),
        ("x in (a,b)", {"x": "b"}, True),
        ("x in (a,b)", {}, False),
        ("x notin (a,b)", {}, True),
        ("x notin (a,b)", {"x": "a"}, False),
        ("x", {"x": ""}, True),
        ("x", {}, False),
        ("!x", {}, True),
        ("!x", {"x": ""}, False),
        ("x>1", {"x": "2"}, True),
        ("x>1", {"x": "1"}, False),
        ("x>1", {"x": "10"}, True),
        ("x>1", {"x": "two"}, False),
        ("x>1", {"x": ""}, False),
        ("x>1", {}, False),
        ("x<9", {"x": "-5"}, True),
        ("x<9", {"x": "٣"}, False),
        ("x<9", {"x": "1_0"}, False),
        ("x<9", {"x": "-99999999999999999999"}, False),
        ("x=a,y!=b", {"x": "a"}, True),
        ("x=a,y!=b", {"x": "a", "y": "b"}, False),
    ],
)
def test_labels_match_as_in_kubernetes(text: str, labels: Mapping[str, str], expected: bool) -> None:
    assert LabelSelector.parse(text).matches(labels) is expected


_keys = st.sampled_from(["a", "b", "in", "example.com/c", "x_y.z"])
_values = st.sampled_from(["", "1", "20", "web", "notin", "A.b-c_d"])
_requirements = st.one_of(
    st.builds(lambda k, v: LabelRequirement(k, IN, tuple(sorted(v))), _keys, st.sets(_values, min_size=1)),
    st.builds(lambda k, v: LabelRequirement(k, NOT_IN, tuple(sorted(v))), _keys, st.sets(_values, min_size=1)),
    st.builds(LabelRequirement, _keys, st.sampled_from([EXISTS, ABSENT])),
    st.builds(
        LabelRequirement, _keys, st.sampled_from([GREATER, LESS]), st.integers(0, 99).map(lambda number: (str(number),))
    ),
)


@given(st.sets(_requirements, max_size=5))
def test_a_label_selector_reads_back_what_it_wrote(requirements: set[LabelRequirement]) -> None:
    selector = LabelSelector(tuple(sorted(requirements)))
    assert LabelSelector.parse(str(selector)) == selector
    assert list(selector) == sorted(requirements)
    assert bool(selector) is bool(requirements)


@given(st.text(st.sampled_from("ax=!<>(), \tin0/.é"), max_size=12))
def test_any_text_is_read_or_refused_and_reads_back(text: str) -> None:
    try:
        selector = LabelSelector.parse(text)
    except MalformedSelector:
        return
    assert LabelSelector.parse(str(selector)) == selector


def test_a_narrower_selector_implies_a_wider_one() -> None:
    narrow, wide = LabelSelector.parse("app=web,tier in (a,b)"), LabelSelector.parse("app=web")
    assert narrow.implies(wide)
    assert narrow.implies(LabelSelector())
    assert not wide.implies(narrow)


def test_cost_is_bounded_before_anything_runs() -> None:
    within = ",".join(f"k{number}" for number in range(MAX_CONDITIONS))
    assert len(LabelSelector.parse(within).requirements) == MAX_CONDITIONS
    for text in (
        within + ",more",
        f"k in ({','.join(f'v{number}' for number in range(MAX_CONDITIONS))})",
        "k" + "," * MAX_TEXT_BYTES,
        "é" * (MAX_TEXT_BYTES // 2 + 1),
    ):
        with pytest.raises(MalformedSelector):
            LabelSelector.parse(text)
    with pytest.raises(MalformedSelector, match="at most"):
        FieldSelector.parse(",".join(f"a{number}=b" for number in range(MAX_CONDITIONS)))
    with pytest.raises(MalformedSelector, match="at most"):
        ClusterSelector.parse(["a"] * (MAX_CONDITIONS + 1))


# ---------------------------------------------------------------------------------------------------------- fields


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("spec.nodeName=n1", [(("spec", "nodeName"), True, "n1")]),
        ("spec.nodeName==n1", [(("spec", "nodeName"), True, "n1")]),
        ("status.phase!=Running", [(("status", "phase"), False, "Running")]),
        ("a=", [(("a",), True, "")]),
        ("a=b c", [(("a",), True, "b c")]),
        (r"a=x\,y\=z\\", [(("a",), True, "x,y=z\\")]),
        (r"metadata.labels.example\.com/app=web", [(("metadata", "labels", "example.com/app"), True, "web")]),
        ("b=1,a!=2", [(("a",), False, "2"), (("b",), True, "1")]),
        ("a=!b", [(("a",), True, "!b")]),
    ],
)
def test_field_selectors_are_read(text: str, expected: list[tuple[FieldPath, bool, str]]) -> None:
    assert FieldSelector.parse(text) == FieldSelector(tuple(FieldRequirement(*fields) for fields in expected))


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "=b",
        "a=b,",
        ",a=b",
        "a=b,,c=d",
        ".a=b",
        "a.=b",
        "a..b=c",
        "a b=c",
        "a=b=c",
        "a===b",
        "a=b\\",
        r"a=\x",
        "a!b",
        ",",
    ],
)
def test_malformed_field_selectors_are_refused_and_named(text: str) -> None:
    with pytest.raises(MalformedSelector, match="field_selector"):
        FieldSelector.parse(text)


_words = st.text(st.sampled_from("ab.,=!\\é "), min_size=1, max_size=4)
_parts = _words.map(lambda word: word.replace(" ", "_"))


@given(st.sets(st.builds(FieldRequirement, st.lists(_parts, min_size=1, max_size=3).map(tuple), st.booleans(), _words)))
def test_a_field_selector_reads_back_what_it_wrote(requirements: set[FieldRequirement]) -> None:
    selector = FieldSelector(tuple(sorted(requirements)))
    assert FieldSelector.parse(str(selector)) == selector


POD = {
    "metadata": {"name": "web-0", "labels": {"example.com/app": "web"}},
    "spec": {
        "nodeName": "n1",
        "priority": 5,
        "ratio": 1.5,
        "hostNetwork": True,
        "empty": None,
        "containers": [{"name": "c"}],
    },
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("spec.nodeName", "n1"),
        ("spec.priority", "5"),
        ("spec.ratio", "1.5"),
        ("spec.hostNetwork", "true"),
        ("spec.empty", ""),
        ("spec.missing", ""),
        ("spec.nodeName.deeper", ""),
        ("spec.containers", None),
        ("spec", None),
        ("spec.containers.0.name", "c"),
        ("spec.containers.1.name", ""),
        ("spec.containers.-1.name", ""),
        ("spec.containers.99999999999999999999.name", ""),
        (r"metadata.labels.example\.com/app", "web"),
    ],
)
def test_fields_are_read_as_text(path: str, expected: str | None) -> None:
    (requirement,) = FieldSelector.parse(f"{path}=x")
    assert read_field(msgspec.json.decode(msgspec.json.encode(POD)), requirement.path) == expected


def test_a_missing_field_equals_nothing_and_an_object_equals_no_value() -> None:
    def selects(text: str) -> bool:
        return FieldSelector.parse(text).matches(lambda path: read_field(POD, path))

    assert selects("spec.missing=")
    assert selects("spec.missing!=x")
    assert not selects("spec.missing=x")
    assert selects("spec.containers!=x")
    assert not selects("spec.containers=")
    assert selects("spec.nodeName=n1,spec.priority=5,metadata.name!=x")
    assert not selects("spec.nodeName=n1,spec.priority=6")


# -------------------------------------------------------------------------------------------------------- clusters

CLUSTERS = [ClusterID(name) for name in ("prod-eu-1", "prod-ap-1", "stage.eu-1", "dev")]


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        ([], ["dev", "prod-ap-1", "prod-eu-1", "stage.eu-1"]),
        (["prod-*"], ["prod-ap-1", "prod-eu-1"]),
        (["prod-*,!prod-ap-*"], ["prod-eu-1"]),
        (["prod-*", "!prod-ap-*"], ["prod-eu-1"]),
        (["!dev"], ["prod-ap-1", "prod-eu-1", "stage.eu-1"]),
        (["*eu-?"], ["prod-eu-1", "stage.eu-1"]),
        (["[a-d]*"], ["dev"]),
        (["[!a-d]*"], ["prod-ap-1", "prod-eu-1", "stage.eu-1"]),
        (["dev", "stage.eu-1"], ["dev", "stage.eu-1"]),
        (["nothing-*"], []),
        (["dev", "!dev"], []),
    ],
)
def test_globs_choose_clusters(globs: list[str], expected: list[str]) -> None:
    selector = ClusterSelector.parse(globs)
    assert list(selector.resolve(CLUSTERS)) == expected
    assert sorted(filter(selector.matches, CLUSTERS)) == expected
    assert ClusterSelector.parse([str(selector)] if selector else []) == selector


@pytest.mark.parametrize(
    "globs", [[""], ["a,,b"], ["!"], ["!!a"], ["Prod-*"], ["a/b"], ["a b"], ["[a"], ["a]"], ["{a,b}"], ["a\\*"]]
)
def test_globs_that_can_match_no_cluster_id_are_refused(globs: list[str]) -> None:
    with pytest.raises(MalformedSelector, match="clusters"):
        ClusterSelector.parse(globs)


@pytest.mark.parametrize("glob", ["proud-eu-1", "!proud-eu-1", "prod-*,nope"])
def test_a_literal_name_that_is_no_member_is_unknown(glob: str) -> None:
    with pytest.raises(UnknownCluster) as raised:
        ClusterSelector.parse([glob]).resolve(CLUSTERS)
    assert raised.value.known == tuple(sorted(CLUSTERS))


def test_a_former_member_counts_only_where_it_is_named() -> None:
    former = [ClusterID("prod-old")]
    assert ClusterSelector.parse(["prod-*"]).resolve(CLUSTERS, former) == ("prod-ap-1", "prod-eu-1")
    assert ClusterSelector.parse(["prod-old"]).resolve(CLUSTERS, former) == ("prod-old",)
    assert ClusterSelector.parse(["dev,!prod-old"]).resolve(CLUSTERS, former) == ("dev",)


def test_a_glob_of_many_stars_costs_no_time() -> None:
    selector = ClusterSelector.parse(["*a" * 20 + "b"])
    began = time.perf_counter()
    assert not selector.matches(ClusterID("a" * 63))
    assert time.perf_counter() - began < 1  # backtracking over 20 stars would take longer than anybody waits
