"""Writing what others write too: again after a conflict (client-go: `util/retry`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TypeVar

from federator.cache.backoff import Backoff

STEPS = 5
"""Attempts, the first included."""

FIRST_DELAY = 0.1
"""Seconds between the first two attempts; doubled each time, all four come to a second and a half."""

FACTOR = 2.0

JITTER = 0.1

R = TypeVar("R")


def is_conflict(error: Exception) -> bool:
    """Whether an apiserver answered 409: the object has changed since it was read, or exists by now.

    Knows a KubeStatusError by its `code`, and exceptions of the official client, synchronous or not, by their `status`.
    """
    return HTTPStatus.CONFLICT in (getattr(error, "code", None), getattr(error, "status", None))


async def retry_on_conflict(
    step: Callable[[], Awaitable[R]],
    *,
    steps: int = STEPS,
    backoff: Backoff | None = None,
    is_conflict: Callable[[Exception], bool] = is_conflict,
) -> R:
    """Runs a step that reads an object and writes it, again after each conflict, and returns what it returns.

    The step has to read the object anew each time, or every attempt meets the same conflict. With that, an object that
    somebody else has created in the meantime is there to be updated in the next attempt; client-go does not count this
    answer, 409 AlreadyExists, as a conflict.

    Args:
        step: one attempt.
        steps: attempts at most, 1 or more.
        backoff: delays between them; None for 0.1, 0.2, 0.4 and 0.8 s, each up to a tenth longer.
        is_conflict: which exceptions call for another attempt.

    Raises:
        Exception: what the step raised: the first that is no conflict, or that of the last attempt.
    """
    delays = backoff or Backoff(base=FIRST_DELAY, factor=FACTOR, cap=float("inf"), jitter=JITTER)
    for _ in range(steps - 1):
        try:
            return await step()
        except Exception as error:
            if not is_conflict(error):
                raise
        await asyncio.sleep(delays.next_delay())
    return await step()
