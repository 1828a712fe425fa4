"""An example as a process: what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from federator.testing.fork_server import ForkedProcess, start_module
from tests.programs import Finished

ROOT = Path(__file__).parents[3]
TIMEOUT = 60.0

_POLL = 0.02


class Example:
    """A running example."""

    def __init__(self, process: subprocess.Popen[bytes] | ForkedProcess, out: IO[bytes], err: IO[bytes]) -> None:
        self._process = process
        self._out = out
        self._err = err
        self._printed = 0

    async def prints(self, *texts: str) -> str:
        """Waits until it has printed all of these after what was waited for before, and returns what came."""
        came = ""
        async with asyncio.timeout(TIMEOUT):
            while True:
                has_ended = self._process.poll() is not None
                while line := self._line():
                    came += line
                    if all(text in came for text in texts):
                        return came
                assert not has_ended, f"it ended without printing {texts}, but: {came}\n{self._stderr()}"
                await asyncio.sleep(_POLL)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for what it does beside printing."""
        async with asyncio.timeout(TIMEOUT):
            while not condition():
                assert self._process.poll() is None, self._stderr()
                await asyncio.sleep(_POLL)

    async def interrupt(self) -> Finished:
        """Presses Ctrl-C; its stdout is what was not waited for."""
        return await self._end(signal.SIGINT)

    async def kill(self) -> Finished:
        """Ends it at once; its stdout is what was not waited for."""
        return await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> Finished:
        self._process.send_signal(number)
        code = await asyncio.to_thread(self._process.wait, TIMEOUT)
        return Finished(code, "".join(iter(self._line, "")), self._stderr())

    def _line(self) -> str:
        """The next line that it has printed; empty if there is none yet."""
        # Not through the file's position, which is shared with whoever writes.
        line, end, _ = os.pread(self._out.fileno(), 1 << 20, self._printed).partition(b"\n")
        self._printed += len(line + end) if end else 0
        return (line + end).decode() if end else ""

    def _stderr(self) -> str:
        return os.pread(self._err.fileno(), 1 << 20, 0).decode()


@asynccontextmanager
async def running(name: str, *arguments: str | Path, kubeconfig: Path) -> AsyncIterator[Example]:
    """Runs `examples/NAME.py`, for as long as the context is open."""
    environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start_module(
            f"examples.{name}",
            list(map(str, arguments)),
            stdout=out.fileno(),
            stderr=err.fileno(),
            folder=ROOT,
            environment=environment,
        )
        try:
            yield Example(process, out, err)
        finally:
            process.kill()
            process.wait()
