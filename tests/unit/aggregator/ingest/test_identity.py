"""Identity: who may speak for a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from federator.aggregator.ingest.identity import peer_cluster_id
from federator.errors import IdentityRefused, InvalidInput
from federator.v1 import ingest_pb2


class Context:
    """A call from a peer; one with TLS if it has a certificate, whose properties are named as gRPC names them."""

    def __init__(self, peer: str, certificate: Mapping[str, Sequence[bytes]] | None) -> None:
        self._peer = peer
        self._certificate = certificate

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {} if self._certificate is None else {"transport_security_type": [b"ssl"], **self._certificate}


def identity(peer: str, cluster_id: str, certificate: Mapping[str, Sequence[bytes]] | None = None) -> str:
    context: Any = Context(peer, certificate)
    return peer_cluster_id(context, ingest_pb2.Hello(cluster_id=cluster_id))


def certificate(*uris: str) -> dict[str, Sequence[bytes]]:
    """What gRPC tells of a certificate with these URIs: the SPIFFE ID only if it is the only one."""
    encoded = [uri.encode() for uri in uris]
    told: dict[str, Sequence[bytes]] = {"x509_subject_alternative_name": encoded, "peer_uri": encoded}
    return told | {"peer_spiffe_id": encoded} if len(uris) == 1 else told


@pytest.mark.parametrize("peer", ["unix:", "unix:/run/x.sock", "ipv4:127.0.0.1:4", "ipv6:[::1]:4", "ipv6:%5B::1%5D:4"])
def test_a_local_peer_is_who_it_says(peer: str) -> None:
    assert identity(peer, "prod-1") == "prod-1"


@pytest.mark.parametrize("peer", ["ipv4:10.0.0.1:4", "ipv4:128.0.0.1:4", "ipv6:[::2]:4", "ipv6:[fe80::1]:4", ""])
def test_a_peer_from_elsewhere_is_nobody(peer: str) -> None:
    with pytest.raises(InvalidInput, match="peer"):
        identity(peer, "prod-1")


@pytest.mark.parametrize("name", ["", "Prod", "a/b", "-a", "a" * 64])
def test_a_name_that_is_no_cluster_id_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="cluster_id"):
        identity("unix:", name)


@pytest.mark.parametrize("peer", ["ipv4:10.0.0.1:4", "ipv4:127.0.0.1:4"])
@pytest.mark.parametrize("domain", ["example.org", "federator.test", "a"])
def test_with_tls_a_peer_is_who_its_certificate_says(peer: str, domain: str) -> None:
    assert identity(peer, "prod-1", certificate(f"spiffe://{domain}/cluster/prod-1")) == "prod-1"


@pytest.mark.parametrize("claimed", ["prod-2", "", "prod-1.", "PROD-1"])
def test_a_hello_that_names_another_cluster_than_the_certificate_is_refused(claimed: str) -> None:
    with pytest.raises(IdentityRefused, match="'prod-1'"):
        identity("ipv4:127.0.0.1:4", claimed, certificate("spiffe://a/cluster/prod-1"))


@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("spiffe://a/cluster/prod-1", "spiffe://a/cluster/prod-2"),
        ("spiffe://a/cluster/",),
        ("spiffe://a/cluster/prod-1/more",),
        ("spiffe://a/federation/prod-1",),
        ("spiffe://a/x/cluster/prod-1",),
        ("spiffe:///cluster/prod-1",),
        ("spiffe://a/cluster/prod-1?x",),
        ("https://a/cluster/prod-1",),
        ("xspiffe://a/cluster/prod-1",),
    ],
)
def test_a_certificate_that_names_no_cluster_cannot_push(uris: tuple[str, ...]) -> None:
    with pytest.raises(IdentityRefused, match="names no cluster"):
        identity("unix:", "prod-1", certificate(*uris))


def test_a_name_of_another_kind_is_not_taken_for_a_uri() -> None:
    spelled = {
        "x509_subject_alternative_name": [b"spiffe://a/cluster/prod-1"],
        "peer_dns": [b"spiffe://a/cluster/prod-1"],
    }
    with pytest.raises(IdentityRefused, match="names no cluster"):
        identity("ipv4:127.0.0.1:4", "prod-1", spelled)


def test_a_certificate_whose_name_is_no_cluster_id_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cluster of the certificate"):
        identity("ipv4:127.0.0.1:4", "Prod", certificate("spiffe://a/cluster/Prod"))
