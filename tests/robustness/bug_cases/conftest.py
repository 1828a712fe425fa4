"""A fake apiserver and a client of it; logs for inspection, and a check that no task is left running."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from federator.cache import reflector
from federator.cache.backoff import Backoff
from federator.kube import KubeconfigCredentials, MemberClient
from federator.testing import FakeApiServer
from federator.testing.pytest_plugin import fake_api_server
from tests.fixtures import logs, no_proxies, no_system_authorities, no_task_is_left
from tests.robustness.bug_cases.follower import assert_polite

__all__ = ["fake_api_server", "logs", "no_proxies", "no_system_authorities", "no_task_is_left"]


@pytest.fixture
def server(no_task_is_left: None, fake_api_server: FakeApiServer) -> Iterator[FakeApiServer]:
    yield fake_api_server
    assert_polite(fake_api_server)


@pytest.fixture
async def client(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[MemberClient]:
    credentials = KubeconfigCredentials(path=server.kubeconfig(tmp_path / "kubeconfig"))
    async with MemberClient(credentials, clock=asyncio.get_running_loop().time) as client:
        yield client


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reflectors of agents try again soon after a failure: for tests in real time that wait for them to recover."""
    monkeypatch.setattr(reflector, "Backoff", functools.partial(Backoff, base=0.1, cap=0.2))
