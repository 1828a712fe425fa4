"""A fake apiserver and a client of it; no test may leave a task behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from federator.kube import MemberClient
from federator.testing import FakeApiServer
from federator.testing.pytest_plugin import fake_api_server

__all__ = ["fake_api_server"]


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[EventDict]]:
    """What was logged so far."""
    with capture_logs() as captured:
        yield captured


@pytest.fixture(autouse=True)
async def _no_task_is_left() -> AsyncIterator[None]:
    yield
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"tasks were left running: {left}"


@pytest.fixture(autouse=True)
def _no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each client would load the system's certificate authorities, most of a test's time and of no use to plain HTTP.
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    monkeypatch.setenv("SSL_CERT_DIR", os.devnull)


@pytest.fixture
def server(_no_task_is_left: None, fake_api_server: FakeApiServer) -> FakeApiServer:
    return fake_api_server


@pytest.fixture
async def client(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[MemberClient]:
    async with MemberClient.from_kubeconfig("fake", path=server.kubeconfig(tmp_path / "kubeconfig")) as client:
        yield client
