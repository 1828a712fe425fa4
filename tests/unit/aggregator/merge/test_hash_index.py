from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.merge.hash_index import HashIndex

# Few home slots, so that rows are displaced; the upper bits tell hashes apart.
hashes = st.builds(lambda home, upper: upper << 32 | home, st.integers(1020, 1023), st.integers(0, 40))


@given(st.lists(st.tuples(st.booleans(), hashes), max_size=120))
def test_what_was_added_and_not_discarded_is_found(steps: list[tuple[bool, int]]) -> None:
    index = HashIndex()
    present: dict[int, int] = {}
    row = 0
    for is_added, hash_ in steps:
        if is_added or not present:
            index.add(hash_, row)
            present[row] = hash_
            row += 1
        else:
            gone = sorted(present)[hash_ % len(present)]
            index.discard(gone)
            del present[gone]
        for wanted in {*present.values(), hash_}:
            assert sorted(index.find(wanted)) == sorted(at for at, known in present.items() if known == wanted)
    assert len(index) == len(present)


@given(st.lists(st.integers(0, 2**64 - 1) | hashes, unique=True, max_size=400), st.integers(0, 2**64 - 1))
def test_filling_at_once_and_growing_find_the_same(filled: list[int], other: int) -> None:
    at_once, one_by_one = HashIndex(), HashIndex()
    at_once.fill(np.array(filled, np.uint64))
    for row, hash_ in enumerate(filled):
        one_by_one.add(hash_, row)
    for hash_ in (*filled, other):
        assert list(at_once.find(hash_)) == list(one_by_one.find(hash_))
    for row in range(0, len(filled), 2):
        at_once.discard(row)
    for row, hash_ in enumerate(filled):
        assert list(at_once.find(hash_)) == ([row] if row % 2 else [])


def test_it_grows_and_takes_few_bytes_a_row() -> None:
    index = HashIndex()
    for row in range(20_000):
        index.add(row * 0x9E3779B97F4A7C15 % 2**64, row)
    assert all(list(index.find(row * 0x9E3779B97F4A7C15 % 2**64)) == [row] for row in range(0, 20_000, 7))
    assert index.memory < 20 * 20_000
