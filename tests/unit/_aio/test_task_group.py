"""task_group: one undertaking, one error."""

from __future__ import annotations

import asyncio

import pytest

from federator._aio.task_group import task_group


async def fail(after: int, error: Exception) -> None:
    for _ in range(after):
        await asyncio.sleep(0)
    raise error


async def test_the_first_error_comes_out_as_it_is_and_the_others_are_cancelled() -> None:
    with pytest.raises(ValueError, match="first"):
        async with task_group() as tasks:
            tasks.create_task(fail(2, KeyError("second")))
            tasks.create_task(fail(1, ValueError("first")))
            waiting = tasks.create_task(asyncio.sleep(3600))
    assert waiting.cancelled()


async def test_an_error_of_the_body_comes_out_as_it_is() -> None:
    with pytest.raises(ValueError, match="body"):
        async with task_group() as tasks:
            tasks.create_task(asyncio.sleep(3600))
            raise ValueError("body")


async def test_an_error_keeps_its_cause() -> None:
    with pytest.raises(ValueError, match="body") as raised:
        async with task_group():
            raise ValueError("body") from KeyError("cause")
    assert isinstance(raised.value.__cause__, KeyError)


async def test_cancellation_stays_cancellation() -> None:
    async def undertaking() -> None:
        async with task_group() as tasks:
            tasks.create_task(asyncio.sleep(3600))

    task = asyncio.create_task(undertaking())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
