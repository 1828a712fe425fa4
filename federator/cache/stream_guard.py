"""How long a watch may stay open, or silent, and how others end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

GRACE = 15.0
"""Seconds beyond the asked length after which a stream is dead: the server enforces the length, and a half-open
connection brings neither a byte nor an error."""

MIN_SILENCE = 90.0
"""Seconds of silence that are always borne; servers send a bookmark about once a minute."""

SILENCE_FACTOR = 1.5
"""Silence borne, in widest gaps between bookmarks seen so far."""

INITIAL_SILENCE = 30.0
"""Seconds of silence borne while a watch-list sends what exists: a server has that at hand."""

INITIAL_LENGTH = 90.0
"""Seconds that it may take to send it. What takes longer is listed, in pages that can be resumed."""

_RESCHEDULE_EVERY = 1.0
"""Seconds between two moves of the deadline, so that a storm of events does not pay for a timer each."""


class SilentWatch(Exception):
    """A stream brought nothing for too long, or outlived its length; the connection is taken for dead."""


class StreamGuard:
    """Ends the streams of one reflector that are silent for too long, or that somebody wants ended.

    The bound on silence holds only for servers that have sent a bookmark for this type, since nobody else promises to
    send anything on an idle type.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self._scope: asyncio.Timeout | None = None
        self._deadline = 0.0
        self._next_reschedule = 0.0
        self._last_bookmark = 0.0
        self._bookmark_gap: float | None = None
        self._initial_until: float | None = None  # loop time by which a watch-list has to have sent what exists

    @asynccontextmanager
    async def guarding(self, length: float) -> AsyncIterator[None]:
        """Runs the body until it ends, is interrupted (then the block just ends) or is silent for too long.

        Args:
            length: seconds asked of the server.

        Raises:
            SilentWatch: nothing came within the bound, or the stream outlived its length.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._deadline = began + length + GRACE
        self.interrupted = False
        try:
            async with asyncio.timeout_at(self._deadline) as scope:
                self._scope = scope
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            if not self.interrupted:
                raise SilentWatch(
                    f"nothing came in time; the stream was open for {loop.time() - began:.0f} s"
                ) from None
        finally:
            self._scope = None

    def opened(self, now: float, *, is_initial: bool = False) -> None:
        """The stream is open; silence counts from here. `is_initial`: a watch-list begins with what exists."""
        self._initial_until = now + INITIAL_LENGTH if is_initial else None
        self._last_bookmark = now
        self._next_reschedule = now
        self._postpone(now)

    def event(self, now: float, *, is_bookmark: bool) -> None:
        """The stream brought something."""
        if is_bookmark:
            self._bookmark_gap = max(self._bookmark_gap or 0.0, now - self._last_bookmark)
            self._last_bookmark = now
        self._postpone(now)

    def initial_events_ended(self, now: float) -> None:
        """The stream goes on as a watch."""
        self._initial_until = None
        self._last_bookmark = self._next_reschedule = now
        if self._scope is not None:
            self._scope.reschedule(self._deadline)
        self._postpone(now)

    def interrupt(self) -> None:
        """Ends the stream that is open, if one is. Does not wait."""
        scope, self._scope = self._scope, None
        if scope is not None and not scope.expired():
            self.interrupted = True
            scope.reschedule(0.0)

    def _postpone(self, now: float) -> None:
        # After an interrupt there is no scope: postponing it would undo the interrupt.
        if self._scope is None or now < self._next_reschedule:
            return
        if self._initial_until is not None:
            bound = min(self._initial_until, now + INITIAL_SILENCE)
        elif self._bookmark_gap is not None:
            bound = now + max(MIN_SILENCE, SILENCE_FACTOR * self._bookmark_gap)
        else:
            return
        self._next_reschedule = now + _RESCHEDULE_EVERY
        self._scope.reschedule(min(self._deadline, bound))
