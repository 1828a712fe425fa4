"""A process that opens a ledger, says what it finds, and appends until it is killed.

It is forked from a process that has imported everything and knows what must be found, so that it costs milliseconds.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pickle
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random

import lmdb
import msgspec

from federator.aggregator.ledger import lmdb as driver
from federator.aggregator.ledger.ledger import Ledger
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.planning import Plan, View, plan_append
from federator.aggregator.ledger.records import Batch, Commit
from federator.api.cluster import ClusterID, ClusterState
from federator.errors import FederatorError
from tests.robustness.ledger_expectation import Difference, Expectation, digest
from tests.robustness.ledger_script import CLUSTERS, reason_of

IN_FLIGHT = 4
"""Steps of one cluster that wait for their acknowledgement."""

KEPT = (0, 0, 100, 1_000, 5_000)
"""Entries that a child leaves in the history it found."""

_LENGTH = struct.Struct("<I")


class Found(msgspec.Struct, tag=True):
    """The ledger is open and as it has to be. `expectation` is a pickled Expectation."""

    expectation: bytes


class Wrong(msgspec.Struct, tag=True):
    """The ledger is not as it has to be, or cannot be opened."""

    text: str
    lost: int = 0
    doubled: int = 0


class Session(msgspec.Struct, tag=True):
    """A session was opened."""

    cluster_id: ClusterID
    term: int


class Acknowledged(msgspec.Struct, tag=True):
    """`append` or a change of state returned; entries as pairs of revision and digest, sequence 0 for the latter."""

    cluster_id: ClusterID
    sequence: int
    revision: int
    entries: list[tuple[int, int]]


class Compacting(msgspec.Struct, tag=True):
    """A compaction is about to begin."""

    revision: int


class Compacted(msgspec.Struct, tag=True):
    """It returned."""

    revision: int
    dropped: int


class Closed(msgspec.Struct, tag=True):
    """The ledger was closed in order."""


Message = Found | Wrong | Session | Acknowledged | Compacting | Compacted | Closed
Say = Callable[[Message], None]

_decoder = msgspec.msgpack.Decoder(Message)


class Orders(msgspec.Struct, frozen=True):
    """What a child is told.

    Attributes:
        folder: the state directory.
        number: of the kill that will end it; None to look only, and to close the ledger.
        journal: for the writes that no sync covered; None where nobody keeps them.
        writes: after which it kills itself; 0 for never. Only with a journal.
        broken: what is broken in it on purpose; a key of `BROKEN`, or empty.
    """

    folder: Path
    number: int | None
    journal: Path | None = None
    writes: int = 0
    broken: str = ""


def fork(orders: Orders, expectation: Expectation) -> tuple[int, int]:
    """Starts a child; returns its process ID and the end of a pipe at which it is heard."""
    hearing, saying = os.pipe()
    if child := os.fork():
        os.close(saying)
        return child, hearing
    status = 1
    try:
        os.close(hearing)
        _live(orders, expectation, saying)
        status = 0
    finally:  # whatever happened, this process must not go on as a copy of its parent
        os._exit(status)


def messages(heard: bytearray) -> Iterator[Message]:
    """Takes whole messages off what was heard; what a killed child could not finish stays."""
    while len(heard) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(heard)
        end = _LENGTH.size + length
        if len(heard) < end:
            return
        yield _decoder.decode(bytes(heard[_LENGTH.size : end]))
        del heard[:end]


def _live(orders: Orders, expectation: Expectation, saying: int) -> None:
    def say(message: Message) -> None:
        encoded = msgspec.msgpack.encode(message)
        view = memoryview(_LENGTH.pack(len(encoded)) + encoded)
        while view:
            view = view[os.write(saying, view) :]

    if orders.journal is not None:
        shim = ctypes.CDLL(None)
        if shim.unsynced_begin(os.fsencode(orders.folder.parent), os.fsencode(orders.journal), orders.writes):
            raise OSError(f"no journal in {orders.journal}")
    if orders.broken:
        BROKEN[orders.broken]()
    try:
        asyncio.run(_open_and_append(orders, expectation, say))
    except Difference as error:
        say(Wrong(str(error), error.lost, error.doubled))
    except FederatorError as error:
        say(Wrong(f"{type(error).__name__}: {error}"))


async def _open_and_append(orders: Orders, expectation: Expectation, say: Say) -> None:
    acknowledged = dict(expectation.acknowledged_sequences)
    ledger = LmdbLedger.open(orders.folder)
    found = expectation.check(ledger)
    say(Found(pickle.dumps(found)))
    if orders.number is None:
        await ledger.close()
        say(Closed())
        return
    draw = Random(f"{found.script.seed} {orders.number} compaction")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_compact(ledger, found.revision - draw.choice(KEPT), draw, say))
        for cluster_id in CLUSTERS:
            tasks.create_task(_push(ledger, cluster_id, found, acknowledged.get(cluster_id, 0), say))


async def _push(ledger: Ledger, cluster_id: ClusterID, found: Expectation, acknowledged: int, say: Say) -> None:
    """Goes on after the last step that was acknowledged, so that what is durable without it comes once more."""
    script = found.script
    record = await ledger.open_session(script.record(cluster_id))
    say(Session(cluster_id, record.term))
    room = asyncio.Semaphore(IN_FLIGHT)

    async def append(sequence: int) -> None:
        commit = await ledger.append(script.batch(cluster_id, sequence, record.term))
        say(_acknowledgement(cluster_id, sequence, commit))
        room.release()

    async def change_state(sequence: int) -> None:
        change = script.state(cluster_id, sequence) if sequence else None
        if isinstance(change, ClusterState):
            commit = await ledger.set_cluster_state(cluster_id, change, reason_of(sequence))
        elif change is not None:
            commit = await ledger.set_type_state(cluster_id, *change, reason_of(sequence))
        else:
            return
        say(_acknowledgement(cluster_id, 0, commit))

    # Tasks begin in the order in which they are made, and a request is queued before its task first waits.
    async with asyncio.TaskGroup() as tasks:
        sequence = acknowledged
        while True:
            if sequence >= record.durable_sequence:  # what followed an earlier step is there, and has been followed
                tasks.create_task(change_state(sequence))
            sequence += 1
            await room.acquire()
            tasks.create_task(append(sequence))


async def _compact(ledger: Ledger, up_to: int, draw: Random, say: Say) -> None:
    """Forgets history piece by piece, up to what was looked at; nobody could tell whether the rest was right."""
    while ledger.oldest_revision < up_to:
        await asyncio.sleep(draw.uniform(0.01, 0.06))
        revision = draw.choice((up_to, draw.randint(ledger.oldest_revision, up_to)))
        say(Compacting(revision))
        say(Compacted(revision, await ledger.compact(revision)))


def _acknowledgement(cluster_id: ClusterID, sequence: int, commit: Commit) -> Acknowledged:
    entries = [(entry.revision, digest(entry)) for entry in commit.entries]
    return Acknowledged(cluster_id, sequence, commit.revision, entries)


def _sync_nothing() -> None:
    vars(lmdb)["Environment"] = partial(lmdb.Environment, sync=False)


def _sync_all_but_the_meta_page() -> None:
    vars(lmdb)["Environment"] = partial(lmdb.Environment, metasync=False)


def _take_what_came_before() -> None:
    def plan(view: View, batch: Batch, now_ms: int) -> Plan:
        known = view.cluster(batch.cluster_id)
        is_known = known is not None and batch.sequence <= known.durable_sequence
        return plan_append(view, msgspec.structs.replace(batch, sequence=0) if is_known else batch, now_ms)

    vars(driver)["plan_append"] = plan


def _acknowledge_before_it_is_durable() -> None:
    append = LmdbLedger.append

    async def early(ledger: LmdbLedger, batch: Batch) -> Commit:
        task = asyncio.create_task(append(ledger, batch))
        early_tasks.add(task)
        task.add_done_callback(early_tasks.discard)
        await asyncio.sleep(0)
        return Commit(ledger.revision)

    early_tasks: set[asyncio.Task[Commit]] = set()
    LmdbLedger.append = early  # type: ignore[method-assign, assignment]


BROKEN: Mapping[str, Callable[[], None]] = {
    "no-sync": _sync_nothing,
    "no-meta-sync": _sync_all_but_the_meta_page,
    "twice": _take_what_came_before,
    "early": _acknowledge_before_it_is_durable,
}
"""Ways to break a child, for tests that the run finds them."""
