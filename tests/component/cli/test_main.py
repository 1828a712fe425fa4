"""The entry point in a process of its own: what it imports, and where its output goes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("grpc", "google.protobuf", "msgspec", "yaml", "structlog", "rich", "aiohttp", "jsonpath", "kubernetes")


@pytest.fixture(scope="module")
def process() -> list[str]:
    """What a process says, line by line, whose terminal knows no more than ASCII."""
    program = f"""
import sys
from federator.cli.main import main
assert main() == 0
sys.stderr.write(" ".join(name for name in {HEAVY} if sys.modules.get(name)) + "\\n")
import structlog
sys.stderr.write(" ".join(name for name in sys.modules if name.startswith("rich.")) + "\\n")
main(["version"])
print("é中")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, "--help"],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    return [*done.stderr.decode().splitlines(), *done.stdout.decode().splitlines()[-2:]]


def test_help_imports_nothing_that_takes_time(process: list[str]) -> None:
    assert process[0] == ""


def test_logging_does_not_import_what_only_colours_tracebacks(process: list[str]) -> None:
    assert process[1] == ""


def test_output_is_utf_8_whatever_the_terminal_is(process: list[str]) -> None:
    assert process[2].startswith("federator ")
    assert process[3] == "é中"


@pytest.mark.parametrize(
    ("closed", "err"),
    [(">&-", "Error: cannot reach the aggregator at 127.0.0.1:1: "), ("2>&-", ""), (">&- 2>&-", "")],
)
def test_what_was_closed_before_the_start_takes_nothing(closed: str, err: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"'{sys.executable}' -m federator get pods --server=127.0.0.1:1 {closed}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr[: len(err) or None]) == (1, "", err)


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
