"""Page cache: lists that are being read page by page, sorted, so that the next page need not sort anew."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import NamedTuple

from federator.aggregator.merge.scope import Scope
from federator.aggregator.query.pins import Pins
from federator.aggregator.query.sorting import Revisions

MAX_BYTES = 32 * 1024 * 1024
"""Of all lists kept: four of a million objects."""

MAX_LISTS = 64
"""Lists kept at once."""

IDLE_SECONDS = 60.0
"""For which a list is kept after its last page: longer than any program needs for 10,000 objects."""

MAX_SECONDS = 600.0
"""For which a list is kept in all, however diligently it is read: for as long it keeps history from being forgotten."""

_ENTRY_BYTES = 1024
"""Counted for each list besides its revisions."""


class ListKey(NamedTuple):
    """Which list.

    Attributes:
        bound_to: of its request, see `page_token.binding`.
        revision: that it is of.
        scope: of the asker.
    """

    bound_to: bytes
    revision: int
    scope: Scope


class SortedList(NamedTuple):
    """What is selected at one revision, in the order of a list.

    Attributes:
        revisions: at which the objects took their states.
        scanned: object states that were read to decide what is selected.
        scanned_history: whether history was scanned for it.
    """

    revisions: Revisions
    scanned: int = 0
    scanned_history: bool = False


class _Kept(NamedTuple):
    sorted: SortedList
    since: float
    used: float
    pin: ExitStack


class PageCache:
    """Sorted lists, the most recently read last; no answer needs them, they only make it cheap.

    A list pins its revision as long as it is kept, so that its pages can be read. The oldest leave when there are more
    than `max_lists` or `max_bytes`; one that is larger than that alone is not kept.
    """

    def __init__(
        self,
        pins: Pins,
        *,
        max_bytes: int = MAX_BYTES,
        max_lists: int = MAX_LISTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pins = pins
        self._max_bytes = max_bytes
        self._max_lists = max_lists
        self._clock = clock
        self._kept: OrderedDict[ListKey, _Kept] = OrderedDict()
        self._bytes = 0
        self._hits = self._misses = 0
        self._timer: asyncio.TimerHandle | None = None

    def find(self, key: ListKey) -> SortedList | None:
        """A list that is kept, which is kept on for it."""
        self._expire()
        kept = self._kept.get(key)
        if kept is None:
            self._misses += 1
            return None
        self._hits += 1
        self._kept[key] = kept._replace(used=self._clock())
        self._kept.move_to_end(key)
        return kept.sorted

    def keep(self, key: ListKey, sorted_list: SortedList) -> None:
        """Keeps a list, whose revision can still be read; on the event loop."""
        self.forget(key)
        size = _size(sorted_list)
        if size > self._max_bytes:
            return
        pin = ExitStack()
        pin.enter_context(self._pins.hold(key.revision))
        now = self._clock()
        self._kept[key] = _Kept(sorted_list, now, now, pin)
        self._bytes += size
        while self._bytes > self._max_bytes or len(self._kept) > self._max_lists:
            self.forget(next(iter(self._kept)))
        self._schedule()

    def forget(self, key: ListKey) -> None:
        """Lets go of a list, whether or not it is kept."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= _size(kept.sorted)
            kept.pin.close()

    def clear(self) -> None:
        """Forgets all lists."""
        for key in list(self._kept):
            self.forget(key)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def statistics(self) -> Mapping[str, int]:
        """Lists kept, their bytes, and how often a page found its list or did not."""
        return {
            "page_lists": len(self._kept),
            "page_list_bytes": self._bytes,
            "page_list_hits": self._hits,
            "page_list_misses": self._misses,
        }

    def _expire(self) -> None:
        now = self._clock()
        for key, kept in list(self._kept.items()):
            if now >= _end(kept):
                self.forget(key)

    def _schedule(self) -> None:
        """Sees to it that what nobody asks for any more leaves, and its pin with it."""
        if self._timer is None and self._kept:
            wait = max(0.0, min(map(_end, self._kept.values())) - self._clock())
            self._timer = asyncio.get_running_loop().call_later(wait, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._expire()
        self._schedule()


def _size(sorted_list: SortedList) -> int:
    return _ENTRY_BYTES + int(sorted_list.revisions.nbytes)


def _end(kept: _Kept) -> float:
    return min(kept.used + IDLE_SECONDS, kept.since + MAX_SECONDS)
