"""Sizes as users write them."""

from __future__ import annotations

import pytest

from federator.aggregator.ledger.lmdb import DEFAULT_MAX_BYTES
from federator.aggregator.settings import AggregatorSettings
from federator.cli.size import DEFAULT_LEDGER_SIZE, ledger_bytes, size
from federator.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500MiB", 500 << 20),
        ("8GiB", 8 << 30),
        ("8Gi", 8 << 30),
        ("1.5Gi", 3 << 29),
        ("10GB", 10_000_000_000),
        ("10G", 10_000_000_000),
        ("64kB", 64_000),
        ("64KiB", 65_536),
        ("1TiB", 1 << 40),
        ("4096", 4096),
        ("4096B", 4096),
    ],
)
def test_units_are_those_of_quantities(text: str, expected: int) -> None:
    assert size(text, field="--x") == expected


@pytest.mark.parametrize("text", ["", "GiB", "8 GiB", "-8GiB", "8gib", "8iB", "8GiBs", "1e9", "8,5GiB", "8PiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        size(text, field="--x")
    assert (refused.value.field, refused.value.given) == ("--x", text)


@pytest.mark.parametrize("text", ["0", "127MiB", "513GiB"])
def test_a_ledger_has_room_to_work_in_and_addresses_to_spare(text: str) -> None:
    with pytest.raises(InvalidInput, match="128MiB to 512GiB"):
        ledger_bytes(text)


def test_the_default_is_that_of_the_settings() -> None:
    assert ledger_bytes(DEFAULT_LEDGER_SIZE) == DEFAULT_MAX_BYTES == AggregatorSettings().ledger_max_bytes
