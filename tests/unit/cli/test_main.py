"""The entry point: its help, its words for what goes wrong, and exit codes that scripts can use."""

from __future__ import annotations

import os
import sys

import pytest

from federator.cli.main import COMMANDS, main
from federator.errors import (
    AggregatorUnreachable,
    AmbiguousName,
    CursorExpired,
    FederatorError,
    Incomplete,
    MalformedSelector,
    UnknownCluster,
)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_lists_every_command(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert name in out
        assert entry.summary.split()[0] in out


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gte", "pods"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"Error: command: 'gte' is not allowed; allowed: {', '.join(COMMANDS)}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FederatorError("broken"), 1),
        (AggregatorUnreachable("127.0.0.1:1", "refused"), 1),
        (UnknownCluster("eu-9"), 1),
        (AmbiguousName("pods", "a", ("eu-1", "us-1")), 1),
        (MalformedSelector("label_selector", "a==", "kubectl's grammar"), 2),
        (Incomplete(("ap-1",)), 3),
        (CursorExpired(5, 9), 4),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("federator.cli.version.version", fail)
    assert main(["version"]) == code
    said = "" if isinstance(error, KeyboardInterrupt) else f"Error: {error}\n"
    assert capsys.readouterr().err == said


def test_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise FederatorError("first\n  second")

    monkeypatch.setattr("federator.cli.version.version", fail)
    assert main(["version"]) == 1
    assert capsys.readouterr().err == "Error: first second\n"


def test_what_the_system_refuses_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise PermissionError(13, "Permission denied", "/somewhere")

    monkeypatch.setattr("federator.cli.version.version", fail)
    assert main(["version"]) == 1
    assert capsys.readouterr().err == "Error: /somewhere: Permission denied\n"


def test_an_argument_that_is_no_text_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", sys.modules.get("rich"))  # what the entry of a process leaves there
    monkeypatch.setattr(sys, "argv", ["federator", "get", "pods", os.fsdecode(b"-n\xff")])
    assert main() == 2
    assert capsys.readouterr() == ("", "Error: argument: '-n\\\\xff' is not allowed; allowed: text in UTF-8\n")


def test_a_bug_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr("federator.cli.version.version", fail)
    before = sys.excepthook
    with pytest.raises(RuntimeError, match="bug"):
        main(["version"])
    assert sys.excepthook is before
