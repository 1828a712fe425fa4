"""What a power cut takes away: the writes that no sync covered, as `unsynced_writes.c` has noted them.

After a kill the kernel still has everything that was written. A power cut leaves each block of a file as it was at the
last sync, or as any write since then made it; which one is drawn for each block by itself, so that a write may be torn.
Names of files are taken away alike where their folder was not synced.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from random import Random
from typing import NamedTuple

from federator.testing.binaries import cache_root

_NEVER = 1 << 63

SOURCE = Path(__file__).with_name("unsynced_writes.c")

SECTOR = 512
"""Bytes that a disk writes whole or not at all."""

PAGE = 4096
"""Bytes that the kernel hands to a disk at once, as a rule."""


class NoCompiler(Exception):
    """There is no C compiler, so that no unsynced write can be kept."""


def compiled() -> Path:
    """Returns the library to preload; compiles it where the user's cache folder does not have it.

    Raises:
        NoCompiler: neither $CC nor `cc` is there.
        subprocess.CalledProcessError: it does not compile.
    """
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = cache_root().with_name("unsynced-writes") / f"{digest}.so"
    if library.exists():
        return library
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise NoCompiler("needs a C compiler: `cc`, or the one that $CC names")
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / "made.so"
        options = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra")
        subprocess.run([compiler, *options, "-o", made, SOURCE, "-ldl", "-lpthread"], check=True)
        made.rename(library)  # at once, whoever else compiles it now
    return library


def preloaded(library: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment for a process that keeps its unsynced writes once it asks for it."""
    others = environment.get("LD_PRELOAD", "")
    return {**environment, "LD_PRELOAD": f"{library}:{others}".rstrip(":")}


def is_preloaded() -> bool:
    """Whether this process can keep its unsynced writes."""
    return hasattr(ctypes.CDLL(None), "unsynced_begin")


class Cut(NamedTuple):
    """What a power cut did.

    Attributes:
        writes: that no sync covered.
        undone: blocks of them that were put back to some older state.
        kept: blocks of them that stayed as they were written last.
        names: of files and folders that were taken away.
    """

    writes: int = 0
    undone: int = 0
    kept: int = 0
    names: int = 0

    def __add__(self, other: object) -> Cut:
        return Cut(*map(sum, zip(self, other, strict=True))) if isinstance(other, Cut) else NotImplemented


class _Kind(IntEnum):
    CREATED = 1
    OPENED = 2
    WRITES = 3
    WRITTEN = 4
    SYNCED = 5
    RESIZES = 6
    FOLDER_SYNCED = 7
    RENAMES = 8


_RECORD = struct.Struct("=IIQQQQQ")


class _Record(NamedTuple):
    kind: _Kind
    number: int
    id: int
    offset: int
    length: int
    size: int
    payload: bytes


class _Before(NamedTuple):
    """Bytes of one sector as they were before a write; `content` ends where the file did."""

    id: int
    offset: int
    length: int
    content: bytes


class _Name(NamedTuple):
    """A new name of a file or folder, given by change `id`; `old` is the one it had before."""

    id: int
    path: Path
    old: Path | None = None

    def take_away(self) -> None:
        if self.old is not None and self.old.parent.exists():
            self.path.rename(self.old)
        elif self.path.is_dir():
            shutil.rmtree(self.path)
        else:
            self.path.unlink()


def _path(payload: bytes) -> Path:
    return Path(os.fsdecode(payload))


class _File:
    """What no sync has covered of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sectors: dict[int, list[_Before]] = defaultdict(list)
        self.sizes: list[tuple[int, int]] = []  # change and the length before it, in order

    def written(self, record: _Record) -> None:
        self.sizes.append((record.id, record.size))
        end = record.offset + record.length
        for start in range(record.offset - record.offset % SECTOR, end, SECTOR):
            first, last = max(start, record.offset), min(start + SECTOR, end)
            content = record.payload[first - record.offset : last - record.offset]
            self.sectors[start // SECTOR].append(_Before(record.id, first, last - first, content))

    def synced(self, up_to: int) -> None:
        for sector in list(self.sectors):
            self._settle(sector, up_to)
        self.sizes = [size for size in self.sizes if size[0] > up_to]

    def synced_write(self, write: _Record) -> None:
        """One write is durable, and with it whatever else was written to its sectors before."""
        for sector in range(write.offset // SECTOR, (write.offset + write.length - 1) // SECTOR + 1):
            self._settle(sector, write.id)
        if write.offset + write.length > write.size:  # its length is, too
            self.sizes = [size for size in self.sizes if size[0] > write.id]

    def _settle(self, sector: int, up_to: int) -> None:
        self.sectors[sector] = [before for before in self.sectors[sector] if before.id > up_to]
        if not self.sectors[sector]:
            del self.sectors[sector]

    def cut(self, draw: Random, block: int | None) -> Cut:
        """Puts blocks back: all to the last sync where `block` is None, else each to a state that is drawn."""
        writes = {before.id for sector in self.sectors.values() for before in sector}
        undone = kept = 0
        end = 0
        chosen: dict[int, int] = {}  # by block, the first change that is put back
        with self.path.open("r+b") as file:
            length = os.fstat(file.fileno()).st_size
            synced_length = min((size for _, size in self.sizes), default=length)
            for sector, befores in sorted(self.sectors.items()):
                place = sector * SECTOR // (block or SECTOR)
                if place not in chosen:
                    chosen[place] = draw.choice([*(before.id for before in befores), _NEVER]) if block else 0
                back = [before for before in befores if before.id >= chosen[place]]
                undone, kept = (undone + 1, kept) if back else (undone, kept + 1)
                for before in reversed(back):
                    file.seek(before.offset)
                    file.write(before.content.ljust(before.length, b"\0"))
                if len(back) < len(befores):
                    end = max(end, *(before.offset + before.length for before in befores[: len(befores) - len(back)]))
            # A file is at least as long as what it kept; how much longer, up to all that was written, is drawn.
            least = max(end, synced_length)
            lengths = [least, *range(least - least % PAGE + PAGE, length, PAGE), length]
            file.truncate(draw.choice(lengths) if block and length > least else least)
        return Cut(len(writes), undone, kept)


def cut_power(journal: Path, draw: Random) -> Cut:
    """Takes away some or all of what no sync covered, as a power cut would; the process is dead.

    Args:
        journal: what was noted of the process.
        draw: decides what is taken.
    """
    files: dict[int, _File] = {}
    writes: dict[int, _Record] = {}
    names: list[_Name] = []
    for record in _records(journal.read_bytes()):
        match record.kind:
            case _Kind.CREATED:
                names.append(_Name(record.id, _path(record.payload)))
            case _Kind.RENAMES:
                old, new = map(_path, record.payload.split(b"\0"))
                names.append(_Name(record.id, new, old))
                for file in files.values():
                    file.path = new if file.path == old else file.path
            case _Kind.FOLDER_SYNCED:
                synced = _path(record.payload)
                names = [name for name in names if name.path.parent != synced or name.id > record.id]
            case _Kind.OPENED:
                files[record.number] = _File(_path(record.payload))
            case _Kind.WRITES:
                writes[record.id] = record
                files[record.number].written(record)
            case _Kind.RESIZES:
                files[record.number].sizes.append((record.id, record.size))
            case _Kind.WRITTEN:
                files[record.number].synced_write(writes[record.id])
            case _Kind.SYNCED:
                files[record.number].synced(record.id)
    block = draw.choice((None, PAGE, SECTOR, SECTOR))
    total = Cut()
    for file in files.values():
        if file.path.is_file():  # else it is a folder, or could not be created
            total += file.cut(draw, block)
    for name in reversed(names):
        if name.path.exists() and (block is None or draw.random() < 0.5):
            name.take_away()
            total += Cut(names=1)
    return total


def _records(journal: bytes) -> Iterator[_Record]:
    """The whole records; the kill may have cut the last one short, and then what it was for never happened."""
    at = 0
    while at + _RECORD.size <= len(journal):
        kind, number, id_, offset, length, size, payload = _RECORD.unpack_from(journal, at)
        at += _RECORD.size
        if at + payload > len(journal):
            return
        yield _Record(_Kind(kind), number, id_, offset, length, size, journal[at : at + payload])
        at += payload
