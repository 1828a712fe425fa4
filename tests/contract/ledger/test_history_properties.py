"""What holds of history whatever was pushed and compacted."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.memory import MemoryLedger
from federator.aggregator.ledger.records import Delete, Put
from federator.errors import CursorExpired
from tests.contract.ledger.member import Member, delete, objects, put
from tests.contract.ledger.test_history import Present, assert_previous_is_readable, replay, stored


class Compact(NamedTuple):
    """Forget history up to so many entries before the newest."""

    behind: int


_names = st.sampled_from(["a", "b", "c"])
_changes: st.SearchStrategy[Put | Delete] = st.one_of(
    st.builds(delete, _names),
    st.builds(
        lambda name, uid, content: put(name, uid=uid, content_hash=content),
        _names,
        st.sampled_from(["1", "2"]),
        st.integers(1, 3),
    ),
)
_steps = st.lists(
    st.one_of(st.lists(_changes, max_size=6), st.builds(Compact, st.integers(0, 8))), min_size=1, max_size=15
)
Steps = list[list[Put | Delete] | Compact]


async def check(ledger: Ledger, steps: Steps) -> None:
    berlin = await Member.join(ledger)
    states: dict[int, Present] = {ledger.revision: {}}  # what was present at the end of each commit
    for step in steps:
        if isinstance(step, Compact):
            await ledger.compact(max(ledger.revision - step.behind, ledger.oldest_revision))
        else:
            before = ledger.revision
            await berlin.push(*step)
            states[ledger.revision] = replay(states[before], ledger.read(before, 100))
        assert stored(ledger) == states[ledger.revision]
        assert ledger.statistics()["objects"] == len(states[ledger.revision])
        for entry in objects(ledger.read(ledger.oldest_revision, 1000)):
            assert_previous_is_readable(ledger, entry)
        for revision, state in states.items():
            if revision >= ledger.oldest_revision:
                assert replay(state, ledger.read(revision, 1000)) == stored(ledger)
            else:
                with pytest.raises(CursorExpired):
                    ledger.read(revision, 1000)
    await ledger.compact(ledger.revision)
    assert ledger.statistics()["entries"] == len(stored(ledger)), "nothing is left that nobody can ask for"


async def run(open_ledger: Callable[[], Ledger], steps: Steps) -> None:
    ledger = open_ledger()
    try:
        await check(ledger, steps)
    finally:
        await ledger.close()


@given(steps=_steps)
def test_in_memory(steps: Steps) -> None:
    asyncio.run(run(MemoryLedger, steps))


@settings(max_examples=settings().max_examples // 2)
@given(steps=_steps)
def test_in_lmdb(steps: Steps) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(lambda: LmdbLedger.open(Path(folder)), steps))
