"""Runs a change of a ledger again and again, each time killed one step later, until one comes to its end.

A step is what the interpreter does with files: opening, locking, renaming, linking, removing. Between two of them LMDB
commits, or copies. Says how many steps there were; fails where a ledger is not whole afterwards.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.maintenance import snapshot
from federator.aggregator.ledger.purge import purge
from federator.aggregator.ledger.restore import restore
from federator.aggregator.ledger.verification import verify
from federator.api.key import ObjectKey

_STEPS = ("open", "fcntl.flock", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")


def killed_at(step: int, change: Callable[[], object]) -> bool:
    """Makes a change in a process that is killed at a step; whether it came to its end before."""
    child = os.fork()
    if child == 0:
        steps = itertools.count(1)

        def hook(event: str, _: object) -> None:
            if event in _STEPS and next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        change()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    assert status == 0, status
    return True


def check(state: Path, objects: int) -> None:
    """The ledger is sound, and has all its objects."""
    problems: list[str] = []
    with snapshot(state) as tables:
        verify(tables, problems.append, bodies=True)
    assert not problems, problems
    ledger = LmdbLedger.open(state)
    assert len(list(ledger.present())) == objects
    ledger._release()  # what it has open; its thread ends with the process


def main(template: Path, work: Path, what: str, argument: str, objects: int) -> None:
    for step in itertools.count(1):
        state = work / f"state-{step}"
        shutil.copytree(template, state)
        has_ended = killed_at(step, partial(_change, state, what, argument))
        check(state, objects)
        _change(state, what, argument)  # what was left behind is no hindrance
        check(state, objects)
        shutil.rmtree(state)
        if has_ended:
            sys.stdout.write(f"{step}\n")
            return


def _change(state: Path, what: str, argument: str) -> None:
    if what == "purge":
        purge(state, ObjectKey.parse(argument))
    else:
        restore(state, Path(argument), force=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]))
