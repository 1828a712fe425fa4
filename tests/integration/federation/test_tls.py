"""Aggregator, agents and readers as processes over TLS: who is let in, and certificates that are replaced."""

from __future__ import annotations

import asyncio
import datetime
from contextlib import aclosing
from typing import Any

import grpc
import pytest

from federator.api.cluster import ClusterState
from federator.client import TLSFiles, aconnect
from federator.errors import AggregatorUnreachable
from federator.testing.certificates import CertificateAuthority, write_pem
from federator.testing.federation import Federation, FederationTLS
from federator.testing.testbed import Testbed
from federator.v1 import inventory_pb2, inventory_pb2_grpc
from tests.integration.federation.commands import federator
from tests.robustness.federated_bed import HastyFederation

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(180)]

ONLY_SMALL = ("--resource=configmaps,namespaces",)


def options(files: TLSFiles) -> tuple[str, ...]:
    return (
        f"--aggregator-ca-file={files.ca_file}",
        f"--tls-cert-file={files.certificate_file}",
        f"--tls-private-key-file={files.private_key_file}",
    )


async def log_has(federation: Federation, name: str, *words: str) -> None:
    """Waits for a line of a process's log with all of these words."""
    log = federation.folder / f"{name}.log"

    def found() -> bool:
        return any(all(word in line for word in words) for line in log.read_text().splitlines())

    try:
        async with asyncio.timeout(30):
            while not found():  # noqa: ASYNC110 - nothing to wait for
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"{words} is not in {federation.processes[name].log_tail(40)}")


async def test_readers_show_a_certificate_of_their_authority(living_bed: Testbed) -> None:
    federation = HastyFederation(living_bed.kubeconfig, ("eu-1",), tls=True, agent_arguments=ONLY_SMALL)
    async with federation:
        assert federation.tls is not None
        reader, address = federation.tls.reader, federation.address
        shown = await federator("clusters", *options(reader), server=address)
        assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [["eu-1", "LIVE"]]
        assert (await federator("get", "ns/default", *options(reader), server=address)).code == 0
        assert "configmaps" in (await federator("api-resources", *options(reader), server=address)).out

        # Readers are asked for a certificate too, and that of an agent is none of theirs.
        trusted = grpc.ssl_channel_credentials(federation.tls.aggregators.certificate)
        async with grpc.aio.secure_channel(address, trusted) as channel:
            stub: Any = inventory_pb2_grpc.InventoryServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await stub.ListClusters(inventory_pb2.ListClustersRequest(), timeout=20)
            assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        agents = FederationTLS(federation.folder / "other")
        federation.tls.agents.agent("eu-1").write(agents.folder, "reader")
        write_pem(agents.folder / "aggregators.crt", federation.tls.aggregators.certificate)
        async with aconnect(address, tls=agents.reader) as fed:
            with pytest.raises(AggregatorUnreachable, match=r"perhaps .*reader\.crt"):
                await fed.clusters(timeout=10)
        # Another authority of the same name: the client refuses the aggregator.
        write_pem(agents.folder / "aggregators.crt", CertificateAuthority("aggregators").certificate)
        refused = await federator("clusters", *options(agents.reader), server=address)
        assert refused.code == 1
        assert "CERTIFICATE_VERIFY_FAILED" in refused.err
        plain = await federator("clusters", server=address)
        assert plain.code == 1
        elsewhere = await federator("clusters", server="192.0.2.1:9090")
        assert elsewhere.code == 2
        assert "aggregator-ca-file" in elsewhere.err


async def test_an_agent_speaks_for_the_cluster_of_its_certificate_only(living_bed: Testbed) -> None:
    federation = HastyFederation(living_bed.kubeconfig, ("eu-1",), tls=True, agent_arguments=ONLY_SMALL)
    assert federation.tls is not None
    tls, folder = federation.tls, federation.tls.folder
    tls.agents.agent("us-1").write(folder, "agent-eu-1")
    federation.start_aggregator()
    federation.start_agent("eu-1")
    try:
        await log_has(federation, "agent-eu-1", "no session", "IDENTITY_REFUSED", "'eu-1'", "'us-1'")
        tls.agents.agent("eu-1", lifetime=datetime.timedelta(seconds=-1)).write(folder, "agent-eu-1")
        await log_has(federation, "agent-eu-1", "no session", "AGGREGATOR_UNREACHABLE", "agent-eu-1.crt")
        tls.agents.client("eu-1").write(folder, "agent-eu-1")
        await log_has(federation, "agent-eu-1", "no session", "IDENTITY_REFUSED", "names no cluster")
        async with federation.client() as fed:
            assert (await fed.clusters()).clusters == ()
            # The right one is picked up without a restart.
            tls.agents.agent("eu-1").write(folder, "agent-eu-1")
            await federation.wait_state(ClusterState.LIVE)
    finally:
        await federation.stop()
        federation.close()


async def test_every_certificate_and_authority_may_be_replaced_while_all_run(living_bed: Testbed) -> None:
    federation = HastyFederation(living_bed.kubeconfig, ("eu-1",), tls=True, agent_arguments=ONLY_SMALL)
    async with federation, federation.client() as fed:
        tls = federation.tls
        assert tls is not None
        async with aclosing(fed.watch("configmaps", cursor=(await fed.list("configmaps")).cursor)) as events:
            tls.aggregators, tls.agents, tls.readers = (CertificateAuthority(name) for name in ("1", "2", "3"))
            tls.write_authorities()
            tls.aggregators.serving("new", hosts=(), addresses=("127.0.0.1",)).write(tls.folder, "server")
            tls.readers.client("new").write(tls.folder, "reader")
            tls.agents.agent("eu-1").write(tls.folder, "agent-eu-1")
            # The client of before, its open watch, and a new session of the agent.
            assert (await fed.clusters(timeout=10)).clusters
            federation.kill("agent-eu-1")
            federation.start_agent("eu-1")
            await log_has(federation, "agent-eu-1", "session opened", "term=2")
            await federation.wait_state(ClusterState.LIVE)
            async with living_bed["eu-1"].client() as admin:
                path = "/api/v1/namespaces/default/configmaps"
                await admin.create(path, {"metadata": {"name": "replaced"}})
                async with asyncio.timeout(30):
                    async for event in events:
                        if event.object is not None and event.object.name == "replaced":
                            break
                await admin.delete(f"{path}/replaced")
        assert "TLS files read again" in (federation.folder / "aggregator.log").read_text()
