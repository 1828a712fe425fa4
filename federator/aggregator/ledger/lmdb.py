"""The ledger on disk, in LMDB: the default."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import structlog

from federator.aggregator.ledger import codec
from federator.aggregator.ledger.check import check, find_heads, find_newest, repair_while_serving
from federator.aggregator.ledger.codec import Identity
from federator.aggregator.ledger.commit_thread import CommitThread
from federator.aggregator.ledger.damage import STATE_LOST, Damage, plan_loss
from federator.aggregator.ledger.files import sync_folder, take_lock
from federator.aggregator.ledger.floor import Floor, Mark
from federator.aggregator.ledger.ledger import ENTRIES_PER_LOT, KEYS_PER_SLICE, CommitListener
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
from federator.aggregator.ledger.reader import Reader, reading
from federator.aggregator.ledger.records import (
    Batch,
    ClusterRecord,
    Commit,
    Entry,
    ObjectEntry,
    Put,
    StoredKey,
    Transition,
    TypeRecord,
)
from federator.aggregator.ledger.room import Room
from federator.aggregator.ledger.store import APPENDER_LOCK_FILE, condemn
from federator.aggregator.ledger.tables import FOLDER as FOLDER
from federator.aggregator.ledger.tables import Tables
from federator.aggregator.ledger.writer import Writer, writing
from federator.api.cluster import ClusterID, ClusterState, TypeState
from federator.api.cursor import CursorCodec
from federator.api.duration_histogram import DurationHistogram
from federator.api.key import ObjectKey
from federator.api.resource import GroupResource, ResourceType
from federator.errors import CursorExpired, InvalidInput, LedgerCorrupt, LedgerError, LedgerFull
from federator.wire.body import BodyCodec, Dictionary

log = structlog.get_logger(__name__)

T = TypeVar("T")

DEFAULT_MAX_BYTES = 8 << 30
"""Room for records, in bytes of used pages; history counts until it is compacted."""

_FOLDER_MODE = 0o700
_CHANGE_BYTES = 512  # of a change besides its body, in the log and in the table of present objects
_STATE_BYTES = 1024  # of a change of a cluster's or a type's state
_COMPACTED_AT_FIRST = 256  # entries, in one transaction
_COMPACTED_AT_MOST = 8192
_COMPACTED_SECONDS = 0.02  # for a transaction with its fsync; twice that is still below the 50 ms others may wait


class LmdbLedger:
    """A `Ledger` whose medium is a file, fsynced before anything is told.

    Reads come from the memory map, each in a read transaction of its own, on the loop: `read`, `entry` and
    `revision_at` take microseconds per entry. They see nothing that has not been told. `keys` and `present` see one
    durable revision, which may already be newer than what has been told while appends are on their way.

    Damage that a method meets is raised as LedgerCorrupt, and noticed: `mend` does what can be done about it.

    Attributes:
        damage: what is known of it.
        failure: why nothing more is taken until the ledger is opened again; None while all is well.
        attention: set when there is something to mend, or it failed.
        full: set when something was refused for want of room.
    """

    def __init__(
        self,
        tables: Tables,
        directory: Path,
        floor: Floor,
        room: Room,
        *,
        thorough: bool,
        clock: Callable[[], float],
    ) -> None:
        """Use `open`."""
        self._tables = tables
        self._directory = directory
        self._release = tables.close
        self._floor = floor
        self._room = room
        self._clock = clock
        self._listener: CommitListener | None = None
        self._batches = 0
        self._unread: set[int] = set()  # revisions of the newest states that `present` left out
        self._bodies = BodyCodec()
        self.damage = Damage()
        self.failure: LedgerError | None = None
        self.attention = asyncio.Event()
        self.full = asyncio.Event()
        with writing(tables) as writer:
            identity = writer.establish(max(first_revision(self._now_ms()), floor.base))
        _require_acknowledged(tables, floor, identity)
        identity = migrate(tables, identity)
        self.damage.repaired = check(tables, thorough=thorough)
        if self.damage.repaired:
            log.warning("ledger's heads repaired", path=str(tables.path), records=self.damage.repaired)
        self._cursors = CursorCodec(identity.ledger_id, identity.secret)
        with reading(tables) as reader:
            for dictionary in reader.dictionaries():
                self._bodies.add(dictionary)
            self._revision = reader.position().revision
            clusters = list(reader.clusters())
            self._members = Members(clusters, (one for each in clusters for one in reader.types(each.cluster_id)))
        self._ledger_id = identity.ledger_id
        floor.write(Mark(identity.ledger_id, self._revision, tables.last_transaction()))
        self._thread = CommitThread(tables, before=room.prepare, after=self._raise_floor, failed=self._fail)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        ballast_bytes: int = 0,
        thorough: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> LmdbLedger:
        """Opens the ledger in a state directory, or creates it there. Does file I/O; call it before serving.

        It is checked, which takes some 3 s for a million objects, and heads that are damaged are repaired.

        Args:
            path: the state directory; the ledger takes the folder `ledger` in it.
            max_bytes: room for records; a batch that does not fit raises LedgerFull.
            ballast_bytes: of the disk, kept for making room; see `room`.
            thorough: check the log, too, which takes another 2 s for a million entries.
            clock: seconds since 1970.

        Raises:
            LedgerLocked: another process, or another part of this one, has it open.
            LedgerCorrupt: it is damaged, beyond what can be repaired from itself.
            LedgerError: it cannot be opened; the message says why.
        """
        folder = path / FOLDER
        with ExitStack() as stack:
            try:
                made = [each for each in (path, *path.parents) if not each.exists()]
                folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
                take_lock(folder / APPENDER_LOCK_FILE, folder, stack)
                floor = Floor(path)
                stack.callback(floor.close)
                tables = Tables(folder)
                stack.callback(tables.close)
                for named in (folder, path, *(each.parent for each in made)):
                    sync_folder(named)
                room = Room(tables, max_bytes, ballast_bytes)
                room.prepare()
            except OSError as error:
                raise LedgerError(f"cannot open the ledger in {folder}: {error}") from error
            ledger = cls(tables, path, floor, room, thorough=thorough, clock=clock)
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
        with self._reading() as reader:
            return max(reader.oldest_revision(), self.damage.given_up)

    @property
    def oldest_time_ms(self) -> int:
        """As the seam says."""
        with self._reading() as reader:
            return reader.oldest_time_ms()

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

        _, record = await self._submit(work, tell, cost=_STATE_BYTES)
        return record

    async def append(self, batch: Batch) -> Commit:
        """As the seam says; waits while the queue of the commit thread is full, and a little for company."""
        bodies = sum(len(change.body) for change in batch.changes if isinstance(change, Put))
        cost = _STATE_BYTES + _CHANGE_BYTES * len(batch.changes) + bodies

        def plan(writer: Writer) -> Plan:
            plan = plan_append(writer, batch, self._now_ms())
            if plan.commit.entries:
                self._room.require(writer, cost)
            return plan

        commit = await self._commit(plan, cost, is_patient=_is_patient(batch))
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
            self._room.require(writer, cost)
            return plan_dictionary(writer, dictionary, self._now_ms())

        await self._commit(plan, cost)
        self._bodies.add(dictionary)

    def read(self, after_revision: int, limit: int) -> Sequence[Entry]:
        """As the seam says. What stands before a damaged entry has to start over as if that were compacted."""
        with self._reading() as reader:
            oldest = max(reader.oldest_revision(), self.damage.given_up)
            if after_revision < oldest:
                raise CursorExpired(after_revision, oldest)
            entries: list[Entry] = []
            for revision, row in islice(reader.sound_history(after_revision, self._revision), limit):
                if row is None:
                    self._note(LedgerCorrupt.at(str(self._tables.path), "log", codec.encode_revision(revision)))
                    if entries:
                        break
                    raise CursorExpired(after_revision, self.damage.given_up)
                entries.append(reader.as_entry(revision, row))
            return entries

    def entry(self, revision: int) -> ObjectEntry | None:
        """As the seam says."""
        with self._reading() as reader:
            return reader.object_entry(revision)

    def entries(self, revisions: Iterable[int]) -> Iterator[tuple[int, ObjectEntry | LedgerCorrupt | None]]:
        """As the seam says; each lot in one transaction."""
        rest = iter(revisions)
        while lot := list(islice(rest, ENTRIES_PER_LOT)):
            with self._reading() as reader:
                found = [self._sound_entry(reader, revision) for revision in lot]
            yield from zip(lot, found, strict=True)

    def _sound_entry(self, reader: Reader, revision: int) -> ObjectEntry | LedgerCorrupt | None:
        try:
            return reader.object_entry(revision)
        except LedgerCorrupt as error:
            self._note(error)
            return error

    def at(self, key: ObjectKey, revision: int) -> ObjectEntry | None:
        """As the seam says."""
        with self._reading() as reader:
            check_revision(revision, reader.oldest_revision(), self._revision)
            return at(chain(reader.object_entry, reader.newest(key)), revision)

    def versions(self, key: ObjectKey) -> Iterator[ObjectEntry]:
        """As the seam says; all are read at once."""
        with self._reading() as reader:
            versions = list(chain(reader.object_entry, reader.newest(key)))
        return (version for version in versions if version.revision <= self._revision)

    def present(self) -> Iterator[ObjectEntry]:
        """As the seam says. One read transaction as long as the iteration: for loading, before appends begin.

        Objects whose state is damaged are left out; `mend` then tells what that means.
        """

        def damaged(error: LedgerCorrupt) -> None:
            self._note(error)
            if error.table == "log":
                self._unread.add(codec.decode_revision(error.key))

        with self._reading() as reader:
            for entry in reader.present(damaged, self.damage.lose):
                if isinstance(entry, ObjectEntry):
                    yield entry

    def keys(self, cluster_id: ClusterID, resource: GroupResource) -> Iterator[StoredKey]:
        """As the seam says; all keys are read at once, some 2 µs each."""
        with self._reading() as reader:
            return iter(list(reader.keys(cluster_id, resource)))

    def key_slices(self, cluster_id: ClusterID, resource: GroupResource) -> Iterator[Sequence[StoredKey]]:
        """As the seam says; each slice in a read transaction of its own."""
        after: bytes | None = b""
        while after is not None:
            with self._reading() as reader:
                keys, after = reader.slice_of_keys(cluster_id, resource, after, KEYS_PER_SLICE)
            yield keys

    def stored(self, key: ObjectKey) -> StoredKey | None:
        """As the seam says."""
        with self._reading() as reader:
            head = reader.head(key)
        return None if head is None else StoredKey(key.namespace, key.name, head.revision, head.fingerprint)

    def newest(self, key: ObjectKey) -> int:
        """As the seam says; it may be an entry that is yet to be told."""
        with self._reading() as reader:
            return reader.newest(key)

    def transitions(self, cluster_id: ClusterID, resource: GroupResource | None = None) -> Sequence[Transition]:
        """As the seam says."""
        with self._reading() as reader:
            return reader.transitions(cluster_id, resource, self._revision)

    def clusters(self) -> Mapping[ClusterID, ClusterRecord]:
        """As the seam says."""
        return self._members.by_id()

    def types(self, cluster_id: ClusterID) -> Sequence[TypeRecord]:
        """As the seam says."""
        return self._members.types(cluster_id)

    async def turn(self) -> None:
        """As the seam says."""
        await self._thread.turn()

    async def compact(self, revision: int) -> int:
        """As the seam says. In slices that commits interleave with; cancelled, it has forgotten up to some slice.

        Entries that are damaged are passed over.
        """
        if revision > self._revision:
            raise InvalidInput("revision", revision, f"at most the newest, {self._revision}")
        self._tables.forget_dead_readers()
        dropped, most = 0, _COMPACTED_AT_FIRST
        while True:
            forgotten = await self._submit(
                partial(Writer.forget, up_to=revision, most=most), _ignore, cost=_STATE_BYTES
            )
            dropped += forgotten.dropped
            for damaged in forgotten.damaged:
                self._note(LedgerCorrupt.at(str(self._tables.path), "log", codec.encode_revision(damaged)))
            if forgotten.is_done:
                return dropped
            # With its fsync, since what an fsync takes depends on the disk and on how many pages the slice touched.
            is_slow = self._thread.durations.last > _COMPACTED_SECONDS
            most = max(most // 2, 1) if is_slow else min(most * 2, _COMPACTED_AT_MOST)

    async def mend(self) -> None:
        """Repairs what was noticed to be damaged, and commits what that means; see `damage`.

        Raises:
            LedgerFull, LedgerError: nothing was changed.
        """
        if not self.damage.waits:
            return
        noticed = self.damage.take()
        if noticed.heads:
            await self._mend_heads(noticed.heads)
        if noticed.revisions:
            await self._mend_entries(noticed.revisions)

    async def _mend_heads(self, keys: Collection[bytes]) -> None:
        up_to = self._revision
        try:
            entries = await asyncio.to_thread(find_newest, self._tables, keys, up_to)

            def work(writer: Writer) -> None:
                repair_while_serving(writer, self._tables, entries, up_to)

            await self._submit(work, _ignore, cost=_STATE_BYTES * len(keys))
        except LedgerCorrupt as error:  # nothing less than a page
            self._fail(error)
            raise
        self.damage.repaired += len(keys)
        log.warning("ledger's heads repaired", path=str(self._tables.path), records=len(keys))

    async def _mend_entries(self, revisions: Collection[int]) -> None:
        with self._noting():
            lost = await asyncio.to_thread(find_heads, self._tables, revisions)
        plan = await self._submit(
            lambda writer: _written(writer, plan_loss(writer, lost, self._now_ms(), self._unread)),
            self._tell,
            cost=_STATE_BYTES * len(revisions),
        )
        for key in plan.heads:
            self.damage.lose(key)
            log.error("state of an object is lost to damage; its type is listed anew", object=str(key))
        self.damage.states_lost += len(plan.heads)
        self.damage.history_lost += len(revisions) - len(plan.heads)

    def wanted_listings(self) -> Sequence[tuple[ClusterID, GroupResource]]:
        """Types that are incomplete until their agents have listed them, because states were lost."""
        return [
            (cluster.cluster_id, record.type.group_resource)
            for cluster in self._members.clusters()
            for record in self._members.types(cluster.cluster_id)
            if (record.state, record.reason) == (TypeState.SYNCING, STATE_LOST)
        ]

    async def look_for_room(self) -> None:
        """Sees whether a ledger that was full still is, and takes the ballast again where the disk has room.

        Raises:
            LedgerFull: it still is.
        """
        await asyncio.to_thread(self._room.restore)
        if self._room.is_full:
            await self._thread.submit(lambda writer: self._room.require(writer, 0), _ignore, cost=0)

    def revision_at(self, time_ms: int) -> int:
        """As the seam says."""
        with self._reading() as reader:
            return reader.revision_at(time_ms, self._revision)

    def statistics(self) -> Mapping[str, int | float]:
        """As the seam says.

        `bytes` is the file's length, `used_bytes` that of the pages with records, which is what `max_bytes` bounds.
        """
        with self._reading() as reader:
            return {
                "revision": self._revision,
                "oldest_revision": reader.oldest_revision(),
                "entries": reader.count("log"),
                "objects": reader.count("current"),
                "bytes": self._tables.file_bytes(),
                "used_bytes": reader.used_bytes(),
                "max_bytes": self._room.max_bytes,
                "is_full": int(self._room.is_full),
                "repaired_heads": self.damage.repaired,
                "lost_states": self.damage.states_lost,
                "lost_objects": self.damage.lost_objects,
                "damaged_history": self.damage.history_lost,
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

    async def _commit(self, make_plan: Callable[[Writer], Plan], cost: int, *, is_patient: bool = False) -> Commit:
        plan = await self._submit(
            lambda writer: _written(writer, make_plan(writer)), self._tell, cost=cost, is_patient=is_patient
        )
        return plan.commit

    async def _submit(
        self, work: Callable[[Writer], T], tell: Callable[[T], None], *, cost: int, is_patient: bool = False
    ) -> T:
        with self._noting():
            return await self._thread.submit(work, tell, cost=cost, is_patient=is_patient)

    def _tell(self, plan: Plan) -> None:
        self._revision = plan.commit.revision
        self._members.apply(plan)
        self.damage.told(plan.heads)
        if plan.is_told and self._listener is not None:
            self._listener(plan.commit)

    def _raise_floor(self, writer: Writer) -> None:
        if writer.end.revision:
            self._floor.write(Mark(self._ledger_id, writer.end.revision, self._tables.last_transaction()))

    @contextmanager
    def _reading(self) -> Iterator[Reader]:
        with self._noting(), reading(self._tables) as reader:
            yield reader

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Takes note of damage, and of want of room, on its way to the caller."""
        try:
            yield
        except LedgerCorrupt as error:
            self._note(error)
            raise
        except LedgerFull:
            self.full.set()
            raise

    def _note(self, error: LedgerCorrupt) -> None:
        if error.table == "current":
            is_new = self.damage.notice_head(error.key)
        elif error.table == "log":
            revision = codec.decode_revision(error.key)
            self.damage.given_up = max(self.damage.given_up, revision)
            is_new = self.damage.notice_entry(revision)
        else:
            self._fail(error)
            return
        if is_new:
            log.error("damaged record in the ledger", path=error.path, record=error.record)
            self.attention.set()

    def _fail(self, error: LedgerError) -> None:
        """Nothing more can be done with the ledger as it is open."""
        if self.failure is not None:
            return
        self.failure = error
        self.attention.set()
        log.error("ledger failed", path=str(self._tables.path), cause=str(error))
        if isinstance(error, LedgerCorrupt):
            condemn(self._directory, str(error))


def _is_patient(batch: Batch) -> bool:
    """Whether nothing but the next changes of its session waits for a batch; of a listing, the next step does."""
    is_of_listing = batch.skips_older or batch.listed_version or batch.generation is not None
    return bool(batch.sequence and (batch.changes or batch.low_water) and not is_of_listing)


def _written(writer: Writer, plan: Plan) -> Plan:
    writer.write(plan)
    return plan


def _ignore(_: object) -> None:
    """For work of which nobody has to be told."""


def _require_acknowledged(tables: Tables, floor: Floor, identity: Identity) -> None:
    mark = floor.mark
    if mark is None or mark.ledger_id != identity.ledger_id:
        return
    if tables.last_transaction() < mark.transaction:
        raise LedgerCorrupt(str(tables.path), f"its end: commit {mark.transaction} is missing, and others maybe")
    # A damaged number of a commit makes an older state the newest one, and high enough to pass for it.
    with reading(tables) as reader:
        revision = reader.position().revision
    if revision < mark.revision:
        raise LedgerCorrupt(str(tables.path), f"its end: it stands at {revision}, {mark.revision} was acknowledged")
