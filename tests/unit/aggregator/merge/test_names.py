from __future__ import annotations

from collections import Counter

import numpy as np
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


@given(st.lists(texts, max_size=30), st.lists(texts, max_size=9), st.lists(texts, max_size=9), st.booleans())
def test_the_first_names_are_found_among_the_rows(
    loaded: list[str], more: list[str], left: list[str], descending: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "_CHUNK", 4)
        collected = LoadedNames(SEED)
        for name in loaded:
            collected.add(name)
        table = NameTable(SEED)
        rows = dict(enumerate(zip(loaded, table.fill(collected).tolist(), strict=True)))
        for name in left:
            row = next((row for row, (its_name, _) in rows.items() if its_name == name), None)
            if row is not None:
                table.leave(rows.pop(row)[1])
        table.ranks()  # numbers that are free are given to others from now on
        rows |= {100 + place: (name, table.use(name)) for place, name in enumerate(more)}
        numbers = np.array([number for _, number in rows.values()], np.uint32)
        order = sorted({name for name, _ in rows.values()}, key=_encoded, reverse=descending)
        for wanted in (1, 3, 100):
            found = table.among(numbers, table.lowest(wanted, descending=descending)).tolist()
            assert [list(rows)[place] for place in found] == [
                row for row, (name, _) in rows.items() if name in order[:wanted]
            ]


def test_names_that_left_give_their_room_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_BLOCK", 1 << 12)
    monkeypatch.setattr(names, "_MANY", 256)
    table = NameTable(SEED)
    numbers = [table.use(f"a-name-of-some-length-{number}") for number in range(2000)]
    table.settle()
    room = table.memory
    for _ in range(3):
        for number in numbers:
            table.leave(number)
        numbers = [table.use(f"another-name-of-some-length-{number}") for number in range(2000)]
        table.settle()
    assert table.memory < 1.6 * room
    assert len(table) == 2000


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")
