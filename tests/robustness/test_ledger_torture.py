"""The ledger on disk under SIGKILL and power cuts: a short `ledger_torture`, and proofs that it bites."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.programs import run_module
from tests.robustness import ledger_torture
from tests.robustness.ledger_power_cut import NoCompiler, compiled, preloaded
from tests.robustness.ledger_torture import Report

SEED = 1907
KILLS = 12
"""Of five ledgers, four of them only just made."""

MOST_KILLS = 60
"""Within which a ledger that is broken has to be found out."""

_ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a disk: in memory a commit takes no time, and next to no kill would come within one."""
    with tempfile.TemporaryDirectory(prefix="federator-") as name:
        yield Path(name)


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
    # What a broken run leaves is cleared away with the folder.
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(_ROOT)}
    if mode == "unsynced":  # what is preloaded has to be there before Python is
        command = [sys.executable, "-m", ledger_torture.__name__, *words]
        environment = preloaded(compiled(), environment)
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        code, errors = run.returncode, run.stderr
    else:
        code, _, errors = run_module(ledger_torture.__name__, *words, environment=environment, timeout=120)
    assert code in {0, 1}, errors
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    assert code == bool(report.difference), errors
    return report


def test_a_killed_process_loses_nothing_that_was_acknowledged(folder: Path) -> None:
    report = torture(folder, "kill", KILLS)
    assert not report.difference
    assert report.kills == KILLS
    assert report.acknowledged
    assert report.unacknowledged, "no kill came between a commit and its acknowledgement"


@pytest.mark.usefixtures("can_cut_power")
def test_a_power_cut_takes_nothing_that_was_acknowledged(folder: Path) -> None:
    report = torture(folder, "unsynced", KILLS)
    assert not report.difference
    assert report.kills == KILLS
    assert report.acknowledged
    assert report.sectors_undone
    assert report.sectors_kept


@pytest.mark.usefixtures("can_cut_power")
@pytest.mark.parametrize("broken", ["no-sync", "no-meta-sync"])
def test_a_ledger_that_does_not_sync_is_found_out_by_power_cuts(folder: Path, broken: str) -> None:
    report = torture(folder, "unsynced", MOST_KILLS, broken=broken)
    assert report.difference
    assert report.kills < MOST_KILLS


def test_a_ledger_that_commits_what_is_sent_again_is_found_out_by_kills(folder: Path) -> None:
    assert torture(folder, "kill", MOST_KILLS, broken="twice").difference


def test_a_ledger_that_acknowledges_too_early_is_found_out_by_kills(folder: Path) -> None:
    assert "was acknowledged" in torture(folder, "kill", MOST_KILLS, broken="early").difference
