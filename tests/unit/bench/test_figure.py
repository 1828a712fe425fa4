from __future__ import annotations

import pytest

from tests.bench.figure import WrongResult, percentile


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 50) == 50
    assert percentile(values, 99) == 99
    assert percentile([3.0], 99) == 3
    assert percentile([1.0, 2.0], 0) == 1


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(WrongResult):
        percentile([], 50)
