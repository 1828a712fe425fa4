"""Connection: certificates that are replaced under a client that stays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from federator.client import EventType, InventoryClient, TLSFiles, aconnect
from federator.errors import AggregatorUnreachable, InvalidInput
from federator.testing.certificates import CertificateAuthority
from federator.testing.federation import FederationTLS
from federator.v1 import inventory_pb2_grpc
from federator.wire.tls import server_credentials
from tests.component.client.scripted_inventory import ScriptedInventory, event


@pytest.fixture
def tls(tmp_path: Path) -> FederationTLS:
    return FederationTLS(tmp_path / "tls")


@pytest.fixture
async def secure_inventory(tls: FederationTLS) -> AsyncIterator[ScriptedInventory]:
    inventory = ScriptedInventory()
    server = grpc.aio.server()
    inventory_pb2_grpc.add_InventoryServiceServicer_to_server(inventory, server)
    files = TLSFiles(
        ca_file=tls.folder / "readers.crt",
        certificate_file=tls.folder / "server.crt",
        private_key_file=tls.folder / "server.key",
    )
    inventory.address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', server_credentials(files))}"
    await server.start()
    yield inventory
    await server.stop(None)


def replace_everything(tls: FederationTLS) -> None:
    tls.aggregators, tls.readers = CertificateAuthority("1"), CertificateAuthority("2")
    tls.write_authorities()
    tls.aggregators.serving("new", hosts=(), addresses=("127.0.0.1",)).write(tls.folder, "server")
    tls.readers.client("new").write(tls.folder, "reader")


def channels(client: InventoryClient) -> int:
    return len(client._connection._dialled)


async def test_a_client_that_stays_takes_new_certificates_and_keeps_its_watch(
    secure_inventory: ScriptedInventory, tls: FederationTLS
) -> None:
    secure_inventory.watches = [[event(EventType.BOOKMARK, cursor=b"c")]]
    async with aconnect(secure_inventory.address, tls=tls.reader) as client:
        async with aclosing(client.watch("pods")) as events:
            assert (await anext(events)).cursor == b"c"
            await client.clusters(timeout=10)
            assert channels(client) == 1
            replace_everything(tls)
            await client.clusters(timeout=10)
            assert channels(client) == 2, "the watch goes on where it is"
            assert client.statistics()["open_calls"] == 1
            await client.clusters(timeout=10)
            assert channels(client) == 2
        await client.clusters(timeout=10)
        assert channels(client) == 1, "its channel went with the watch"
        assert client.statistics()["resumes"] == 0
    assert channels(client) == 0


async def test_files_that_cannot_be_used_are_waited_out(
    secure_inventory: ScriptedInventory, tls: FederationTLS
) -> None:
    async with aconnect(secure_inventory.address, tls=tls.reader) as client:
        tls.reader.certificate_file.unlink()
        with capture_logs() as logs:
            await client.clusters(timeout=10)
        assert [entry["event"] for entry in logs] == ["TLS files are not taken, the former are used"]
        tls.readers.client("reader").write(tls.folder, "reader")
        await client.clusters(timeout=10)
        assert channels(client) == 1


async def test_what_cannot_be_dialled_is_refused_at_once(tls: FederationTLS) -> None:
    with pytest.raises(InvalidInput, match=r"server: 'a\.example:1'"):
        aconnect("a.example:1")
    with pytest.raises(InvalidInput, match="unix socket"):
        aconnect("unix:/run/x.sock", tls=tls.reader)
    tls.reader.ca_file.unlink()
    with pytest.raises(InvalidInput, match="aggregator-ca-file"):
        await aconnect("a.example:1", tls=tls.reader).__aenter__()


async def test_a_certificate_that_is_not_accepted_is_named(
    secure_inventory: ScriptedInventory, tls: FederationTLS
) -> None:
    CertificateAuthority("readers").client("reader").write(tls.folder, "reader")
    async with aconnect(secure_inventory.address, tls=tls.reader) as client:
        with pytest.raises(AggregatorUnreachable, match=r"reader\.crt"):
            await client.clusters(timeout=10)
