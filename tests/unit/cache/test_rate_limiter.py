"""How long items of a work queue wait; the cases of client-go's default_rate_limiters_test."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from federator.cache.rate_limiter import (
    BucketRateLimiter,
    ItemExponentialFailureRateLimiter,
    ItemFastSlowRateLimiter,
    MaxOfRateLimiter,
    RateLimiter,
    WithMaxWaitRateLimiter,
    default_controller_rate_limiter,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def waits(limiter: RateLimiter[str], item: str, times: int) -> list[float]:
    return [limiter.when(item) for _ in range(times)]


def test_each_failure_of_an_item_doubles_its_wait_and_no_others() -> None:
    """TestItemExponentialFailureRateLimiter."""
    limiter = ItemExponentialFailureRateLimiter[str](0.001, 1.0)
    assert waits(limiter, "one", 5) == pytest.approx([0.001, 0.002, 0.004, 0.008, 0.016])
    assert limiter.num_requeues("one") == 5
    assert waits(limiter, "two", 2) == pytest.approx([0.001, 0.002])
    assert limiter.num_requeues("two") == 2
    limiter.forget("one")
    assert limiter.num_requeues("one") == 0
    assert limiter.when("one") == pytest.approx(0.001)
    assert limiter.num_requeues("two") == 2


@pytest.mark.parametrize(("base", "cap", "third"), [(0.001, 1000.0, 0.004), (60.0, 3_600_000.0, 240.0)])
def test_a_thousand_failures_wait_for_the_cap(base: float, cap: float, third: float) -> None:
    """TestItemExponentialFailureRateLimiterOverFlow; 2 ** 1024 is more than a float can be."""
    limiter = ItemExponentialFailureRateLimiter[str](base, cap)
    assert waits(limiter, "young", 3)[-1] == pytest.approx(third)
    rising = waits(limiter, "old", 1100)
    assert rising == sorted(rising)
    assert rising[1000:] == [cap] * 100


def test_first_failures_are_fast_and_later_ones_slow() -> None:
    """TestItemFastSlowRateLimiter."""
    limiter = ItemFastSlowRateLimiter[str](0.005, 10.0, 3)
    assert waits(limiter, "one", 5) == [0.005, 0.005, 0.005, 10.0, 10.0]
    assert limiter.num_requeues("one") == 5
    assert waits(limiter, "two", 2) == [0.005, 0.005]
    assert limiter.num_requeues("two") == 2
    limiter.forget("one")
    assert limiter.num_requeues("one") == 0
    assert limiter.when("one") == 0.005


def test_the_longest_wait_of_several_limiters() -> None:
    """TestMaxOfRateLimiter."""
    limiter = MaxOfRateLimiter[str](
        ItemFastSlowRateLimiter(0.005, 3.0, 3), ItemExponentialFailureRateLimiter(0.001, 1.0)
    )
    assert waits(limiter, "one", 5) == [0.005, 0.005, 0.005, 3.0, 3.0]
    assert limiter.num_requeues("one") == 5
    assert waits(limiter, "two", 2) == [0.005, 0.005]
    assert limiter.num_requeues("two") == 2
    limiter.forget("one")
    assert limiter.num_requeues("one") == 0
    assert limiter.when("one") == 0.005


def test_all_of_several_limiters_are_asked_and_told() -> None:
    first, second = ItemExponentialFailureRateLimiter[str](1.0), ItemExponentialFailureRateLimiter[str](2.0)
    limiter = MaxOfRateLimiter(first, second)
    assert waits(limiter, "one", 2) == [2.0, 4.0]
    assert first.num_requeues("one") == second.num_requeues("one") == 2
    limiter.forget("one")
    assert first.num_requeues("one") == second.num_requeues("one") == 0


def test_no_limiters_at_all_let_everything_through() -> None:
    limiter = MaxOfRateLimiter[str]()
    assert (limiter.when("one"), limiter.num_requeues("one")) == (0.0, 0)


def test_a_longest_wait_cuts_anothers() -> None:
    """TestWithMaxWaitRateLimiter."""
    limiter = WithMaxWaitRateLimiter[str](ItemFastSlowRateLimiter(0.005, 1000.0, 100), 500.0)
    assert waits(limiter, "one", 200) == [0.005] * 100 + [500.0] * 100
    assert limiter.num_requeues("one") == 200
    limiter.forget("one")
    assert limiter.num_requeues("one") == 0


def test_a_bucket_gives_a_burst_at_once_and_then_one_at_a_time() -> None:
    clock = Clock()
    limiter = BucketRateLimiter(10.0, 100, clock=clock)
    assert [limiter.when(number) for number in range(100)] == [0.0] * 100
    assert [limiter.when(number) for number in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert limiter.num_requeues(0) == 0


def test_a_bucket_fills_up_again_to_its_burst_and_no_further() -> None:
    clock = Clock()
    limiter = BucketRateLimiter(10.0, 3, clock=clock)
    assert [limiter.when("one") for _ in range(5)] == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2])
    clock.now += 0.3  # the two that were promised, and one more
    limiter.forget("one")
    assert [limiter.when("one") for _ in range(2)] == pytest.approx([0.0, 0.1])
    clock.now += 1000.0
    assert [limiter.when("one") for _ in range(4)] == pytest.approx([0.0, 0.0, 0.0, 0.1])


@pytest.mark.looptime
async def test_what_a_queue_has_if_nothing_is_said() -> None:
    """5 ms doubled for each item, ten a second for all once a hundred have been."""
    limiter: RateLimiter[Hashable] = default_controller_rate_limiter()
    assert [limiter.when("one") for _ in range(4)] == pytest.approx([0.005, 0.01, 0.02, 0.04])
    assert [limiter.when(number) for number in range(96)] == pytest.approx([0.005] * 96)
    assert [limiter.when(-number) for number in range(1, 4)] == pytest.approx([0.1, 0.2, 0.3])
    for _ in range(20):
        longest = limiter.when("one")
    assert longest == 1000.0
    assert limiter.num_requeues("one") == 24
    limiter.forget("one")
    assert limiter.num_requeues("one") == 0
