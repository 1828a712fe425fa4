"""TLS between real ends: who is let in, and that replaced files are."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from federator.errors import AggregatorUnreachable, FederatorError, InvalidInput
from federator.testing.certificates import CertificateAuthority, KeyPair, write_pem
from federator.wire.tls import (
    TLSFiles,
    all_or_none,
    explained,
    open_channel,
    require_dialable,
    server_credentials,
)

EXPIRED = datetime.timedelta(seconds=-1)
ONE_CONNECTION_EACH = (("grpc.use_local_subchannel_pool", 1),)


class Ends:
    """A server and a client with files of their own; authority `one` signs for the server, `two` for clients."""

    def __init__(self, folder: Path) -> None:
        self.one, self.two = CertificateAuthority("one"), CertificateAuthority("two")
        self.folder = folder
        self.server = self._files("server", "client-ca-file")
        self.client = self._files("client", "aggregator-ca-file")
        self.write("server", self.two, serving(self.one))
        self.write("client", self.one, self.two.agent("eu-1"))
        self.address = ""

    def write(self, side: str, trusted: CertificateAuthority, pair: KeyPair) -> None:
        write_pem(self.folder / f"{side}-ca.crt", trusted.certificate)
        pair.write(self.folder, side)

    def _files(self, side: str, ca_field: str) -> TLSFiles:
        return TLSFiles(
            ca_file=self.folder / f"{side}-ca.crt",
            certificate_file=self.folder / f"{side}.crt",
            private_key_file=self.folder / f"{side}.key",
            ca_field=ca_field,
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async def identity(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            presented: Mapping[str, Iterable[bytes]] = context.auth_context()
            return b" ".join(presented.get("peer_spiffe_id", ()))

        server = grpc.aio.server()
        method = grpc.unary_unary_rpc_method_handler(identity)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Who", {"AmI": method}),))
        port = server.add_secure_port("127.0.0.1:0", server_credentials(self.server))
        self.address = f"127.0.0.1:{port}"
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)

    async def ask(self) -> str:
        """Who the server says the client is, over a new connection with the files as they are now."""
        async with open_channel(self.address, self.client.read(), ONE_CONNECTION_EACH) as typed_channel:
            channel: Any = typed_channel
            answer: bytes = await channel.unary_unary("/test.Who/AmI")(b"", timeout=10)
            return answer.decode()


def serving(authority: CertificateAuthority, *, address: str = "127.0.0.1") -> KeyPair:
    return authority.serving("server", hosts=("localhost",), addresses=(address,))


@pytest.fixture
def ends(tmp_path: Path) -> Ends:
    return Ends(tmp_path)


async def test_both_sides_show_a_certificate(ends: Ends) -> None:
    async with ends.serving():
        assert await ends.ask() == "spiffe://federator.test/cluster/eu-1"


async def test_who_shows_none_is_not_let_in(ends: Ends) -> None:
    async with ends.serving():
        credentials = grpc.ssl_channel_credentials(ends.one.certificate)
        async with grpc.aio.secure_channel(ends.address, credentials) as typed_channel:
            channel: Any = typed_channel
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/test.Who/AmI")(b"", timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        async with grpc.aio.insecure_channel(ends.address) as plaintext:
            channel = plaintext
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary("/test.Who/AmI")(b"", timeout=10)
        assert await ends.ask(), "the server goes on"


@pytest.mark.parametrize(
    "shown",
    [
        lambda ends: CertificateAuthority("two").agent("eu-1"),
        lambda ends: ends.one.agent("eu-1"),
        lambda ends: ends.two.agent("eu-1", lifetime=EXPIRED),
        lambda ends: serving(ends.two),
    ],
    ids=["authority of the same name", "authority of servers", "expired", "for servers"],
)
async def test_a_clients_certificate_that_is_no_good_is_not_taken(ends: Ends, shown: Any) -> None:
    ends.write("client", ends.one, shown(ends))
    async with ends.serving():
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ends.ask()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_aggregator_that_is_not_the_one_asked_for_is_not_talked_to(ends: Ends) -> None:
    async with ends.serving():
        ends.write("client", CertificateAuthority("one"), ends.two.agent("eu-1"))
        with pytest.raises(grpc.aio.AioRpcError, match="CERTIFICATE_VERIFY_FAILED"):
            await ends.ask()
    ends.write("client", ends.one, ends.two.agent("eu-1"))
    ends.write("server", ends.two, serving(ends.one, address="127.0.0.2"))
    async with ends.serving():
        with pytest.raises(grpc.aio.AioRpcError, match=r"127\.0\.0\.1"):
            await ends.ask()


async def test_everything_may_be_replaced_while_the_server_runs(ends: Ends) -> None:
    async with ends.serving():
        assert await ends.ask()
        third, fourth = CertificateAuthority("three"), CertificateAuthority("four")
        ends.write("server", fourth, serving(third))
        with pytest.raises(grpc.aio.AioRpcError, match="CERTIFICATE_VERIFY_FAILED"):
            await ends.ask()  # it knows the former authority only
        write_pem(ends.client.ca_file, third.certificate)
        with pytest.raises(grpc.aio.AioRpcError):
            await ends.ask()  # its certificate is of the former authority
        write_pem(ends.server.ca_file, fourth.certificate + ends.two.certificate)
        assert await ends.ask() == "spiffe://federator.test/cluster/eu-1"
        fourth.agent("us-1").write(ends.folder, "client")
        assert await ends.ask() == "spiffe://federator.test/cluster/us-1"


async def test_files_that_cannot_be_used_change_nothing_until_they_can(ends: Ends) -> None:
    async with ends.serving():
        with capture_logs() as logs:
            ends.one.agent("x").write(ends.folder, "other")
            write_pem(ends.server.private_key_file, (ends.folder / "other.key").read_bytes())
            assert await ends.ask()
            assert await ends.ask()
            ends.server.ca_file.unlink()
            assert await ends.ask()
        assert [entry["event"] for entry in logs] == ["TLS files are not taken, the former are used"] * 2
        ends.write("server", CertificateAuthority("three"), serving(ends.one))
        with pytest.raises(grpc.aio.AioRpcError):
            await ends.ask()
        ends.write("server", ends.two, serving(ends.one))
        assert await ends.ask()


@pytest.mark.parametrize(
    ("file", "content", "field"),
    [
        ("server-ca.crt", None, "client-ca-file"),
        ("server-ca.crt", b"", "client-ca-file"),
        ("server-ca.crt", b"nonsense", "client-ca-file"),
        ("server.crt", None, "tls-cert-file"),
        ("server.crt", b"nonsense", "tls-cert-file"),
        ("server.key", None, "tls-private-key-file"),
        ("server.key", b"nonsense", "tls-cert-file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(ends: Ends, file: str, content: bytes | None, field: str) -> None:
    path = ends.folder / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput) as refused:
        server_credentials(ends.server)
    assert refused.value.field == field
    assert "PEM file" in refused.value.allowed or "No such file" in refused.value.allowed


def test_the_key_of_another_certificate_is_refused(ends: Ends) -> None:
    write_pem(ends.server.private_key_file, ends.one.agent("x").key)
    with pytest.raises(InvalidInput, match=r"server\.key"):
        ends.server.read()


def test_the_version_changes_with_the_files(ends: Ends) -> None:
    before = ends.client.version()
    assert ends.client.version() == before
    ends.write("client", ends.one, ends.two.agent("eu-1"))
    assert ends.client.version() != before
    ends.client.ca_file.unlink()
    assert ends.client.version() == ()


def test_either_all_files_are_given_or_none() -> None:
    ca, certificate, key = Path("ca"), Path("certificate"), Path("key")
    assert all_or_none(None, None, None) is None
    files = all_or_none(ca, certificate, key, ca_field="x")
    assert files == TLSFiles(ca_file=ca, certificate_file=certificate, private_key_file=key, ca_field="x")
    for given, missing in (
        ((ca, None, None), "tls-cert-file"),
        ((ca, certificate, None), "tls-private-key-file"),
        ((None, certificate, key), "aggregator-ca-file"),
        ((None, None, key), "aggregator-ca-file"),
    ):
        with pytest.raises(InvalidInput) as refused:
            all_or_none(*given)
        assert refused.value.field == missing


def test_plaintext_dials_only_what_this_machine_alone_reaches(ends: Ends) -> None:
    for address in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/x.sock"):
        require_dialable(address, None, field="server")
    for address in ("10.0.0.1:1", "example.org:1", "dns:///localhost:1", "nonsense"):
        with pytest.raises(InvalidInput) as refused:
            require_dialable(address, None, field="server")
        assert (refused.value.field, refused.value.given) == ("server", address)
    for address in ("127.0.0.1:1", "example.org:1"):
        require_dialable(address, ends.client, field="server")
    with pytest.raises(InvalidInput, match="unix socket has no TLS"):
        require_dialable("unix:/run/x.sock", ends.client, field="server")


def test_a_connection_closed_without_a_word_is_explained(ends: Ends) -> None:
    closed = AggregatorUnreachable("a:1", "UNAVAILABLE: Socket closed")
    assert str(ends.client.certificate_file) in str(explained(closed, ends.client))
    other: FederatorError
    for other in (AggregatorUnreachable("a:1", "Connection refused"), FederatorError("Socket closed")):
        assert explained(other, ends.client) is other
    assert explained(closed, None) is closed


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(ends: Ends) -> None:
    key = serialization.load_pem_private_key(ends.server.private_key_file.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    write_pem(ends.server.private_key_file, encrypted)
    with pytest.raises(InvalidInput, match="unencrypted"):
        ends.server.read()
