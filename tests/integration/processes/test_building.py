from __future__ import annotations

from pathlib import Path

import pytest

from federator.testing.__main__ import main
from tests.integration.processes.conftest import FakeGo


def test_a_build_that_fails_says_why_and_has_an_exit_code(
    fake_go: FakeGo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["build"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "no `go` on the PATH" in said.err


def test_a_build_prints_the_folder_alone(fake_go: FakeGo, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build"]) == 0
    said = capsys.readouterr()
    (folder,) = said.out.splitlines()
    assert (Path(folder) / "kubectl").is_file()
    assert "[6/6] kubectl built" in said.err


def test_without_a_command_it_shows_how_to_use_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "build" in capsys.readouterr().err
