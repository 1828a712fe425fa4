"""Label selectors as Kubernetes' own library reads and matches them, case for case; and where we differ on purpose.

The cases are those that the tests of `k8s.io/apimachinery/pkg/labels` decide, said in our words.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from federator.api.selector import LabelOperator, LabelRequirement, LabelSelector
from federator.errors import MalformedSelector

IN, NOT_IN, EXISTS = LabelOperator.IN, LabelOperator.NOT_IN, LabelOperator.EXISTS
ABSENT, GREATER, LESS = LabelOperator.DOES_NOT_EXIST, LabelOperator.GREATER_THAN, LabelOperator.LESS_THAN

Requirement = tuple[str, LabelOperator, *tuple[str, ...]]

# What is read, and as what. Their parser sorts by key, too.
READ: list[tuple[str, list[Requirement]]] = [
    # equality
    ("x=a,y=b,z=c", [("x", IN, "a"), ("y", IN, "b"), ("z", IN, "c")]),
    ("x!=a,y=b", [("x", NOT_IN, "a"), ("y", IN, "b")]),
    ("x==a", [("x", IN, "a")]),
    ("x=a,y!=b", [("x", IN, "a"), ("y", NOT_IN, "b")]),
    ("a=x,x=a", [("a", IN, "x"), ("x", IN, "a")]),
    # an empty value
    ("x=", [("x", IN, "")]),
    ("x= ", [("x", IN, "")]),
    ("x=,z= ", [("x", IN, ""), ("z", IN, "")]),
    ("x= ,z= ", [("x", IN, ""), ("z", IN, "")]),
    # presence
    ("", []),
    ("!x", [("x", ABSENT)]),
    ("\rx", [("x", EXISTS)]),
    ("a ", [("a", EXISTS)]),
    ("this-is-a-dns.domain.com/key-with-dash", [("this-is-a-dns.domain.com/key-with-dash", EXISTS)]),
    # numbers
    ("x>1", [("x", GREATER, "1")]),
    ("x<7", [("x", LESS, "7")]),
    ("x>1,z<5", [("x", GREATER, "1"), ("z", LESS, "5")]),
    # sets, with white space of every kind around their tokens
    ("this-is-another-dns.domain.com/key in (so,what)", [("this-is-another-dns.domain.com/key", IN, "so", "what")]),
    ("0.1.2.domain/99 notin (10.10.100.1, tick.tack)", [("0.1.2.domain/99", NOT_IN, "10.10.100.1", "tick.tack")]),
    ("foo  in\t (abc)", [("foo", IN, "abc")]),
    ("x notin\n (abc)", [("x", NOT_IN, "abc")]),
    ("x  notin\t\t\t(abc,def)", [("x", NOT_IN, "abc", "def")]),
    ("key in ( value )", [("key", IN, "value")]),
    ("key in ( value1, value2 )", [("key", IN, "value1", "value2")]),
    ("x in (abc,def)", [("x", IN, "abc", "def")]),
    ("x=a,y!=b,z in (h,i,j)", [("x", IN, "a"), ("y", NOT_IN, "b"), ("z", IN, "h", "i", "j")]),
    ("x,y in (a)", [("x", EXISTS), ("y", IN, "a")]),
    # values that are empty, or there twice
    ("x in (abc,)", [("x", IN, "", "abc")]),
    ("x in (abc,abc)", [("x", IN, "abc")]),
    ("x in ()", [("x", IN, "")]),
    ("x in (),y", [("x", IN, ""), ("y", EXISTS)]),
    ("x in (a,,)", [("x", IN, "", "a")]),
    ("x in (a,,,)", [("x", IN, "", "a")]),
    ("x in (a,,,,,,)", [("x", IN, "", "a")]),
    ("x in (a,,a,,a,,a,,)", [("x", IN, "", "a")]),
    ("x notin ( )", [("x", NOT_IN, "")]),
    ("x notin (, a)", [("x", NOT_IN, "", "a")]),
    (
        "x notin (abc,,def),bar,z in (),w",
        [("bar", EXISTS), ("w", EXISTS), ("x", NOT_IN, "", "abc", "def"), ("z", IN, "")],
    ),
    # words of the grammar where a key or value stands
    ("notin=in", [("notin", IN, "in")]),
    ("a in (x,y,notin, z,in)", [("a", IN, "in", "notin", "x", "y", "z")]),
]


@pytest.mark.parametrize(("text", "expected"), READ)
def test_what_kubernetes_reads_is_read_alike(text: str, expected: list[Requirement]) -> None:
    requirements = tuple(LabelRequirement(key, operator, tuple(values)) for key, operator, *values in expected)
    assert LabelSelector.parse(text) == LabelSelector(requirements)


# What is refused, and where: the offset of what cannot stand there.
REFUSED: list[tuple[str, int]] = [
    ("x=a||y=b", 2),  # "a||y" is one word, and no value
    ("x==a==b", 4),
    ("!x=a", 2),
    ("x<a", 2),
    ("x,,y", 2),
    (",x,y", 0),
    ("x nott in (y)", 2),
    ("a in (xyz),", 11),
    ("a in (xyz)b notin ()", 10),
    ("a in (xyz abc)", 10),
    ("a notin(", 8),
    ("a (", 2),
    ("(", 0),
    ("()", 0),
    ("== != (), = notin", 0),
    # operators that are none between a key and a value
    ("x ! a", 2),
    ("x exists", 2),
    # what their constructor of a requirement refuses: keys, values and numbers that cannot be
    ("k" * 254, 0),
    ("x16=" + "a" * 254, 4),
    ("x17=a b", 6),
    ("x13>", 4),
    ("x14>bar", 4),
    ("x15<bar", 4),
    ("x>1.5", 2),
    ("x>-1", 2),  # a number, but no label's value
    ("x>9223372036854775808", 2),
    ("~", 0),
    ("||", 0),
]  # fmt: skip


@pytest.mark.parametrize(("text", "position"), REFUSED)
def test_what_kubernetes_refuses_is_refused_with_its_place(text: str, position: int) -> None:
    with pytest.raises(MalformedSelector) as refused:
        LabelSelector.parse(text)
    assert refused.value.position == position
    assert f"character {position}" in str(refused.value) or "at its end" in str(refused.value)


# Whether a set of labels is selected.
MATCHES: list[tuple[str, Mapping[str, str], bool]] = [
    ("", {"x": "y"}, True),
    ("x=y", {"x": "y"}, True),
    ("x=y,z=w", {"x": "y", "z": "w"}, True),
    ("x!=y,z!=w", {"x": "z", "z": "a"}, True),
    ("notin=in", {"notin": "in"}, True),
    ("x", {"x": "z"}, True),
    ("!x", {"y": "z"}, True),
    ("x>1", {"x": "2"}, True),
    ("x<1", {"x": "0"}, True),
    ("x=z", {}, False),
    ("x=y", {"x": "z"}, False),
    ("x=y,z=w", {"x": "w", "z": "w"}, False),
    ("x!=y,z!=w", {"x": "z", "z": "w"}, False),
    ("x", {"y": "z"}, False),
    ("!x", {"x": "z"}, False),
    ("x>1", {"x": "0"}, False),
    ("x<1", {"x": "2"}, False),
    # several labels
    ("foo=bar", {"foo": "bar", "baz": "blah"}, True),
    ("baz=blah", {"foo": "bar", "baz": "blah"}, True),
    ("foo=bar,baz=blah", {"foo": "bar", "baz": "blah"}, True),
    ("foo=blah", {"foo": "bar", "baz": "blah"}, False),
    ("baz=bar", {"foo": "bar", "baz": "blah"}, False),
    ("foo=bar,foobar=bar,baz=blah", {"foo": "bar", "baz": "blah"}, False),
    # sets, and keys that are not there
    ("x in (foo),y notin (alpha)", {"x": "foo", "y": "baz"}, True),
    ("x in (foo),y in (alpha)", {"x": "foo", "y": "baz"}, False),
    ("x notin (),y", {"y": ""}, True),
    ("!x,y", {"y": ""}, True),
    ("x notin (),!y", {"y": ""}, False),
    ("x in ()", {"y": "baz"}, False),
    # values that are numbers, and values that are none
    ("z>1", {"z": "2"}, True),
    ("z>1", {"z": "v2"}, False),
]


@pytest.mark.parametrize(("text", "labels", "expected"), MATCHES)
def test_what_kubernetes_selects_is_selected(text: str, labels: Mapping[str, str], expected: bool) -> None:
    assert LabelSelector.parse(text).matches(labels) is expected


# How it is written down.
WRITTEN: list[tuple[str, str]] = [
    ("x in (def,abc),y notin (mno,jkl),z", "x in (abc,def),y notin (jkl,mno),z"),
    ("x notin (abc,def),y!=jkl,!z", "x notin (abc,def),y!=jkl,!z"),
    ("x>2,y<8,z", "x>2,y<8,z"),
    # On purpose not as there: one meaning has one text. `==` and an `in` of one value are `=`, a requirement that is
    # there twice is there once; those of one key are sorted, too.
    ("x==a", "x=a"),
    ("x in (a)", "x=a"),
    ("x notin (a)", "x!=a"),
    ("z notin ()", "z!="),
    ("x=a,x=a", "x=a"),
    ("z,z!=a", "z,z!=a"),
    ("z!=a,z", "z,z!=a"),
]


@pytest.mark.parametrize(("text", "expected"), WRITTEN)
def test_one_meaning_has_one_text(text: str, expected: str) -> None:
    written = str(LabelSelector.parse(text))
    assert sorted(written.split(",")) == sorted(expected.split(","))
    assert LabelSelector.parse(written) == LabelSelector.parse(text)


def test_where_we_refuse_what_kubernetes_takes() -> None:
    """Theirs takes a NUL for the end of the text, and does not look at what stands behind it."""
    with pytest.raises(MalformedSelector) as refused:
        LabelSelector.parse("x,\0 and more")
    assert refused.value.position == 2
