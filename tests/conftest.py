"""What every test gets, and how tests are dealt out to several workers."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

import hypothesis
import looptime
import pytest

# Where a test forks, gRPC, which others use in this process, would say so in its midst. Read when gRPC is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# Few examples each time, since every run draws others; `make torture` takes the thorough profile.
hypothesis.settings.register_profile("quick", max_examples=25, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=2_000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure(config: pytest.Config) -> None:
    """Names the marker whose plugin is switched off: that one patches the loop of every test, at a price."""
    config.addinivalue_line("markers", "looptime: the test's loop does not sleep, its time jumps")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spares the garbage collector what is imported and collected: it would look through all of it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], Any]]:
    """The loop of an asynchronous test."""
    return {"loop": looptime.new_event_loop if item.get_closest_marker("looptime") else asyncio.new_event_loop}


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
