"""Field values: what the texts of fields mean, how they compare, and how sums of them are written.

A text is a number, which may be a Kubernetes quantity; a duration as Go writes it; an RFC 3339 time; or only a text.
Amounts are exact: integers, or fractions where something is finer than its base unit.

Not `kubernetes.utils.quantity`: it is no part of this process otherwise (half a second and 35 MB), takes "nan" and "1K"
for quantities, and rounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, time
from enum import IntEnum
from fractions import Fraction
from typing import NamedTuple

Amount = int | Fraction
"""An exact number."""

SortKey = tuple[int, Amount, str]
"""What values are compared by: kind, amount and, of mere texts, the text."""

MAX_NUMBER_LENGTH = 64
"""Characters of a number, time or duration; a longer text is no such thing. JSON numbers have up to 25."""

MAX_EXPONENT = 400
"""Powers of ten beyond this make a text: 1e999999999 has a billion digits. Floating point ends at 308."""

NANOSECONDS = 1_000_000_000


class Kind(IntEnum):
    """What a text is. The smaller kinds are smaller."""

    NUMBER = 0
    """A number or quantity; its amount is in base units, such as bytes or cores."""
    DURATION = 1
    """A duration; its amount is in nanoseconds."""
    TIME = 2
    """A time; its amount is in nanoseconds since 1970."""
    TEXT = 3
    """Anything else; it has no amount, and compares by code points."""


class Notation(IntEnum):
    """How a number is written. Sums are written in the largest of their operands'."""

    PLAIN = 0
    """Digits, perhaps with an exponent."""
    DECIMAL = 1
    """With a decimal suffix: n, u, m, k, M, G, T, P, E."""
    BINARY = 2
    """With a binary suffix: Ki, Mi, Gi, Ti, Pi, Ei."""


class Value(NamedTuple):
    """A text and what it means.

    Attributes:
        text: as the object has it.
        kind: what it is.
        amount: see `Kind`; 0 for texts.
        notation: of a number.
    """

    text: str
    kind: Kind
    amount: Amount = 0
    notation: Notation = Notation.PLAIN

    @property
    def sort_key(self) -> SortKey:
        """What it is compared by: equal amounts are equal, however they are written."""
        return self.kind, self.amount, self.text if self.kind is Kind.TEXT else ""

    @property
    def is_bare_zero(self) -> bool:
        """Whether it is "0", which Go takes for a duration, too."""
        return self.text == "0"

    @property
    def may_be_minutes(self) -> bool:
        """Whether it is a number like "5m", which among durations is one."""
        return self.kind is Kind.NUMBER and self.text.endswith("m")

    @property
    def number(self) -> float | None:
        """Its amount in base units, of durations and times in seconds; None for texts and beyond floating point."""
        return to_float(self.kind, self.amount)


def sort_key(text: str) -> SortKey:
    """Returns what a text is compared by: a total order over all values, the same everywhere.

    Numbers and quantities come first, then durations, times and texts. "5m" is a quantity: five thousandths.
    """
    return read_value(text).sort_key


def read_value(text: str, *, minutes: bool = False) -> Value:
    """Returns what a text means.

    Args:
        text: a field as `federator.api.field_path.read_values` returns it.
        minutes: whether "5m" are five minutes, see `mean_minutes`; else they are five thousandths.
    """
    if not text or text[0] not in _FIRST or len(text) > MAX_NUMBER_LENGTH:
        return Value(text, Kind.TEXT)
    value = _duration(text) or _number(text) if minutes else _number(text) or _duration(text)
    return value or _time(text) or Value(text, Kind.TEXT)


def mean_minutes(values: Iterable[Value]) -> bool:
    """Whether among these values of one field, "5m" are five minutes: others are durations, and none is a number.

    Go writes five minutes as "5m0s", but people write "5m" where they write "30s" and "1h", and nobody writes "250m"
    for a quarter there.
    """
    durations = False
    for value in values:
        if value.kind is Kind.DURATION:
            durations = True
        elif value.kind is Kind.NUMBER and not (value.may_be_minutes or value.is_bare_zero):
            return False
    return durations


def to_float(kind: Kind, amount: Amount) -> float | None:
    """Returns an amount in base units, of durations and times in seconds; None for texts and beyond floating point."""
    if kind is Kind.TEXT:
        return None
    try:
        return float(amount if kind is Kind.NUMBER else Fraction(amount, NANOSECONDS))
    except OverflowError:
        return None


# ----------------------------------------------------------------------------------------------------------- reading

_FIRST = frozenset("+-.0123456789")
_DIGITS = r"(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))"
_NUMBER = re.compile(rf"([+-]?){_DIGITS}(?:[eE]([+-]?[0-9]+)|(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]))?")
_DURATION = re.compile(r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+")
_DURATION_PART = re.compile(rf"{_DIGITS}(ns|us|µs|μs|ms|s|m|h)")
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)
_DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DURATION_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": NANOSECONDS,
    "m": 60 * NANOSECONDS,
    "h": 3600 * NANOSECONDS,
}
_MAX_DURATION = 2**63 - 1
_EPOCH = date(1970, 1, 1).toordinal()


def _number(text: str) -> Value | None:
    """Reads a number in the grammar of Go's resource.Quantity, of which JSON's numbers are a part.

    Unlike there, nothing is rounded up to whole nanos or capped at 2^63-1.
    """
    parts = _NUMBER.fullmatch(text)
    if parts is None:
        return None
    sign, whole, fraction, only_fraction, exponent, suffix = parts.groups(default="")
    fraction = fraction or only_fraction
    power = -len(fraction)
    shift = _BINARY_SUFFIXES.get(suffix, 0)
    if exponent:
        if len(exponent) > MAX_NUMBER_LENGTH or abs(int(exponent)) > MAX_EXPONENT:
            return None
        power += int(exponent)
    elif not shift:
        power += _DECIMAL_SUFFIXES[suffix]
    digits = int(sign + whole + fraction) << shift
    amount: Amount = digits * 10**power if power >= 0 else _reduced(Fraction(digits, 10**-power))
    if suffix:
        return Value(text, Kind.NUMBER, amount, Notation.BINARY if shift else Notation.DECIMAL)
    return Value(text, Kind.NUMBER, amount)


def _duration(text: str) -> Value | None:
    """Reads what Go's time.ParseDuration reads; what is finer than a nanosecond is cut off, as there."""
    if not _DURATION.fullmatch(text):
        return None
    total = 0
    for part in _DURATION_PART.finditer(text):
        whole, fraction, only_fraction, unit = part.groups(default="")
        fraction = fraction or only_fraction
        total += int(whole + fraction) * _DURATION_UNITS[unit] // 10 ** len(fraction)
    if total > _MAX_DURATION:
        return None
    return Value(text, Kind.DURATION, -total if text.startswith("-") else total)


def _time(text: str) -> Value | None:
    """Reads an RFC 3339 time; what is finer than a nanosecond is cut off."""
    parts = _TIME.fullmatch(text)
    if parts is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, offset_hours, offset_minutes = parts.groups(default="0")
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH
        time(int(hour), int(minute), int(second))
    except ValueError:
        return None
    offset = int(offset_hours) * 3600 + int(offset_minutes) * 60
    seconds = days * 86_400 + int(hour) * 3600 + int(minute) * 60 + int(second)
    seconds += offset if sign == "-" else -offset
    return Value(text, Kind.TIME, seconds * NANOSECONDS + int(fraction[:9].ljust(9, "0")))


def _reduced(amount: Fraction) -> Amount:
    return amount.numerator if amount.denominator == 1 else amount


# ----------------------------------------------------------------------------------------------------------- writing

_MAX_PLAIN_DIGITS = 40
"""A plain number of more digits is written with an exponent."""


def format_amount(kind: Kind, amount: Amount, notation: Notation) -> str:
    """Returns a number or duration as people write it; `read_value` reads it back exactly.

    A number is written in the canonical form of its notation: the largest suffix with which no digits follow the point.
    As in Kubernetes, binary suffixes begin at 1024, and what is not whole has a decimal one.

    Args:
        kind: NUMBER or DURATION.
        amount: of a duration, whole nanoseconds.
        notation: of a number.
    """
    if kind is Kind.DURATION:
        return _format_duration(int(amount))
    if notation is Notation.BINARY and isinstance(amount, int) and abs(amount) >= 1024:
        for suffix, shift in reversed(_BINARY_SUFFIXES.items()):
            if amount % (1 << shift) == 0:
                return f"{amount >> shift}{suffix}"
        return str(amount)
    if notation is not Notation.PLAIN:
        for suffix, power in reversed(_DECIMAL_SUFFIXES.items()):
            scaled = amount / Fraction(10) ** power
            if scaled.denominator == 1 and (amount or not power):
                return f"{scaled.numerator}{suffix}"
    return _format_plain(amount)


def format_time(seconds: int) -> str:
    """Returns a time, in whole seconds since 1970, as Kubernetes writes it."""
    days, rest = divmod(seconds, 86_400)
    return f"{date.fromordinal(_EPOCH + days).isoformat()}T{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}Z"


def _format_plain(amount: Amount) -> str:
    places = 0
    while amount.denominator != 1:  # all amounts are finite decimals
        amount = _reduced(Fraction(amount) * 10)
        places += 1
    digits = str(abs(amount.numerator))
    sign = "-" if amount < 0 else ""
    if places and max(len(digits), places) <= _MAX_PLAIN_DIGITS:
        digits = digits.rjust(places + 1, "0")
        return f"{sign}{digits[:-places]}.{digits[-places:]}"
    if places:
        return f"{sign}{digits}e-{places}"
    if len(digits) <= _MAX_PLAIN_DIGITS:
        return f"{sign}{digits}"
    short = digits.rstrip("0")
    return f"{sign}{short}e{len(digits) - len(short)}" if len(digits) > len(short) else f"{sign}{digits}"


def _format_duration(nanoseconds: int) -> str:
    """Writes a duration as Go's Duration.String does."""
    sign = "-" if nanoseconds < 0 else ""
    left = abs(nanoseconds)
    if left < NANOSECONDS:
        if not left:
            return "0s"
        unit, size = next((unit, size) for unit, size in (("ms", 10**6), ("µs", 10**3), ("ns", 1)) if left >= size)
        return f"{sign}{_decimal(left, size)}{unit}"
    minutes, left = divmod(left, 60 * NANOSECONDS)
    text = f"{_decimal(left, NANOSECONDS)}s"
    if minutes:
        text = f"{minutes % 60}m{text}"
    if minutes >= 60:
        text = f"{minutes // 60}h{text}"
    return sign + text


def _decimal(number: int, size: int) -> str:
    whole, rest = divmod(number, size)
    return f"{whole}.{rest:0{len(str(size)) - 1}}".rstrip("0") if rest else str(whole)
