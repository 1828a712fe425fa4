"""The public door for programs that read the federation.

async with federator.client.aconnect("localhost:9090") as fed:
    pods = await fed.list("pods", labels="app=web", clusters="prod-*")
    async for event in fed.watch("pods", cursor=pods.cursor):
        ...
"""

from federator.client.client import InventoryClient, aconnect
from federator.client.event import ClusterTransition, Event, EventType, TransitionType
from federator.client.fresh_as_of import FreshAsOf
from federator.client.freshness import Cluster, ClusterFreshness, TypeFreshness
from federator.client.object import InventoryObject
from federator.client.result import ClustersResult, GetResult, ListPage, ListResult, ListSummary, ServedType
from federator.wire.tls import TLSFiles

__all__ = [
    "Cluster",
    "ClusterFreshness",
    "ClusterTransition",
    "ClustersResult",
    "Event",
    "EventType",
    "FreshAsOf",
    "GetResult",
    "InventoryClient",
    "InventoryObject",
    "ListPage",
    "ListResult",
    "ListSummary",
    "ServedType",
    "TLSFiles",
    "TransitionType",
    "TypeFreshness",
    "aconnect",
]
