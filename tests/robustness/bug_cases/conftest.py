"""A fake apiserver and a client of it; logs for inspection, and a check that no task is left running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from federator.kube import KubeconfigCredentials, MemberClient
from federator.testing import FakeApiServer
from federator.testing.pytest_plugin import fake_api_server
from tests.robustness.bug_cases.follower import assert_polite

__all__ = ["fake_api_server"]


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """What was logged so far."""
    with capture_logs() as captured:
        yield captured


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = [task.get_name() for task in asyncio.all_tasks() - before if task is not asyncio.current_task()]
    assert not left, f"tasks were left running: {left}"


@pytest.fixture
def server(_no_task_is_left: None, fake_api_server: FakeApiServer) -> Iterator[FakeApiServer]:
    yield fake_api_server
    assert_polite(fake_api_server)


@pytest.fixture
async def client(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[MemberClient]:
    credentials = KubeconfigCredentials(path=server.kubeconfig(tmp_path / "kubeconfig"))
    async with MemberClient(credentials, clock=asyncio.get_running_loop().time) as client:
        yield client
