from __future__ import annotations

import itertools
from collections.abc import Iterable

from tests.bench.informer_process import Reading, answer, digest

HELD = [("shop/a", "1"), ("shop/b", "2"), ("c", "3")]


class StillInformer:
    """Holds what it is given and makes no lists."""

    told = 7

    async def sync(self) -> None:
        pass

    async def relist(self) -> None:
        pass

    def held(self) -> Iterable[tuple[str, str]]:
        return iter(HELD)


def test_the_order_of_a_store_does_not_matter() -> None:
    assert len({digest(held) for held in itertools.permutations(HELD)}) == 1


def test_another_object_or_version_is_another_state() -> None:
    others = [
        HELD[:-1],
        [*HELD, ("d", "4")],
        [("shop/a", "2"), ("shop/b", "1"), ("c", "3")],
        [("shop/a", "12"), ("shop/b", ""), ("c", "3")],
    ]
    assert len({digest(held) for held in [HELD, *others]}) == 1 + len(others)


async def test_a_relist_counts_its_own_peak() -> None:
    before: Reading = await read("read")
    ballast = bytearray(b"x" * 64_000_000)
    with_ballast = await read("read")
    assert with_ballast.memory > before.memory + 50
    del ballast
    assert (await read("read")).peak >= with_ballast.memory
    assert (await read("relist")).peak < with_ballast.memory - 30


async def test_a_process_tells_what_its_informer_has() -> None:
    first = await read("read")
    assert (first.told, first.held, first.state) == (7, 3, "")
    sum(range(1_000_000))
    second = await read("state")
    assert second.state == digest(HELD)
    assert second.cpu > first.cpu


async def read(command: str) -> Reading:
    return Reading(**await answer(StillInformer(), {"do": command}))
