"""What an aggregator's ledger was asked for and what it committed, written down beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.robustness.watch_checks.reference import Compaction, LedgerRecord, Origin


class Committed(msgspec.Struct, frozen=True, tag=True):
    """A commit that was told, or, where `is_recovered`, commits that nobody was told of before the process ended.

    Attributes:
        entries: revision and type of each entry.
        is_recovered: where one commit ends and the next one begins is not known.
    """

    entries: tuple[tuple[int, str], ...]
    is_recovered: bool = False


class Appended(msgspec.Struct, frozen=True, tag=True):
    """A session's batch was committed.

    Attributes:
        cluster: of the session.
        term: of the session.
        order: the process, and the number of the request among all that its ledger got.
        revisions: what it made.
    """

    cluster: str
    term: int
    order: tuple[int, int]
    revisions: tuple[int, ...]


class Opened(msgspec.Struct, frozen=True, tag=True):
    """A session was opened.

    Attributes:
        cluster: of the session.
        term: of the session.
        order: as in Appended.
    """

    cluster: str
    term: int
    order: tuple[int, int]


class Compacting(msgspec.Struct, frozen=True, tag=True):
    """History is being forgotten, or has been.

    Attributes:
        revision: up to which.
        at: seconds of the machine's monotonic clock.
        is_done: it has been.
    """

    revision: int
    at: float
    is_done: bool


class Started(msgspec.Struct, frozen=True, tag=True):
    """A process has opened the ledger."""

    process: int


Line = Committed | Appended | Opened | Compacting | Started

_decoder = msgspec.json.Decoder(Line)


class Journal:
    """A file that a process adds lines to, and that survives its end, however that comes."""

    def __init__(self, file: Path) -> None:
        """Opens it, or makes it.

        Raises:
            OSError: it cannot be.
        """
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, line: Line) -> None:
        """Adds a line. It is the kernel's when this returns."""
        os.write(self._descriptor, msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def lines(file: Path, kind: type[Line] | None = None) -> Iterator[Line]:
    """The lines of a journal, of one kind or all; one that is being written is left out."""
    if not file.exists():
        return
    mark = b"" if kind is None else f'"{kind.__name__}"'.encode()  # most are of another kind, and need no decoding
    for line in file.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n") and mark in line:
            yield _decoder.decode(line)


def ledger_record(file: Path) -> LedgerRecord:
    """What a journal says of the order."""
    commits: list[tuple[int, ...]] = []
    entries: dict[int, str] = {}
    origins: dict[int, Origin] = {}
    sessions: list[Origin] = []
    compactions: list[Compaction] = []
    for line in lines(file):
        match line:
            case Committed():
                entries.update(line.entries)
                if not line.is_recovered:
                    commits.append(tuple(revision for revision, _ in line.entries))
            case Appended():
                origins.update(dict.fromkeys(line.revisions, Origin(line.cluster, line.term, line.order)))
            case Opened():
                sessions.append(Origin(line.cluster, line.term, line.order))
            case Compacting(is_done=False):
                compactions.append(Compaction(line.revision, line.at, float("inf")))
            case Compacting():
                begun = compactions[-1]
                compactions[-1] = begun._replace(ended_at=line.at)
            case Started():
                pass
    return LedgerRecord(commits, entries, origins, sessions, compactions)


def compacted(file: Path) -> int:
    """Revision up to which history is known to be forgotten."""
    done = (line for line in lines(file, Compacting) if isinstance(line, Compacting) and line.is_done)
    return max((line.revision for line in done), default=0)
