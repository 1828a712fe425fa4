"""Load in a process of its own, so that its CPU time is not counted as somebody else's.

Parent and load speak in lines of JSON over the load's standard input and output: the load says `{}` when it is ready,
then answers each command. It ends when its input does, so it cannot outlive its parent.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec

from federator.testing.fork_server import ForkedProcess, start_module
from tests.bench.figure import WrongResult

Json = dict[str, Any]
Answer = Callable[[Json], Awaitable[Json]]

_LIMIT = 64 << 20
"""Bytes of one line; an answer may carry a delay for each of some 100,000 changes."""


class LoadProcess:
    """`python -m MODULE`, for as long as the context is open; forked where that is switched on."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    async def __aenter__(self) -> Self:
        """Starts it and waits until it is ready."""
        # Two, since the load reads without blocking, and blocks when it writes.
        self._commands, stdin = socket.socketpair()
        answers, stdout = socket.socketpair()
        with stdin, stdout:
            self._process = start_module(self._module, self._arguments, stdin=stdin.fileno(), stdout=stdout.fileno())
        self._answers, self._connection = await asyncio.open_connection(sock=answers, limit=_LIMIT)
        try:
            await self._answer()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    @property
    def pid(self) -> int:
        """Its process ID."""
        assert self._process is not None
        return self._process.pid

    async def ask(self, **command: Any) -> Json:
        """Gives a command and waits for its answer.

        Raises:
            WrongResult: the load failed; it has told why on stderr.
        """
        with suppress(BrokenPipeError):  # then there is no answer either
            self._commands.sendall(msgspec.json.encode(command) + b"\n")
        return await self._answer()

    async def _answer(self) -> Json:
        assert self._process is not None
        line = await self._answers.readline()
        if not line:
            raise WrongResult(f"{self._module} ended with exit code {self._process.wait()}")
        return msgspec.json.decode(line, type=Json)

    async def _end(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._commands.close()
        self._connection.close()
        with suppress(ConnectionError):  # of what it had still to say
            await self._connection.wait_closed()


async def serve(answer: Answer) -> None:
    """The load's side: says that it is ready, and answers commands until the parent has ended."""
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader(limit=_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    _say({})
    while line := await commands.readline():
        _say(await answer(msgspec.json.decode(line, type=Json)))


def _say(message: Json) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()
