"""What field values mean, how they compare, and how sums of them are written."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from federator.aggregator.query.values import (
    NANOSECONDS,
    Kind,
    Notation,
    format_amount,
    format_time,
    mean_minutes,
    read_value,
    sort_key,
    to_float,
)

NANO = Fraction(1, 10**9)

NUMBERS = [
    ("0", 0, Notation.PLAIN),
    ("-0", 0, Notation.PLAIN),
    ("007", 7, Notation.PLAIN),
    ("+5", 5, Notation.PLAIN),
    ("-5", -5, Notation.PLAIN),
    ("5.", 5, Notation.PLAIN),
    (".5", Fraction(1, 2), Notation.PLAIN),
    ("-.5", Fraction(-1, 2), Notation.PLAIN),
    ("0.1", Fraction(1, 10), Notation.PLAIN),
    ("2e3", 2000, Notation.PLAIN),
    ("2E3", 2000, Notation.PLAIN),
    ("2E+3", 2000, Notation.PLAIN),
    ("1e-05", Fraction(1, 100_000), Notation.PLAIN),
    ("1.50e1", 15, Notation.PLAIN),
    ("1e400", 10**400, Notation.PLAIN),
    ("9007199254740993", 2**53 + 1, Notation.PLAIN),
    ("9223372036854775808", 2**63, Notation.PLAIN),  # Go caps it
    ("0n", 0, Notation.DECIMAL),
    ("1n", NANO, Notation.DECIMAL),
    ("0.5n", NANO / 2, Notation.DECIMAL),  # Go rounds it up
    ("1u", 1000 * NANO, Notation.DECIMAL),
    ("250m", Fraction(1, 4), Notation.DECIMAL),
    ("1000m", 1, Notation.DECIMAL),
    ("-1.5m", Fraction(-15, 10_000), Notation.DECIMAL),
    ("1k", 1000, Notation.DECIMAL),
    ("1M", 10**6, Notation.DECIMAL),
    ("1.2G", 1_200_000_000, Notation.DECIMAL),
    ("1T", 10**12, Notation.DECIMAL),
    ("1P", 10**15, Notation.DECIMAL),
    ("1E", 10**18, Notation.DECIMAL),
    ("1Ki", 1024, Notation.BINARY),
    ("1536Mi", 1536 * 2**20, Notation.BINARY),
    ("1.5Gi", 3 * 2**29, Notation.BINARY),
    ("0.1Ki", Fraction(1024, 10), Notation.BINARY),
    ("1Ti", 2**40, Notation.BINARY),
    ("1Pi", 2**50, Notation.BINARY),
    ("8Ei", 2**63, Notation.BINARY),
]

DURATIONS = [
    ("0s", 0),
    ("30s", 30 * NANOSECONDS),
    ("5m0s", 300 * NANOSECONDS),
    ("1h30m", 5400 * NANOSECONDS),
    ("1.5h", 5400 * NANOSECONDS),
    (".5s", NANOSECONDS // 2),
    ("-1h", -3600 * NANOSECONDS),
    ("+1h", 3600 * NANOSECONDS),
    ("100ms", NANOSECONDS // 10),
    ("1us", 1000),
    ("1µs", 1000),
    ("1μs", 1000),
    ("3ns", 3),
    ("1.9ns", 1),
    ("1m1ms", 60 * NANOSECONDS + 1_000_000),
    ("2562047h47m16.854775807s", 2**63 - 1),
]

TIMES = [
    ("1970-01-01T00:00:00Z", 0),
    ("2026-01-02T03:04:05Z", 1_767_323_045 * NANOSECONDS),
    ("2026-01-02T03:04:05.5Z", 1_767_323_045 * NANOSECONDS + NANOSECONDS // 2),
    ("2026-01-02T03:04:05.1234567891Z", 1_767_323_045 * NANOSECONDS + 123_456_789),
    ("2026-01-02T05:04:05+02:00", 1_767_323_045 * NANOSECONDS),
    ("2026-01-01T22:34:05-04:30", 1_767_323_045 * NANOSECONDS),
    ("2024-02-29T00:00:00Z", 1_709_164_800 * NANOSECONDS),
    ("1969-12-31T23:59:59Z", -NANOSECONDS),
    ("0001-01-01T00:00:00+23:59", (-62_135_596_800 - 23 * 3600 - 59 * 60) * NANOSECONDS),
]

TEXTS = [
    "",
    " ",
    "5 ",
    " 5",
    "abc",
    ".",
    "+",
    "-",
    "+-5",
    "--5",
    "1_000",
    "0x10",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "1e",
    "1e+",
    "1e1.5",
    "1e401",
    "1e-401",
    "1e999999999",
    "1" + "0" * 64,
    "1e" + "9" * 5000,
    "1K",
    "1ki",
    "1kI",
    "1mi",
    "1Mib",
    "1 Mi",
    "1Ee3",
    "1e3m",
    "1.2.3",
    "1,5",
    "\u0665",  # a digit, but not to Go
    "1\n",
    "5m\n",
    "true",
    "1h30",
    "h",
    "s",
    "1d",
    "1h-30m",
    "2562047h47m16.854775808s",
    "2026-01-02",
    "2026-01-02T03:04:05",
    "2026-01-02 03:04:05Z",
    "2026-01-02t03:04:05z",
    "2026-02-29T00:00:00Z",
    "2026-13-01T00:00:00Z",
    "2026-01-02T24:00:00Z",
    "2026-01-02T23:59:60Z",
    "2026-01-02T03:04:05.Z",
    "2026-01-02T03:04:05,5Z",
    "2026-01-02T03:04:05+24:00",
    "2026-01-02T03:04:05+0200",
    "0000-01-01T00:00:00Z",
]


@pytest.mark.parametrize(("text", "amount", "notation"), NUMBERS)
def test_numbers_and_quantities(text: str, amount: int | Fraction, notation: Notation) -> None:
    value = read_value(text)
    assert value == (text, Kind.NUMBER, amount, notation)
    assert isinstance(value.amount, int) is (value.amount.denominator == 1)


@pytest.mark.parametrize("text", [text for text, _, _ in NUMBERS if text not in {"0.5n", "9223372036854775808"}])
def test_quantities_are_what_the_official_client_reads(text: str) -> None:
    assert read_value(text).amount == Fraction(Decimal(parse_quantity(text)))


@pytest.mark.parametrize(("text", "nanoseconds"), DURATIONS)
def test_durations(text: str, nanoseconds: int) -> None:
    assert read_value(text) == (text, Kind.DURATION, nanoseconds, Notation.PLAIN)


@pytest.mark.parametrize(("text", "nanoseconds"), TIMES)
def test_times(text: str, nanoseconds: int) -> None:
    assert read_value(text) == (text, Kind.TIME, nanoseconds, Notation.PLAIN)


@pytest.mark.parametrize("text", TEXTS)
def test_everything_else_is_a_text(text: str) -> None:
    value = read_value(text)
    assert value.number is None
    assert value == (text, Kind.TEXT, 0, Notation.PLAIN)


@pytest.mark.parametrize(
    ("text", "minutes", "kind", "amount"),
    [
        ("5m", False, Kind.NUMBER, Fraction(5, 1000)),
        ("5m", True, Kind.DURATION, 300 * NANOSECONDS),
        ("-1.5m", True, Kind.DURATION, -90 * NANOSECONDS),
        ("0", False, Kind.NUMBER, 0),
        ("0", True, Kind.NUMBER, 0),  # no unit, so Go's durations aside it is a number
        ("5", True, Kind.NUMBER, 5),
        ("5M", True, Kind.NUMBER, 5_000_000),
        ("30s", True, Kind.DURATION, 30 * NANOSECONDS),
    ],
)
def test_five_m(text: str, minutes: bool, kind: Kind, amount: int | Fraction) -> None:
    value = read_value(text, minutes=minutes)
    assert (value.kind, value.amount) == (kind, amount)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], False),
        (["5m"], False),
        (["5m", "250m"], False),
        (["5m", "30s"], True),
        (["30s", "5m", "text", "", "0"], True),
        (["30s", "5m", "2"], False),
        (["30s", "5m", "1Gi"], False),
        (["5m", "2026-01-02T03:04:05Z"], False),
    ],
)
def test_what_five_m_means_is_told_by_the_other_values(texts: list[str], expected: bool) -> None:
    assert mean_minutes(map(read_value, texts)) is expected
    assert mean_minutes(map(read_value, reversed(texts))) is expected


def test_values_are_in_one_order() -> None:
    ordered = [
        "-1Gi",
        "-5",
        "0",
        "1n",
        "5m",
        "0.1",
        "1",
        "1.3",
        "1.20e1",
        "1k",
        "1Ki",
        "1Mi",
        "1e300",
        "-1h",
        "1ns",
        "30s",
        "5m0s",
        "1h",
        "2026-01-02T05:04:04+02:00",
        "2026-01-02T03:04:05Z",
        "",
        "1.2.3",
        "B",
        "a",
        "aa",
        "ä",
    ]
    backwards = ordered[::-1]
    assert sorted(backwards, key=sort_key) == ordered


def test_equal_amounts_are_equal_however_they_are_written() -> None:
    assert sort_key("1Gi") == sort_key("1024Mi") == sort_key("1073741824") == sort_key("1073741824000m")
    assert sort_key("90s") == sort_key("1m30s")
    assert sort_key("2026-01-02T05:04:05+02:00") == sort_key("2026-01-02T03:04:05.000Z")
    assert sort_key("a") != sort_key("A")


@given(st.lists(st.one_of(st.sampled_from([text for text, *_ in [*NUMBERS, *DURATIONS, *TIMES]] + TEXTS), st.text())))
def test_any_texts_can_be_sorted(texts: list[str]) -> None:
    ordered = sorted(texts, key=sort_key)
    assert sorted(map(sort_key, reversed(texts))) == [sort_key(text) for text in ordered]


@pytest.mark.parametrize(
    ("amount", "notation", "expected"),
    [
        (0, Notation.PLAIN, "0"),
        (0, Notation.DECIMAL, "0"),
        (0, Notation.BINARY, "0"),
        (2000, Notation.PLAIN, "2000"),
        (Fraction(3, 10), Notation.PLAIN, "0.3"),
        (Fraction(-1, 8), Notation.PLAIN, "-0.125"),
        (10**40, Notation.PLAIN, "1e40"),
        (10**40 + 1, Notation.PLAIN, "1" + "0" * 39 + "1"),
        (Fraction(1, 10**41), Notation.PLAIN, "1e-41"),
        (1, Notation.DECIMAL, "1"),
        (1000, Notation.DECIMAL, "1k"),
        (1500, Notation.DECIMAL, "1500"),
        (1_500_000, Notation.DECIMAL, "1500k"),
        (Fraction(1250, 1000), Notation.DECIMAL, "1250m"),
        (Fraction(-1250, 1000), Notation.DECIMAL, "-1250m"),
        (5 * NANO, Notation.DECIMAL, "5n"),
        (NANO / 2, Notation.DECIMAL, "0.0000000005"),
        (10**21, Notation.DECIMAL, "1000E"),
        (512, Notation.BINARY, "512"),
        (1000, Notation.BINARY, "1k"),  # as Kubernetes: below 1024 in decimal notation
        (1023, Notation.BINARY, "1023"),
        (1024, Notation.BINARY, "1Ki"),
        (-2048, Notation.BINARY, "-2Ki"),
        (1536 * 2**20, Notation.BINARY, "1536Mi"),
        (2**30, Notation.BINARY, "1Gi"),
        (2**63, Notation.BINARY, "8Ei"),
        (2**80, Notation.BINARY, "1048576Ei"),
        (1025, Notation.BINARY, "1025"),
        (Fraction(3 * 1024 + 1, 2), Notation.BINARY, "1536500m"),
    ],
)
def test_numbers_are_written_in_canonical_form(amount: int | Fraction, notation: Notation, expected: str) -> None:
    assert format_amount(Kind.NUMBER, amount, notation) == expected
    assert read_value(expected).amount == amount


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1100, "1.1µs"),
        (2_200_000, "2.2ms"),
        (3_300_000_000, "3.3s"),
        (300 * NANOSECONDS, "5m0s"),
        (5400 * NANOSECONDS, "1h30m0s"),
        (-5400 * NANOSECONDS - 1, "-1h30m0.000000001s"),
        (360_000 * NANOSECONDS, "100h0m0s"),
    ],
)
def test_durations_are_written_as_go_does(nanoseconds: int, expected: str) -> None:
    assert format_amount(Kind.DURATION, nanoseconds, Notation.PLAIN) == expected
    assert read_value(expected).amount == nanoseconds


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**18), max_value=10**18),
    st.sampled_from(Notation),
)
def test_what_is_written_is_read_back(number: Decimal, notation: Notation) -> None:
    amount = Fraction(number)
    exact = amount.numerator if amount.denominator == 1 else amount
    assert read_value(format_amount(Kind.NUMBER, exact, notation)).amount == amount


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_durations_are_read_back(nanoseconds: int) -> None:
    assert read_value(format_amount(Kind.DURATION, nanoseconds, Notation.PLAIN)).amount == nanoseconds


@given(st.integers(-62_135_596_800, 253_402_300_799))
def test_times_are_read_back(seconds: int) -> None:
    value = read_value(format_time(seconds))
    assert (value.kind, value.amount) == (Kind.TIME, seconds * NANOSECONDS)


def test_amounts_as_floating_point() -> None:
    assert read_value("250m").number == 0.25
    assert read_value("1Ki").number == 1024.0
    assert read_value("1500ms").number == 1.5
    assert read_value("1970-01-01T00:00:01.5Z").number == 1.5
    assert read_value("1e400").number is None
    assert to_float(Kind.NUMBER, Fraction(10**400, 3)) is None
