"""Credentials against a server that checks them."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from federator.errors import CredentialsError, MemberUnreachable
from federator.kube import InClusterCredentials, KubeconfigCredentials, MemberClient
from federator.testing.certificates import CertificateAuthority
from tests.component.kube.scripted_server import Exchange, Request, ScriptedServer

VERSION = "client.authentication.k8s.io/v1"


async def echo_authorization(request: Request, exchange: Exchange) -> None:
    await exchange.json({"gitVersion": request.headers.get("authorization", "none")})


async def authorization(server: ScriptedServer, tmp_path: Path, user: dict[str, Any]) -> str:
    """What the server is told by a client with this kubeconfig user."""
    server.script = echo_authorization
    path = server.kubeconfig(tmp_path / "kubeconfig", user)
    async with MemberClient.from_kubeconfig(path=path) as client:
        return await client.server_version()


def plugin(status: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """A plugin that gives the status and writes a line to `runs` each time."""
    credential = json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": status})
    script = tmp_path / "plugin.py"
    script.write_text(f"open({str(tmp_path / 'runs')!r}, 'a').write('run\\n')\nprint({credential!r})\n")
    return {"exec": {"apiVersion": VERSION, "command": sys.executable, "args": [str(script)]}}


async def test_token(server: ScriptedServer, tmp_path: Path) -> None:
    assert await authorization(server, tmp_path, {"token": "t"}) == "Bearer t"


async def test_token_file(server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t\n")
    assert await authorization(server, tmp_path, {"tokenFile": "token"}) == "Bearer t"


async def test_basic_auth(server: ScriptedServer, tmp_path: Path) -> None:
    expected = "Basic " + base64.b64encode(b"me:pw").decode()
    assert await authorization(server, tmp_path, {"username": "me", "password": "pw"}) == expected


async def test_exec_token(server: ScriptedServer, tmp_path: Path) -> None:
    assert await authorization(server, tmp_path, plugin({"token": "t"}, tmp_path)) == "Bearer t"


async def test_no_user(server: ScriptedServer, tmp_path: Path) -> None:
    assert await authorization(server, tmp_path, {}) == "none"


async def test_credentials_of_netrc_are_not_sent(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password pw")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert await authorization(server, tmp_path, {}) == "none"


@pytest.mark.parametrize(
    ("user", "cause"),
    [
        ({"exec": {"apiVersion": VERSION, "command": "/no/such"}}, "exec plugin /no/such cannot be started"),
        ({"auth-provider": {"name": "oidc", "config": {"id-token": "a.b"}}}, "cannot be read"),
        ({"auth-provider": {"name": "oidc"}}, "cannot be read"),
    ],
)
async def test_what_cannot_be_loaded(server: ScriptedServer, tmp_path: Path, user: dict[str, Any], cause: str) -> None:
    with pytest.raises(CredentialsError, match=cause) as caught:
        await authorization(server, tmp_path, user)
    assert caught.value.context == "member"


async def test_unknown_context(server: ScriptedServer, tmp_path: Path) -> None:
    client = MemberClient.from_kubeconfig("other", path=server.kubeconfig(tmp_path / "kubeconfig"))
    with pytest.raises(CredentialsError, match="'other': no such context; known: member"):
        async with client:
            pass


async def test_proxy_url(server: ScriptedServer, tmp_path: Path) -> None:
    async with ScriptedServer() as proxy:
        proxy.script = echo_authorization
        path = server.kubeconfig(tmp_path / "kubeconfig", {"token": "t"}, {"proxy-url": proxy.url})
        async with MemberClient.from_kubeconfig("member", path=path) as client:
            assert await client.server_version() == "Bearer t"
        assert [request.target for request in proxy.requests] == [f"{server.url}/version"]
    assert server.requests == []


async def test_proxy_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedServer() as proxy:
        proxy.script = echo_authorization
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        member = ScriptedServer()
        member.url = "http://member.invalid:6443"
        path = member.kubeconfig(tmp_path / "kubeconfig")
        async with MemberClient.from_kubeconfig("member", path=path) as client:
            await client.server_version()
        assert [request.target for request in proxy.requests] == ["http://member.invalid:6443/version"]


async def test_socks_proxy_of_the_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "socks5://me:hunter2@p")
    member = ScriptedServer()
    member.url = "http://member.invalid:6443"
    with pytest.raises(CredentialsError, match="SOCKS") as caught:
        await KubeconfigCredentials(path=member.kubeconfig(tmp_path / "kubeconfig")).connect()
    assert "hunter2" not in str(caught.value)


# TLS


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority("members")


@pytest.fixture
async def tls_server(authority: CertificateAuthority, tmp_path: Path) -> AsyncIterator[ScriptedServer]:
    """Serves TLS as 127.0.0.1 and demands a client certificate."""
    serving = authority.serving("member", hosts=("member.test",), addresses=("127.0.0.1",))
    (tmp_path / "server.crt").write_bytes(serving.certificate)
    (tmp_path / "server.key").write_bytes(serving.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.certificate.decode())
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    async with ScriptedServer(context) as server:
        server.script = echo_authorization
        yield server


def inline(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


async def test_private_ca_and_client_certificate(
    tls_server: ScriptedServer, authority: CertificateAuthority, tmp_path: Path
) -> None:
    certificate, key = authority.client("me")
    user = {"client-certificate-data": inline(certificate), "client-key-data": inline(key)}
    cluster = {"certificate-authority-data": inline(authority.certificate), "tls-server-name": "member.test"}
    path = tls_server.kubeconfig(tmp_path / "kubeconfig", user, cluster)
    async with MemberClient.from_kubeconfig("member", path=path) as client:
        assert await client.server_version() == "none"


async def test_certificate_of_a_plugin_leaves_no_file(
    tls_server: ScriptedServer, authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = authority.client("me")
    status = {"clientCertificateData": certificate.decode(), "clientKeyData": key.decode(), "token": "t"}
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    path = tls_server.kubeconfig(tmp_path / "kubeconfig", plugin(status, tmp_path), {"certificate-authority": "ca.crt"})
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    async with MemberClient.from_kubeconfig("member", path=path) as client:
        assert await client.server_version() == "Bearer t"
    assert os.listdir(tmp_path / "temporary") == []  # noqa: PTH208


async def test_unknown_authority(tls_server: ScriptedServer, tmp_path: Path) -> None:
    other = {"certificate-authority-data": inline(CertificateAuthority("others").certificate)}
    path = tls_server.kubeconfig(tmp_path / "kubeconfig", None, other)
    async with MemberClient.from_kubeconfig("member", path=path) as client:
        with pytest.raises(MemberUnreachable, match="certificate not accepted: ") as caught:
            await client.server_version()
    assert caught.value.server == tls_server.url


async def test_insecure_skip_tls_verify_still_needs_the_client_certificate(
    tls_server: ScriptedServer, tmp_path: Path
) -> None:
    path = tls_server.kubeconfig(tmp_path / "kubeconfig", None, {"insecure-skip-tls-verify": True})
    async with MemberClient.from_kubeconfig("member", path=path) as client:
        with pytest.raises(MemberUnreachable):
            await client.server_version()


async def test_a_certificate_without_its_key(
    tls_server: ScriptedServer, authority: CertificateAuthority, tmp_path: Path
) -> None:
    user = {
        "client-certificate-data": inline(authority.client("me").certificate),
        "client-key-data": inline(authority.client("you").key),
    }
    with pytest.raises(CredentialsError, match="KEY_VALUES_MISMATCH"):
        await KubeconfigCredentials(path=tls_server.kubeconfig(tmp_path / "kubeconfig", user)).connect()


# In a pod


async def test_in_cluster_follows_the_token_file(
    server: ScriptedServer, authority: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = authority.serving("member", hosts=(), addresses=("127.0.0.1",))
    (tmp_path / "server.crt").write_bytes(serving.certificate)
    (tmp_path / "server.key").write_bytes(serving.key)
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    token = tmp_path / "token"
    token.write_text("first\n")

    async def script(request: Request, exchange: Exchange) -> None:
        accepted = request.headers["authorization"].split(" ")[1]
        await exchange.json({"gitVersion": accepted}, code=200 if accepted == token.read_text().strip() else 401)

    async with ScriptedServer(tls) as member:
        member.script = script
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", member.url.rsplit(":", 1)[1])
        source = InClusterCredentials(token_file=token, ca_file=tmp_path / "ca.crt")
        async with MemberClient(source) as client:
            assert client.server == member.url
            assert await client.server_version() == "first"
            await asyncio.to_thread(token.write_text, "second\n")
            assert await client.server_version() == "second"


async def test_outside_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(CredentialsError, match="'in-cluster': Service host/port is not set"):
        async with MemberClient.in_cluster():
            pass
