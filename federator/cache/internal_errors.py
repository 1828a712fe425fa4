"""For how long a watch that an apiserver breaks off with an internal error is resumed."""

from __future__ import annotations

from collections.abc import Callable

from federator.cache.clock import loop_time

RESET_AFTER = 60.0
"""Seconds without such errors after which a new one begins a new run of them."""


class InternalErrorWindow:
    """Client-go's RetryWithDeadline: runs of errors that last no longer than the window are borne."""

    def __init__(self, window: float = 0.0, *, clock: Callable[[], float] = loop_time) -> None:
        """`window` is in seconds; 0 bears none."""
        self._window = window
        self._clock = clock
        self._began: float | None = None
        self._last: float | None = None

    def failed(self) -> bool:
        """Records an internal error and returns whether the watch may be resumed."""
        if self._window <= 0:
            return False
        now = self._clock()
        if self._began is None or self._last is None or now - self._last >= RESET_AFTER:
            self._began = now
        self._last = now
        return now - self._began <= self._window
