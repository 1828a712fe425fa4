"""The entry point: quick, lazy, and with exit codes that scripts can use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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

HEAVY = ("grpc", "google.protobuf", "msgspec", "yaml", "structlog", "rich", "aiohttp", "jsonpath", "kubernetes")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_lists_every_command(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    for name, entry in COMMANDS.items():
        assert name in out
        assert entry.summary.split()[0] in out


def test_help_imports_nothing_that_takes_time() -> None:
    program = (
        "import sys; from federator.cli.main import main; assert main(['--help']) == 0; "
        f"sys.stderr.write(' '.join(name for name in {HEAVY} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


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


def test_a_full_disk_is_said_once() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "federator", "version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "Error: [Errno 28] No space left on device\n")


def test_output_is_utf_8_whatever_the_terminal_is() -> None:
    program = "from federator.cli.main import main; main(['version']); print('é中')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.stdout.decode().endswith("é中\n")


def test_an_argument_that_is_no_text_is_refused() -> None:
    done = subprocess.run(
        [sys.executable.encode(), b"-m", b"federator", b"get", b"pods", b"-n\xff"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"Error: argument: '-n\\\\xff' is not allowed; allowed: text in UTF-8\n"


def test_a_bug_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr("federator.cli.version.version", fail)
    before = sys.excepthook
    with pytest.raises(RuntimeError, match="bug"):
        main(["version"])
    assert sys.excepthook is before
