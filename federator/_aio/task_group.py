"""A task group whose error is the error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """An `asyncio.TaskGroup` for tasks that are one undertaking: it raises the error that ended it, ungrouped.

    Errors that came after the first are consequences of it and are dropped. Cancellation is as in `asyncio.TaskGroup`.

    Raises:
        Exception: the first that a task, or the body, raised.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        error = group.exceptions[0]
        raise error from error.__cause__  # what it came from, and not the group
