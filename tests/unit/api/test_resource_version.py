from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.api.resource_version import compare, is_older, is_ordered


@given(st.integers(1, 10**30), st.integers(1, 10**30))
def test_ordered_versions_compare_as_numbers_of_any_length(left: int, right: int) -> None:
    assert compare(str(left), str(right)) == (left > right) - (left < right)
    assert is_older(str(left), str(right)) is (left < right)


@pytest.mark.parametrize("text", ["", "0", "01", "-1", "1.0", "1e3", "abc", "²", "١", " 1", "1 "])
def test_everything_else_is_only_equal_or_not(text: str) -> None:
    assert not is_ordered(text)
    assert compare(text, text) == 0
    assert compare(text, "5") is None
    assert not is_older(text, "5")
    assert not is_older("5", text)
