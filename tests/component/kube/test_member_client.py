"""The connection to one apiserver: refreshed credentials, failures, identity, counts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiolimiter import AsyncLimiter

from federator.errors import CredentialsError, KubeStatusError, MemberUnreachable
from federator.kube import MemberClient, member_client
from tests.component.kube.scripted_server import Exchange, Request, ScriptedServer, eventually

VERSION = "client.authentication.k8s.io/v1"

PLUGIN = """
echo run >> "$1"
if [ ! -s "$2" ]; then echo log in first >&2; exit 1; fi
printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}' "$(cat "$2")"
"""


class Plugin:
    """A plugin that gives what `give` was told; counts its runs."""

    def __init__(self, directory: Path) -> None:
        self._script, self._runs, self._token = (directory / name for name in ("plugin.sh", "runs", "token"))
        self._script.write_text(PLUGIN)
        self._runs.touch()

    def give(self, token: str) -> None:
        self._token.write_text(token)

    @property
    def runs(self) -> int:
        return self._runs.read_text().count("run")

    def user(self) -> dict[str, Any]:
        args = [str(path) for path in (self._script, self._runs, self._token)]
        return {"exec": {"apiVersion": VERSION, "command": "sh", "args": args}}


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class TokenServer:
    """Accepts one token; `/watch` is a watch that lives until `end` is set."""

    def __init__(self, server: ScriptedServer, accepted: str) -> None:
        self.accepted = accepted
        self.refused = 0
        self.end = asyncio.Event()
        server.script = self.script

    async def script(self, request: Request, exchange: Exchange) -> None:
        if request.headers.get("authorization") != f"Bearer {self.accepted}":
            self.refused += 1
            await exchange.json({"kind": "Status", "code": 401}, code=401)
        elif request.path == "/watch":
            await exchange.stream()
            await exchange.chunk(b"begin")
            await self.end.wait()
            await exchange.chunk(b"end")
            await exchange.end()
        else:
            await exchange.body(b"ok")


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def client_with(server: ScriptedServer, plugin: Plugin, tmp_path: Path, clock: Clock | None = None) -> MemberClient:
    path = server.kubeconfig(tmp_path / "kubeconfig", plugin.user())
    client = MemberClient.from_kubeconfig("member", path=path)
    client._clock = clock or client._clock
    return client


async def test_a_401_refreshes_once_for_all(server: ScriptedServer, plugin: Plugin, tmp_path: Path) -> None:
    plugin.give("old")
    tokens = TokenServer(server, "old")
    async with client_with(server, plugin, tmp_path) as client:
        assert await client.get("/x") == b"ok"
        for rotation in range(1, 3):
            tokens.accepted = f"new-{rotation}"
            plugin.give(tokens.accepted)
            async with asyncio.timeout(30):
                assert await asyncio.gather(*(client.get("/x") for _ in range(20))) == [b"ok"] * 20
            assert plugin.runs == 1 + rotation
        assert client.statistics()["credential_refreshes"] == 2
        assert client.statistics()["requests"][("get", 200)] == 41


async def test_a_late_401_takes_the_credentials_that_are_new_already(
    server: ScriptedServer, plugin: Plugin, tmp_path: Path
) -> None:
    plugin.give("old")
    tokens = TokenServer(server, "new")
    may_answer = asyncio.Event()

    async def script(request: Request, exchange: Exchange) -> None:
        if request.path == "/late":
            await may_answer.wait()
        await tokens.script(request, exchange)

    server.script = script
    async with client_with(server, plugin, tmp_path) as client, asyncio.timeout(20):
        plugin.give("new")
        late = asyncio.create_task(client.get("/late"))
        await eventually(lambda: len(server.requests) == 1)
        assert await client.get("/x") == b"ok"
        may_answer.set()
        assert await late == b"ok"
        assert plugin.runs == 2


async def test_rotation_does_not_tear_down_watches(server: ScriptedServer, plugin: Plugin, tmp_path: Path) -> None:
    plugin.give("old")
    tokens = TokenServer(server, "old")
    async with client_with(server, plugin, tmp_path) as client:
        async with client.watch("/watch", (), accept="*/*", length=0) as chunks:
            assert await anext(chunks) == b"begin"
            tokens.accepted = "new"
            plugin.give("new")
            assert await client.get("/x") == b"ok"
            tokens.end.set()
            assert [chunk async for chunk in chunks] == [b"end"]
            assert [session.closed for session in client._sessions] == [False, False]
        assert [session.closed for session in client._sessions] == [True, False]


async def test_credentials_that_stay_refused(server: ScriptedServer, plugin: Plugin, tmp_path: Path) -> None:
    plugin.give("old")
    tokens = TokenServer(server, "other")
    clock = Clock()
    async with client_with(server, plugin, tmp_path, clock) as client:
        for _ in range(3):  # the plugin is not run again for each
            with pytest.raises(CredentialsError, match="does not accept them"):
                await client.get("/x")
        assert plugin.runs == 2
        clock.now += member_client.REFRESH_PAUSE
        plugin.give("other")
        assert await client.get("/x") == b"ok"
        assert plugin.runs == 3
    assert tokens.refused == 5


async def test_a_plugin_that_fails_once(server: ScriptedServer, plugin: Plugin, tmp_path: Path) -> None:
    plugin.give("old")
    tokens = TokenServer(server, "old")
    clock = Clock()
    async with client_with(server, plugin, tmp_path, clock) as client:
        tokens.accepted = "new"
        plugin.give("")
        results = await asyncio.gather(*(client.get("/x") for _ in range(5)), return_exceptions=True)
        assert {type(result) for result in results} == {CredentialsError}
        with pytest.raises(CredentialsError):
            await client.get("/x")  # too soon to run the plugin again
        assert plugin.runs == 2
        clock.now += member_client.REFRESH_PAUSE
        plugin.give("new")
        assert await client.get("/x") == b"ok"


async def test_cancelling_one_that_waits_does_not_stop_the_refresh(
    server: ScriptedServer, plugin: Plugin, tmp_path: Path
) -> None:
    plugin.give("old")
    tokens = TokenServer(server, "old")
    async with client_with(server, plugin, tmp_path) as client:
        tokens.accepted = "new"
        plugin.give("new")
        first, second = (asyncio.create_task(client.get("/x")) for _ in range(2))
        await eventually(lambda: tokens.refused == 2)
        first.cancel()
        assert await second == b"ok"
        assert first.cancelled()
        assert plugin.runs == 2


async def test_leaving_ends_a_refresh_and_its_plugin(server: ScriptedServer, plugin: Plugin, tmp_path: Path) -> None:
    plugin.give("old")
    TokenServer(server, "new")
    async with client_with(server, plugin, tmp_path) as client:
        getting = asyncio.create_task(client.get("/x"))
        await eventually(lambda: client._refreshing is not None)
    with pytest.raises(asyncio.CancelledError):
        await getting
    assert len(asyncio.all_tasks()) <= 2  # this test and the server's connection


# Failures


async def test_429_with_retry_after(server: ScriptedServer, client: MemberClient) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.json({"kind": "Status", "reason": "TooManyRequests"}, code=429, headers={"Retry-After": "7"})

    server.script = script
    with pytest.raises(KubeStatusError) as caught:
        await client.get("/x")
    assert (caught.value.code, caught.value.status_reason, caught.value.retry_after) == (429, "TooManyRequests", 7)
    assert client.statistics()["requests"] == {("get", 429): 1}


async def test_502_with_a_page_on_opening_a_watch(server: ScriptedServer, client: MemberClient) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.body(b"<html><h1>502 Bad Gateway</h1></html>", code=502)

    server.script = script
    with pytest.raises(KubeStatusError, match="502: 502 Bad Gateway") as caught:
        async with client.watch("/x", (), accept="*/*", length=0):
            pass
    assert caught.value.in_stream is False


async def test_an_error_in_pieces(server: ScriptedServer, client: MemberClient) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 403 X\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b'{"kind":"Status",', b'"reason":"Forbidden"}'):
            await exchange.chunk(piece)
            await asyncio.sleep(0.01)
        await exchange.end()

    server.script = script
    with pytest.raises(KubeStatusError) as caught:
        await client.get("/x")
    assert caught.value.status_reason == "Forbidden"


@pytest.mark.parametrize("length", [1_000_000, 10_000_000])
async def test_an_error_of_any_length(server: ScriptedServer, client: MemberClient, length: int) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.body(b"x" * length, code=500)

    server.script = script
    with pytest.raises(KubeStatusError, match="500: xxx"):
        await client.get("/x")


async def test_an_error_whose_body_never_comes(
    server: ScriptedServer, client: MemberClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.raw(b"HTTP/1.1 503 X\r\nContent-Length: 10\r\n\r\n")
        if request.path == "/reset":
            exchange.rst()
        else:
            await exchange.closed_by_client()

    server.script = script
    monkeypatch.setattr(member_client, "CONNECT_TIMEOUT", 0.05)
    async with asyncio.timeout(5):
        for path in ("/reset", "/silent"):
            with pytest.raises(KubeStatusError, match="Service Unavailable"):
                await client.get(path)


@pytest.mark.parametrize("fault", ["refused", "reset", "closed", "no HTTP"])
async def test_unreachable(server: ScriptedServer, client: MemberClient, fault: str) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        match fault:
            case "reset":
                exchange.rst()
            case "closed":
                exchange.fin()
            case _:
                await exchange.raw(b"SSH-2.0-OpenSSH\r\n\r\n")
                exchange.fin()

    server.script = script
    if fault == "refused":
        server._server.close()
    with pytest.raises(MemberUnreachable) as caught:
        await client.get("/x")
    assert caught.value.server == server.url
    with pytest.raises(MemberUnreachable):
        async with client.watch("/x", (), accept="*/*", length=0):
            pass
    assert client.statistics()["requests"] == {("get", 0): 1, ("watch", 0): 1}


async def test_a_loop_that_takes_a_descriptor_for_one_in_use(
    server: ScriptedServer, client: MemberClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise RuntimeError("File descriptor 61 is used by transport <TCPTransport closed=False reading=True>")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", refuse)
    with pytest.raises(MemberUnreachable):
        await client.get("/x")
    with pytest.raises(MemberUnreachable):
        async with client.watch("/x", (), accept="*/*", length=0):
            pass
    assert client.statistics()["requests"] == {("get", 0): 1, ("watch", 0): 1}


async def test_a_server_that_never_answers(
    server: ScriptedServer, client: MemberClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.closed_by_client()

    server.script = script
    monkeypatch.setattr(member_client, "REQUEST_TIMEOUT", 0.05)
    async with asyncio.timeout(5):
        with pytest.raises(MemberUnreachable, match="no answer in time"):
            await client.get("/x")
        with pytest.raises(MemberUnreachable, match="no answer in time"):
            async with client.watch("/x", (), accept="*/*", length=0):
                pass


async def test_a_body_that_never_ends(
    server: ScriptedServer, client: MemberClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.closed_by_client()

    server.script = script
    monkeypatch.setattr(member_client, "REQUEST_TIMEOUT", 0.05)
    async with asyncio.timeout(5):
        with pytest.raises(MemberUnreachable, match="no answer in time"):
            await client.get("/x")


def test_timeouts_are_longer_than_the_servers() -> None:
    assert member_client.REQUEST_TIMEOUT > 60


async def test_a_client_that_is_not_entered(server: ScriptedServer, tmp_path: Path) -> None:
    client = MemberClient.from_kubeconfig("member", path=server.kubeconfig(tmp_path / "kubeconfig"))
    assert client.server == ""
    with pytest.raises(RuntimeError, match="not entered"):
        await client.get("/x")


async def test_one_connection_serves_requests_in_turn(server: ScriptedServer, client: MemberClient) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        if request.path == "/missing":
            await exchange.json({"kind": "Status", "code": 404}, code=404)
        else:
            await exchange.body(b"ok")

    server.script = script
    for _ in range(5):
        await client.get("/x")
        with pytest.raises(KubeStatusError):
            await client.get("/missing")
    assert server.connections == 1


async def test_a_server_below_a_path(server: ScriptedServer, tmp_path: Path) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.body(b"ok")

    server.script = script
    path = server.kubeconfig(tmp_path / "kubeconfig", None, {"server": f"{server.url}/k8s/clusters/c-1/"})
    async with MemberClient.from_kubeconfig("member", path=path) as client:
        await client.get("/api")
    assert server.requests[0].path == "/k8s/clusters/c-1/api"


# Identity


async def test_cluster_uid(server: ScriptedServer, client: MemberClient) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        assert request.path == "/api/v1/namespaces/kube-system"
        await exchange.json({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": "the-uid"}})

    server.script = script
    assert await client.cluster_uid() == "the-uid"


@pytest.mark.parametrize("code", [403, 404])
async def test_cluster_uid_stand_in(server: ScriptedServer, tmp_path: Path, code: int) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.json({"kind": "Status", "code": code}, code=code)

    server.script = script
    uids = []
    for path in ("", "/a", "/a"):
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig", None, {"server": server.url + path})
        async with MemberClient.from_kubeconfig("member", path=kubeconfig) as client:
            uids.append(await client.cluster_uid())
    assert all(uid.startswith("server-") and len(uid) == 39 for uid in uids)
    assert uids[0] != uids[1] == uids[2]


async def test_cluster_uid_that_is_no_answer(server: ScriptedServer, client: MemberClient) -> None:
    for code, body in [(200, b"{}"), (200, b"<html>"), (500, b"")]:

        async def script(request: Request, exchange: Exchange, code: int = code, body: bytes = body) -> None:
            await exchange.body(body, code=code)

        server.script = script
        with pytest.raises(KubeStatusError):
            await client.cluster_uid()


async def test_server_version(server: ScriptedServer, client: MemberClient) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.json({"major": "1", "gitVersion": "v1.37.2"} if request.path == "/version" else None)

    server.script = script
    assert await client.server_version() == "v1.37.2"


async def test_bytes_are_counted(server: ScriptedServer, client: MemberClient) -> None:
    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.body(b"12345")

    server.script = script
    await client.get("/x")
    async with client.watch("/x", (), accept="*/*", length=0) as chunks:
        assert [chunk async for chunk in chunks] == [b"12345"]
    assert client.statistics()["received_bytes"] == 10
    assert json.dumps(list(client.statistics())) == json.dumps(
        ["requests", "received_bytes", "watch_frames", "skipped_objects", "credential_refreshes"]
    )


async def test_requests_beyond_the_clusters_rate_wait_their_turn(
    server: ScriptedServer, client: MemberClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many informers ask: the burst passes at once, what is beyond it comes at the rate."""
    answered = 0

    async def script(request: Request, exchange: Exchange) -> None:
        await exchange.body(b"ok")

    async def ask() -> None:
        nonlocal answered
        await client.get("/x")
        answered += 1

    server.script = script
    monkeypatch.setattr(client, "_limiter", AsyncLimiter(5, 3600))
    asking = [asyncio.create_task(ask()) for _ in range(9)]
    await eventually(lambda: answered == 5)
    for _ in range(20):
        await asyncio.sleep(0)
    assert (answered, len(server.requests)) == (5, 5)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
