"""How long to wait between attempts to reach an apiserver."""

from __future__ import annotations

import random
from collections.abc import Callable

from federator.cache.clock import loop_time

BASE = 0.8
"""Seconds of the first step."""

FACTOR = 2.0

CAP = 30.0
"""Seconds of the last step. With the jitter a wait there takes 45 s on average: 1,000 reflectors send a dead apiserver
22 requests a second."""

JITTER = 1.0
"""A step of d seconds becomes a wait drawn evenly from [d, d * (1 + JITTER))."""

HEALTHY_AFTER = 120.0
"""Seconds of health before the schedule starts over. client-go starts over whenever that time has passed, also while
failing, so that a long outage meets a burst of quick attempts every two minutes."""


class Backoff:
    """One schedule of growing, jittered delays: client-go's reflector backoff, except for when it starts over.

    It is shared by all that may fail in one reflector, so that failures of different kinds slow down together.
    """

    def __init__(
        self,
        *,
        base: float = BASE,
        factor: float = FACTOR,
        cap: float = CAP,
        jitter: float = JITTER,
        healthy_after: float = HEALTHY_AFTER,
        uniform: Callable[[], float] = random.random,
        clock: Callable[[], float] = loop_time,
    ) -> None:
        """All times are seconds; `uniform` draws from [0, 1)."""
        self._base = base
        self._factor = factor
        self._cap = cap
        self._jitter = jitter
        self._healthy_after = healthy_after
        self._uniform = uniform
        self._clock = clock
        self._step = base
        self._healthy_since: float | None = None

    def healthy(self) -> None:
        """Something worked. The time until the next failure counts as health."""
        if self._healthy_since is None:
            self._healthy_since = self._clock()

    def start_over(self) -> None:
        """The reason for the delays so far is gone: the next one is the first again."""
        self._step = self._base
        self._healthy_since = None

    def next_delay(self, retry_after: float | None = None) -> float:
        """Something failed: returns the seconds to wait, at least those the server asked for.

        What many are asked to wait alike gets the jitter of this step on top, or they would all come back at once.
        """
        if self._healthy_since is not None and self._clock() - self._healthy_since >= self._healthy_after:
            self._step = self._base
        self._healthy_since = None
        jitter = self._step * self._jitter * self._uniform()
        delay = self._step + jitter
        self._step = min(self._step * self._factor, self._cap)
        return max(delay, (retry_after or 0.0) + jitter)
