from __future__ import annotations

import pytest

from federator.api.duration_histogram import BOUNDS, DurationHistogram


def test_durations_are_counted_at_or_below_each_bound() -> None:
    histogram = DurationHistogram()
    for seconds in (0.0005, 0.001, 0.004, 99.0):
        histogram.observe(seconds)
    buckets = dict(histogram.buckets())
    assert list(buckets) == [*BOUNDS, float("inf")]
    assert (buckets[0.001], buckets[0.0025], buckets[0.005], buckets[2.5], buckets[float("inf")]) == (2, 2, 3, 3, 4)
    assert (histogram.count, histogram.last) == (4, 99.0)
    assert histogram.sum == pytest.approx(99.0055)


def test_an_empty_one_counts_nothing() -> None:
    histogram = DurationHistogram()
    assert (histogram.count, histogram.sum, histogram.last) == (0, 0.0, 0.0)
    assert {count for _, count in histogram.buckets()} == {0}
