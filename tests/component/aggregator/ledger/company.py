"""Sees when a commit thread waits for company."""

from __future__ import annotations

import asyncio
import threading

from federator.aggregator.ledger.commit_thread import CommitThread


class Hurry(threading.Event):
    """What a commit thread waits for, which tells that it does."""

    def __init__(self) -> None:
        super().__init__()
        self._awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """As of an Event."""
        self._awaited.set()
        return super().wait(timeout)

    @classmethod
    def of(cls, thread: CommitThread) -> Hurry:
        """Gives a thread that is at rest one of its own."""
        thread._hurry = hurry = cls()
        return hurry

    async def awaited(self) -> None:
        """Returns once the thread waits.

        Raises:
            AssertionError: it does not.
        """
        assert await asyncio.to_thread(self._awaited.wait, 5), "the thread does not wait for company"
