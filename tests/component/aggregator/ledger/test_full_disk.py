"""A disk without room: nothing new is taken, everything else goes on, and room can be made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from federator.aggregator.ledger.lmdb import FOLDER, LmdbLedger
from federator.aggregator.ledger.room import BALLAST_BYTES, BALLAST_FILE, DISK_MARGIN
from federator.api.cluster import ClusterState
from federator.errors import LedgerFull
from tests.contract.ledger.member import Member, changes, put

BALLAST = 1 << 20


class Disk:
    """How much the disk says it has left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = 1 << 30
        self.asked: Callable[[Path], int] = lambda _: self.free
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=self.free // 512, f_frsize=512))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def has_ballast(path: Path) -> bool:
    return (path / FOLDER / BALLAST_FILE).exists()


async def test_the_ballast_is_given_up_for_compaction_and_not_for_appends(tmp_path: Path, disk: Disk) -> None:
    ledger = LmdbLedger.open(tmp_path, ballast_bytes=BALLAST)
    berlin = await Member.join(ledger)
    for _ in range(10):
        await berlin.push(*(put(f"web-{number}", body=bytes(1000)) for number in range(100)))
    assert (tmp_path / FOLDER / BALLAST_FILE).stat().st_size == BALLAST
    assert (tmp_path / FOLDER / BALLAST_FILE).stat().st_blocks * 512 >= BALLAST, "it takes the room that it stands for"

    disk.free = 1 << 20
    with pytest.raises(LedgerFull):
        await berlin.push(put("db", body=bytes(1000)))
    assert not has_ballast(tmp_path)
    assert ledger.full.is_set()
    assert ledger.statistics()["is_full"] == 1

    used = ledger.statistics()["used_bytes"]
    disk.free = DISK_MARGIN + BALLAST // 2  # what the ballast left is not for appends
    with pytest.raises(LedgerFull):
        await berlin.push(put("db", body=bytes(1000)))
    await ledger.set_cluster_state(berlin.record.cluster_id, ClusterState.STALE, "full")
    assert ledger.read(ledger.oldest_revision, 10)
    await ledger.compact(ledger.revision)
    assert ledger.statistics()["used_bytes"] < used - BALLAST // 2
    await ledger.look_for_room()
    assert ledger.statistics()["is_full"] == 0
    assert changes(await berlin.push(put("db", body=bytes(1000)))), "what compaction freed in the file can be used"
    assert not has_ballast(tmp_path), "there is no room for it yet"

    disk.free = 1 << 30
    await ledger.look_for_room()
    assert has_ballast(tmp_path)
    await ledger.close()


async def test_a_ledger_that_stays_full_says_so(tmp_path: Path, disk: Disk) -> None:
    ledger = LmdbLedger.open(tmp_path, ballast_bytes=BALLAST)
    berlin = await Member.join(ledger)
    disk.free = 0
    with pytest.raises(LedgerFull):
        await berlin.push(put("web"))
    ledger.full.clear()
    with pytest.raises(LedgerFull):
        await ledger.look_for_room()
    assert not ledger.full.is_set(), "looking is no want of room"
    await ledger.close()


async def test_a_start_on_a_full_disk_takes_the_ballast(tmp_path: Path, disk: Disk) -> None:
    await LmdbLedger.open(tmp_path, ballast_bytes=BALLAST).close()
    disk.free = 0
    ledger = LmdbLedger.open(tmp_path, ballast_bytes=BALLAST)
    assert not has_ballast(tmp_path)
    await ledger.close()


async def test_a_disk_too_small_for_the_ballast_has_none(tmp_path: Path, disk: Disk) -> None:
    disk.free = BALLAST + DISK_MARGIN
    ledger = LmdbLedger.open(tmp_path, ballast_bytes=BALLAST)
    assert not has_ballast(tmp_path)
    await ledger.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mounting.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounting.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


async def test_a_disk_that_others_have_filled_costs_nothing_that_was_acknowledged(small_disk: Path) -> None:
    ledger = LmdbLedger.open(small_disk, ballast_bytes=BALLAST_BYTES)
    berlin = await Member.join(ledger)
    for _ in range(4):
        await berlin.push(*(put(f"web-{number}", body=os.urandom(20_000)) for number in range(100)))
    filler = small_disk / "filler"
    with filler.open("wb") as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(1 << 20))
            file.flush()
    revision, present = ledger.revision, list(ledger.present())
    for _ in range(3):
        with pytest.raises(LedgerFull):
            await berlin.push(*(put(f"web-{number}", body=os.urandom(20_000)) for number in range(100)))
    assert (ledger.revision, list(ledger.present())) == (revision, present)
    await ledger.set_cluster_state(berlin.record.cluster_id, ClusterState.STALE, "full")
    assert await ledger.compact(ledger.revision) > 300
    assert ledger.failure is None
    await ledger.close()

    again = LmdbLedger.open(small_disk, ballast_bytes=BALLAST_BYTES)
    assert list(again.present()) == present
    filler.unlink()
    await again.look_for_room()
    assert has_ballast(small_disk)
    berlin = Member(again, again.clusters()[berlin.record.cluster_id])
    assert changes(await berlin.push(put("web-1", body=os.urandom(20_000))))
    await again.close()
