from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from federator.testing.certificates import CertificateAuthority, KeyPair, write_pem


def server_context(authority: CertificateAuthority, pair: KeyPair, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.certificate.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    return load(context, pair, folder)


def load(context: ssl.SSLContext, pair: KeyPair, folder: Path) -> ssl.SSLContext:
    (folder / "pair.pem").write_bytes(pair.key + pair.certificate)
    context.load_cert_chain(folder / "pair.pem")
    return context


async def subject_seen(trusted: CertificateAuthority, authority: CertificateAuthority, folder: Path) -> object:
    """The client's subject as a server sees it whose own authority is `authority`."""
    seen: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(writer.get_extra_info("peercert")["subject"])
        writer.close()

    pair = authority.serving("server", hosts=("localhost",), addresses=("127.0.0.1",))
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=server_context(authority, pair, folder))
    async with server:
        client = ssl.create_default_context(cadata=trusted.certificate.decode())
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        load(client, authority.client("alice", groups=("developers",)), folder)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=client)
        try:
            return await seen
        finally:
            writer.close()


async def test_both_sides_verify_each_other(tmp_path: Path) -> None:
    authority = CertificateAuthority("one")
    subject = await subject_seen(authority, authority, tmp_path)
    assert subject == ((("organizationName", "developers"),), (("commonName", "alice"),))


async def test_another_authority_of_the_same_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await subject_seen(CertificateAuthority("one"), CertificateAuthority("one"), tmp_path)


def test_files_are_their_owners_alone_and_appear_whole(tmp_path: Path) -> None:
    pair = CertificateAuthority("one").agent("eu-1")
    (tmp_path / "agent.key").write_bytes(b"a former one")
    certificate, key = pair.write(tmp_path, "agent")
    assert (certificate.read_bytes(), key.read_bytes()) == pair
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert write_pem(certificate, b"new").read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent.crt", "agent.key"]
