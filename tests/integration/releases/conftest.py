"""A member to follow, and federations of it whose processes are of either release."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from federator.testing.fake_api_server import FakeApiServer
from federator.testing.federation import Federation
from tests.integration.releases.member import CONTEXT, Traffic
from tests.integration.releases.previous_release import PreviousRelease


@pytest.fixture(scope="module")
def previous_release() -> Iterator[PreviousRelease]:
    release = PreviousRelease()
    yield release
    release.close()


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(too_large_wait=0.0, bookmark_interval=1.0) as server:
        yield server


@pytest.fixture
def traffic(server: FakeApiServer) -> Traffic:
    return Traffic(server)


@pytest.fixture
def kubeconfig(server: FakeApiServer, tmp_path: Path) -> Path:
    return server.kubeconfig(tmp_path / "kubeconfig", context=CONTEXT)


@pytest.fixture
def federation(kubeconfig: Path, tmp_path: Path) -> Iterator[Federation]:
    """Nothing of it is started."""
    federation = Federation(kubeconfig, (CONTEXT,), folder=tmp_path)
    yield federation
    federation.close()
