"""The table in docs/guarantees.md: every number, and only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUARANTEES = ROOT / "docs" / "guarantees.md"
PLACES = ("tests/conformance", "tests/integration/cache/test_conformance.py")

GROUPS = {
    "RF": 31,
    "WL": 7,
    "PG": 5,
    "RD": 1,
    "RW": 6,
    "DC": 2,
    "SM": 18,
    "ST": 21,
    "RQ": 24,
    "CT": 12,
    "SI": 24,
    "WQ": 23,
}
RULES = {"D": 10, "R": 6, "W": 3, "L": 4, "DEVIATE-": 4}
EXPECTED = [
    *(f"{group}{number:02}" for group, last in GROUPS.items() for number in range(1, last + 1)),
    *(f"{group}{number}" for group, last in RULES.items() for number in range(1, last + 1)),
]


def table() -> dict[str, list[str]]:
    """The tests named for each number."""
    section = GUARANTEES.read_text().split("\n## Conformance\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([A-Z]+-?\d+) \| [^|]+ \| ([^|]+) \|$", section, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a number has two rows"
    return {number: re.findall(r"`(tests/[^`]+)`", tests) for number, tests in rows}


def existing_tests(path: Path) -> set[str]:
    """`path::name` or `path::Class::name` of each test, as pytest collects them."""
    prefixes = {"": path.relative_to(ROOT).as_posix()}
    found = set()
    # Not by `ast`: that takes a second.
    for indent, kind, name in re.findall(r"^( {4})?(class|def|async def) (\w+)", path.read_text(), re.MULTILINE):
        if not indent:
            prefixes["    "] = f"{prefixes['']}::{name}" if kind == "class" and name.startswith("Test") else ""
        if kind != "class" and name.startswith("test_") and prefixes[indent]:
            found.add(f"{prefixes[indent]}::{name}")
    return found


def test_every_number_is_in_the_table_with_a_test() -> None:
    rows = table()
    assert sorted(rows) == sorted(EXPECTED)
    assert [number for number, tests in rows.items() if not tests] == []


def test_every_test_that_is_named_exists() -> None:
    named = {test for tests in table().values() for test in tests}
    existing = set[str]()
    for file in {test.split("::")[0] for test in named}:
        existing |= existing_tests(ROOT / file)
    assert sorted(named - existing) == []


def test_every_test_with_a_number_is_in_the_row_of_that_number() -> None:
    rows = table()
    files = [
        file
        for place in PLACES
        for file in ([ROOT / place] if place.endswith(".py") else (ROOT / place).glob("test_*.py"))
    ]
    for test in sorted(set[str]().union(*map(existing_tests, files))):
        name = test.rpartition("::")[2].removeprefix("test_")
        while match := re.match(r"(deviate|[a-z]{1,2})(\d+)_", name):
            number = match[1].upper() + ("-" if match[1] == "deviate" else "") + match[2]
            assert test in rows[number], f"{test} is missing in the row of {number}"
            name = name.removeprefix(match[0])
