from __future__ import annotations

import pytest

from federator.aggregator.query.state_cache import STATE_BYTES, StateCache
from tests.unit.aggregator.federation import PODS, Federation


@pytest.fixture
def federation() -> Federation:
    return Federation()


def test_what_was_asked_for_longest_ago_leaves_first(federation: Federation) -> None:
    cache = StateCache(federation.view.types, max_bytes=3 * (10 + STATE_BYTES))
    for revision in (1, 2, 3):
        cache.keep(revision, b"%010d" % revision)
    assert cache.find(1) == b"0000000001"
    cache.keep(4, b"%010d" % 4)
    assert [cache.find(revision) is not None for revision in (1, 2, 3, 4)] == [True, False, True, True]
    assert cache.statistics() == {
        "cached_states": 3,
        "cached_state_bytes": 3 * (10 + STATE_BYTES),
        "state_cache_hits": 4,
        "state_cache_misses": 1,
    }


def test_a_state_that_is_kept_twice_counts_once_and_one_that_is_too_large_not_at_all(federation: Federation) -> None:
    cache = StateCache(federation.view.types, max_bytes=1000)
    cache.keep(1, b"x")
    cache.keep(1, b"x")
    assert cache.statistics()["cached_state_bytes"] == 1 + STATE_BYTES
    cache.keep(2, b"x" * 2000)
    assert cache.statistics()["cached_state_bytes"] == 0


async def test_a_new_description_of_a_type_makes_it_forget(federation: Federation) -> None:
    cache = StateCache(federation.view.types)
    cache.keep(1, b"x")
    assert cache.find(1)
    await federation.join("a", (PODS,))
    assert cache.find(1) is None
    assert cache.statistics()["cached_state_bytes"] == 0
