"""What the federation's processes take of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from federator.testing.process_group import Process

FEW_DESCRIPTORS = 24
FEW_THREADS = 8
"""More of them at rest than after the first round count as growth. Connections in their last moments, and threads of a
pool that has not been full before, are fewer."""


class Consumption(msgspec.Struct, frozen=True):
    """Of one process, at rest.

    Attributes:
        pid: which process; another one after a restart.
        memory: resident bytes.
        descriptors: open files and sockets.
        threads: threads.
    """

    pid: int
    memory: int
    descriptors: int
    threads: int


def measure(processes: Mapping[str, Process]) -> dict[str, Consumption]:
    """Looks at processes that run. Empty where the system has no /proc."""
    found = {}
    for name, process in processes.items():
        folder = Path(f"/proc/{process.pid}")
        if folder.exists():
            found[name] = Consumption(
                pid=process.pid,
                memory=process.memory(),
                descriptors=sum(1 for _ in (folder / "fd").iterdir()),
                threads=sum(1 for _ in (folder / "task").iterdir()),
            )
    return found


def assert_no_growth(before: Mapping[str, Consumption], now: Mapping[str, Consumption]) -> None:
    """Holds a measurement against one after an earlier round, restarted processes included: they do the same work.

    Memory is not judged, since what allocators keep says little about a few rounds.
    """
    for name, first in before.items():
        last = now[name]
        assert last.descriptors <= first.descriptors + FEW_DESCRIPTORS, f"{name}: {first} grew to {last}"
        assert last.threads <= first.threads + FEW_THREADS, f"{name}: {first} grew to {last}"
