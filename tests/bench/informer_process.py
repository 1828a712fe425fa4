"""One informer in a process of its own: what is the same for whoever's informer it is.

The process tells its own CPU time and memory, so that both are taken at the very moment, and not when the parent gets
to look.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from tests.bench.load_process import Json, serve

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_CLEAR_PEAK = "5"


class MeasuredInformer(Protocol):
    """An informer of one type with one handler, which counts."""

    @property
    def told(self) -> int:
        """Notifications that the handler got."""
        ...

    async def sync(self) -> None:
        """Starts the informer; returns when the handler was told of all that existed."""
        ...

    async def relist(self) -> None:
        """Returns when the informer has made a whole list and the handler was told of it."""
        ...

    def held(self) -> Iterable[tuple[str, str]]:
        """`namespace/name` and resourceVersion of each object in the store."""
        ...


class Reading(msgspec.Struct, frozen=True):
    """What a process tells of itself after a command.

    Attributes:
        seconds: how long the command took.
        cpu: CPU-seconds since the start of the process, user and system, all its threads; at the command's end.
        memory: resident memory (RSS, shared pages included) at the command's end, in MB.
        peak: the most it was since the start, or since the last `relist` began, in MB.
        told: notifications that the handler got.
        held: number of objects in the store.
        state: `digest` of the store, where it was asked for.
    """

    seconds: float
    cpu: float
    memory: float
    peak: float
    told: int
    held: int
    state: str = ""


def digest(held: Iterable[tuple[str, str]]) -> str:
    """The same for two stores exactly if they hold the same objects in the same resourceVersions."""
    lines = sorted(f"{key} {resource_version}\n" for key, resource_version in held)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def reset_peak() -> None:
    """Has the kernel forget the peak of this process' memory: from here on it is counted anew."""
    _CLEAR_REFS.write_text(_CLEAR_PEAK)


async def serve_informer(informer: MeasuredInformer) -> None:
    """Answers `{"do": "read" | "sync" | "relist" | "state"}` with a Reading, until the parent has ended."""
    await serve(partial(answer, informer))


async def answer(informer: MeasuredInformer, command: Json) -> Json:
    """Does what a command asks for and reads the process."""
    began = time.monotonic()
    state = ""
    match command["do"]:
        case "sync":
            await informer.sync()
        case "relist":
            reset_peak()
            await informer.relist()
        case "state":
            state = digest(informer.held())
        case "read":
            pass
    seconds, cpu = time.monotonic() - began, time.process_time()
    memory, peak = _memory()
    held = sum(1 for _ in informer.held())
    told: Json = msgspec.to_builtins(Reading(seconds, cpu, memory, peak, informer.told, held, state))
    return told


def _memory() -> tuple[float, float]:
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    now, peak = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return now, peak
