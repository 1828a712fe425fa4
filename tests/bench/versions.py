"""What the figures were taken with: programs, libraries and machine."""

from __future__ import annotations

import asyncio
import datetime
import importlib.util
import os
import platform
import re
import time
from importlib.metadata import version
from pathlib import Path

import lmdb

from federator.testing.binaries import CONTROL_PLANE, provide

_LIBRARIES = ("grpcio", "protobuf", "msgspec")


async def versions(*, control_planes: bool) -> dict[str, str]:
    """Names and versions.

    Args:
        control_planes: real ones take part; their programs are asked.
    """
    found = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "federator": version("federator"),
        "Python": platform.python_version(),
        **{name: version(name) for name in _LIBRARIES},
        "lmdb": f"{version('lmdb')} (LMDB {'.'.join(map(str, lmdb.version()))})",
        "event loop": _event_loop(),
        "kernel": f"{platform.system()} {platform.release()}",
        "CPU": f"{os.cpu_count()} x {_cpu_model()}",
        "speed": f"{_loop_seconds():.2f} s for five million additions in Python",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
    }
    if control_planes:
        binaries = await provide(CONTROL_PLANE)
        for name, path in binaries.paths.items():
            found[name] = await _asked(path)
    return found


def _loop_seconds() -> float:
    """How fast the machine is at this moment: a shared one may be half as fast an hour later."""
    began = time.process_time()
    total = 0
    for number in range(5_000_000):
        total += number
    return time.process_time() - began


def _event_loop() -> str:
    """The loop that agents and aggregator choose."""
    return f"uvloop {version('uvloop')}" if importlib.util.find_spec("uvloop") else "asyncio"


def _cpu_model() -> str:
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return model[1] if model else platform.machine()


async def _asked(program: Path) -> str:
    process = await asyncio.create_subprocess_exec(program, "--version", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    found = re.search(rb"\d+\.\d+\.\d+\S*", output)
    return found[0].decode() if found else "unknown"
