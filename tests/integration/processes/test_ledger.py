"""What of the LMDB ledger only a second process can show."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.api.cluster import ClusterID
from federator.testing.process_group import ProcessGroup
from tests.contract.ledger.member import PODS, Member, objects, put
from tests.integration.processes import appending_process
from tests.programs import run_module


async def test_a_second_process_may_not_append(tmp_path: Path) -> None:
    ledger = LmdbLedger.open(tmp_path)
    said = (await asyncio.to_thread(run_module, appending_process.__name__, tmp_path)).stderr
    assert "LedgerLocked" in said
    await (await Member.join(ledger)).push(put("web"))
    await ledger.close()
    await LmdbLedger.open(tmp_path).close()


def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    state = tmp_path / "state"
    acknowledged: dict[str, int] = {}
    for round_ in range(4):
        last_revision = 0
        # A little later each time, to be killed at different places.
        for line in said_until_killed(state, tmp_path / f"said-{round_}", after=0.01 * round_).splitlines(
            keepends=True
        ):
            if line.endswith("\n"):
                cluster, sequence, revision = line.split()
                acknowledged[cluster] = int(sequence)
                last_revision = max(last_revision, int(revision))
        asyncio.run(check_after_kill(state, acknowledged, last_revision))
    assert len(acknowledged) == appending_process.PUSHERS


def said_until_killed(state: Path, said: Path, *, after: float) -> str:
    """Has a process append some batches, and more for so many seconds, and kills it."""
    with contextlib.closing(ProcessGroup()) as group:
        child = group.launch_module("appending", appending_process.__name__, [str(state)], log=said, folder=Path.cwd())
        while said.read_bytes().count(b"\n") < 40:
            assert child.running, child.log_tail()
            time.sleep(0.01)
        time.sleep(after)
        child.kill()
        return said.read_text()


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
