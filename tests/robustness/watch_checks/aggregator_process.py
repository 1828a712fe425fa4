"""An aggregator that forgets early, falls back on its ledger soon, and keeps a journal of what the ledger commits.

`python -m tests.robustness.watch_checks.aggregator_process aggregator …` takes the options of `federator aggregator`
that a `Federation` gives, and what the command has no option for. What is put in place of parts of the aggregator are
those parts, with other bounds, and with a pencil.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from federator.aggregator.aggregator import Aggregator
from federator.aggregator.ingest.settings import IngestSettings
from federator.aggregator.ledger.ledger import CommitListener
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.records import Batch, ClusterEntry, ClusterRecord, Commit, Entry, ObjectEntry
from federator.aggregator.serve.watch_hub import WatchHub
from federator.aggregator.settings import AggregatorSettings
from federator.cli.service import run_service
from federator.observability.logs import configure_logging
from tests.robustness.watch_checks.journal import (
    Appended,
    Committed,
    Compacting,
    Journal,
    Opened,
    Started,
    lines,
)

JOURNAL = "journal.jsonl"
"""File in the state directory."""

FLOOR = "floor"
"""File in the state directory: the revision up to which the client is that is the reference. What it has not seen is
not forgotten, however long anything takes."""


class JournalledLedger(LmdbLedger):
    """The ledger, and a line in the journal for each commit, session and compaction.

    A commit's line is written as it is told, so after it is durable. What a process that was killed had made durable
    and not told is found by the next one, as it opens.

    Attributes:
        grace: seconds after a start in which nothing is forgotten, so that clients find what they missed.
    """

    grace: ClassVar[float] = 0.0

    _journal: Journal
    _process: int
    _asked: int
    _forgets_from: float
    _reference: Path

    @classmethod
    def open(cls, path: Path, **options: Any) -> JournalledLedger:
        """As the base class says."""
        ledger = super().open(path, **options)
        assert isinstance(ledger, cls)
        before = list(lines(path / JOURNAL))
        ledger._asked = 0
        ledger._forgets_from = time.monotonic() + cls.grace
        ledger._reference = path / FLOOR
        ledger._process = 1 + sum(isinstance(line, Started) for line in before)
        ledger._journal = Journal(path / JOURNAL)
        ledger._journal.add(Started(ledger._process))
        told = [line.entries[-1][0] for line in before if isinstance(line, Committed)]
        if told:
            untold = ledger.read(max(told), sys.maxsize)
            if untold:
                ledger._journal.add(Committed(tuple(map(_kind, untold)), is_recovered=True))
        return ledger

    def on_commit(self, listener: CommitListener) -> None:
        """As the seam says."""

        def write_down(commit: Commit) -> None:
            if commit.entries:
                self._journal.add(Committed(tuple(map(_kind, commit.entries))))
            listener(commit)

        super().on_commit(write_down)

    async def open_session(self, wanted: ClusterRecord) -> ClusterRecord:
        """As the seam says."""
        order = self._next()
        record = await super().open_session(wanted)
        self._journal.add(Opened(record.cluster_id, record.term, order))
        return record

    async def append(self, batch: Batch) -> Commit:
        """As the seam says."""
        order = self._next()
        commit = await super().append(batch)
        if commit.entries:
            revisions = tuple(entry.revision for entry in commit.entries)
            self._journal.add(Appended(batch.cluster_id, batch.term, order, revisions))
        return commit

    async def compact(self, revision: int) -> int:
        """As the seam says, but for the time after the start, and for what the reference has not seen."""
        if time.monotonic() < self._forgets_from:
            return 0
        with suppress(FileNotFoundError, ValueError):
            revision = min(revision, int(self._reference.read_text()))
        if revision <= self.oldest_revision:
            return 0
        self._journal.add(Compacting(revision, time.monotonic(), is_done=False))
        dropped = await super().compact(revision)
        self._journal.add(Compacting(revision, time.monotonic(), is_done=True))
        return dropped

    async def close(self) -> None:
        """As the seam says."""
        await super().close()
        self._journal.close()

    def _next(self) -> tuple[int, int]:
        self._asked += 1
        return self._process, self._asked


def _kind(entry: Entry) -> tuple[int, str]:
    if isinstance(entry, ObjectEntry):
        return entry.revision, entry.type.name
    return entry.revision, "CLUSTER" if isinstance(entry, ClusterEntry) else "TYPE"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs an aggregator until it is told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["aggregator"])
    for name in ("listen", "ingest-listen", "http-listen"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--state-directory", type=Path, required=True)
    parser.add_argument("--history", type=float, required=True, help="seconds")
    parser.add_argument("--compaction-interval", type=float, required=True, help="seconds")
    parser.add_argument("--grace", type=float, required=True, help="seconds after its start without compaction")
    parser.add_argument("--heartbeat-interval", type=float, required=True, help="seconds")
    parser.add_argument("--ring-entries", type=int, required=True, help="entries that watches find in memory")
    given = parser.parse_args(arguments)
    configure_logging("info", "json")
    JournalledLedger.grace = given.grace
    settings = AggregatorSettings(
        listen=given.listen,
        ingest_listen=given.ingest_listen,
        http_listen=given.http_listen,
        state_directory=given.state_directory,
        history=given.history,
        compaction_interval=given.compaction_interval,
        ingest=IngestSettings(heartbeat_interval=given.heartbeat_interval),
    )
    assembly = "federator.aggregator.aggregator"
    with (
        mock.patch(f"{assembly}.LmdbLedger", JournalledLedger),
        mock.patch(f"{assembly}.WatchHub", partial(WatchHub, max_entries=given.ring_entries)),
    ):
        run_service(Aggregator(settings).run(), prefers_uvloop=True)


if __name__ == "__main__":
    main()
