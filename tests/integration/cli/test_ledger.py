"""`federator ledger` beside a process that appends, and killed in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from federator.aggregator.ledger.backup import back_up, read_manifest
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.restore import restore
from federator.testing.process_group import ProcessGroup
from tests.component.aggregator.ledger.filled import WEB, filled
from tests.contract.ledger.member import PODS, objects
from tests.integration.cli import killed_at_each_step
from tests.integration.processes import appending_process
from tests.programs import Finished, run_module

PAUSE = 0.02
"""Seconds: appended to often, and not so often that nothing else gets a turn, or so much that comparing takes long."""


def federator(*arguments: str | Path) -> Finished:
    """Runs `federator ledger`."""
    return run_module("federator", "ledger", *arguments)


@contextlib.contextmanager
def appending(path: Path, said: Path, lines: int) -> Iterator[None]:
    """A process that appends all the time, and writes down what was acknowledged; the block begins at a line."""
    with contextlib.closing(ProcessGroup()) as group:
        words = [str(path), str(PAUSE)]
        child = group.launch_module("appending", appending_process.__name__, words, log=said, folder=Path.cwd())
        while said.read_bytes().count(b"\n") < lines:
            assert child.running, child.log_tail()
            time.sleep(0.02)
        yield


def test_a_backup_of_a_ledger_that_is_appended_to_is_one_state_of_it(tmp_path: Path) -> None:
    state = ("--state-directory", tmp_path / "state")
    manifests = []
    with appending(tmp_path / "state", tmp_path / "said", 80):
        for number in range(2):
            made = federator("backup", tmp_path / f"backup-{number}", *state)
            assert (made.code, made.stderr) == (0, "")
            manifests.append(read_manifest(tmp_path / f"backup-{number}"))
        for command in ("verify", "info"):
            assert federator(command, *state).code == 0
        for change in (("restore", tmp_path / "backup-0", "--force"), ("purge", "cluster-0//pods/shop/left-1")):
            refused = federator(*change, *state)
            assert refused.code == 1
            assert "another process appends to the ledger" in refused.stderr
    revisions = [manifest.revision for manifest in manifests]
    assert revisions == sorted(set(revisions)), "it was appended to meanwhile"
    acknowledged = [int(line.split()[2]) for line in (tmp_path / "said").read_text().splitlines()[:-1]]
    assert acknowledged[-1] > revisions[-1], "and afterwards"

    for number, manifest in enumerate(manifests):
        path = tmp_path / f"restored-{number}"
        restored = restore(path, tmp_path / f"backup-{number}")
        asyncio.run(check_prefix(tmp_path / "state", path, manifest.revision, restored.offset))


async def check_prefix(original: Path, restored: Path, revision: int, offset: int) -> None:
    old, new = LmdbLedger.open(original), LmdbLedger.open(restored)
    assert new.revision == revision + offset > old.revision
    before = [entry for entry in old.read(old.oldest_revision, 1_000_000) if entry.revision <= revision]
    after = new.read(new.oldest_revision, 1_000_000)
    assert [entry.revision - offset for entry in after] == [entry.revision for entry in before]
    assert [(each.key, each.body) for each in objects(after)] == [(each.key, each.body) for each in objects(before)]
    for cluster in new.clusters():
        durable = {key.name for key in new.keys(cluster, PODS.group_resource)}
        assert len(durable) % 2 == 0, "batches are whole"
    await old.close()
    await new.close()


@pytest.mark.parametrize(("change", "argument"), [("purge", str(WEB)), ("restore", "backup")], ids=["purge", "restore"])
async def test_a_change_that_is_killed_at_any_step_leaves_a_whole_ledger(
    tmp_path: Path, change: str, argument: str
) -> None:
    await filled(tmp_path / "state")
    back_up(tmp_path / "state", tmp_path / "backup")
    (tmp_path / "work").mkdir()
    given = str(tmp_path / argument) if change == "restore" else argument
    words = (tmp_path / "state", tmp_path / "work", change, given, "22")
    child = await asyncio.to_thread(run_module, killed_at_each_step.__name__, *words)
    assert child.code == 0, child.stderr
    assert int(child.stdout) > 8
