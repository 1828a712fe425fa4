"""The ledger on disk, in LMDB: the default."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from federator.aggregator.ledger.commit_thread import CommitThread
from federator.aggregator.ledger.histogram import DurationHistogram
from federator.aggregator.ledger.ledger import CommitListener
from federator.aggregator.ledger.members import Members
from federator.aggregator.ledger.migration import migrate
from federator.aggregator.ledger.planning import (
    Plan,
    at,
    chain,
    check_revision,
    first_revision,
    plan_append,
    plan_cluster_state,
    plan_dictionary,
    plan_session,
    plan_type_state,
)
from federator.aggregator.ledger.reader import reading
from federator.aggregator.ledger.records import (
    Batch,
    ClusterRecord,
    Commit,
    Entry,
    ObjectEntry,
    Put,
    StoredKey,
    TypeRecord,
)
from federator.aggregator.ledger.tables import FILE_MODE, Tables
from federator.aggregator.ledger.writer import Writer, writing
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.cursor import CursorCodec
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource, ResourceType
from federator.errors import InvalidInput, LedgerError, LedgerLocked
from federator.wire.body import BodyCodec, Dictionary

DEFAULT_MAX_BYTES = 8 << 30
"""Room for records, in bytes of used pages; history counts until it is compacted."""

FOLDER = "ledger"
"""Folder of the ledger inside the state directory, for its owner's eyes only."""

_FOLDER_MODE = 0o700
_LOCK_FILE = "appender.lock"
_CHANGE_BYTES = 512  # of a change besides its body, in the log and in the table of present objects
_STATE_BYTES = 1024  # of a change of a cluster's or a type's state
_COMPACTED_AT_ONCE = 1024  # entries; some 10 ms, so that commits in between wait no longer


class LmdbLedger:
    """A `Ledger` whose medium is a file, fsynced before anything is told.

    Reads come from the memory map, each in a read transaction of its own, on the loop: `read`, `entry` and
    `revision_at` take microseconds per entry. They see nothing that has not been told. `keys` and `present` see one
    durable revision, which may already be newer than what has been told while appends are on their way.
    """

    def __init__(self, tables: Tables, *, max_bytes: int, clock: Callable[[], float]) -> None:
        """Use `open`."""
        self._tables = tables
        self._release = tables.close
        self._max_bytes = max_bytes
        self._clock = clock
        self._listener: CommitListener | None = None
        self._batches = 0
        self._bodies = BodyCodec()
        with writing(tables) as writer:
            identity = writer.establish(first_revision(self._now_ms()))
        identity = migrate(tables, identity)
        self._cursors = CursorCodec(identity.ledger_id, identity.secret)
        with reading(tables) as reader:
            for dictionary in reader.dictionaries():
                self._bodies.add(dictionary)
            self._revision = reader.position().revision
            clusters = list(reader.clusters())
            self._members = Members(clusters, (one for each in clusters for one in reader.types(each.cluster_id)))
        self._thread = CommitThread(tables)

    @classmethod
    def open(
        cls, path: Path, *, max_bytes: int = DEFAULT_MAX_BYTES, clock: Callable[[], float] = time.time
    ) -> LmdbLedger:
        """Opens the ledger in a state directory, or creates it there. Does file I/O; call it before serving.

        Args:
            path: the state directory; the ledger takes the folder `ledger` in it.
            max_bytes: room for records; a batch that does not fit raises LedgerFull.
            clock: seconds since 1970.

        Raises:
            LedgerLocked: another process, or another part of this one, has it open.
            LedgerCorrupt: it is damaged.
            LedgerError: it cannot be opened; the message says why.
        """
        folder = path / FOLDER
        with ExitStack() as stack:
            try:
                folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
                _lock(folder, stack)
                tables = Tables(folder)
                stack.callback(tables.close)
                _sync_folders(folder, path)
            except OSError as error:
                raise LedgerError(f"cannot open the ledger in {folder}: {error}") from error
            ledger = cls(tables, max_bytes=max_bytes, clock=clock)
            ledger._release = stack.pop_all().close
        return ledger

    @property
    def cursors(self) -> CursorCodec:
        """Writes and reads this ledger's cursors."""
        return self._cursors

    @property
    def bodies(self) -> BodyCodec:
        """As the seam says."""
        return self._bodies

    @property
    def revision(self) -> int:
        """Newest revision told to `on_commit`."""
        return self._revision

    @property
    def oldest_revision(self) -> int:
        """Oldest revision `read` can start after."""
        with reading(self._tables) as reader:
            return reader.oldest_revision()

    @property
    def commit_durations(self) -> DurationHistogram:
        """How long commits took, from the first request of each to the end of its fsync."""
        return self._thread.durations

    def on_commit(self, listener: CommitListener) -> None:
        """Sets the one listener; call before the first append."""
        self._listener = listener

    async def open_session(self, wanted: ClusterRecord) -> ClusterRecord:
        """As the seam says."""

        def work(writer: Writer) -> tuple[Plan, ClusterRecord]:
            plan, record = plan_session(writer, wanted, self._now_ms())
            writer.write(plan)
            return plan, record

        def tell(planned: tuple[Plan, ClusterRecord]) -> None:
            self._tell(planned[0])

        _, record = await self._thread.submit(work, tell, cost=_STATE_BYTES)
        return record

    async def append(self, batch: Batch) -> Commit:
        """As the seam says; waits while the queue of the commit thread is full."""
        bodies = sum(len(change.body) for change in batch.changes if isinstance(change, Put))
        cost = _STATE_BYTES + _CHANGE_BYTES * len(batch.changes) + bodies

        def plan(writer: Writer) -> Plan:
            plan = plan_append(writer, batch, self._now_ms())
            if plan.commit.entries:
                writer.require_room(cost, self._max_bytes)
            return plan

        commit = await self._commit(plan, cost)
        self._batches += 1
        return commit

    async def set_cluster_state(self, cluster_id: ClusterID, state: ClusterState, reason: str = "") -> Commit:
        """As the seam says. Taken even where the ledger is full, which must not keep it from saying STALE."""
        return await self._commit(
            lambda writer: plan_cluster_state(writer, cluster_id, state, reason, self._now_ms()), _STATE_BYTES
        )

    async def set_type_state(
        self, cluster_id: ClusterID, resource_type: ResourceType, state: TypeState, reason: str = ""
    ) -> Commit:
        """As the seam says. Taken even where the ledger is full."""
        return await self._commit(
            lambda writer: plan_type_state(writer, cluster_id, resource_type, state, reason, self._now_ms()),
            _STATE_BYTES,
        )

    async def add_dictionary(self, dictionary: Dictionary) -> None:
        """As the seam says."""
        cost = _STATE_BYTES + len(dictionary.content)

        def plan(writer: Writer) -> Plan:
            writer.require_room(cost, self._max_bytes)
            return plan_dictionary(writer, dictionary, self._now_ms())

        await self._commit(plan, cost)
        self._bodies.add(dictionary)

    def read(self, after_revision: int, limit: int) -> Sequence[Entry]:
        """As the seam says."""
        with reading(self._tables) as reader:
            reader.require_history(after_revision)
            rows = islice(reader.history(after_revision, self._revision), limit)
            return [reader.as_entry(revision, row) for revision, row in rows]

    def entry(self, revision: int) -> ObjectEntry | None:
        """As the seam says."""
        with reading(self._tables) as reader:
            return reader.object_entry(revision)

    def at(self, key: ObjectKey, revision: int) -> ObjectEntry | None:
        """As the seam says."""
        with reading(self._tables) as reader:
            check_revision(revision, reader.oldest_revision(), self._revision)
            return at(chain(reader.object_entry, reader.newest(key)), revision)

    def versions(self, key: ObjectKey) -> Iterator[ObjectEntry]:
        """As the seam says; all are read at once."""
        with reading(self._tables) as reader:
            versions = list(chain(reader.object_entry, reader.newest(key)))
        return (version for version in versions if version.revision <= self._revision)

    def present(self) -> Iterator[ObjectEntry]:
        """As the seam says. One read transaction as long as the iteration: for loading, before appends begin."""
        with reading(self._tables) as reader:
            yield from reader.present()

    def keys(self, cluster_id: ClusterID, resource: GroupResource) -> Iterator[StoredKey]:
        """As the seam says; all keys are read at once, some 2 µs each."""
        with reading(self._tables) as reader:
            return iter(list(reader.keys(cluster_id, resource)))

    def clusters(self) -> Mapping[ClusterID, ClusterRecord]:
        """As the seam says."""
        return self._members.by_id()

    def types(self, cluster_id: ClusterID) -> Sequence[TypeRecord]:
        """As the seam says."""
        return self._members.types(cluster_id)

    async def compact(self, revision: int) -> int:
        """As the seam says. In slices that commits interleave with; cancelled, it has forgotten up to some slice."""
        if revision > self._revision:
            raise InvalidInput("revision", revision, f"at most the newest, {self._revision}")
        dropped, is_done = 0, False
        while not is_done:
            more, is_done = await self._thread.submit(
                lambda writer: writer.forget(revision, _COMPACTED_AT_ONCE), lambda _: None, cost=_STATE_BYTES
            )
            dropped += more
        return dropped

    def revision_at(self, time_ms: int) -> int:
        """As the seam says."""
        with reading(self._tables) as reader:
            return reader.revision_at(time_ms, self._revision)

    def statistics(self) -> Mapping[str, int | float]:
        """As the seam says.

        `bytes` is the file's length, `used_bytes` that of the pages with records, which is what `max_bytes` bounds.
        """
        with reading(self._tables) as reader:
            return {
                "revision": self._revision,
                "oldest_revision": reader.oldest_revision(),
                "entries": reader.count("log"),
                "objects": reader.count("current"),
                "bytes": self._tables.file_bytes(),
                "used_bytes": reader.used_bytes(),
                "max_bytes": self._max_bytes,
                "batches": self._batches,
                "queued": self._thread.queued,
                "commits": self._thread.durations.count,
                "commit_seconds": self._thread.durations.sum,
                "last_commit_seconds": self._thread.durations.last,
            }

    async def close(self) -> None:
        """As the seam says. Nothing may be read afterwards."""
        await self._thread.close()
        self._release()

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    async def _commit(self, make_plan: Callable[[Writer], Plan], cost: int) -> Commit:
        def work(writer: Writer) -> Plan:
            plan = make_plan(writer)
            writer.write(plan)
            return plan

        return (await self._thread.submit(work, self._tell, cost=cost)).commit

    def _tell(self, plan: Plan) -> None:
        self._revision = plan.commit.revision
        self._members.apply(plan)
        if plan.is_told and self._listener is not None:
            self._listener(plan.commit)


def _lock(folder: Path, stack: ExitStack) -> None:
    descriptor = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, FILE_MODE)
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LedgerLocked(str(folder)) from error


def _sync_folders(*folders: Path) -> None:
    # A file's fsync does not make its name durable.
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
