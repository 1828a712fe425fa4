"""Kills a process that appends to a ledger on disk, again and again, and looks at what the next one finds.

`python -m tests.robustness.ledger_torture --mode kill --kills 1000 --seed 1` ends with exit code 1 at the first
difference, leaving the folder. With `--mode unsynced` each kill also takes away what no sync covered, as a power cut
would.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import pickle
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Literal, Self

import msgspec

from federator.observability.logs import configure_logging
from tests.robustness.ledger_child import (
    BROKEN,
    Acknowledged,
    Closed,
    Compacted,
    Compacting,
    Found,
    Message,
    Orders,
    Session,
    Wrong,
    fork,
    messages,
)
from tests.robustness.ledger_expectation import Difference, Expectation
from tests.robustness.ledger_power_cut import Cut, NoCompiler, compiled, cut_power, is_preloaded, preloaded
from tests.robustness.ledger_script import Script
from tests.robustness.report_file import write_report

Mode = Literal["kill", "unsynced"]

LIVES = (1, 1, 1, 2, 25)
"""Kills that a ledger lives through before it is made anew, in turns: many are killed while they are made, and looking
at one takes the longer the more it has."""

AT_MOST = 0.15
"""Seconds after a child has looked at the ledger, after which it is killed though its event has not come."""

STUCK = 60.0
"""Seconds after which a child that has said nothing is taken for one that cannot."""


class Kill(msgspec.Struct, frozen=True):
    """When a child is killed.

    Attributes:
        number: in the run.
        event: what the time counts from; `started` while the child may still be opening the ledger.
        seconds: after the event.
        writes: to the disk after which it comes in any case, counted from the start; 0 for never.
    """

    number: int
    event: Literal["started", "found", "compacting", "acknowledged"]
    seconds: float
    writes: int = 0

    @property
    def ledger(self) -> int:
        """Number of the ledger it is done to: that of the first kill that it sees."""
        turn = self.number - self.number % sum(LIVES)
        return turn + max(begin for begin in accumulate(LIVES[:-1], initial=0) if turn + begin <= self.number)


def draw_kill(mode: Mode, seed: int, number: int) -> Kill:
    """A kill depends on the mode, the seed and its own number only."""
    draw = Random(f"{seed} kill {number}")
    kind = draw.random()
    is_new = Kill(number, "started", 0).ledger == number
    if mode == "unsynced" and kind < (0.8 if is_new else 0.3):
        # How far it comes in some milliseconds depends on the machine; this does not.
        return Kill(number, "found", 1, draw.randint(1, 20 if is_new else 100))
    if kind < (0.6 if is_new else 0.15):
        return Kill(number, "started", draw.uniform(0, 0.03))
    if kind < 0.35:
        return Kill(number, "compacting", draw.uniform(0, 0.01))
    if kind < 0.45:
        return Kill(number, "acknowledged", 0)
    return Kill(number, "found", draw.uniform(0, 0.15))


class Report(msgspec.Struct):
    """What happened in a run.

    Attributes:
        mode: see the command line.
        seed: of the run.
        kills: done.
        seconds: of the run.
        ledgers: that were made.
        looked_at: how often all of a ledger was looked at.
        while_opening: kills before the child had looked at the ledger.
        while_compacting: kills while history was being forgotten.
        acknowledged: entries that were acknowledged, all of them found again.
        batches: acknowledged.
        unacknowledged: entries found that had not been acknowledged, because the kill came before.
        resent: batches that were durable without acknowledgement, were sent again, and changed nothing.
        forgotten: entries dropped by compactions that were acknowledged.
        lost: acknowledged entries that were gone.
        doubled: entries that were there twice.
        unsynced_writes: that power cuts met.
        sectors_undone: of them, put back to some older state.
        sectors_kept: of them.
        names_undone: new files and folders that were taken away.
        difference: what was wrong; empty in a good run.
        folder: what is left, where there was a difference.
        repeat: the command that repeats it.
    """

    mode: Mode
    seed: int
    kills: int = 0
    seconds: float = 0.0
    ledgers: int = 0
    looked_at: int = 0
    while_opening: int = 0
    while_compacting: int = 0
    acknowledged: int = 0
    batches: int = 0
    unacknowledged: int = 0
    resent: int = 0
    forgotten: int = 0
    lost: int = 0
    doubled: int = 0
    unsynced_writes: int = 0
    sectors_undone: int = 0
    sectors_kept: int = 0
    names_undone: int = 0
    difference: str = ""
    folder: str = ""
    repeat: str = ""


class LedgerTorture:
    """Runs kills one after another, each on what the one before left."""

    def __init__(self, mode: Mode, seed: int, folder: Path, *, broken: str = "") -> None:
        """Does nothing yet.

        Args:
            mode: whether a kill takes unsynced writes with it; then `is_preloaded` holds.
            seed: decides what is done.
            folder: for ledgers and journals; exists and is empty.
            broken: what is broken in the children on purpose; a key of `BROKEN`, or empty.
        """
        self.report = Report(mode, seed)
        self._folder = folder
        self._disk = folder / "disk"
        self._journal = folder / "journal" if mode == "unsynced" else None
        self._broken = broken
        self._expectation = Expectation(Script(seed, -1))
        self._is_compacting = False

    @property
    def ledger(self) -> int:
        """Number of the ledger at hand, which is that of the first kill it saw."""
        return self._expectation.script.ledger

    def run(self, first: int, kills: int) -> None:
        """Runs kills, up to the first with a difference, which the report then has."""
        begin = time.monotonic()
        gc.collect()
        gc.freeze()  # children are copies of this process; collecting would make them copy its pages
        try:
            for number in range(first, first + kills):
                self._kill(draw_kill(self.report.mode, self.report.seed, number), is_first=number == first)
            self._leave_ledger()
        except Difference as difference:
            self.report.difference = str(difference)
            self.report.lost, self.report.doubled = difference.lost, difference.doubled
            self.report.folder = str(self._folder)
        self.report.seconds = round(time.monotonic() - begin, 1)

    def _kill(self, kill: Kill, *, is_first: bool) -> None:
        script = self._expectation.script
        if script.ledger != kill.ledger:
            if not is_first:
                self._leave_ledger()
            script = Script(self.report.seed, kill.ledger)
            self._expectation = Expectation(script)
            self._disk.mkdir()
            self.report.ledgers += 1
        looked_at = self.report.looked_at
        with _Child(self._orders(kill.number, kill.writes), self._expectation) as child:
            child.ends_within(kill.seconds if kill.event == "started" else STUCK)
            for message in child.until_its_time():
                self._take(message)
                if isinstance(message, Found):
                    child.ends_within(AT_MOST)
                if kill.event == type(message).__name__.lower():
                    child.ends_within(kill.seconds)
            status = child.kill()
            for message in child.rest():
                self._take(message)
        self.report.kills += 1
        self.report.while_opening += self.report.looked_at == looked_at
        self.report.while_compacting += self._is_compacting
        self._is_compacting = False
        if status != -signal.SIGKILL:
            raise Difference(f"the child ended by itself before kill {kill.number}, with status {status}")
        if self.report.looked_at == looked_at and kill.event != "started" and not kill.writes:
            raise Difference(f"the child said nothing for {STUCK:g} s before kill {kill.number}")
        if self._journal is not None and self._journal.exists():
            self._count(cut_power(self._journal, Random(f"{self.report.seed} cut {kill.number}")))

    def _leave_ledger(self) -> None:
        """Looks once more, closes the ledger in order, and removes it."""
        is_closed = False
        with _Child(self._orders(None, 0), self._expectation) as child:
            for message in child.rest():
                self._take(message)
                is_closed = isinstance(message, Closed)
        if not is_closed:
            raise Difference("the child that only looks at the ledger ended without closing it")
        shutil.rmtree(self._disk)

    @property
    def _state_directory(self) -> Path:
        return self._disk / f"ledger-{self.ledger}"

    def _orders(self, number: int | None, writes: int) -> Orders:
        if self._journal is not None:
            self._journal.unlink(missing_ok=True)
        return Orders(self._state_directory, number, self._journal, writes, self._broken)

    def _take(self, message: Message) -> None:
        report, expectation = self.report, self._expectation
        match message:
            case Found():
                report.looked_at += 1
                found: Expectation = pickle.loads(message.expectation)
                fresh = [revision for revision in found.digests if revision > expectation.revision]
                report.unacknowledged += sum(revision not in expectation.acknowledged for revision in fresh)
                self._expectation = found
            case Acknowledged():
                durable = expectation.sequences.get(message.cluster_id, 0)
                report.resent += 0 < message.sequence <= durable
                report.batches += message.sequence > 0
                report.acknowledged += len(message.entries)
                expectation.acknowledge(message.cluster_id, message.sequence, message.revision, message.entries)
            case Session():
                expectation.terms[message.cluster_id] = message.term
            case Compacting():
                self._is_compacting = True
                expectation.may_forget = max(expectation.may_forget, message.revision)
            case Compacted():
                self._is_compacting = False
                report.forgotten += message.dropped
                expectation.oldest = max(expectation.oldest, message.revision)
            case Wrong():
                raise Difference(message.text, lost=message.lost, doubled=message.doubled)

    def _count(self, cut: Cut) -> None:
        self.report.unsynced_writes += cut.writes
        self.report.sectors_undone += cut.undone
        self.report.sectors_kept += cut.kept
        self.report.names_undone += cut.names


class _Child:
    """One child: what it says, and its end."""

    def __init__(self, orders: Orders, expectation: Expectation) -> None:
        self._process, self._hearing = fork(orders, expectation)
        self._heard = bytearray()
        self._status: int | None = None
        self._time = math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self._hearing)

    def ends_within(self, seconds: float) -> None:
        """Sets its time to come so many seconds from now, unless it comes earlier."""
        self._time = min(self._time, time.monotonic() + seconds)

    def until_its_time(self) -> Iterator[Message]:
        """Yields messages until its time has come, or its end."""
        while (left := self._time - time.monotonic()) > 0:
            if select.select([self._hearing], [], [], left)[0]:
                if not self._hear():
                    return
                yield from messages(self._heard)

    def rest(self) -> Iterator[Message]:
        """Yields messages until the child's end."""
        while self._hear():
            yield from messages(self._heard)

    def kill(self) -> int:
        """Kills it, unless it has ended; returns its exit code, negative for a signal."""
        if self._status is None:
            os.kill(self._process, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        return self._status

    def _hear(self) -> bool:
        heard = os.read(self._hearing, 1 << 20)
        self._heard += heard
        return bool(heard)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code: 0 where all was as it has to be, 1 where not, 2 for no compiler."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(words)
    if given.mode == "unsynced" and not is_preloaded():
        try:
            library = compiled()
        except NoCompiler as error:
            _tell(f"--mode unsynced {error}")
            return 2
        # It has to be there before anything else is.
        command = [sys.executable, "-m", "tests.robustness.ledger_torture", *words]
        os.execve(sys.executable, command, preloaded(library))
    configure_logging("error")
    folder = Path(tempfile.mkdtemp(prefix="ledger-torture-"))
    torture = LedgerTorture(given.mode, given.seed, folder, broken=given.broken)
    torture.run(given.first_kill, given.kills)
    report = torture.report
    if report.difference:
        # What led to it began with the ledger, so that is where to begin again.
        last = given.first_kill + max(report.kills - 1, 0)
        first = torture.ledger
        report.repeat = (
            f"python -m tests.robustness.ledger_torture --mode {given.mode} --seed {given.seed} "
            f"--first-kill {first} --kills {last - first + 1}"
        )
    else:
        shutil.rmtree(folder)
    _tell(_summary(report))
    write_report(report, given.report)
    return 1 if report.difference else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.ledger_torture", description=__doc__)
    parser.add_argument("--mode", choices=["kill", "unsynced"], default="kill", help="[default: kill]")
    parser.add_argument("--kills", type=int, default=1000, help="number of kills [default: 1000]")
    parser.add_argument("--seed", type=int, default=1, help="decides everything that is done [default: 1]")
    parser.add_argument("--first-kill", type=int, default=0, help="number of the first one [default: 0]")
    parser.add_argument(
        "--report", type=Path, default=Path("build/ledger-torture.json"), help="file [default: %(default)s]"
    )
    parser.add_argument("--broken", choices=["", *BROKEN], default="", help=argparse.SUPPRESS)
    return parser


def _summary(report: Report) -> str:
    counts = msgspec.to_builtins(report)
    words = [f"{name.replace('_', ' ')} {counts.pop(name)}" for name, value in list(counts.items()) if value]
    return ", ".join(words)


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
