"""Budgets: what one answer may take of time, reading and memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from federator.errors import InvalidInput, QueryTooCostly

TURN = 0.002
"""Seconds for which an answer may work before others have their turn; a commit waits no longer for it."""


class QueryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one answer may take.

    Attributes:
        time_ms: milliseconds of work on it, in which others may have had their turns; waiting for freshness, and for
            the client to read, is not counted. 120,000: twice what a list of a million whole objects takes.
        scanned_objects: object states read to decide what belongs to it. 2,000,000: everything, in a federation of a
            million objects, and as much history.
        memory_bytes: held for it at once. 256 MiB: what 20 of them may take together is still a small machine's.
    """

    time_ms: int = 120_000
    scanned_objects: int = 2_000_000
    memory_bytes: int = 256 * 1024 * 1024

    def lowered(self, *, field: str = "limits", **asked: int) -> QueryLimits:
        """Returns these limits with those that a request lowers; 0 leaves one as it is.

        Args:
            field: name of the field they came in, for the message.
            asked: by name.

        Raises:
            InvalidInput: a request asks for more than is allowed.
        """
        lowered = {}
        for name, value in asked.items():
            allowed = getattr(self, name)
            if value > allowed:
                raise InvalidInput(f"{field}.{name}", value, f"at most {allowed}, or 0 for that")
            lowered[name] = value or allowed
        return msgspec.structs.replace(self, **lowered)


class Budget:
    """Counts what one answer takes. Whoever works on it says so at every step, and yields where `turn` says so.

    Attributes:
        scanned: object states read so far to decide what belongs to the answer.
    """

    __slots__ = ("_clock", "_limits", "_memory", "_turn_began", "_used", "scanned")

    def __init__(self, limits: QueryLimits | None = None, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._limits = limits or QueryLimits()
        self._clock = clock
        self._turn_began = clock()
        self._used = 0.0
        self._memory = 0
        self.scanned = 0

    def scan(self, objects: int = 1) -> None:
        """Counts object states that are read.

        Raises:
            QueryTooCostly: they are more than the answer may read.
        """
        self.scanned += objects
        if self.scanned > self._limits.scanned_objects:
            raise QueryTooCostly("scanned_objects", self._limits.scanned_objects)

    def hold(self, number: int) -> None:
        """Counts bytes that are held from now on; a negative number gives some back.

        Raises:
            QueryTooCostly: they are more than the answer may hold.
        """
        self._memory += number
        if self._memory > self._limits.memory_bytes:
            raise QueryTooCostly("memory_bytes", self._limits.memory_bytes)

    async def turn(self) -> None:
        """Lets others have their turn if this one took long enough. To be called at least every 64 object states.

        Raises:
            QueryTooCostly: the answer has taken its time.
        """
        took = self._clock() - self._turn_began
        if took < TURN:
            return
        self._used += took
        if self._used * 1000 > self._limits.time_ms:
            raise QueryTooCostly("time_ms", self._limits.time_ms)
        await asyncio.sleep(0)
        self._turn_began = self._clock()

    def resume(self) -> None:
        """Starts the clock again after the answer had to wait for somebody else, such as its reader."""
        self._turn_began = self._clock()
