from __future__ import annotations

import asyncio

import numpy as np
import pytest

from federator.aggregator.merge.scope import EVERYTHING
from federator.aggregator.query.page_cache import IDLE_SECONDS, MAX_SECONDS, ListKey, PageCache, SortedList
from federator.aggregator.query.pins import Pins


def key(revision: int, bound_to: bytes = b"r") -> ListKey:
    return ListKey(bound_to, revision, EVERYTHING)


def listed(size: int) -> SortedList:
    return SortedList(np.zeros(size, np.uint64))


class Bed:
    def __init__(self, **bounds: int) -> None:
        self.pins = Pins()
        self.now = 0.0
        self.cache = PageCache(self.pins, clock=lambda: self.now, **bounds)


async def test_a_list_is_found_and_pinned_until_it_is_forgotten() -> None:
    bed = Bed()
    bed.cache.keep(key(5), listed(3))
    assert bed.pins.oldest() == 5
    found = bed.cache.find(key(5))
    assert found is not None
    assert len(found.revisions) == 3
    assert bed.cache.find(key(5, b"s")) is None
    assert bed.cache.find(key(6)) is None
    bed.cache.forget(key(5))
    bed.cache.forget(key(5))
    assert bed.pins.readers == 0
    assert bed.cache.statistics() == {
        "page_lists": 0,
        "page_list_bytes": 0,
        "page_list_hits": 1,
        "page_list_misses": 2,
    }
    bed.cache.clear()


async def test_keeping_a_list_twice_pins_it_once() -> None:
    bed = Bed()
    bed.cache.keep(key(5), listed(3))
    bed.cache.keep(key(5), listed(4))
    assert (bed.pins.readers, bed.cache.statistics()["page_lists"]) == (1, 1)
    bed.cache.clear()
    assert bed.pins.readers == 0


async def test_the_one_that_was_read_longest_ago_leaves_first() -> None:
    bed = Bed(max_lists=2)
    bed.cache.keep(key(1), listed(1))
    bed.cache.keep(key(2), listed(1))
    bed.cache.find(key(1))
    bed.cache.keep(key(3), listed(1))
    assert [bed.cache.find(key(revision)) is not None for revision in (1, 2, 3)] == [True, False, True]
    assert bed.pins.readers == 2
    bed.cache.clear()


async def test_bytes_are_bounded() -> None:
    bed = Bed(max_bytes=11_000)
    bed.cache.keep(key(1), listed(2000))
    assert bed.pins.readers == 0
    bed.cache.keep(key(2), listed(500))
    bed.cache.keep(key(3), listed(500))
    bed.cache.keep(key(4), listed(500))
    assert [bed.cache.find(key(revision)) is not None for revision in (1, 2, 3, 4)] == [False, False, True, True]
    assert bed.cache.statistics()["page_list_bytes"] <= 11_000
    assert bed.pins.oldest() == 3
    bed.cache.clear()


async def test_what_is_not_read_on_leaves_and_so_does_what_is_read_for_too_long() -> None:
    bed = Bed()
    bed.cache.keep(key(1), listed(1))
    bed.now = IDLE_SECONDS - 1
    assert bed.cache.find(key(1)) is not None
    bed.now += IDLE_SECONDS
    assert bed.cache.find(key(1)) is None
    assert bed.pins.readers == 0
    bed.cache.keep(key(1), listed(1))
    started = bed.now
    while bed.now < started + MAX_SECONDS:
        assert bed.cache.find(key(1)) is not None
        bed.now += IDLE_SECONDS / 2
    assert bed.cache.find(key(1)) is None
    bed.cache.clear()


@pytest.mark.looptime
async def test_nobody_has_to_ask_for_a_pin_to_be_given_back() -> None:
    loop = asyncio.get_running_loop()
    pins = Pins()
    cache = PageCache(pins, clock=loop.time)
    cache.keep(key(1), listed(1))
    await asyncio.sleep(IDLE_SECONDS / 2)
    cache.keep(key(2), listed(1))
    cache.find(key(1))
    await asyncio.sleep(IDLE_SECONDS * 3 / 4)
    assert pins.readers == 2
    await asyncio.sleep(IDLE_SECONDS)
    assert pins.readers == 0
