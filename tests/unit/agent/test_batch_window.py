"""BatchWindow: nothing waits at rest, a storm does, and never more than a frame's worth."""

from __future__ import annotations

import pytest

from federator.agent.batch_window import BatchWindow


def storm(window: BatchWindow, rate: float, *, seconds: float = 10.0, start: float = 0.0) -> float:
    """Lets so many changes a second come, a look every 20 ms; returns the time of the last look."""
    now = start
    for step in range(int(seconds / 0.02)):
        now = start + step * 0.02
        window.hold(now, int(rate * (now - start)), 1)
    return now


@pytest.mark.parametrize("rate", [0, 1, 20, 325, 900])
def test_at_rest_nothing_waits(rate: float) -> None:
    window = BatchWindow(longest=0.2, items=1024)
    now = storm(window, rate)
    window.sent(now)
    assert window.hold(now, int(rate * now), 1) == 0


def test_in_a_storm_what_comes_waits_for_the_rest_of_the_window() -> None:
    window = BatchWindow(longest=0.2, items=1024)
    now = storm(window, 6_000)
    window.sent(now)
    assert window.hold(now, int(6_000 * now), 10) == pytest.approx(0.2)
    assert window.hold(now + 0.15, int(6_000 * (now + 0.15)), 900) == pytest.approx(0.05)
    assert window.hold(now + 0.2, int(6_000 * (now + 0.2)), 1000) == 0


def test_enough_for_a_frame_never_waits() -> None:
    window = BatchWindow(longest=0.2, items=1024)
    now = storm(window, 50_000)
    window.sent(now)
    assert window.hold(now, int(50_000 * now), 1024) == 0


def test_between_rest_and_storm_it_grows() -> None:
    found = []
    for rate in (1_000, 2_000, 3_000, 4_000, 5_000, 50_000):
        window = BatchWindow(longest=0.2, items=1024)
        storm(window, rate)
        found.append(round(window.seconds, 3))
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 0.2)
    assert found[2] == pytest.approx(0.1, abs=0.01)


def test_after_a_storm_it_is_at_rest_again() -> None:
    window = BatchWindow(longest=0.2, items=1024)
    now = storm(window, 6_000)
    changes = int(6_000 * now)
    window.hold(now + 60, changes, 0)
    assert window.seconds == 0


def test_a_long_silence_before_the_first_look_is_no_storm() -> None:
    window = BatchWindow(longest=0.2, items=1024)
    window.hold(1_000.0, 100_000, 1)
    assert window.seconds == 0


def test_without_a_window_a_storm_is_sent_at_once() -> None:
    window = BatchWindow(longest=0, items=1024)
    now = storm(window, 50_000)
    window.sent(now)
    assert window.hold(now, int(50_000 * now), 1) == 0
