"""A command that is told twice to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def test_a_second_signal_ends_the_process_at_once() -> None:
    program = """
import asyncio, os
from federator.cli.service import run_service

async def main():
    print(os.getpid(), flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("stopping", flush=True)
        await asyncio.Event().wait()

for _ in range(2):
    if not os.fork():
        run_service(main())
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as forking:
        assert forking.stdout is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            child = int(forking.stdout.readline())
            os.kill(child, number)
            assert forking.stdout.readline() == "stopping\n"
            os.kill(child, number)
            assert forking.stdout.readline() == f"{-number}\n"
        assert forking.wait(timeout=20) == 0
