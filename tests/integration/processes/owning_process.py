"""A process with a program in a group, and a forked child that holds what it had open; it goes on until it is killed.

It writes the IDs of the program, the group and the child to `pids` in the folder that it is given.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from pathlib import Path

from federator.testing.process_group import ProcessGroup


def main(folder: Path) -> None:
    group = ProcessGroup()
    process = group.launch("sleep", ["/bin/sleep", "1000"], log=folder / "log", folder=folder)
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
    fork.start()
    (folder / "partial").write_text(f"{process.pid} {group.pid} {fork.pid}")
    (folder / "partial").rename(folder / "pids")
    time.sleep(1000)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
