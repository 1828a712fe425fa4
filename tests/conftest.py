"""What every test gets, and how tests are dealt out to several workers."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals out tests by file, but those that share control planes all to one worker."""
    from xdist.scheduler import LoadScopeScheduling

    class ByControlPlanes(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            match file.split("/"):
                case ["tests", "integration", ("cache" | "cli" | "testbed"), *_]:
                    return "control planes of the session"
                case ["tests", "integration", folder, *_]:
                    return folder
                case _:
                    return file

    return ByControlPlanes(config, log)
