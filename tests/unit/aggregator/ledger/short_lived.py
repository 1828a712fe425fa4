"""A process that opens a ledger as an aggregator does, and dies: `python -m … DIRECTORY HOW`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from federator.aggregator.ledger.lmdb import FOLDER, LmdbLedger
from federator.aggregator.ledger.store import Store
from federator.errors import CursorExpired


async def main() -> None:
    directory, how = Path(sys.argv[1]), sys.argv[2]
    store = Store(directory)
    ledger = store.open(lambda: LmdbLedger.open(directory, thorough=store.ended_badly))
    if how != "opening":
        store.serves()
    if how == "cut":  # SIGBUS
        os.truncate(directory / FOLDER / "data.mdb", 2 * 4096)
        list(ledger.present())
    if how == "reading":
        position = ledger.oldest_revision
        while position < ledger.revision:
            try:
                position = ledger.read(position, 64)[-1].revision
            except CursorExpired as expired:
                position = expired.oldest
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main())
