"""RateLimiter: how long an item of a work queue waits before it is tried again (client-go: TypedRateLimiter)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from federator.cache.clock import loop_time

FAILURE_BASE = 0.005
"""Seconds an item waits after its first failure; each further one doubles it."""

FAILURE_CAP = 1000.0
"""Seconds an item waits at most: a thousand items that fail for ever come to one try a second."""

RETRIES_PER_SECOND = 10.0
"""Retries a second of all items of one queue together, after a burst."""

RETRY_BURST = 100
"""Retries that all items of one queue together have at once."""

T = TypeVar("T", bound=Hashable)
T_contra = TypeVar("T_contra", bound=Hashable, contravariant=True)


class RateLimiter(Protocol[T_contra]):
    """Decides how long items wait. What it knows of an item it keeps until `forget`."""

    def when(self, item: T_contra) -> float:
        """Seconds until the item may be tried again; asking counts as one failure of it."""
        ...

    def forget(self, item: T_contra) -> None:
        """The item has succeeded, or is given up: its failures are no longer known."""
        ...

    def num_requeues(self, item: T_contra) -> int:
        """Failures of the item since it was forgotten."""
        ...


class ItemExponentialFailureRateLimiter(Generic[T]):
    """Each failure of an item doubles its own wait: `base * 2 ** failures`, at most `cap`.

    It holds one number for each item that has failed and was not forgotten.
    """

    def __init__(self, base: float = FAILURE_BASE, cap: float = FAILURE_CAP) -> None:
        """Both are seconds."""
        self._base = base
        self._cap = cap
        self._failures: Counter[T] = Counter()

    def when(self, item: T) -> float:
        """See `RateLimiter.when`."""
        failures = self._failures[item]
        self._failures[item] = failures + 1
        try:
            return min(self._base * 2.0**failures, self._cap)
        except OverflowError:  # more than a thousand failures
            return self._cap

    def forget(self, item: T) -> None:
        """See `RateLimiter.forget`."""
        del self._failures[item]  # a Counter lets go of what it does not have

    def num_requeues(self, item: T) -> int:
        """See `RateLimiter.num_requeues`."""
        return self._failures[item]


class ItemFastSlowRateLimiter(Generic[T]):
    """An item's first failures have a short wait, all further ones a long one.

    It holds one number for each item that has failed and was not forgotten.
    """

    def __init__(self, fast: float, slow: float, max_fast_attempts: int) -> None:
        """`fast` and `slow` are seconds; so many failures as `max_fast_attempts` have the short wait."""
        self._fast = fast
        self._slow = slow
        self._max_fast_attempts = max_fast_attempts
        self._failures: Counter[T] = Counter()

    def when(self, item: T) -> float:
        """See `RateLimiter.when`."""
        self._failures[item] += 1
        return self._fast if self._failures[item] <= self._max_fast_attempts else self._slow

    def forget(self, item: T) -> None:
        """See `RateLimiter.forget`."""
        del self._failures[item]

    def num_requeues(self, item: T) -> int:
        """See `RateLimiter.num_requeues`."""
        return self._failures[item]


class BucketRateLimiter:
    """All items draw from one bucket: a burst at once, then so many a second. It knows no items and holds nothing."""

    def __init__(
        self,
        per_second: float = RETRIES_PER_SECOND,
        burst: int = RETRY_BURST,
        *,
        clock: Callable[[], float] = loop_time,
    ) -> None:
        """A bucket that is full, with `burst` tokens, and gets `per_second` back."""
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._tokens = self._burst  # below zero: so many are promised to items that wait
        self._filled_at: float | None = None

    def when(self, item: Hashable) -> float:
        """See `RateLimiter.when`: takes a token, and says when it is there."""
        now = self._clock()
        if self._filled_at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._per_second)

    def forget(self, item: Hashable) -> None:
        """Nothing to forget."""

    def num_requeues(self, item: Hashable) -> int:
        """Always 0."""
        return 0


class MaxOfRateLimiter(Generic[T]):
    """Asks several limiters and takes the longest wait.

    With a bucket among them, more than its burst may come at once where items had longer waits of their own.
    """

    def __init__(self, *limiters: RateLimiter[T]) -> None:
        self._limiters = limiters

    def when(self, item: T) -> float:
        """See `RateLimiter.when`."""
        return max([limiter.when(item) for limiter in self._limiters], default=0.0)

    def forget(self, item: T) -> None:
        """See `RateLimiter.forget`."""
        for limiter in self._limiters:
            limiter.forget(item)

    def num_requeues(self, item: T) -> int:
        """See `RateLimiter.num_requeues`: the most that one of them knows of."""
        return max([limiter.num_requeues(item) for limiter in self._limiters], default=0)


class WithMaxWaitRateLimiter(Generic[T]):
    """Another limiter, whose waits are cut at a longest one."""

    def __init__(self, limiter: RateLimiter[T], longest: float) -> None:
        """`longest` is seconds."""
        self._limiter = limiter
        self._longest = longest

    def when(self, item: T) -> float:
        """See `RateLimiter.when`."""
        return min(self._limiter.when(item), self._longest)

    def forget(self, item: T) -> None:
        """See `RateLimiter.forget`."""
        self._limiter.forget(item)

    def num_requeues(self, item: T) -> int:
        """See `RateLimiter.num_requeues`."""
        return self._limiter.num_requeues(item)


def default_controller_rate_limiter() -> RateLimiter[Hashable]:
    """What a work queue has if nothing else is said: 5 ms doubled up to 1,000 s for each item, ten a second for all."""
    return MaxOfRateLimiter[Hashable](ItemExponentialFailureRateLimiter(), BucketRateLimiter())
