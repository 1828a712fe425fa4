"""Commands as processes that need not import what they run: they are forked from one that has."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [__name__, *(f"federator.cli.{each}" for each in ("main", "get", "clusters", "aggregator", "agent", "run"))]
)


async def run_forked(
    arguments: Sequence[str], environment: Mapping[str, str], *, out: Path, err: Path, timeout: float
) -> int:
    """Runs `federator` in a process of its own to its end, and returns its exit code.

    Args:
        arguments: of the command.
        environment: of the process, all of it.
        out: file that it writes stdout to.
        err: file that it writes stderr to.
        timeout: seconds, after which it is killed.

    Raises:
        TimeoutError: it was killed.
    """
    process = _CONTEXT.Process(target=_run, args=(arguments, environment, out, err), daemon=True)
    process.start()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(process.sentinel, ended.set)
    try:
        async with asyncio.timeout(timeout):
            await ended.wait()
    finally:
        loop.remove_reader(process.sentinel)
        if not ended.is_set():
            process.kill()
        process.join()
        code = process.exitcode
        process.close()
    assert code is not None
    return code


def _run(arguments: Sequence[str], environment: Mapping[str, str], out: Path, err: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for stream, file in ((1, out), (2, err)):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, stream)
        os.close(descriptor)
    sys.argv = ["federator", *arguments]
    runpy.run_module("federator", run_name="__main__", alter_sys=True)
