"""YAML that YAML 1.1 and 1.2 read back alike."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from federator.cli.output.yaml import is_ambiguous, to_yaml
from federator.errors import FederatorError

TRAPS = [
    *("y", "n", "Y", "N", "yes", "No", "on", "OFF", "true", "False", "null", "Null", "~", "", "=", "<<"),
    *("1", "-1", "+1", "0", "007", "0o17", "0O17", "0x1F", "-0xff", "0b101", "1_000", "1_0_0.5", "0x_1"),
    *("1e3", "1E3", "1.5e-3", "1e5_0", ".5", "5.", "-.5e1", ".inf", "-.INF", "+.Inf", ".nan", ".NaN"),
    *("12:30", "1:30.5", "190:20:30", "2026-11-29", "2026-1-2", "2026-11-29T10:00:00Z", "2026-11-29 10:00:00"),
]
PLAIN = [
    "a",
    "web-0",
    "1.2.3",
    "10.0.0.1",
    "10.0.0.1/24",
    "100m",
    "1.5Gi",
    "50%",
    "v1",
    "sha256:0a1b",
    "nginx:1.29",
    "1a",
    "e5",
]


@pytest.mark.parametrize("trap", [trap for trap in TRAPS if trap])
def test_what_a_reader_would_change_is_quoted(trap: str) -> None:
    assert is_ambiguous(trap)
    assert to_yaml({trap: trap, "list": [trap]}) == f'"{trap}": "{trap}"\nlist:\n- "{trap}"\n'


@pytest.mark.parametrize("text", PLAIN)
def test_what_nobody_would_change_is_not_quoted(text: str) -> None:
    assert to_yaml({"key": text}) == f"key: {text}\n"


def test_several_lines_are_a_block_and_long_lines_stay_whole() -> None:
    assert to_yaml({"key": "a\nb\n"}) == "key: |\n  a\n  b\n"
    assert to_yaml({"key": "word " * 100 + "end"}).count("\n") == 1


def test_equal_values_are_written_twice() -> None:
    shared = {"a": [1]}
    assert to_yaml({"one": shared, "two": shared}) == "one:\n  a:\n  - 1\ntwo:\n  a:\n  - 1\n"


texts = st.one_of(
    st.sampled_from(TRAPS + PLAIN),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text("0123456789_.:+-eExXoObT ~ynNaif\n\t#'\"|>%@!&*[]{},?"),
)
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts),
    lambda children: st.one_of(st.lists(children, max_size=4), st.dictionaries(texts, children, max_size=4)),
    max_leaves=20,
)


@given(documents)
def test_everything_is_read_back_as_what_it_was(document: Any) -> None:
    written = to_yaml(document)
    assert yaml.load(written, Loader=yaml.SafeLoader) == document
    assert yaml.load(written, Loader=yaml.CSafeLoader) == document


def test_what_is_nested_too_deeply_is_refused_not_fallen_over() -> None:
    document: list[object] = []
    for _ in range(900):
        document = [document]
    with pytest.raises(FederatorError, match="-o json"):
        to_yaml(document)
