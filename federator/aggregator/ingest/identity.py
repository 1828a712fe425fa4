"""Who is on the other end of a session."""

from __future__ import annotations

import grpc

from federator.api.cluster import ClusterID, parse_cluster_id
from federator.errors import InvalidInput
from federator.v1 import ingest_pb2

_LOCAL_PEERS = ("unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D")
"""How grpc writes peers of this machine."""


def peer_cluster_id(
    context: grpc.aio.ServicerContext[ingest_pb2.PushRequest, ingest_pb2.PushResponse], hello: ingest_pb2.Hello
) -> ClusterID:
    """Returns the cluster a session may speak for. Nothing else takes an identity from a message.

    On a listener without TLS, which only this machine reaches, that is the one Hello names.

    Raises:
        InvalidInput: the name is no ClusterID, or the peer is not of this machine.
    """
    peer = context.peer()
    # An unnamed unix socket is the peer's usual end of a unix connection.
    if not peer.startswith(_LOCAL_PEERS):
        raise InvalidInput("peer", peer, "peers on loopback or a unix socket: this listener has no TLS")
    return parse_cluster_id(hello.cluster_id)
