from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from federator.testing.process_group import Process, ProcessGroup
from tests.integration.processes import owning_process


def alive(pid: int) -> bool:
    return state(pid) not in {"", "Z"}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - what other processes do sets no event here
            await asyncio.sleep(0.01)


async def gone(pid: int) -> None:
    await until(lambda: not alive(pid))


def state(pid: int) -> str:
    """One letter: R running, S sleeping, T stopped, Z zombie; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return ""


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    group = ProcessGroup()
    yield group
    group.close()


def launch(group: ProcessGroup, folder: Path, script: str) -> Process:
    return group.launch("script", ["/bin/sh", "-c", script], log=folder / "script.log", folder=folder)


async def first_line(process: Process) -> str:
    await until(lambda: process.log_tail() != "")
    return process.log_tail()


async def test_closing_kills_what_is_left_children_of_children_too(group: ProcessGroup, tmp_path: Path) -> None:
    process = launch(group, tmp_path, "sleep 1000 & echo $!; wait")
    grandchild = int(await first_line(process))
    group.close()
    group.close()
    await gone(process.pid)
    await gone(grandchild)
    assert process.exit_code == -signal.SIGKILL


async def test_stopping_asks_and_then_kills(group: ProcessGroup, tmp_path: Path) -> None:
    polite = launch(group, tmp_path, "trap 'exit 7' TERM; echo ready; while true; do sleep 0.01; done")
    await first_line(polite)
    assert await polite.stop(timeout=5)
    assert polite.exit_code == 7
    polite.log.unlink()

    stubborn = launch(group, tmp_path, "trap '' TERM; echo ready; while true; do sleep 0.01; done")
    await first_line(stubborn)
    assert not await stubborn.stop(timeout=0.05)
    assert stubborn.exit_code == -signal.SIGKILL


async def test_a_paused_process_does_nothing_and_can_be_stopped(group: ProcessGroup, tmp_path: Path) -> None:
    process = launch(group, tmp_path, "trap 'exit 0' TERM; while true; do echo tick; sleep 0.01; done")
    await first_line(process)
    process.pause()
    await until(lambda: state(process.pid) == "T")
    size = process.log.stat().st_size
    await asyncio.sleep(0.1)
    assert process.log.stat().st_size == size
    assert process.running
    assert await process.stop(timeout=5)


async def test_a_missing_program_is_an_error(group: ProcessGroup, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        group.launch("nothing", ["/nowhere"], log=tmp_path / "log", folder=tmp_path)


async def test_nothing_outlives_an_owner_that_is_killed(group: ProcessGroup, tmp_path: Path) -> None:
    """Even if a forked child of the owner lives on, and holds what the owner had open."""
    log = tmp_path / "owner.log"
    its = group.launch_module("owner", owning_process.__name__, [str(tmp_path)], log=log, folder=Path.cwd())
    pids = tmp_path / "pids"
    await until(pids.exists)
    process, warden, fork = map(int, pids.read_text().split())
    assert alive(process)
    its.kill()
    await gone(process)
    await gone(warden)
    assert alive(fork)


async def test_memory_is_that_of_the_program(group: ProcessGroup, tmp_path: Path) -> None:
    process = launch(group, tmp_path, "sleep 1000")
    await until(lambda: process.memory() > 100_000)
    process.kill()
    assert process.memory() == 0
