"""What the LMDB ledger takes for 10,000 pods: `python -m tests.bench.ledger_throughput`.

The bodies are incompressible and of 800 bytes, which is what zstd leaves of a pod of 2.3 KB.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.records import Batch, ClusterRecord, Put
from federator.api.cluster import ClusterID
from federator.api.resource import ResourceType

PODS = ResourceType(group="", version="v1", resource="pods", kind="Pod", namespaced=True)
OBJECTS, BATCH, BODY_BYTES = 10_000, 1_000, 800


def batches(record: ClusterRecord, round_: int) -> Iterable[Batch]:
    for start in range(0, OBJECTS, BATCH):
        yield Batch(record.cluster_id, record.term, 0, PODS, tuple(pod(round_, start + n) for n in range(BATCH)))


def pod(round_: int, number: int) -> Put:
    return Put(
        f"namespace-{number // 100}",
        f"web-7d9f8b6c5d-{number:05d}",
        f"00000000-0000-4000-8000-{number:012d}",
        str(1_000_000 * round_ + number),
        (round_ << 32) + number,
        os.urandom(BODY_BYTES),
    )


async def main(path: Path) -> None:
    ledger = LmdbLedger.open(path)
    record = await ledger.open_session(ClusterRecord(ClusterID("berlin"), "uid-of-berlin"))
    for round_, what in ((1, "added"), (2, "modified"), (2, "unchanged")):
        pushed = list(batches(record, round_))
        started, cpu_started = time.perf_counter(), time.process_time()
        await asyncio.gather(*(ledger.append(batch) for batch in pushed))
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu_started
        sys.stdout.write(f"{what}: {OBJECTS / seconds:,.0f} deltas/s, {cpu / OBJECTS * 1e6:.1f} CPU µs per delta\n")
        if round_ == 1:
            sys.stdout.write(f"on disk: {ledger.statistics()['bytes'] / OBJECTS:.0f} bytes per object\n")
    started = time.perf_counter()
    dropped = await ledger.compact(ledger.revision)
    sys.stdout.write(f"compacted: {(time.perf_counter() - started) / dropped * 1e6:.1f} µs per entry\n")
    await ledger.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
