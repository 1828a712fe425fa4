"""How often the event loop came round to others while something ran."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Turns that another task had.

    Attributes:
        taken: how many so far.
    """

    def __init__(self) -> None:
        self.taken = 0


@contextmanager
def counted_turns() -> Iterator[Turns]:
    """Counts the turns of a task that does nothing else, while the block runs."""
    turns = Turns()

    async def count() -> None:
        while True:
            turns.taken += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    try:
        yield turns
    finally:
        counting.cancel()
