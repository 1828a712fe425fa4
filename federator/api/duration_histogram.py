"""How long something took, counted in buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the buckets, seconds: an fsync takes 1 ms on a fast disk and 25 ms on a slow one."""


LONG_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The same of what reads thousands of objects."""


class DurationHistogram:
    """Counts durations by bucket, so that a metrics layer can expose them without this package knowing it."""

    def __init__(self, bounds: Sequence[float] = BOUNDS) -> None:
        """`bounds` are the upper bounds of the buckets, in seconds, growing."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._last = 0.0

    def observe(self, seconds: float) -> None:
        """Counts one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds
        self._last = seconds

    @property
    def count(self) -> int:
        """Durations counted."""
        return sum(self._counts)

    @property
    def sum(self) -> float:
        """Their sum, seconds."""
        return self._sum

    @property
    def last(self) -> float:
        """The newest, seconds; 0 before the first."""
        return self._last

    def buckets(self) -> list[tuple[float, int]]:
        """Upper bound in seconds and durations at or below it, ending with infinity, as Prometheus counts them."""
        return list(zip((*self._bounds, float("inf")), accumulate(self._counts), strict=True))
