"""Row values against a plain dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.merge.row_values import RowValues

_steps = st.lists(
    st.tuples(st.integers(0, 4), st.none() | st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=4)), max_size=30
)


@given(_steps)
def test_they_are_what_a_dict_has(steps: list[tuple[int, list[str] | None]]) -> None:
    values = RowValues()
    plain: dict[int, list[str]] = {}
    for row, given_values in steps:
        if given_values is None:
            values.discard(row)
            plain.pop(row, None)
        else:
            values.put(row, given_values)
            plain[row] = [*dict.fromkeys(given_values)]
        assert values.entries == sum(map(len, plain.values()))
        assert set(values) == {value for some in plain.values() for value in some}
        assert len(values) == len(set(values))
        codes, texts, more = values.column(5)
        for at in range(5):
            expected = plain.get(at, [])
            assert values.of(at) == expected
            told = [texts[codes[at]]] if codes[at] else []
            if more is not None:
                told += [texts[code] for other, code in zip(*more, strict=True) if other == at]
            assert told == expected
        for value in ("a", "b", "c", "", "none"):
            assert set(values.rows(value)) == {at for at, some in plain.items() if value in some}
        assert set(values.rows_of_any(("a", ""))) == {at for at, some in plain.items() if {"a", ""} & set(some)}
    empty = RowValues()
    for row in range(5):
        values.discard(row)
    assert values.memory - empty.memory >= 0
    assert values.entries == 0
    assert not len(values)
