"""What every test gets, and how tests are dealt out to several workers."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import looptime
import pytest

# Where a test forks, gRPC, which others use in this process, would say so in its midst. Read when gRPC is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30  # bytes; the whole suite takes less than one


def _keep_files_in_memory() -> None:
    """Puts tests' folders where a sync takes no time: what is written must be right, not outlive a power cut."""
    if not os.access(_MEMORY, os.W_OK):
        return
    disk = os.statvfs(_MEMORY)
    if disk.f_bavail * disk.f_frsize > _ROOM and not disk.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


_keep_files_in_memory()

# Few examples each time, since every run draws others: `make unit` is brief, `make torture` thorough.
hypothesis.settings.register_profile("brief", max_examples=10, deadline=None)
hypothesis.settings.register_profile("quick", max_examples=25, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=2_000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure(config: pytest.Config) -> None:
    """Names the marker whose plugin is switched off: that one patches the loop of every test, at a price."""
    config.addinivalue_line("markers", "looptime: the test's loop does not sleep, its time jumps")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Notes how the run ended, for whoever runs what failed once more: 1 is that all ran, and some failed."""
    if session.config.pluginmanager.hasplugin("cacheprovider") and not hasattr(session.config, "workerinput"):
        session.config.cache.set("federator/exit-status", int(exitstatus))


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
    return {"loop": _jumping_loop if item.get_closest_marker("looptime") else asyncio.new_event_loop}


def _jumping_loop() -> asyncio.AbstractEventLoop:
    # It turns so often without anything to do before it believes that nothing comes; by default ten times as often.
    return looptime.new_event_loop(noop_cycles=4)


@pytest.fixture
async def tasks_end() -> AsyncIterator[None]:
    """Fails an asynchronous test that leaves a task running."""
    yield
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"tasks were left running: {left}"


_SESSION = "control planes of the session"

_ON_CONTROL_PLANES = (
    "tests/integration/federation",
    "tests/integration/federation/test_secrets.py",
    "tests/robustness/test_fault_run.py",
    "tests/robustness/differential/test_differential.py",
    "tests/integration/deploy",
    _SESSION,
)
"""Scopes whose tests start control planes, in their order; those of the last one run until their worker ends."""


def _scope(nodeid: str) -> str:
    """What is dealt out as a whole: what shares control planes, and else a file."""
    file = nodeid.split("::", 1)[0]
    if file in _ON_CONTROL_PLANES:
        return file
    match file.split("/"):
        case ["tests", "integration", ("agent" | "cache" | "cli" | "examples" | "testbed"), *_]:
            return _SESSION
        case ["tests", "integration", ("deploy" | "federation") as folder, *_]:
            return f"tests/integration/{folder}"
        case _:
            return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals out tests by scope. While there is other work, all workers but one have control planes.

    Those tests wait most of the time, for controllers, kills and restarts; the others keep a core busy. Next to each
    other both are done sooner than one kind after the other, and control planes of many scopes do not fight for cores.
    """
    from xdist.scheduler import LoadScopeScheduling

    class AllButOneOnControlPlanes(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            self.workqueue.move_to_end(self._next(node), last=False)
            super()._assign_work_unit(node)

        def _next(self, node: Any) -> str:
            others = [units for other, units in self.assigned_work.items() if other is not node]
            taken = sum(
                any(scope in _ON_CONTROL_PLANES and not all(tests.values()) for scope, tests in units.items())
                for units in others
            )
            on = [scope for scope in _ON_CONTROL_PLANES if scope in self.workqueue]
            off = [scope for scope in self.workqueue if scope not in _ON_CONTROL_PLANES]
            wanted: list[str] = (on or off) if taken < max(len(others), 1) else (off or on)
            return wanted[0]

    return AllButOneOnControlPlanes(config, log)
