"""A scripted apiserver and a client of it; blocking calls from federator.kube fail the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from federator.kube import MemberClient, member_client
from tests.fixtures import no_proxies, no_system_authorities
from tests.unit.kube.scripted_server import ScriptedServer

__all__ = ["no_proxies", "no_system_authorities"]


@pytest.fixture(autouse=True, scope="module")  # for one test it would take longer than most tests
def _nothing_blocks_the_loop() -> Iterator[None]:
    with blockbuster_ctx("federator.kube"):
        yield


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
