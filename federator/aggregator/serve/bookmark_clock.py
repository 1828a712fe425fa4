"""The bookmark clock: one timer for all watches whose bookmarks are due at about the same time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

RESOLUTION = 0.25
"""Seconds that a bookmark may come late, so that 10,000 watches need forty timers and not 10,000."""

AT_ONCE = 64
"""Watches told before the event loop gets a turn: at 100 µs for each bookmark, 6 ms."""


class BookmarkClock:
    """Calls back at a time or a little later, never before it."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[object, Callable[[], None]]] = {}
        self._slot_of: dict[object, int] = {}

    def schedule(self, who: object, when: float, tell: Callable[[], None]) -> None:
        """Asks for one call at a time of the loop's clock, in place of the one that was asked for before."""
        self.forget(who)
        slot = math.ceil(when / RESOLUTION)
        if slot not in self._slots:
            self._slots[slot] = {}
            asyncio.get_running_loop().call_at(slot * RESOLUTION, self._tell, slot)
        self._slots[slot][who] = tell
        self._slot_of[who] = slot

    def forget(self, who: object) -> None:
        """Takes back what was asked for, if it was not called yet."""
        slot = self._slot_of.pop(who, None)
        if slot is not None:
            self._slots[slot].pop(who, None)

    def _tell(self, slot: int) -> None:
        due = self._slots[slot]
        for who in list(due)[:AT_ONCE]:
            del self._slot_of[who]
            due.pop(who)()
        if due:
            asyncio.get_running_loop().call_soon(self._tell, slot)
        else:
            del self._slots[slot]
