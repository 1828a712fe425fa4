from __future__ import annotations

import json
import ssl
from pathlib import Path

import aiohttp
import pytest

from federator.errors import CredentialsError
from federator.kube import MemberClient
from federator.testing.certificates import KeyPair
from federator.testing.fake_api_server import FakeApiServer
from tests.component.testing.fake_api_server.client import CONFIG_MAPS, Client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_anybody_may_ask_until_a_token_is_required(server: FakeApiServer, client: Client) -> None:
    assert (await client.get(CONFIG_MAPS)).code == 200
    server.require_token("one", "two")
    assert (await client.get(CONFIG_MAPS)).body["message"] == "Unauthorized"
    for token, code in (("one", 200), ("two", 200), ("three", 401)):
        assert (await client.get(CONFIG_MAPS, headers=bearer(token))).code == code
    server.allow_anonymous()
    assert (await client.get(CONFIG_MAPS)).code == 200


async def test_rotation_refuses_the_old_token_and_leaves_watches_alone(server: FakeApiServer, client: Client) -> None:
    server.require_token("old")
    async with client.watch(headers=bearer("old")) as stream:
        server.require_token("new")
        assert (await client.get(CONFIG_MAPS, headers=bearer("old"))).code == 401
        server.put("configmaps", "a")
        assert await stream.take(1) == ["ADDED a"]
    assert [request.user for request in server.requests] == ["token", ""]


async def test_a_token_in_a_file_and_a_plugin_are_read_anew(server: FakeApiServer, tmp_path: Path) -> None:
    server.require_token("old")
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps({**credential, "status": {"token": "old"}}))
    plugin = {
        "apiVersion": credential["apiVersion"],
        "command": "cat",
        "args": [str(answer)],
    }
    path = server.kubeconfig(tmp_path / "kubeconfig", exec=plugin)
    async with MemberClient.from_kubeconfig("fake", path=path) as client:
        await client.get(CONFIG_MAPS)
        server.require_token("new")
        answer.write_text(json.dumps({**credential, "status": {"token": "new"}}))
        await client.get(CONFIG_MAPS)
    assert [request.status for request in server.requests] == [200, 401, 200]

    token_file = tmp_path / "token"
    token_file.write_text("new")
    path = server.kubeconfig(tmp_path / "kubeconfig", token_file=token_file)
    async with MemberClient.from_kubeconfig("fake", path=path) as client:
        await client.get(CONFIG_MAPS)
    server.kubeconfig(path, token="wrong")
    async with MemberClient.from_kubeconfig("fake", path=path) as client:
        with pytest.raises(CredentialsError):
            await client.get(CONFIG_MAPS)


async def get_over_tls(server: FakeApiServer, folder: Path, pair: KeyPair | None) -> int:
    assert server.authority is not None
    tls = ssl.create_default_context(cadata=server.authority.decode())
    if pair is not None:
        tls.load_cert_chain(*pair.write(folder, "user"))
    connector = aiohttp.TCPConnector(ssl=tls)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(server.url + CONFIG_MAPS) as response:
        return response.status


async def test_client_certificates(tmp_path: Path) -> None:
    async with FakeApiServer(tls=True) as server:
        alice, bob = server.client_certificate("alice"), server.client_certificate("bob")
        assert await get_over_tls(server, tmp_path, None) == 200
        server.require_client_certificate()
        assert [await get_over_tls(server, tmp_path, pair) for pair in (None, alice, bob)] == [401, 200, 200]
        server.require_client_certificate(bob)
        assert [await get_over_tls(server, tmp_path, pair) for pair in (alice, bob)] == [401, 200]
        assert [request.user for request in server.requests] == ["", "", "alice", "bob", "", "bob"]
        path = server.kubeconfig(tmp_path / "kubeconfig", client_certificate=bob)
        assert path.stat().st_mode & 0o077 == 0
        async with MemberClient.from_kubeconfig("fake", path=path) as client:
            await client.get(CONFIG_MAPS)


async def test_client_certificates_need_tls(server: FakeApiServer) -> None:
    with pytest.raises(RuntimeError, match="tls=True"):
        server.client_certificate()
