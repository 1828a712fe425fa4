"""A fake apiserver and a client that shows every byte."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from federator.testing.fake_api_server import FakeApiServer
from federator.testing.pytest_plugin import fake_api_server
from tests.component.testing.fake_api_server.client import Client

__all__ = ["fake_api_server"]


@pytest.fixture
def server(fake_api_server: FakeApiServer) -> FakeApiServer:
    return fake_api_server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(server.url) as session:
        yield Client(session)
