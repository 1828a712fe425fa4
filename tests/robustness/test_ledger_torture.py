"""The ledger on disk under SIGKILL and power cuts: a short `ledger_torture`, and proofs that it bites."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.robustness import ledger_torture
from tests.robustness.ledger_power_cut import NoCompiler, compiled
from tests.robustness.ledger_torture import Report

SEED = 1907
KILLS = 20
"""Of five ledgers, four of them only just made."""


@pytest.fixture(scope="module")
def can_cut_power() -> None:
    try:
        compiled()
    except NoCompiler as error:
        pytest.skip(str(error))


def torture(folder: Path, mode: str, kills: int, *, broken: str = "", seed: int = SEED) -> Report:
    """A run in a process of its own: it forks, which is not for a process with threads."""
    file = folder / "report.json"
    words = ["--mode", mode, "--kills", str(kills), "--seed", str(seed), "--report", str(file), "--broken", broken]
    command = [sys.executable, "-m", ledger_torture.__name__, *words]
    environment = {**os.environ, "TMPDIR": str(folder)}  # which pytest clears of what a broken run leaves
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode in {0, 1}, run.stderr
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    assert run.returncode == bool(report.difference), run.stderr
    return report


def test_a_killed_process_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    report = torture(tmp_path, "kill", KILLS)
    assert not report.difference
    assert report.kills == KILLS
    assert report.acknowledged
    assert report.unacknowledged, "no kill came between a commit and its acknowledgement"


@pytest.mark.usefixtures("can_cut_power")
def test_a_power_cut_takes_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    report = torture(tmp_path, "unsynced", KILLS)
    assert not report.difference
    assert report.kills == KILLS
    assert report.acknowledged
    assert report.sectors_undone
    assert report.sectors_kept


@pytest.mark.usefixtures("can_cut_power")
@pytest.mark.parametrize("broken", ["no-sync", "no-meta-sync"])
def test_a_ledger_that_does_not_sync_is_found_out_by_power_cuts(tmp_path: Path, broken: str) -> None:
    report = torture(tmp_path, "unsynced", KILLS, broken=broken)
    assert report.difference
    assert report.kills < KILLS


def test_a_ledger_that_commits_what_is_sent_again_is_found_out_by_kills(tmp_path: Path) -> None:
    assert torture(tmp_path, "kill", KILLS, broken="twice").difference


def test_a_ledger_that_acknowledges_too_early_is_found_out_by_kills(tmp_path: Path) -> None:
    assert "was acknowledged" in torture(tmp_path, "kill", KILLS, broken="early").difference
