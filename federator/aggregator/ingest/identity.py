"""Who is on the other end of a session."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import grpc

from federator.api.cluster import ClusterID, parse_cluster_id
from federator.errors import IdentityRefused, InvalidInput
from federator.v1 import ingest_pb2

_LOCAL_PEERS = ("unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D")
"""How grpc writes peers of this machine."""

_CLUSTER = re.compile(r"spiffe://[^/?#]+/cluster/([^/?#]+)")
"""URI that names a cluster in a certificate. The trust domain is not looked at: the listener's authorities are known,
and what they sign is trusted."""

_IDENTITY = "peer_spiffe_id"
"""Where grpc keeps the URI of a certificate with exactly one. Its property for names of all kinds would take a DNS name
for it."""

_SHOWN = 256
"""Characters of what a peer says that go into a message."""


def peer_cluster_id(
    context: grpc.aio.ServicerContext[ingest_pb2.PushRequest, ingest_pb2.PushResponse], hello: ingest_pb2.Hello
) -> ClusterID:
    """Returns the cluster a session may speak for. Nothing else takes an identity from a message.

    On a listener with TLS that is the one the agent's certificate names, and Hello has to name it too. On one without,
    which only this machine reaches, it is the one Hello names.

    Raises:
        IdentityRefused: the certificate names no cluster, or another one than Hello.
        InvalidInput: the name is no ClusterID, or the peer of a plaintext connection is not of this machine.
    """
    presented = context.auth_context()
    if _values(presented, "transport_security_type") == ["ssl"]:
        claimed = hello.cluster_id[:_SHOWN]
        certified = _certified_cluster_id(_values(presented, _IDENTITY), claimed)
        if hello.cluster_id != certified:
            raise IdentityRefused(claimed, f"its certificate is for {certified!r}")
        return certified
    peer = context.peer()
    # An unnamed unix socket is the peer's usual end of a unix connection.
    if not peer.startswith(_LOCAL_PEERS):
        raise InvalidInput("peer", peer, "peers on loopback or a unix socket: this listener has no TLS")
    return parse_cluster_id(hello.cluster_id)


def _certified_cluster_id(identities: list[str], claimed: str) -> ClusterID:
    named = _CLUSTER.fullmatch(identities[0]) if len(identities) == 1 else None
    if named is None:
        shown = f"it has {identities[0][:_SHOWN]!r}" if identities else "it has none, or several URIs"
        raise IdentityRefused(
            claimed,
            "its certificate names no cluster: as subject alternative name it needs one URI, "
            f"spiffe://<trust domain>/cluster/<ClusterID>; {shown}",
        )
    return parse_cluster_id(named[1], field="cluster of the certificate")


def _values(presented: Mapping[str, Iterable[bytes]], name: str) -> list[str]:
    return [value.decode(errors="replace") for value in presented.get(name, ())]
