"""A fake apiserver and a client of it; no test may leave a task behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from federator.kube import MemberClient
from federator.testing import FakeApiServer
from federator.testing.pytest_plugin import fake_api_server
from tests.component.kube.no_credentials import NoCredentials
from tests.fixtures import logs, no_system_authorities, no_task_is_left

__all__ = ["fake_api_server", "logs", "no_system_authorities", "no_task_is_left"]


@pytest.fixture
def server(no_task_is_left: None, fake_api_server: FakeApiServer) -> FakeApiServer:
    return fake_api_server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[MemberClient]:
    async with MemberClient(NoCredentials(server.url)) as client:
        yield client
