"""All printers over all examples, against a golden text; a real apiserver agrees with it, see tests/integration/cli."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from federator.api.resource import GroupResource
from federator.cli.output.table import Table
from federator.cli.printers import printer_for
from federator.cli.printers.registry import BUILT_IN, built_in_printer
from tests.unit.cli.printers import examples

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
GOLDEN = Path(__file__).parent / "golden.txt"
IRREGULAR = {"Endpoints": "endpoints", "Ingress": "ingresses"}


def group_resource(example: dict[str, Any]) -> GroupResource:
    kind = example["kind"]
    plural = IRREGULAR.get(kind) or kind.lower().removesuffix("y") + (
        "ies" if kind.endswith("y") else "es" if kind.endswith("s") else "s"
    )
    return GroupResource(example["apiVersion"].rpartition("/")[0], plural)


def printed() -> str:
    by_type = defaultdict(list)
    for example in examples():
        example["metadata"]["creationTimestamp"] = "2026-11-20T10:00:00Z"
        if example["metadata"].get("deleted"):
            example["metadata"]["deletionTimestamp"] = "2026-11-29T11:00:00Z"
        by_type[group_resource(example)].append(example)
    definitions = by_type[GroupResource("apiextensions.k8s.io", "customresourcedefinitions")]
    blocks = []
    for of_type, some in by_type.items():
        own = [definition for definition in definitions if definition["metadata"]["name"] == str(of_type)]
        printer = printer_for(of_type, own, {"v1"})
        table = Table(printer.header(wide=True))
        blocks.append(f"# {of_type}\n" + table.text(printer.cells(example, NOW, wide=True) for example in some))
    return "\n".join(blocks)


def test_golden() -> None:
    assert printed() == GOLDEN.read_text()


@pytest.mark.parametrize(
    "of_type", [GroupResource(group, resource) for group, types in BUILT_IN.items() for resource in types], ids=str
)
def test_metadata_alone_is_printed_by_every_printer(of_type: GroupResource) -> None:
    printer = built_in_printer(of_type)
    assert printer is not None
    cells = printer.cells({"metadata": {"name": "n", "annotations": None, "labels": None}}, NOW, wide=True)
    assert len(cells) == len(printer.columns)
    assert "n" in cells


def test_narrow_is_wide_without_the_wide_columns() -> None:
    printer = printer_for(GroupResource("", "events"))
    assert printer.header() == ("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")
    event = next(example for example in examples() if example["kind"] == "Event")
    assert printer.cells(event, NOW) == ("9d", "Warning", "BackOff", "pod/running", "Back-off restarting")


def test_what_nothing_is_known_about() -> None:
    printer = printer_for(GroupResource("metrics.k8s.io", "pods"))
    cells = printer.cells({"metadata": {"name": "n", "creationTimestamp": "2026-11-29T11:00:00Z"}}, NOW)
    assert (printer.header(), cells) == (("NAME", "AGE"), ("n", "60m"))


@pytest.mark.parametrize(
    ("secret", "cells"),
    [
        ({"type": "Opaque", "data": {"a": "", "b": ""}}, ("n", "Opaque", "2", "<unknown>")),
        ({"type": "Opaque"}, ("n", "Opaque", "0", "<unknown>")),
        ({}, ("n", "<unknown>", "<unknown>", "<unknown>")),
    ],
)
def test_secrets_without_their_data(secret: dict[str, Any], cells: tuple[str, ...]) -> None:
    assert printer_for(GroupResource("", "secrets")).cells({"metadata": {"name": "n"}, **secret}, NOW) == cells
