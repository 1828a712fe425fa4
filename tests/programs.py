"""Python programs that run to their end, as a test sees them: what they print and their exit code."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from federator.testing.fork_server import start_module


class Finished(NamedTuple):
    """A program that has ended.

    Attributes:
        code: its exit code, negative for a signal.
        stdout: what it printed.
        stderr: what it printed there.
    """

    code: int
    stdout: str
    stderr: str


def run_module(
    module: str,
    *arguments: str | Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout: float = 60.0,
) -> Finished:
    """Runs a module as a process to its end: forked where that is switched on, else started. Its stdin is empty.

    Args:
        module: its name.
        arguments: the program's.
        environment: all of it; that of this process if None.
        folder: its working directory; that of this process if None.
        timeout: seconds after which it is killed.

    Raises:
        subprocess.TimeoutExpired: it was killed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start_module(
            module,
            list(map(str, arguments)),
            stdout=out.fileno(),
            stderr=err.fileno(),
            folder=folder,
            environment=environment,
        )
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        out.seek(0)
        err.seek(0)
        return Finished(code, out.read().decode(), err.read().decode())
