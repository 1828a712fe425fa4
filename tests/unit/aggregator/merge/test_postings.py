from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.merge.postings import SMALL, Postings

_steps = st.lists(st.tuples(st.booleans(), st.sampled_from("abc"), st.integers(0, 40)), max_size=200)


@given(_steps)
def test_postings_are_a_map_of_sets(steps: list[tuple[bool, str, int]]) -> None:
    postings, model = Postings(), dict[str, set[int]]()
    for adds, value, row in steps:
        if not adds:
            postings.discard(value, row)
            model.get(value, set()).discard(row)
        elif row not in model.get(value, set()):
            postings.add(value, row)
            model.setdefault(value, set()).add(row)
        model = {kept: rows for kept, rows in model.items() if rows}
        assert set(postings) == set(model)
        assert len(postings) == len(model)
    for value in "abc":
        assert set(postings.rows(value)) == model.get(value, set())
    assert set(postings.rows_of_any("ab")) == model.get("a", set()) | model.get("b", set())
    assert not postings.rows_of_any(["z"])


def test_a_value_changes_its_shape_and_back_without_losing_a_row() -> None:
    postings = Postings()
    for row in range(SMALL * 2):
        postings.add("v", row)
        assert list(postings.rows("v")) == list(range(row + 1))
    for row in range(SMALL * 2):
        postings.discard("v", row)
        assert list(postings.rows("v")) == list(range(row + 1, SMALL * 2))
    assert not list(postings)


def test_a_row_can_be_taken_out_everywhere() -> None:
    postings = Postings()
    for value in ("a", "b"):
        postings.add(value, 1)
    postings.add("b", 2)
    postings.discard_everywhere(1)
    assert {value: list(postings.rows(value)) for value in postings} == {"b": [2]}
