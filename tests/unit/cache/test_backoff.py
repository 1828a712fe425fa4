"""How long a reflector waits."""

from __future__ import annotations

import pytest

from federator.cache.backoff import Backoff


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def backoff_at(clock: Clock, *, uniform: float = 0.0) -> Backoff:
    return Backoff(clock=clock, uniform=lambda: uniform)


@pytest.mark.parametrize(("uniform", "factor"), [(0.0, 1.0), (0.5, 1.5), (0.999, 1.999)])
def test_rf12_delays_grow_from_800_ms_to_30_s_and_stay_each_with_its_jitter(uniform: float, factor: float) -> None:
    """RF12 InitConnBackoff."""
    backoff = backoff_at(Clock(), uniform=uniform)
    delays = [backoff.next_delay() for _ in range(9)]
    steps = [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30]
    assert delays == pytest.approx([step * factor for step in steps])


def test_rf13_a_custom_schedule() -> None:
    """RF13 CustomBackoff: 10, 20, 40, 80 and 100 ms."""
    backoff = Backoff(base=0.01, cap=0.1, jitter=0.0, clock=Clock())
    assert sum(backoff.next_delay() for _ in range(5)) == pytest.approx(0.25)


def test_the_servers_retry_after_is_honoured_where_it_is_longer() -> None:
    backoff = backoff_at(Clock())
    assert backoff.next_delay(5.0) == 5.0
    assert backoff.next_delay(1.0) == pytest.approx(1.6)


def test_the_schedule_goes_on_growing_through_a_long_outage() -> None:
    clock = Clock()
    backoff = backoff_at(clock)
    for _ in range(8):
        clock.now += backoff.next_delay()
    clock.now += 1000
    assert backoff.next_delay() == 30.0


@pytest.mark.parametrize(("healthy_for", "expected"), [(119.0, 1.6), (120.0, 0.8)])
def test_the_schedule_starts_over_only_after_two_minutes_of_health(healthy_for: float, expected: float) -> None:
    clock = Clock()
    backoff = backoff_at(clock)
    backoff.next_delay()
    backoff.healthy()
    clock.now += healthy_for / 2
    backoff.healthy()  # a stream that ended cleanly and was resumed
    clock.now += healthy_for / 2
    assert backoff.next_delay() == pytest.approx(expected)


def test_health_ends_with_the_next_failure() -> None:
    clock = Clock()
    backoff = backoff_at(clock)
    backoff.healthy()
    assert backoff.next_delay() == pytest.approx(0.8)
    clock.now += 500
    assert backoff.next_delay() == pytest.approx(1.6)
