from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.api import selector as selector_module
from federator.api.cluster import ClusterID
from federator.api.field_path import FieldPath, read_comparable, read_field
from federator.api.selector import (
    MAX_CONDITIONS,
    MAX_GLOBS,
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


def _matches(requirement: LabelRequirement, labels: Mapping[str, str]) -> bool:
    """Brute force, by the words of Kubernetes' documentation."""
    key, operator, values = requirement.key, requirement.operator, requirement.values
    if operator in {NOT_IN, ABSENT} and key not in labels:
        return True
    if key not in labels or operator is ABSENT:
        return False
    if operator is EXISTS:
        return True
    if operator in {IN, NOT_IN}:
        return (labels[key] in values) == (operator is IN)
    if not labels[key].isdecimal():
        return False
    return int(labels[key]) > int(values[0]) if operator is GREATER else int(labels[key]) < int(values[0])


@given(st.sets(_requirements, max_size=4), st.dictionaries(_keys, _values, max_size=4))
def test_matching_is_what_brute_force_says(requirements: set[LabelRequirement], labels: dict[str, str]) -> None:
    selector = LabelSelector.parse(str(LabelSelector(tuple(sorted(requirements)))))
    assert selector.matches(labels) is all(_matches(requirement, labels) for requirement in requirements)


def test_a_narrower_selector_implies_a_wider_one() -> None:
    narrow, wide = LabelSelector.parse("app=web,tier in (a,b)"), LabelSelector.parse("app=web")
    assert narrow.implies(wide)
    assert narrow.implies(LabelSelector())
    assert not wide.implies(narrow)


MANY = 10_000

COSTLY: dict[str, Callable[[], object]] = {
    "label keys": lambda: LabelSelector.parse(",".join(f"k{number}" for number in range(MANY))),
    "label values": lambda: LabelSelector.parse(f"k in ({','.join(f'v{number}' for number in range(MANY // 2))})"),
    "one label again": lambda: LabelSelector.parse(",".join(["k"] * MANY)),
    "commas": lambda: LabelSelector.parse("k in (" + "," * MANY),
    "one key too many": lambda: LabelSelector.parse(",".join(f"k{number}" for number in range(MAX_CONDITIONS + 1))),
    "one value too many": lambda: LabelSelector.parse(f"k in ({','.join(map(str, range(MAX_CONDITIONS)))})"),
    "text": lambda: LabelSelector.parse("k" * (MAX_TEXT_BYTES + 1)),
    "text in bytes": lambda: LabelSelector.parse("é" * (MAX_TEXT_BYTES // 2 + 1)),
    "fields": lambda: FieldSelector.parse(",".join(f"a{number}=" for number in range(MANY // 2))),
    "parts of a path": lambda: FieldSelector.parse(",".join(["a.b.c.d=e"] * (MAX_CONDITIONS // 5 + 1))),
    "clusters": lambda: ClusterSelector.parse([f"c{number}" for number in range(MANY)]),
    "clusters in one text": lambda: ClusterSelector.parse([",".join(["c"] * MANY)]),
    "globs": lambda: ClusterSelector.parse([f"c{number}-*" for number in range(MAX_GLOBS + 1)]),
    "excluding globs": lambda: ClusterSelector.parse([f"!c{number}?" for number in range(MAX_GLOBS + 1)]),
    "an endless list of clusters": lambda: ClusterSelector.parse(itertools.repeat("c")),
}


@pytest.mark.parametrize("what", COSTLY)
def test_costly_selectors_are_refused_before_anything_runs(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling globs, which takes longest, is out of reach."""
    monkeypatch.setattr(selector_module, "_Globs", None)
    with pytest.raises(MalformedSelector, match="at most") as refused:
        COSTLY[what]()
    assert refused.value.position is None
    assert len(refused.value.given) <= 65


def test_what_is_read_of_a_costly_selector_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0
    advance = selector_module._LabelParser._advance

    def counted(parser: selector_module._LabelParser) -> None:
        nonlocal read
        read += 1
        advance(parser)

    monkeypatch.setattr(selector_module._LabelParser, "_advance", counted)
    with pytest.raises(MalformedSelector):
        LabelSelector.parse(",".join(["k"] * MANY))
    assert read <= 2 * MAX_CONDITIONS + 2


def test_as_many_conditions_as_allowed_are_read() -> None:
    within = ",".join(f"k{number}" for number in range(MAX_CONDITIONS))
    assert len(LabelSelector.parse(within).requirements) == MAX_CONDITIONS
    values = ",".join(map(str, range(MAX_CONDITIONS - 1)))
    assert len(LabelSelector.parse(f"k in ({values})").requirements[0].values) == MAX_CONDITIONS - 1
    assert (
        len(FieldSelector.parse(",".join(f"a{number}=" for number in range(MAX_CONDITIONS // 2))).requirements) == 500
    )
    names = [f"c{number}" for number in range(MAX_CONDITIONS - MAX_GLOBS)]
    globs = [f"g{number}-*" for number in range(MAX_GLOBS)]
    selector = ClusterSelector.parse([*names, *globs])
    assert selector.matches(ClusterID("c899"))
    assert selector.matches(ClusterID("g99-x"))
    assert not selector.matches(ClusterID("c900"))


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


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("a", 1),
        ("=b", 0),
        ("a=b,", 4),
        ("a=b,,c=d", 4),
        (".a=b", 0),
        ("a..b=c", 2),
        ("a b=c", 1),
        ("a=b=c", 3),
        ("a===b", 3),
        ("x=y,a=b\\", 7),
        (r"x=y,a=\x", 6),
        (r"a\x=b", 1),
        ("a!b", 1),
        (".".join("a" * 33) + "=b", 64),
    ],
)
def test_the_place_of_what_is_wrong_is_told(text: str, position: int) -> None:
    with pytest.raises(MalformedSelector) as refused:
        FieldSelector.parse(text)
    assert refused.value.position == position


def test_the_place_is_told_of_a_long_selector_too() -> None:
    text = ",".join(f"key-{number}=value" for number in range(100)) + ",wrong=="
    with pytest.raises(MalformedSelector) as refused:
        FieldSelector.parse(text + "=")
    assert refused.value.position == len(text)
    assert refused.value.given.startswith("…")
    assert refused.value.given.endswith(",wrong===")
    assert str(refused.value).startswith(f"field_selector, character {len(text)} ('='): ")


def test_a_path_over_every_element_is_equal_where_one_is_and_different_where_none_is() -> None:
    def selects(text: str) -> bool:
        return FieldSelector.parse(text).matches(lambda path: read_comparable(POD, path))

    assert selects("spec.containers.*.name=c")
    assert selects("spec.containers.*.name=d")
    assert not selects("spec.containers.*.name!=d")
    assert selects("spec.containers.*.name!=e")
    assert not selects("spec.containers.*.name=e")
    assert not selects("spec.containers.*.image="), "what is not there is no value of an element"
    assert selects("spec.nodeName=n1,spec.containers.*.name=d")


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
        "containers": [{"name": "c"}, {"name": "d"}],
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
        ("spec.containers.2.name", ""),
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


@pytest.mark.parametrize(
    ("globs", "position"),
    [([""], 0), (["a", "b c"], 3), (["a, B"], 3), (["a,,b"], 2), (["a", "!"], 2), (["a-[b"], 2), (["ab\\*"], 2)],
)
def test_the_place_of_a_glob_that_is_none_is_told(globs: list[str], position: int) -> None:
    """In all of them, comma-joined."""
    with pytest.raises(MalformedSelector) as refused:
        ClusterSelector.parse(globs)
    assert refused.value.position == position


_names = st.text(st.sampled_from("ab-.1"), min_size=1, max_size=5)
_globs = st.text(st.sampled_from("ab-.1*?"), min_size=1, max_size=5) | st.sampled_from(["[ab]*", "[!a]*", "*[0-9]"])


def _glob_matches(glob: str, name: str) -> bool:
    """Brute force, over the tokens of a glob."""
    tokens = re.findall(r"\[!?[^]]+\]|.", glob)
    if not tokens:
        return not name
    first, rest = tokens[0], "".join(tokens[1:])
    if first == "*":
        return any(_glob_matches(rest, name[start:]) for start in range(len(name) + 1))
    if not name or not _glob_matches(rest, name[1:]):
        return False
    sets = {"[ab]": "ab", "[!a]": "b-.1", "[0-9]": "1"}
    return first in {"?", name[0]} or name[0] in sets.get(first, "")


@given(st.lists(_globs, max_size=3), st.lists(_globs, max_size=3), st.lists(_names, min_size=1, max_size=5))
def test_globs_match_what_brute_force_says(include: list[str], exclude: list[str], names: list[str]) -> None:
    selector = ClusterSelector.parse([*include, *(f"!{glob}" for glob in exclude)])
    for name in names:
        is_included = not include or any(_glob_matches(glob, name) for glob in include)
        is_excluded = any(_glob_matches(glob, name) for glob in exclude)
        assert selector.matches(ClusterID(name)) is (is_included and not is_excluded)


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
