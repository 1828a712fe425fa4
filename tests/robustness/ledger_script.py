"""What each cluster does to the ledger: decided by the seed alone, step by step, whatever was killed in between.

Step n of a cluster is its batch with sequence n and, at times, a change of state after it. So the child that appends,
the next child that checks, and a run that repeats another one all know it without being told.
"""

from __future__ import annotations

from functools import lru_cache
from random import Random

import msgspec

from federator.aggregator.ledger.records import Batch, ClusterRecord, Delete, Put
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.resource import ResourceType

CLUSTERS = tuple(ClusterID(name) for name in ("ap-1", "eu-1", "us-1"))

PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)
DEPLOYMENTS = ResourceType(group="apps", version="v1", resource="deployments", kind="Deployment", namespaced=True)
NODES = ResourceType(group="", version="v1", resource="nodes", kind="Node", namespaced=False)
TYPES = (PODS, DEPLOYMENTS, NODES)

NAMES = 16
"""Objects of a type in a namespace; few, so that most changes meet an object that is there."""

REPEATED = 3
"""Contents below this one are drawn again and again, so that some changes change nothing; others come once."""

_BODIES = (40, 300, 600, 3_000, 9_000)  # bytes; LMDB keeps from about 2,000 on in pages of their own
_STATES = (ClusterState.SYNCING, ClusterState.LIVE, ClusterState.STALE, ClusterState.RECOVERING)


Change = ClusterState | tuple[ResourceType, TypeState]


class Script(msgspec.Struct, frozen=True):
    """The steps of all clusters on one ledger.

    Attributes:
        seed: of the run.
        ledger: number of the ledger in the run.
    """

    seed: int
    ledger: int

    def record(self, cluster_id: ClusterID) -> ClusterRecord:
        """The session a cluster asks for: always of the same agent, so that its sequences go on."""
        return ClusterRecord(cluster_id, f"uid-of-{cluster_id}", agent_instance="agent")

    def batch(self, cluster_id: ClusterID, sequence: int, term: int) -> Batch:
        """The batch of a step, first a number of steps after 0."""
        draw = self._draw(cluster_id, sequence, "batch")
        resource_type = draw.choices(TYPES, (6, 3, 1))[0]
        count = draw.choices((0, 1, draw.randint(2, 6), draw.randint(20, 60)), (1, 4, 14, 1))[0]
        return Batch(
            cluster_id,
            term,
            sequence,
            resource_type,
            tuple(_change(draw, resource_type, sequence) for _ in range(count)),
            low_water=str(sequence) if draw.random() < 0.3 else "",
            skips_older=draw.random() < 0.2,
        )

    def state(self, cluster_id: ClusterID, sequence: int) -> Change | None:
        """The change of state after a batch, of the cluster or of one of its types."""
        draw = self._draw(cluster_id, sequence, "state")
        kind = draw.random()
        if kind < 0.06:
            return draw.choice(_STATES)
        return (draw.choice(TYPES), draw.choice(list(TypeState))) if kind < 0.12 else None

    def _draw(self, cluster_id: ClusterID, sequence: int, what: str) -> Random:
        return Random(f"{self.seed} {self.ledger} {cluster_id} {sequence} {what}")


def _change(draw: Random, resource_type: ResourceType, sequence: int) -> Put | Delete:
    namespace = draw.choice(("shop", "mail")) if resource_type.namespaced else ""
    name = f"{resource_type.resource}-{draw.randrange(NAMES)}"
    if draw.random() < 0.25:
        return Delete(namespace, name)
    content = draw.randrange(REPEATED) if draw.random() < 0.1 else draw.getrandbits(63)
    resource_version = str(max(1, sequence - draw.randrange(3)))
    return Put(namespace, name, f"{name}-{draw.randrange(2)}", resource_version, content, body(content))


@lru_cache(maxsize=256)
def body(content: int) -> bytes:
    """The body of a content, as its hash names it; no two the same."""
    length = _BODIES[content % len(_BODIES)]
    return (b"{" + str(content).encode() * (length // 8 + 1))[:length] + b"}"


def reason_of(sequence: int) -> str:
    """Reason given for the change of state of a step."""
    return f"after step {sequence}"
