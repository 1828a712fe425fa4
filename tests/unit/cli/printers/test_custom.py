from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from federator.cli.printers.custom import custom_printer, standard_path
from federator.cli.printers.default import NAME_AND_AGE

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)


def definition(*columns: tuple[str, str, str], version: str = "v1", priority: int = 0) -> dict[str, Any]:
    given = [{"name": name, "type": kind, "jsonPath": path, "priority": priority} for name, kind, path in columns]
    return {"spec": {"versions": [{"name": version, "additionalPrinterColumns": given}]}}


@pytest.mark.parametrize(
    ("kubernetes", "standard"),
    [
        (".spec.size", ".spec.size"),
        (r".metadata.labels.example\.com/node", ".metadata.labels['example.com/node']"),
        (r".metadata.labels['example\.com/node']", ".metadata.labels['example.com/node']"),
        (r"..a\.b.c", "..['a.b'].c"),
        ('.status.conditions[?(@.type=="Ready")].status', '.status.conditions[?(@.type=="Ready")].status'),
        (".spec.hosts[0].a-b", ".spec.hosts[0].a-b"),
    ],
)
def test_paths(kubernetes: str, standard: str) -> None:
    assert standard_path(kubernetes) == standard


@pytest.mark.parametrize(
    ("kind", "value", "cell"),
    [
        ("string", "a", "a"),
        ("string", 3, "3"),
        ("string", 2.0, "2"),
        ("string", True, "true"),
        ("string", ["a", {"b": 1}], '["a",{"b":1}]'),
        ("string", None, ""),
        ("integer", 3, "3"),
        ("integer", 3.7, "3"),
        ("integer", "3", ""),
        ("integer", True, ""),
        ("number", 0.5, "0.5"),
        ("number", 2, "2"),
        ("boolean", False, "false"),
        ("boolean", "false", ""),
        ("date", "2026-11-29T11:00:00Z", "60m"),
        ("date", "yesterday", "<invalid>"),
        ("date", 17, ""),
    ],
)
def test_cells_by_type(kind: str, value: object, cell: str) -> None:
    printer = custom_printer([definition(("X", kind, ".spec.x"))], {"v1"})
    assert printer.cells({"metadata": {"name": "n"}, "spec": {"x": value}}, NOW) == ("n", cell)


def test_columns_of_several_clusters_are_united() -> None:
    old = definition(("Size", "integer", ".spec.size"), ("Old", "string", ".spec.old"))
    new = definition(("Size", "integer", ".spec.capacity.size"), ("New", "string", ".spec.new"))
    printer = custom_printer([old, old, new], {"v1"})
    assert printer.header() == ("NAME", "SIZE", "OLD", "NEW")
    assert printer.cells({"metadata": {"name": "n"}, "spec": {"size": 1, "old": "o"}}, NOW) == ("n", "1", "o", "")
    assert printer.cells({"metadata": {"name": "n"}, "spec": {"capacity": {"size": 2}}}, NOW) == ("n", "2", "", "")


def test_a_priority_makes_a_column_wide() -> None:
    printer = custom_printer([definition(("X", "string", ".x"), priority=1)], {"v1"})
    assert (printer.header(), printer.header(wide=True)) == (("NAME",), ("NAME", "X"))


def test_columns_are_those_of_the_objects_version() -> None:
    assert custom_printer([definition(("X", "string", ".x"), version="v1beta1")], {"v1"}) is NAME_AND_AGE


def test_a_path_that_does_not_parse_costs_its_column_only() -> None:
    printer = custom_printer([definition(("X", "string", ".spec["), ("Y", "string", ".spec.y"))], {"v1"})
    assert printer.cells({"metadata": {"name": "n"}, "spec": {"y": "1"}}, NOW) == ("n", "", "1")
