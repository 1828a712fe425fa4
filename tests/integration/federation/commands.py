"""Commands as users run them: as processes, to their end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from subprocess import TimeoutExpired
from typing import NamedTuple

from federator.testing.process_group import Process, ProcessGroup
from tests.programs import run_module

TIMEOUT = 60.0
"""Seconds for one command on a busy machine; a command that waits for ever fails its test by this."""

_AT_ONCE = 4


class Output(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


class Case(NamedTuple):
    """A command that has to be refused.

    Attributes:
        arguments: of `federator`.
        code: the exit code.
        said: what stands in the one line that it says.
    """

    arguments: tuple[str | Path, ...]
    code: int
    said: tuple[str, ...]


def refused(*arguments: str | Path, code: int = 2, said: Sequence[str]) -> Case:
    """A case; `said` should have the field, what was given and what is allowed."""
    return Case(arguments, code, tuple(said))


async def federator(*arguments: str | Path, server: str = "", **variables: str) -> Output:
    """Runs a command to its end, without settings from this process's environment."""
    environment = _environment(server) | variables
    return Output(
        *await asyncio.to_thread(run_module, "federator", *arguments, environment=environment, timeout=TIMEOUT)
    )


async def assert_refused(*cases: Case, server: str = "") -> None:
    """Runs commands that are refused, a few at a time: nothing on stdout, one line that says it all, no traceback."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def run(case: Case) -> str | None:
        async with turns:
            try:
                output = await federator(*case.arguments, server=server)
            except TimeoutExpired:
                return f"{case.arguments}: still running"
        errors = [line for line in output.err.splitlines() if line.startswith("Error: ")]
        is_right = (
            (output.code, output.out, len(errors)) == (case.code, "", 1)
            and "Traceback" not in output.err
            and all(text in errors[0] for text in case.said)
        )
        return None if is_right else f"{case}: {output}"

    failures = [failure for failure in await asyncio.gather(*map(run, cases)) if failure]
    assert not failures, "\n".join(failures)


def _environment(server: str) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FEDERATOR_")}
    return environment | ({"FEDERATOR_SERVER": server} if server else {})


def launch(group: ProcessGroup, folder: Path, *arguments: str) -> Process:
    """Starts a command that runs until it is stopped; its log is `<command>.log` in the folder."""
    return group.launch_module(
        arguments[0],
        "federator",
        arguments,
        log=folder / f"{arguments[0]}.log",
        folder=folder,
        environment=_environment(""),
    )
