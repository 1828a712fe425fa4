from __future__ import annotations

import signal
import stat
from pathlib import Path

import pytest

from federator.testing.scratch import ScratchFolder
from tests.integration.processes import dying_process
from tests.programs import run_module


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def test_it_is_private_and_can_be_removed_twice() -> None:
    scratch = ScratchFolder()
    assert stat.S_IMODE(scratch.path.stat().st_mode) == 0o700
    (scratch.path / "data").mkdir()
    scratch.remove()
    scratch.remove()
    assert not scratch.path.exists()


def test_folders_of_the_living_stay_and_those_of_the_dead_go() -> None:
    died = run_module(dying_process.__name__)
    assert died.code == -signal.SIGKILL
    leftover = Path(died.stdout.strip())
    assert leftover.is_dir()

    first = ScratchFolder()
    assert not leftover.exists()
    second = ScratchFolder()
    assert first.path.is_dir()
    assert first.path != second.path
    first.remove()
    second.remove()
