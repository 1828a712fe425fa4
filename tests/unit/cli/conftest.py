from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from federator.cli.main import main


class Outcome(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


Federator = Callable[..., Awaitable[Outcome]]


@pytest.fixture
def federator(capsys: pytest.CaptureFixture[str]) -> Federator:
    """Runs a command against the inventory, which answers from this loop while the command has its own."""

    async def run(*arguments: str) -> Outcome:
        code = await asyncio.to_thread(main, arguments)
        return Outcome(code, *capsys.readouterr())

    return run
