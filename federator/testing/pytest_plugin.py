"""Pytest fixtures with real control planes, and a fake one.

Enable them for a whole test suite by `pytest_plugins = ["federator.testing.pytest_plugin"]` in the top conftest.py, or
for one directory by importing the names of `__all__` into its conftest.py. Tests that use them carry the marker
`testbed`.

The fixtures with real ones are plain functions that run their own event loop for a moment, because the processes belong
to none: tests with loops of any scope share session-wide clusters. `fake_api_server` lives in the test's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

import pytest

from federator.errors import TestbedError
from federator.testing.binaries import provide, write_progress
from federator.testing.control_plane import ControlPlane
from federator.testing.fake_api_server import FakeApiServer
from federator.testing.testbed import Testbed

__all__ = [
    "control_plane_factory",
    "expendable_cluster",
    "expendable_plane",
    "fake_api_server",
    "living_cluster",
    "pytest_collection_finish",
    "shared_namespace",
    "three_clusters",
]

T = TypeVar("T")

_numbers = itertools.count(1)


class ControlPlaneFactory(Protocol):
    """Makes and starts a control plane of the test's own, which is closed after the test."""

    async def __call__(self, name: str = "private", **options: Any) -> ControlPlane:
        """Takes the options of `ControlPlane`; raises what its `start` raises."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds missing programs before the first test, out of reach of the tests' time limits and of output capture."""
    if session.config.option.collectonly or not any(item.get_closest_marker("testbed") for item in session.items):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
        try:
            _run(provide())
        except TestbedError as error:
            # Not the end: each test that needs a control plane fails with the same error, and the others run.
            write_progress(str(error))


@pytest.fixture(scope="session")
def three_clusters() -> Iterator[Testbed]:
    """Three control planes without workload controllers, "eu-1", "us-1" and "ap-1", shared by the session.

    Tests keep apart by namespaces (`shared_namespace`) and leave the processes alone; to kill or pause a control plane
    take `expendable_cluster`.
    """
    bed = Testbed(("eu-1", "us-1", "ap-1"))
    try:
        _run(bed.start())
        yield bed
    finally:
        _run(bed.close())


@pytest.fixture(scope="session")
def living_cluster() -> Iterator[ControlPlane]:
    """A control plane whose Deployments become Running pods, shared by the session."""
    plane = ControlPlane("living", living=True)
    try:
        _run(plane.start())
        yield plane
    finally:
        _run(plane.close())


@pytest.fixture
def shared_namespace(three_clusters: Testbed) -> str:
    """A new namespace of the same name in each of the three clusters. It stays there until the session ends."""
    name = f"test-{next(_numbers)}"
    _run(three_clusters.create_namespace(name))
    return name


@pytest.fixture(scope="session")
def expendable_plane() -> Iterator[ControlPlane]:
    """The control plane of `expendable_cluster`, in whatever state the last test has left it."""
    plane = ControlPlane("expendable")
    yield plane
    _run(plane.close())


@pytest.fixture
def expendable_cluster(expendable_plane: ControlPlane) -> ControlPlane:
    """A control plane without workload controllers that a test may kill, stop and pause; shared by the session.

    A test finds it running, with the objects that earlier ones have left in it.
    """
    for process in expendable_plane.processes.values():
        process.resume()
    _run(expendable_plane.start())
    return expendable_plane


@pytest.fixture
def control_plane_factory() -> Iterator[ControlPlaneFactory]:
    """Makes and starts control planes of the test's own: `await factory("eu-1", living=True)`."""
    planes: list[ControlPlane] = []

    async def make(name: str = "private", **options: Any) -> ControlPlane:
        plane = ControlPlane(name, **options)
        planes.append(plane)
        await plane.start()
        return plane

    yield make
    for plane in planes:
        _run(plane.close())


@pytest.fixture
async def fake_api_server() -> AsyncIterator[FakeApiServer]:
    """A fake apiserver over plain HTTP that never waits for a resourceVersion it has not seen; no marker needed.

    It needs pytest-asyncio in its auto mode.
    """
    async with FakeApiServer(too_large_wait=0.0) as server:
        yield server


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    # With a factory of its own, the runner leaves the thread's current event loop to the tests.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(coroutine)
