"""Processes that open a ledger as an aggregator does, and die: `python -m …`, then a line `HOW DIRECTORY` for each.

Each is forked from a process that has imported everything already, which answers with a line: how it ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from federator.aggregator.ledger.lmdb import FOLDER, LmdbLedger
from federator.aggregator.ledger.store import Store
from federator.errors import CursorExpired
from tests.contract.ledger.member import Member, put


async def live(how: str, directory: Path) -> None:
    """The life of one."""
    store = Store(directory)
    ledger = store.open(lambda: LmdbLedger.open(directory, thorough=store.ended_badly))
    if how != "opening":
        store.serves()
    if how == "cut":  # SIGBUS
        os.truncate(directory / FOLDER / "data.mdb", 2 * 4096)
        list(ledger.present())
    if how == "writing":
        await (await Member.join(ledger)).push(put("web"))
    if how == "aborting":
        os.abort()
    if how == "reading":
        position = ledger.oldest_revision
        while position < ledger.revision:
            try:
                position = ledger.read(position, 64)[-1].revision
            except CursorExpired as expired:
                position = expired.oldest
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Until standard input ends."""
    for line in sys.stdin:
        how, directory = line.rstrip("\n").split(" ", 1)
        child = os.fork()
        if child == 0:
            os.dup2(2, 1)  # what it logs is no answer
            try:
                asyncio.run(live(how, Path(directory)))
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
