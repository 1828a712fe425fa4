"""Measures: what is computed of each group of objects, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from federator.aggregator.query.aggregate_question import Function
from federator.aggregator.query.budget import Budget
from federator.aggregator.query.grouping import Grouping, distinct
from federator.aggregator.query.value_column import SPREAD_BYTES, ValueColumn
from federator.aggregator.query.values import (
    NANOSECONDS,
    Amount,
    Kind,
    Notation,
    SortKey,
    Value,
    format_amount,
    format_time,
    mean_minutes,
    read_value,
    to_float,
)

_STEP = 256
"""Values looked at between two looks at the clock: some 300 µs."""

VALUE_BYTES = 160
"""Counted for each value that is read: a tuple, and mostly a number."""

_Pair = tuple[int, int, int]
"""A group, a value's code, and how often the group has it."""


class Measured(NamedTuple):
    """What came out for one group.

    Attributes:
        value: as people write it; "" where no object of the group has a value.
        number: the same in base units; None where there is no value, for texts and beyond floating point.
        ignored: values that were left out, since the function does not work on them.
        sort_key: by which groups are compared; None where there is no value.
    """

    value: str = ""
    number: float | None = None
    ignored: int = 0
    sort_key: SortKey | None = None


def counted(counts: NDArray[Any]) -> list[Measured]:
    """Returns numbers of objects or values, by group, as measures."""
    return [Measured(str(count), float(count), 0, (Kind.NUMBER, count, "")) for count in counts.tolist()]


async def measure(function: Function, column: ValueColumn | None, grouping: Grouping, budget: Budget) -> list[Measured]:
    """Computes one measure of every group.

    Args:
        function: what.
        column: of which values; None for COUNT of objects.
        grouping: the groups.
        budget: pays for it.

    Raises:
        QueryTooCostly: it takes more than it may.
    """
    await budget.turn()
    if column is None:
        return counted(np.bincount(grouping.groups, minlength=len(grouping)))
    if function is Function.COUNT:
        has_one = column.codes[grouping.positions] != 0
        return counted(np.bincount(grouping.groups[has_one], minlength=len(grouping)))
    places, codes = column.spread(grouping.positions, budget)
    groups = grouping.groups if places is None else grouping.groups[places]
    is_value = codes != 0
    width = len(column.texts)
    keys = groups[is_value] * width + codes[is_value]
    budget.hold(keys.nbytes)
    unique, counts = await distinct(keys, len(grouping) * width, budget)
    budget.hold(-keys.nbytes - (0 if places is None else SPREAD_BYTES * len(places)))
    del places, codes, groups, is_value, keys
    if function is Function.DISTINCT:
        return counted(np.bincount(unique // width, minlength=len(grouping)))
    values = await _read(column.texts, budget)
    pairs = zip((unique // width).tolist(), (unique % width).tolist(), counts.tolist(), strict=True)
    if function is Function.SUM:
        measured = await _sums(len(grouping), pairs, values, budget)
    else:
        measured = await _extremes(function, len(grouping), pairs, values, budget)
    budget.hold(-VALUE_BYTES * len(values))
    return measured


async def measure_times(
    function: Function, seconds: NDArray[np.int64], grouping: Grouping, budget: Budget
) -> list[Measured]:
    """Computes the smallest or largest of times in every group.

    Args:
        function: MIN or MAX.
        seconds: by position, since 1970; 0 where there is no time.
        grouping: the groups.
        budget: pays for it.
    """
    await budget.turn()
    found = seconds[grouping.positions]
    has_one = found != 0
    best = np.zeros(len(grouping), np.int64)
    groups, found = grouping.groups[has_one], found[has_one]
    if function is Function.MIN:
        best[groups] = np.iinfo(np.int64).max
        np.minimum.at(best, groups, found)
    else:
        best[groups] = np.iinfo(np.int64).min
        np.maximum.at(best, groups, found)
    return [
        Measured(format_time(time), float(time), 0, (Kind.TIME, time * NANOSECONDS, "")) if time else Measured()
        for time in best.tolist()
    ]


class _Sum:
    """The sum of one group. Numbers and durations do not mix: where there are numbers, durations are left out."""

    __slots__ = ("amounts", "counts", "notation", "zeros")

    def __init__(self) -> None:
        self.amounts: dict[Kind, Amount] = {}
        self.counts = dict.fromkeys(Kind, 0)
        self.notation = Notation.PLAIN
        self.zeros = 0

    def add(self, value: Value, count: int) -> None:
        if value.is_bare_zero:
            self.zeros += count
            return
        self.counts[value.kind] += count
        if value.kind in _SUMMED:
            self.amounts[value.kind] = self.amounts.get(value.kind, 0) + value.amount * count
            self.notation = max(self.notation, value.notation)

    def measured(self) -> Measured:
        kind = next((kind for kind in _SUMMED if self.counts[kind]), Kind.NUMBER if self.zeros else None)
        if kind is None:
            return Measured(ignored=self.counts[Kind.TIME] + self.counts[Kind.TEXT])
        amount = self.amounts.get(kind, 0)
        exact = amount.numerator if amount.denominator == 1 else amount
        text = format_amount(kind, exact, self.notation)
        return Measured(text, to_float(kind, exact), sum(self.counts.values()) - self.counts[kind], (kind, exact, ""))


_SUMMED = (Kind.NUMBER, Kind.DURATION)


async def _sums(groups: int, pairs: Iterator[_Pair], values: list[Value], budget: Budget) -> list[Measured]:
    sums = [_Sum() for _ in range(groups)]
    for step, (number, code, count) in enumerate(pairs, 1):
        sums[number].add(values[code], count)
        if step % _STEP == 0:
            await budget.turn()
    return [each.measured() for each in sums]


async def _extremes(
    function: Function, groups: int, pairs: Iterator[_Pair], values: list[Value], budget: Budget
) -> list[Measured]:
    best: list[Value | None] = [None] * groups
    for step, (number, code, _) in enumerate(pairs, 1):
        value, before = values[code], best[number]
        if before is None or _is_better(function, value, before):
            best[number] = value
        if step % _STEP == 0:
            await budget.turn()
    return [Measured(each.text, each.number, 0, each.sort_key) if each else Measured() for each in best]


def _is_better(function: Function, value: Value, before: Value) -> bool:
    """Whether a value is to be told; of equal ones that are written differently, the first text."""
    ours, theirs = value.sort_key, before.sort_key
    if ours == theirs:
        return value.text < before.text
    return (ours < theirs) is (function is Function.MIN)


async def _read(texts: list[str], budget: Budget) -> list[Value]:
    """Returns by code what each text means."""
    values = []
    budget.hold(VALUE_BYTES * len(texts))
    for step, text in enumerate(texts, 1):
        values.append(read_value(text))
        if step % _STEP == 0:
            await budget.turn()
    if mean_minutes(values):
        values = [read_value(each.text, minutes=True) if each.may_be_minutes else each for each in values]
    return values
