from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from federator.aggregator.merge import names
from federator.aggregator.merge.names import LoadedNames, NameTable

SEED = 7
texts = (
    st.sampled_from(["a", "a-1", "a.1", "b", "", "web-0", "web-1", "é", "\U0001f600", "\ud800", "z" * 300]) | st.text()
)


def ordered(table: NameTable, present: dict[str, int]) -> list[str]:
    ranks = table.ranks()
    return sorted(present, key=lambda name: int(ranks[present[name]]))


@given(st.lists(st.tuples(st.sampled_from(["use", "use", "leave", "ask", "step"]), texts), max_size=60))
def test_names_are_kept_found_and_ordered_while_they_come_and_go(steps: list[tuple[str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "_BLOCK", 32)  # so that blocks are left and written anew
        patch.setattr(names, "_MANY", 3)
        patch.setattr(names, "_STEP", 2)
        table = NameTable(SEED)
        users: Counter[str] = Counter()
        numbers: dict[str, int] = {}
        settling = table.settling()
        for step, name in steps:
            if step == "use":
                number = table.use(name)
                assert numbers.setdefault(name, number) == number
                users[name] += 1
            elif step == "leave" and users[name]:
                table.leave(numbers[name])
                users[name] -= 1
                if not users[name]:
                    del numbers[name]
            elif step == "ask":
                assert ordered(table, numbers) == sorted(numbers, key=_encoded)
            elif step == "step" and next(settling, settling) is settling:
                settling = table.settling()
            assert {known: table.find(known) for known in numbers} == numbers
            assert {table[number] for number in numbers.values()} == set(numbers)
            assert len(table) == len(numbers)
        for _ in settling:
            pass
        assert ordered(table, numbers) == sorted(numbers, key=_encoded)
        assert table.find("never used") is None


@given(st.lists(texts, max_size=30), st.lists(texts, max_size=5))
def test_a_filled_table_is_as_one_that_was_filled_one_by_one(loaded: list[str], more: list[str]) -> None:
    collected = LoadedNames(SEED)
    for name in loaded:
        collected.add(name)
    table = NameTable(SEED)
    numbers = table.fill(collected).tolist()
    assert [table[number] for number in numbers] == loaded
    assert len(table) == len(set(loaded))
    assert not table.unsettled
    present = dict(zip(loaded, numbers, strict=True)) | {name: table.use(name) for name in more}
    assert ordered(table, present) == sorted(present, key=_encoded)
    for number in numbers:
        table.leave(number)
    assert len(table) == len(set(more))


def test_names_that_left_give_their_room_back() -> None:
    table = NameTable(SEED)
    numbers = [table.use(f"a-name-of-some-length-{number}") for number in range(30_000)]
    table.settle()
    room = table.memory
    for _ in range(3):
        for number in numbers:
            table.leave(number)
        numbers = [table.use(f"another-name-of-some-length-{number}") for number in range(30_000)]
        table.settle()
    assert table.memory < 1.6 * room
    assert len(table) == 30_000


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
