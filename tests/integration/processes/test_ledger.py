"""What of the LMDB ledger only a second process can show."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.api.cluster import ClusterID
from tests.contract.ledger.member import PODS, Member, objects, put
from tests.integration.processes import appending_process


async def test_a_second_process_may_not_append(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    child = await asyncio.create_subprocess_exec(
        sys.executable, appending_process.__file__, tmp_path, stderr=asyncio.subprocess.PIPE
    )
    _, said = await child.communicate()
    assert b"LedgerLocked" in said
    await (await Member.join(ledger)).push(put("web"))
    await ledger.close()
    await LmdbLedger.open(tmp_path).close()


def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    acknowledged: dict[str, int] = {}
    for round_ in range(4):
        with subprocess.Popen(
            [sys.executable, appending_process.__file__, tmp_path], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            said = [child.stdout.readline() for _ in range(40)]
            time.sleep(0.01 * round_)  # to be killed at different places
            child.send_signal(signal.SIGKILL)
            said += child.stdout.readlines()
        last_revision = 0
        for line in said:
            if line.endswith("\n"):
                cluster, sequence, revision = line.split()
                acknowledged[cluster] = int(sequence)
                last_revision = max(last_revision, int(revision))
        asyncio.run(check_after_kill(tmp_path, acknowledged, last_revision))
    assert len(acknowledged) == appending_process.PUSHERS


async def check_after_kill(path: Path, acknowledged: dict[str, int], last_revision: int) -> None:
    ledger = LmdbLedger.open(path)
    assert ledger.revision >= last_revision
    for cluster, sequence in acknowledged.items():
        durable = ledger.clusters()[ClusterID(cluster)].durable_sequence
        assert durable >= sequence
        wanted = {f"{side}-{number}" for number in range(1, durable + 1) for side in ("left", "right")}
        assert {key.name for key in ledger.keys(ClusterID(cluster), PODS.group_resource)} == wanted
    entries = ledger.read(ledger.oldest_revision, 1_000_000)
    assert [entry.revision for entry in entries] == list(range(ledger.oldest_revision + 1, ledger.revision + 1))
    assert len(list(ledger.present())) == len(objects(entries))
    await ledger.close()
