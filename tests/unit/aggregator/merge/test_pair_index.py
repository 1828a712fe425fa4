from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from federator.aggregator.merge import pair_index
from federator.aggregator.merge.pair_index import Hashes, PairIndex, Rows


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 4)), max_size=60), st.booleans())
def test_what_the_columns_say_is_found_over_merges(steps: list[tuple[int, int]], is_filled: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_index, "_SMALLEST", 5)
        column = np.zeros(8, np.uint64)

        def holds(hashes: Hashes, rows: Rows) -> NDArray[np.bool_]:
            held: NDArray[np.bool_] = column[rows] == hashes
            return held

        index = PairIndex(holds)
        if is_filled:
            column[:] = [1, 2, 1, 3, 1, 4, 2, 1]
            index.fill(column.copy(), np.arange(8, dtype=np.uint32))
        for row, hash_ in steps:
            if column[row]:
                column[row] = 0
                index.discarded()
            else:
                column[row] = hash_
                index.add(hash_, row)
            for wanted in range(1, 5):
                found = {at for at in index.find(wanted) if column[at] == wanted}
                assert found == set(np.nonzero(column == wanted)[0].tolist())
            assert len(index) == np.count_nonzero(column)


def test_discarded_pairs_do_not_pile_up() -> None:
    column = np.zeros(1, np.uint64)
    index = PairIndex(lambda hashes, rows: column[rows] == hashes)
    for hash_ in range(1, 5000):
        index.add(hash_, 0)
        column[0] = hash_
        index.discarded()
    assert index.memory < 100_000
    assert sum(len(index.find(hash_)) for hash_ in range(1, 5000)) < 5000 // 2
