from __future__ import annotations

from federator.aggregator.query.pins import Pins


def test_the_oldest_pin_counts_until_its_last_reader_left() -> None:
    pins = Pins()
    assert pins.oldest() is None
    with pins.hold(7):
        with pins.hold(5), pins.hold(5):
            assert (pins.oldest(), pins.readers) == (5, 3)
        assert (pins.oldest(), pins.readers) == (7, 1)
    assert (pins.oldest(), pins.readers) == (None, 0)


def test_a_reader_that_fails_lets_go() -> None:
    pins = Pins()
    try:
        with pins.hold(5):
            raise ValueError
    except ValueError:
        pass
    assert pins.oldest() is None
