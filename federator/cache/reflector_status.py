"""What a Reflector says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from federator.errors import MemberUnreachable

MIN_WATCH = 1.0
"""Seconds after which an open stream counts as healthy although nothing came yet."""


class ReflectorState(StrEnum):
    """What a Reflector is doing."""

    STARTING = "STARTING"
    LISTING = "LISTING"
    WATCHING = "WATCHING"
    BACKING_OFF = "BACKING_OFF"
    STOPPED = "STOPPED"


class ReflectorStatus(msgspec.Struct, frozen=True):
    """How well a Reflector follows its apiserver.

    Attributes:
        state: what it is doing.
        last_proof: loop time of the last event, bookmark, list or clean end of a watch, or None before the first: up to
            then the apiserver itself has confirmed what is held.
        failing_since: loop time of the first failure since it was last healthy, or None while it is.
        attempts: failures in a row.
        error: the last failure; None while healthy.
        last_received: loop time of the last frame of a watch, or None before the first.
        waiting_for: what has not come, while it is being learnt what exists; empty otherwise.
    """

    state: ReflectorState
    last_proof: float | None
    failing_since: float | None
    attempts: int
    error: Exception | None
    last_received: float | None = None
    waiting_for: str = ""

    def ages(self, now: float) -> Mapping[str, object]:
        """The same for metrics: `state`, and ages in seconds, None where there is nothing to be that old."""
        return {
            "state": str(self.state),
            "last_proof_age": None if self.last_proof is None else now - self.last_proof,
            "failing_for": None if self.failing_since is None else now - self.failing_since,
            "attempts": self.attempts,
            "error": "" if self.error is None else str(self.error),
        }


class StatusRecorder:
    """Keeps the status of one Reflector.

    A failure is over when a stream proves healthy, by its first event or by staying open for `MIN_WATCH`; a list alone
    proves nothing, since what is held then ages again.
    """

    def __init__(self) -> None:
        self.state = ReflectorState.STARTING
        self.stream_events = 0
        self._last_proof: float | None = None
        self._opened_at: float | None = None
        self._failing_since: float | None = None
        self._attempts = 0
        self._error: Exception | None = None
        self._last_received: float | None = None
        self._is_initial = False

    @property
    def is_unreachable(self) -> bool:
        """Whether the last failure was that the server could not be reached, and nothing has worked since."""
        return isinstance(self._error, MemberUnreachable)

    def proved(self, now: float) -> None:
        """A list came, or a watch ended cleanly."""
        self._last_proof = now

    def opened(self, now: float, *, is_initial: bool = False) -> None:
        """A stream was opened. `is_initial`: a watch-list, which is not a watch before its bookmark."""
        self.state = ReflectorState.LISTING if is_initial else ReflectorState.WATCHING
        self.stream_events = 0
        self._opened_at = now
        self._is_initial = is_initial

    def initial_event(self, now: float) -> None:
        """A watch-list brought something of what exists, which proves nothing before its end."""
        self._last_received = now
        self.stream_events += 1

    def initial_events_ended(self, now: float) -> None:
        """A watch-list is whole and goes on as a watch."""
        self.state = ReflectorState.WATCHING
        self._is_initial = False
        self.event(now)

    def event(self, now: float) -> None:
        """A stream brought an event or a bookmark."""
        self._last_proof = self._last_received = now
        self.stream_events += 1

    def is_stream_healthy(self, now: float) -> bool:
        """Whether the last stream that was opened brought anything or stood for `MIN_WATCH`."""
        return self._opened_at is not None and (self.stream_events > 0 or now - self._opened_at >= MIN_WATCH)

    def failed(self, error: Exception, now: float) -> None:
        """Something failed, and with it the stream, if one was open."""
        self._settle(now)
        self._opened_at = None
        self._is_initial = False
        self._attempts += 1
        self._error = error
        if self._failing_since is None:
            self._failing_since = now

    def status(self, now: float) -> ReflectorStatus:
        """The status as of now."""
        self._settle(now)
        return ReflectorStatus(
            self.state,
            self._last_proof,
            self._failing_since,
            self._attempts,
            self._error,
            self._last_received,
            self._waiting_for(now),
        )

    def _waiting_for(self, now: float) -> str:
        if self._is_initial and self._opened_at is not None:
            since = now - self._opened_at
            last = "no event yet"
            if self.stream_events and self._last_received is not None:
                last = f"last event {now - self._last_received:.0f} s ago"
            return f"the bookmark that ends a watch-list, for {since:.0f} s; {last}"
        return "a list" if self.state is ReflectorState.LISTING else ""

    def _settle(self, now: float) -> None:
        # A watch-list without its bookmark may stay open for long and be worth nothing.
        if not self._is_initial and self.is_stream_healthy(now):
            self._failing_since = None
            self._attempts = 0
            self._error = None
