"""A process that appends to a ledger until it is killed, and says what was acknowledged.

It is given the ledger's folder, and, if it is to wait after each batch of a cluster, for how many seconds.

Each batch has two objects, so that a half applied batch can be told. Sequence n puts `left-n` and `right-n`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.records import Batch, ClusterRecord, Put
from federator.api.cluster import ClusterID
from federator.api.resource import ResourceType

PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)
PUSHERS = 8


async def main(path: Path, pause: float = 0.0) -> None:
    """Pushes from several clusters at once, so that batches share transactions."""
    ledger = LmdbLedger.open(path)
    await asyncio.gather(*(push(ledger, f"cluster-{number}", pause) for number in range(PUSHERS)))


async def push(ledger: LmdbLedger, cluster: str, pause: float) -> None:
    record = await ledger.open_session(ClusterRecord(ClusterID(cluster), f"uid-of-{cluster}", agent_instance="agent"))
    sequence = record.durable_sequence
    while True:
        sequence += 1
        puts = tuple(
            Put("shop", f"{side}-{sequence}", "uid", str(sequence), sequence, bytes(500)) for side in ("left", "right")
        )
        commit = await ledger.append(Batch(record.cluster_id, record.term, sequence, PODS, puts))
        sys.stdout.write(f"{cluster} {sequence} {commit.revision}\n")
        sys.stdout.flush()
        await asyncio.sleep(pause)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *map(float, sys.argv[2:])))
