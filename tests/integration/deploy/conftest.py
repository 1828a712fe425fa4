"""One cluster on which what is shipped is applied; admission, controllers and scheduler are real."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from federator.testing.binaries import provide
from federator.testing.control_plane import ControlPlane


@pytest.fixture(scope="package")
def kubectl_program() -> Path:
    """The testbed's kubectl."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(provide(("kubectl",))).paths["kubectl"]


@pytest.fixture(scope="package")
def member() -> Iterator[ControlPlane]:
    """A living cluster; its only node is a fake one, so that pods are admitted and bound, and nothing runs."""
    plane = ControlPlane("eu-1", living=True, nodes=1)
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        try:
            runner.run(plane.start(timeout=120))
            yield plane
        finally:
            runner.run(plane.close())
