"""BatchWindow: how long changes wait for company before they are sent."""

from __future__ import annotations

import math

CALM = 1_000.0
"""Changes a second up to which nothing waits. What a cluster does all day stays below it by far."""

STORM = 5_000.0
"""Changes a second from which on the window is as long as it gets."""

MEMORY = 1.0
"""Seconds over which the rate is smoothed: a storm is noticed, and forgotten, within about as long."""


class BatchWindow:
    """Watches how often objects change, and makes a storm wait: fewer frames and commits, and more that coalesces.

    At rest a change is sent at once. From `CALM` to `STORM` the time between two frames grows to `longest`; a frame's
    worth of changes never waits.
    """

    def __init__(self, *, longest: float, items: int) -> None:
        """Starts at rest.

        Args:
            longest: seconds that changes wait at most; 0 for never.
            items: changes that are enough for a frame.
        """
        self._longest = longest
        self._items = items
        self._rate = 0.0
        self._changes = 0
        self._looked_at = -math.inf
        self._sent_at = -math.inf

    @property
    def rate(self) -> float:
        """Changes a second, smoothed."""
        return self._rate

    @property
    def seconds(self) -> float:
        """The window at present."""
        return self._longest * min(1.0, max(0.0, (self._rate - CALM) / (STORM - CALM)))

    def sent(self, now: float) -> None:
        """A frame of changes is being sent."""
        self._sent_at = now

    def hold(self, now: float, changes: int, waiting: int) -> float:
        """Seconds for which what waits is to be held back, 0 for none.

        Args:
            now: loop time.
            changes: changes there were in all, those that coalesced too.
            waiting: changes that wait.
        """
        passed = now - self._looked_at
        if passed > 0.01:  # else the rate is mostly noise
            weight = 1.0 if passed > 10 * MEMORY else 1 - math.exp(-passed / MEMORY)
            rate = 0.0 if math.isinf(passed) else (changes - self._changes) / passed
            self._rate += weight * (rate - self._rate)
            self._changes, self._looked_at = changes, now
        if waiting >= self._items or self._rate <= CALM:
            return 0.0
        return max(0.0, self._sent_at + self.seconds - now)
