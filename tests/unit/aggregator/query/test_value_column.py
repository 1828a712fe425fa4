"""Value columns: out of an index, object by object, and both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from federator.aggregator.merge.axis import Column
from federator.aggregator.query.budget import Budget, QueryLimits
from federator.aggregator.query.value_column import ValueCoder, ValueColumn
from federator.errors import QueryTooCostly

COLUMN = Column(
    np.array([3, 0, 1, 2, 3, 9], np.uint32),
    ["", "a", "unused", "c", *(["gone"] * 4), "more", "z"],
    (np.array([5, 0, 3, 5], np.uint32), np.array([1, 8, 1, 3], np.uint32)),
)


def rows(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(numbers, np.uint32)


def by_position(column: ValueColumn) -> list[list[str]]:
    """The values of each object, in order."""
    number = len(column.codes)
    places, codes = column.spread(np.arange(number), Budget())
    found: list[list[str]] = [[] for _ in range(number)]
    for place, code in zip(range(number) if places is None else places.tolist(), codes.tolist(), strict=True):
        if code:
            found[place].append(column.texts[code])
    return found


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        ([0, 1, 2, 4, 5], [["c", "more"], [], ["a"], ["c"], ["z", "a", "c"]]),
        ([1, 2], [[], ["a"]]),
        ([5], [["z", "a", "c"]]),
        ([3], [["unused", "a"]]),
        ([], []),
    ],
)
async def test_what_an_index_has_and_objects_after_it(taken: Sequence[int], expected: list[list[str]]) -> None:
    coder = ValueCoder(Budget())
    coder.take(COLUMN, rows(*taken))
    await coder.settle()
    assert by_position(coder.column()) == expected
    assert "gone" not in coder.column().texts
    for values in (["new", "c"], [], ["", "new", "new"]):
        coder.add(values)
    column = coder.column()
    assert by_position(column) == [*expected, ["new", "c"], [], ["", "new", "new"]]
    assert len(set(column.texts[1:])) == len(column.texts) - 1


async def test_it_keeps_nothing_of_a_column_that_changes() -> None:
    codes, values = np.array([1, 2], np.uint32), ["", "a", "b"]
    coder = ValueCoder(Budget())
    coder.take(Column(codes, values), rows(0, 1))
    codes[:] = 2
    values[1:] = ["x", "y"]
    await coder.settle()
    assert by_position(coder.column()) == [["a"], ["b"]]


async def test_texts_may_be_left_out() -> None:
    coder = ValueCoder(Budget())
    coder.take(COLUMN, rows(0, 2, 5))
    await coder.settle(texts=False)
    assert coder.column().texts == [""] * 5
    assert sorted(coder.column().codes.tolist()) == [1, 2, 4]


def test_repeats_are_kept_or_not() -> None:
    for repeats, expected in ((True, [["a", "b", "a"], []]), (False, [["a", "b"], []])):
        coder = ValueCoder(Budget(), repeats=repeats)
        coder.add(["a", "b", "a"])
        coder.add([])
        assert by_position(coder.column()) == expected


def test_objects_may_be_asked_for_several_times_and_in_any_order() -> None:
    coder = ValueCoder(Budget())
    for values in (["a", "b"], [], ["c"]):
        coder.add(values)
    places, codes = coder.column().spread(np.array([2, 0, 0, 1]), Budget())
    assert places is not None
    texts = coder.column().texts
    assert [(place, texts[code]) for place, code in zip(places.tolist(), codes.tolist(), strict=True)] == [
        (0, "c"),
        (1, "a"),
        (1, "b"),
        (2, "a"),
        (2, "b"),
        (3, ""),
    ]


def test_texts_are_paid_for() -> None:
    coder = ValueCoder(Budget(QueryLimits(memory_bytes=10_000)))
    with pytest.raises(QueryTooCostly) as refused:
        for number in range(100):
            coder.add([f"{number}"])
    assert refused.value.limit == "memory_bytes"
