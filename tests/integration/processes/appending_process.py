"""A process that appends to a ledger until it is killed, and says what was acknowledged.

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


async def main(path: Path) -> None:
    """Pushes from several clusters at once, so that batches share transactions."""
    ledger = LmdbLedger.open(path)
    await asyncio.gather(*(push(ledger, f"cluster-{number}") for number in range(PUSHERS)))


async def push(ledger: LmdbLedger, cluster: str) -> None:
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


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
