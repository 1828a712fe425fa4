"""Spool: what an agent has not had acknowledged, in a file, so that it outlives the process.

```
  <ClusterID>.spool           sqlite: about (one record), types, dictionaries, entries in order
  <ClusterID>.spool-wal, -shm what sqlite keeps beside it
  <ClusterID>.spool.lock      locked by the agent that has it open
  <ClusterID>.spool.damaged   the last file that could not be used
```

Every record carries a checksum of its own: sqlite has none, and a changed byte must not become a changed object.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import hmac
import os
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import msgspec
import structlog
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from federator.agent.frame import Change
from federator.agent.settings import MIB, AgentSettings
from federator.api.cluster import ClusterID
from federator.api.resource import GroupResource, ResourceType
from federator.errors import InvalidInput
from federator.wire.body import Dictionary, dictionary_of

log = structlog.get_logger(__name__)

FORMAT = 1
"""Of the file. A file of another one is set aside."""

TICK = 1.0
"""Seconds after which what was acknowledged is taken out of the file although nothing is sent."""

CHECKPOINT_BYTES = 4 * MIB
"""Size of the write-ahead log from which it is brought into the file: with two fsyncs, in a thread."""

_BUSY_TIMEOUT = 0.1
"""Seconds that the loop may wait for somebody who reads the file with tools of his own."""

_SWEPT_AT_ONCE = 100
"""Entries of a dropped type that are deleted in one go: about half a millisecond."""

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700

_CHECKSUM_BYTES = 8

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""A disk that has no room, or fails: not the operator's mistake, and no reason to follow nothing."""

_SCHEMA = """
CREATE TABLE about (record BLOB NOT NULL);
CREATE TABLE types (id INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE dictionaries (id INTEGER PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE entries (
    position INTEGER PRIMARY KEY, type INTEGER NOT NULL, key TEXT NOT NULL, state INTEGER NOT NULL, record BLOB NOT NULL
);
CREATE UNIQUE INDEX entries_by_key ON entries (type, key);
"""


_PUT = """
INSERT INTO entries (type, key, state, record) VALUES (?, ?, ?, ?)
ON CONFLICT (type, key) DO UPDATE SET state = excluded.state, record = excluded.record
"""
_ACKNOWLEDGED = "DELETE FROM entries WHERE type = ? AND key = ? AND state = ?"
_HEAVIEST = "SELECT type, sum(length(record)) AS bytes FROM entries GROUP BY type ORDER BY bytes DESC LIMIT 1"


class SpoolIdentity(msgspec.Struct, frozen=True):
    """Whose changes these are, and how they were made. What was spooled under another one is worth nothing.

    Attributes:
        cluster_uid: UID of the cluster.
        signature: of what is collected and how; see `signature_of`.
    """

    cluster_uid: str
    signature: str


def signature_of(settings: AgentSettings, secrets_key: bytes | None) -> str:
    """What decides which objects an agent sends, and in which form: its narrowing, its transforms and its version."""
    collected = (settings.resources, settings.namespace, settings.label_selector, settings.secrets)
    key = b"" if secrets_key is None else hmac.digest(secrets_key, b"federator spool", "sha256")
    text = msgspec.json.encode((version("federator"), collected))
    return hashlib.sha256(text + b"\0" + key).hexdigest()


class SpooledType(NamedTuple):
    """What was not acknowledged of one type.

    Attributes:
        type: the type.
        low_water: resourceVersion up to which everything of the type is acknowledged or among the changes; "" where
            nothing can be said.
        changes: in the order in which they have to be sent, one for each object.
    """

    type: ResourceType
    low_water: str
    changes: list[Change]


class _About(msgspec.Struct, frozen=True, array_like=True):
    instance: str
    identity: SpoolIdentity


class _TypeRecord(msgspec.Struct, frozen=True, array_like=True):
    type: ResourceType
    low_water: str


class _DictionaryRecord(msgspec.Struct, frozen=True, array_like=True):
    group: str
    resource: str
    content: bytes


class _Type(msgspec.Struct):
    """A type in the file.

    Attributes:
        number: its number there.
        type: the type.
        low_water: as written last, or to be written.
        is_partial: entries were dropped to make room; nothing can be said of the low water.
        is_changed: the record is to be written.
    """

    number: int
    type: ResourceType
    low_water: str = ""
    is_partial: bool = False
    is_changed: bool = True


class _Unusable(Exception):
    """A file that cannot be used; the text says why."""


class _OtherIdentity(Exception):
    """A sound file of another identity."""


_encode = msgspec.msgpack.Encoder().encode
_decode_about = msgspec.msgpack.Decoder(_About).decode
_decode_type = msgspec.msgpack.Decoder(_TypeRecord).decode
_decode_dictionary = msgspec.msgpack.Decoder(_DictionaryRecord).decode
_decode_change = msgspec.msgpack.Decoder(Change).decode


class Spool:
    """Unacknowledged changes of one agent, in a file.

    Promises:
        * *At least as new*: after `flush`, what is here of an object is at least as new as whatever was queued before.
          So an agent that flushes before it sends never finds, after it was killed, a state here that an object had
          before the one that was sent. Only a power cut can take the last flushes away.
        * *Ordered*: changes of a type come back in the order of their first unacknowledged state.
        * *Whole or nothing*: a file that is damaged, of another identity or of another format is given up as a whole.
        * *Never in the way*: a file that can no longer be written to is deleted, the spool is off from then on
          (`is_on`), and every function does nothing.
        * *Bounded*: above `max_bytes` the changes of the type with most bytes are dropped, and counted.

    Functions are called on one loop and take a fraction of a millisecond each; `open` and `close` read and write more.
    The file does not shrink; the room is used again. A spool that is empty at a start begins a new file.

    Attributes:
        instance: the agent instance whose frames these are.
        is_restored: the instance is that of an earlier process.
    """

    def __init__(self, path: Path, identity: SpoolIdentity, max_bytes: int, lock: int | None) -> None:
        """Use `open`."""
        self.instance = uuid4().hex
        self.is_restored = False
        self._path = path
        self._identity = identity
        self._max_bytes = max_bytes
        self._lock = lock
        self._connection: sqlite3.Connection | None = None
        self._types: dict[GroupResource, _Type] = {}
        self._dropped: deque[int] = deque()
        self._next_number = 1
        self._loaded: list[SpooledType] = []
        self._dictionaries: dict[int, Dictionary] = {}
        self._counts: Counter[str] = Counter()

    @classmethod
    def open(cls, directory: Path, cluster_id: ClusterID, identity: SpoolIdentity, *, max_bytes: int) -> Spool:
        """Opens a cluster's spool, or begins one. Blocks for as long as its file takes to read; may run in a thread.

        Args:
            directory: folder of the files; made where it is missing.
            cluster_id: names the file.
            identity: whose changes they are.
            max_bytes: bound on the file's pages in use.

        Raises:
            InvalidInput: the folder cannot be used, or another process has the spool open.
        """
        path = directory / f"{cluster_id}.spool"
        try:
            directory.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            lock = _take_lock(path)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise InvalidInput("spool", directory, f"a folder to write in ({error.strerror})") from error
            spool = cls(path, identity, max_bytes, None)
            spool._failed(error)
            return spool
        spool = cls(path, identity, max_bytes, lock)
        try:
            spool._open()
        except BaseException:
            spool.close()
            raise
        return spool

    @property
    def is_on(self) -> bool:
        """Whether anything is kept."""
        return self._connection is not None

    def load(self) -> list[SpooledType]:
        """Gives, once, what an earlier process left; it stays in the file until it is acknowledged or dropped."""
        loaded, self._loaded = self._loaded, []
        return loaded

    def dictionaries(self) -> Iterable[Dictionary]:
        """Those that bodies in the file were made with."""
        return self._dictionaries.values()

    def add_dictionary(self, dictionary: Dictionary) -> None:
        """Keeps a dictionary; to be called before a change is put whose body was made with it."""
        if self._connection is None or dictionary.dictionary_id in self._dictionaries:
            return
        record = _sealed(_encode(_DictionaryRecord(*dictionary.resource, dictionary.content)), dictionary.dictionary_id)
        if self._execute("INSERT INTO dictionaries VALUES (?, ?)", dictionary.dictionary_id, record):
            self._dictionaries[dictionary.dictionary_id] = dictionary

    def put(self, resource_type: ResourceType, change: Change, low_water: str = "") -> None:
        """Keeps an object's newest state, in place of an older one.

        Args:
            resource_type: its type. Where it was put in another version before, that is dropped.
            change: the state.
            low_water: resourceVersion up to which, with this change, everything of the type is acknowledged or here;
                "" where that is not so, as while a listing is on its way.
        """
        if self._connection is None:
            return
        held = self._types.get(resource_type.group_resource)
        if held is None or (held.type is not resource_type and held.type != resource_type):
            held = self._begin_type(resource_type)
        record = _sealed(_encode(change), held.number)
        if self._execute(_PUT, held.number, change.key, _state(change), record):
            self._counts["puts"] += 1
            self._set_low_water(held, low_water)

    def bookmark(self, resource: GroupResource, low_water: str) -> None:
        """Notes how far everything of a type is acknowledged or here; as of `put`."""
        held = self._types.get(resource)
        if held is not None:
            self._set_low_water(held, low_water)

    def acknowledged(self, resource: GroupResource, changes: Iterable[Change]) -> None:
        """These are durable at the aggregator: forgets them, but not the newer states of the same objects."""
        held = self._types.get(resource)
        if held is None:
            return
        for change in changes:
            deleted = self._execute(_ACKNOWLEDGED, held.number, change.key, _state(change))
            if deleted is None:
                return
            self._counts["acknowledged"] += deleted.rowcount

    def drop(self, resource: GroupResource) -> None:
        """Forgets a type: it is gone, or will be listed anew. Its entries are deleted little by little."""
        held = self._types.pop(resource, None)
        if held is not None and self._execute("DELETE FROM types WHERE id = ?", held.number):
            self._dropped.append(held.number)

    def flush(self) -> None:
        """Has everything so far outlive the process; to be called before a frame is sent. It is not an fsync."""
        if self._connection is None:
            return
        self._sweep()
        for held in list(self._types.values()):
            if held.is_changed:
                held.is_changed = False
                low_water = "" if held.is_partial else held.low_water
                record = _sealed(_encode(_TypeRecord(held.type, low_water)), held.number)
                self._execute("INSERT OR REPLACE INTO types VALUES (?, ?)", held.number, record)
        self._run(_commit)

    async def run(self) -> None:
        """Until cancelled, once a second: writes what nobody flushes, makes room, keeps the write-ahead log short."""
        while True:
            await asyncio.sleep(TICK)
            self._shed()
            self.flush()
            while self._dropped and self.is_on:
                await asyncio.sleep(0)
                self.flush()
            if self._log_bytes() > CHECKPOINT_BYTES:
                await asyncio.to_thread(self._checkpoint)
                # What was written meanwhile, which is little. The log can begin anew once all of it is in the file.
                self.flush()
                self._run(_begin_log_anew)
                self._counts["checkpoints"] += 1

    def abandon(self) -> None:
        """Deletes the file and is off: the next process is to be a new instance, as after the cluster was removed."""
        try:
            self._delete_files()
        except OSError as error:
            log.error("spool cannot be deleted, and is out of date", path=str(self._path), cause=str(error))
        self._forget()

    def close(self) -> None:
        """Flushes, and gives the file to whoever wants it. Blocks for an fsync or two."""
        self.flush()
        self._disconnect()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def statistics(self) -> Mapping[str, int]:
        """What is kept, and totals since the start."""
        return {
            "is_on": int(self.is_on),
            "types": len(self._types),
            "bytes": self._used_bytes(),
            "log_bytes": self._log_bytes(),
            "puts": self._counts["puts"],
            "acknowledged": self._counts["acknowledged"],
            "checkpoints": self._counts["checkpoints"],
            "overflows": self._counts["overflows"],
            "failures": self._counts["failures"],
            "set_aside": self._counts["set_aside"],
        }

    # The file.

    def _open(self) -> None:
        try:
            try:
                self._read()
            except _OtherIdentity:
                log.info("spool is of another cluster or collection, emptied", path=str(self._path))
                self._forget()
                self._begin_anew()
            except (_Unusable, sqlite3.Error, OSError) as error:
                log.warning("spool cannot be used, set aside", path=str(self._path), cause=str(error))
                self._counts["set_aside"] += 1
                self._disconnect()
                self._forget()
                self._path.replace(self._path.with_name(f"{self._path.name}.damaged"))
                self._begin_anew()
            else:
                if not self._loaded:
                    self._begin_anew()  # a small file again
        except (sqlite3.Error, OSError) as error:
            self._switch_off(error)

    def _read(self) -> None:
        """Reads what there is.

        Raises:
            _Unusable, sqlite3.Error, OSError: it is damaged, unreadable or of another format.
            _OtherIdentity: it is another agent's.
        """
        if not self._path.exists() or not self._path.stat().st_size:
            return
        connection = self._connect()
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found != FORMAT:
            raise _Unusable(f"it has format {found}, not {FORMAT}")
        (problem,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if problem != "ok":
            raise _Unusable(problem)
        try:
            ((record,),) = connection.execute("SELECT record FROM about")
            about = _decode_about(_opened(record, 0))
            if about.identity != self._identity:
                raise _OtherIdentity
            for number, record in connection.execute("SELECT id, record FROM dictionaries"):
                group, resource, content = msgspec.structs.astuple(_decode_dictionary(_opened(record, number)))
                self._dictionaries[number] = Dictionary.of(GroupResource(group, resource), content)
            for number, record in connection.execute("SELECT id, record FROM types"):
                described = _decode_type(_opened(record, number))
                self._types[described.type.group_resource] = _Type(
                    number, described.type, described.low_water, is_changed=False
                )
            self._loaded = list(self._read_entries(connection))
        except (ValueError, TypeError, msgspec.MsgspecError, InvalidInput) as error:
            raise _Unusable(f"a record is damaged: {error}") from error
        connection.execute("DELETE FROM entries WHERE type NOT IN (SELECT id FROM types)")
        self.instance, self.is_restored = about.instance, True
        self._next_number = max((held.number for held in self._types.values()), default=0) + 1

    def _read_entries(self, connection: sqlite3.Connection) -> Iterator[SpooledType]:
        needed: set[int] = set()
        for resource, held in list(self._types.items()):
            changes = []
            for key, state, record in connection.execute(
                "SELECT key, state, record FROM entries WHERE type = ? ORDER BY position", (held.number,)
            ):
                change = _decode_change(_opened(record, held.number))
                if (change.key, _state(change)) != (key, state):
                    raise ValueError("it stands under another key or state")
                changes.append(change)
            used = {dictionary_of(change.body) for change in changes if change.body} - {0}
            if not changes or not used <= self._dictionaries.keys():
                connection.execute("DELETE FROM types WHERE id = ?", (held.number,))
                del self._types[resource]
                continue
            needed |= used
            yield SpooledType(held.type, held.low_water, changes)
        for number in self._dictionaries.keys() - needed:
            connection.execute("DELETE FROM dictionaries WHERE id = ?", (number,))
            del self._dictionaries[number]

    def _begin_anew(self) -> None:
        """Begins an empty file, of the instance that this is.

        Raises:
            sqlite3.Error, OSError: the disk does not take one.
        """
        self._delete_files()
        connection = self._connect()
        connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {FORMAT};")
        record = _sealed(_encode(_About(self.instance, self._identity)), 0)
        connection.execute("INSERT INTO about VALUES (?)", (record,))
        connection.execute("COMMIT")

    def _forget(self) -> None:
        """Whatever was read from a file that is not used."""
        self._types.clear()
        self._dropped.clear()
        self._dictionaries.clear()
        self._loaded.clear()

    def _connect(self) -> sqlite3.Connection:
        # sqlite gives what it makes beside a file the file's own mode.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE))
        connection = self._connection = _connected(self._path)
        connection.execute("PRAGMA journal_mode = WAL")
        # Left to itself, sqlite would do this, with its fsyncs, in whatever commit comes next.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _delete_files(self) -> None:
        self._disconnect()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def _failed(self, error: Exception) -> None:
        self._counts["failures"] += 1
        log.warning("spool cannot be written to, it is off until a restart", path=str(self._path), cause=str(error))

    def _switch_off(self, error: Exception) -> None:
        """Ends it for this process. What is in the file would be older, from here on, than what is sent."""
        self._failed(error)
        self.abandon()

    def _checkpoint(self) -> None:
        """In a thread. Writers go on meanwhile."""
        with suppress(sqlite3.Error), closing(_connected(self._path)) as connection:  # the loop's own writes will tell
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def _log_bytes(self) -> int:
        try:
            return self._path.with_name(f"{self._path.name}-wal").stat().st_size if self.is_on else 0
        except OSError:
            return 0

    # Writing.

    def _run(self, use: Callable[[sqlite3.Connection], None]) -> None:
        """Uses the connection, where the spool is on."""
        if self._connection is not None:
            try:
                use(self._connection)
            except sqlite3.Error as error:
                self._switch_off(error)

    def _execute(self, statement: str, *values: int | str | bytes) -> sqlite3.Cursor | None:
        """Runs a statement in the transaction that `flush` commits; None where the spool is off, or is now."""
        connection = self._connection
        if connection is None:
            return None
        try:
            if not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            return connection.execute(statement, values)
        except sqlite3.Error as error:
            self._switch_off(error)
            return None

    def _begin_type(self, resource_type: ResourceType) -> _Type:
        self.drop(resource_type.group_resource)
        held = self._types[resource_type.group_resource] = _Type(self._next_number, resource_type)
        self._next_number += 1
        return held

    def _set_low_water(self, held: _Type, low_water: str) -> None:
        if held.low_water != low_water:
            held.low_water = low_water
            held.is_changed = True

    def _used_bytes(self) -> int:
        """Bytes of the pages in use, which is what a file without free pages would have."""
        if self._connection is None:
            return 0
        (pages,), (free,), (size,) = (
            self._connection.execute(f"PRAGMA {name}").fetchone()
            for name in ("page_count", "freelist_count", "page_size")
        )
        used: int = (pages - free) * size
        return used

    def _shed(self) -> None:
        """Makes room, once what was dropped before is deleted."""
        if self._dropped or self._used_bytes() <= self._max_bytes:
            return
        heaviest = self._execute(_HEAVIEST)
        found = heaviest.fetchone() if heaviest else None
        for held in self._types.values():
            if found is not None and held.number == found[0]:
                log.warning("spool full, a type's changes dropped", resource=str(held.type), bytes=found[1])
                self._counts["overflows"] += 1
                self._begin_type(held.type).is_partial = True
                return

    def _sweep(self) -> None:
        """Deletes some entries of dropped types."""
        if not self._dropped:
            return
        statement = "DELETE FROM entries WHERE position IN (SELECT position FROM entries WHERE type = ? LIMIT ?)"
        deleted = self._execute(statement, self._dropped[0], _SWEPT_AT_ONCE)
        if deleted is not None and deleted.rowcount < _SWEPT_AT_ONCE:
            self._dropped.popleft()


def _take_lock(path: Path) -> int:
    """Locks a spool until the descriptor that is returned is closed, or the process ends.

    Raises:
        InvalidInput: another process has it.
        OSError: the file of the lock cannot be made.
    """
    lock_file = path.with_name(f"{path.name}.lock")
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise InvalidInput("spool", path, "a spool that no other agent has open") from error
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _connected(path: Path) -> sqlite3.Connection:
    """Opens a file that exists."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=_BUSY_TIMEOUT,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _commit(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("COMMIT")


def _begin_log_anew(connection: sqlite3.Connection) -> None:
    if not connection.in_transaction:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _state(change: Change) -> int:
    """Tells the states of an object apart, as far as an acknowledgement has to."""
    text = f"{change.body is None} {change.uid} {change.resource_version} {change.content_hash}"
    return xxh3_64_intdigest(text.encode()) >> 1  # sqlite's integers are signed


def _sealed(payload: bytes, number: int) -> bytes:
    """A record: the payload behind its checksum, which the number of where it belongs goes into."""
    return xxh3_64_digest(payload, number) + payload


def _opened(record: object, number: int) -> bytes:
    """The payload of a record.

    Raises:
        ValueError: it is not what was written.
    """
    if not isinstance(record, bytes):
        raise ValueError("it is no record")
    payload = record[_CHECKSUM_BYTES:]
    if xxh3_64_digest(payload, number) != record[:_CHECKSUM_BYTES]:
        raise ValueError("its checksum differs")
    return payload
