from __future__ import annotations

from unittest.mock import sentinel

import pytest

from tests.bench.corpus_bed import Delivered, delays_of
from tests.bench.figure import WrongResult
from tests.bench.load_process import Json

FRAMES = [[12, 1.0, 1.5], [13, 2.0, 2.5]]
"""Changes 11 and 12, then change 13: written and acknowledged."""


def delivered(*seen: Json) -> Delivered:
    told = {"clusters": {"a": {"began_after": 10, "frames": FRAMES}, "b": {"began_after": 5, "frames": []}}}
    return Delivered(told, sentinel.span, 0, 0.0, seen, 9.0, 0.0)


def test_delays_are_counted_from_write_and_acknowledgement() -> None:
    from_write, from_acknowledgement = delays_of(delivered({"a": [[11, 1.25], [12, 1.5], [13, 2.25]]}))
    assert from_write == [0.25, 0.5, 0.25]
    assert from_acknowledgement == [-0.25, 0.0, -0.25]


def test_what_did_not_come_counts_with_the_time_it_was_waited_for() -> None:
    from_write, from_acknowledgement = delays_of(delivered({"a": [[11, 1.25]]}, {"a": [[13, 2.5]]}))
    assert sorted(from_write) == [0.25, 0.5, 7.0, 8.0, 8.0, 8.0]
    assert len(from_acknowledgement) == 6


@pytest.mark.parametrize("seen", [[[11, 1.0], [11, 1.0]], [[10, 1.0]], [[14, 3.0]]])
def test_a_change_that_nobody_made_or_that_came_twice_is_wrong(seen: list[list[float]]) -> None:
    with pytest.raises(WrongResult):
        delays_of(delivered({"a": seen}))


def test_nothing_seen_has_no_delays() -> None:
    with pytest.raises(WrongResult):
        delays_of(delivered())
