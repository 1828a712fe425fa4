"""A scripted apiserver and a client of it; blocking calls from federator.kube fail the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from federator.kube import MemberClient, member_client
from tests.component.kube.scripted_server import ScriptedServer
from tests.fixtures import no_proxies, no_system_authorities
from tests.unit.kube.conftest import nothing_blocks_the_loop

__all__ = ["no_proxies", "no_system_authorities", "nothing_blocks_the_loop"]


@pytest.fixture(autouse=True)
def _no_rate_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_client, "REQUESTS_PER_SECOND", 1e6)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server:
        yield server


@pytest.fixture
async def client(server: ScriptedServer, tmp_path: Path) -> AsyncIterator[MemberClient]:
    path = server.kubeconfig(tmp_path / "kubeconfig")
    async with MemberClient.from_kubeconfig("member", path=path) as client:
        yield client
