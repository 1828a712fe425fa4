from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from federator.cli.main import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"federator {version('federator')}\n"


def test_version_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "-ojson"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["version"] == version("federator")
    assert told["components"]["grpcio"] == version("grpcio")


def test_other_formats_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "-o", "yaml"]) == 2
    assert capsys.readouterr().err == "Error: --output: 'yaml' is not allowed; allowed: json\n"
