"""Identity: who may speak for a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from federator.aggregator.ingest.identity import peer_cluster_id
from federator.errors import InvalidInput
from federator.v1 import ingest_pb2


class Context:
    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer


def identity(peer: str, cluster_id: str) -> str:
    context: Any = Context(peer)
    return peer_cluster_id(context, ingest_pb2.Hello(cluster_id=cluster_id))


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
