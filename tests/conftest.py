"""What every test gets: no event loop is left open."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _close_the_loop_that_looptime_leaves() -> Iterator[None]:
    """The plugin looptime asks the policy for a loop around synchronous tests; nobody else would close it."""
    yield
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        warnings.simplefilter("ignore", DeprecationWarning)
        loop = asyncio.get_event_loop_policy().get_event_loop()
        if not loop.is_running():
            loop.close()
            asyncio.get_event_loop_policy().set_event_loop(None)
