"""Python programs that run to their end, as a test sees them: what they print and their exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from federator.testing import fork_server


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
    words = list(map(str, arguments))
    server = fork_server.shared()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
        if server is None:
            command = [sys.executable, "-m", module, *words]
            code = subprocess.run(
                command,
                stdin=nothing,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=folder,
                timeout=timeout,
                check=False,
            ).returncode
        else:
            process = server.launch(
                module,
                words,
                stdin=nothing.fileno(),
                stdout=out.fileno(),
                stderr=err.fileno(),
                folder=folder or Path.cwd(),
                environment=environment,
            )
            try:
                code = process.wait(timeout)
            finally:
                process.kill()
        out.seek(0)
        err.seek(0)
        return Finished(code, out.read().decode(), err.read().decode())
