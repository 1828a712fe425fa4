"""What processes use, as /proc tells it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

_TICKS = os.sysconf("SC_CLK_TCK")
_CPU_TIMES_AT_REST = (3, 4)  # idle and iowait, counted from the first number of /proc/stat


_CLEAR_PEAK = "5"


class Process(Protocol):
    """What is measured: a process of a `ProcessGroup`, or a load."""

    @property
    def pid(self) -> int:
        """Its process ID."""
        ...


class Memory(NamedTuple):
    """Resident memory of one process (RSS, shared pages included), in MB.

    Attributes:
        now: at this moment.
        peak: the most it ever was.
    """

    now: float
    peak: float


def memory(process: Process) -> Memory:
    """How much memory a process has."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return Memory(*(int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM")))


def anonymous_memory(process: Process) -> float:
    """Resident memory of a process that belongs to no file, in MB: what files take can be had back at any time."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024 / 1e6


def forget_peak(process: Process) -> None:
    """Has the peak of a process counted from now on."""
    Path(f"/proc/{process.pid}/clear_refs").write_text(_CLEAR_PEAK)


def cpu_seconds(process: Process) -> float:
    """CPU time a process has used since it started, user and system, all its threads; in steps of 10 ms."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Span:
    """What some processes and the machine use from its making to `end`.

    Attributes:
        seconds: its length; set by `end`.
        cpu: CPU-seconds of each process; set by `end`.
        machine_percent: part of the machine's CPU time that somebody used, whoever it was; set by `end`.
    """

    def __init__(self, processes: Mapping[str, Process]) -> None:
        self._processes = dict(processes)
        self._cpu = {name: cpu_seconds(process) for name, process in processes.items()}
        self._machine = _machine_times()
        self._began = time.monotonic()
        self.seconds = 0.0
        self.cpu: dict[str, float] = {}
        self.machine_percent = 0.0

    def end(self) -> None:
        """Ends the span."""
        self.seconds = time.monotonic() - self._began
        self.cpu = {name: cpu_seconds(process) - self._cpu[name] for name, process in self._processes.items()}
        busy, total = (now - before for now, before in zip(_machine_times(), self._machine, strict=True))
        self.machine_percent = 100 * busy / max(1, total)

    @property
    def aggregator(self) -> float:
        """CPU-seconds of the aggregator."""
        return self.cpu["aggregator"]

    @property
    def agents(self) -> float:
        """CPU-seconds of all agents together."""
        return sum(seconds for name, seconds in self.cpu.items() if name != "aggregator")


def _machine_times() -> tuple[int, int]:
    """Ticks in which a CPU was busy, and all ticks."""
    # Guest time is counted in user time already.
    times = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(times) - sum(times[place] for place in _CPU_TIMES_AT_REST), sum(times)
