from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.merge.texts import Texts


@given(st.lists(st.tuples(st.sampled_from(["use", "leave", "ask"]), st.sampled_from("abcde")), max_size=40))
def test_ranks_are_those_of_the_texts_in_use(steps: list[tuple[str, str]]) -> None:
    texts, users, numbers = Texts(), Counter[str](), dict[str, int]()
    for step, text in [*steps, ("ask", "")]:
        if step == "use":
            numbers[text] = texts.use(text)
            users[text] += 1
        elif step == "leave" and users[text]:
            texts.leave(numbers[text])
            users[text] -= 1
        elif step == "ask":
            present = [each for each in numbers if users[each]]
            ranks = texts.ranks().tolist()
            assert sorted(present, key=lambda each: ranks[numbers[each]]) == sorted(present)
            assert len({ranks[numbers[each]] for each in present}) == len(present)
