"""The public door for programs that read the federation.

async with federator.client.aconnect("localhost:9090") as fed:
    pods = await fed.list("pods", labels="app=web", clusters="prod-*")
    async for event in fed.watch("pods", cursor=pods.cursor):
        ...
"""

from federator.client.aggregate import AggregateFunction, AggregateResult, Group, Measure, MeasureValue
from federator.client.changes import ChangesResult, ObjectChange
from federator.client.client import InventoryClient, aconnect
from federator.client.event import ClusterTransition, Event, EventType, TransitionType
from federator.client.field_index import FieldIndex, FieldIndexState
from federator.client.fresh_as_of import FreshAsOf
from federator.client.freshness import Cluster, ClusterFreshness, TypeFreshness
from federator.client.history import Gap, HistoryResult, ObjectVersion
from federator.client.limits import Limits
from federator.client.moment import Moment
from federator.client.object import InventoryObject
from federator.client.result import ClustersResult, GetResult, ListPage, ListResult, ListSummary, Scan, ServedType
from federator.wire.tls import TLSFiles

__all__ = [
    "AggregateFunction",
    "AggregateResult",
    "ChangesResult",
    "Cluster",
    "ClusterFreshness",
    "ClusterTransition",
    "ClustersResult",
    "Event",
    "EventType",
    "FieldIndex",
    "FieldIndexState",
    "FreshAsOf",
    "Gap",
    "GetResult",
    "Group",
    "HistoryResult",
    "InventoryClient",
    "InventoryObject",
    "Limits",
    "ListPage",
    "ListResult",
    "ListSummary",
    "Measure",
    "MeasureValue",
    "Moment",
    "ObjectChange",
    "ObjectVersion",
    "Scan",
    "ServedType",
    "TLSFiles",
    "TransitionType",
    "TypeFreshness",
    "aconnect",
]
