"""Backups: one state, one file, and never taken for one when it is not whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from federator.aggregator.ledger.backup import back_up, read_manifest
from federator.aggregator.ledger.lmdb import LmdbLedger
from federator.aggregator.ledger.maintenance import SnapshotTables
from federator.aggregator.ledger.verification import verify
from federator.errors import BackupInvalid, InvalidInput, LedgerError
from tests.component.aggregator.ledger.file_size import writes_fail_beyond
from tests.component.aggregator.ledger.filled import THEN, filled, names_in


async def test_a_backup_says_what_it_is(tmp_path: Path) -> None:
    await filled(tmp_path)
    told: list[tuple[int, int]] = []
    manifest = back_up(tmp_path, tmp_path / "b", clock=lambda: THEN + 0.5, progress=lambda *at: told.append(at))
    assert read_manifest(tmp_path / "b") == manifest
    ledger = LmdbLedger.open(tmp_path)
    assert manifest.ledger_id == ledger.cursors.ledger_id.hex()
    assert (manifest.revision, manifest.oldest_revision) == (ledger.revision, ledger.oldest_revision)
    assert manifest.time == datetime.fromtimestamp(THEN + 0.5, UTC)
    statistics = ledger.statistics()
    assert (manifest.objects, manifest.entries) == (statistics["objects"], statistics["entries"])
    assert manifest.federator == version("federator")
    await ledger.close()
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o600
    assert told
    assert names_in(tmp_path) == {"b", "ledger", "ledger.floor"}, "nothing else is left"


async def test_a_backup_can_be_looked_into_where_it_lies(tmp_path: Path) -> None:
    await filled(tmp_path)
    manifest = back_up(tmp_path, tmp_path / "b")
    problems: list[str] = []
    tables = SnapshotTables(tmp_path / "b", is_backup=True)
    verified = verify(tables, problems.append, bodies=True)
    tables.close()
    assert not problems
    assert (verified.ledger_id, verified.revision) == (manifest.ledger_id, manifest.revision)


async def test_what_is_there_is_replaced_only_if_asked(tmp_path: Path) -> None:
    await filled(tmp_path)
    target = tmp_path / "b"
    target.write_text("dear to somebody")
    with pytest.raises(InvalidInput, match="--force"):
        back_up(tmp_path, target)
    assert target.read_text() == "dear to somebody"
    back_up(tmp_path, target, force=True)
    assert read_manifest(target)


async def test_what_came_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    await filled(tmp_path)
    target = tmp_path / "b"

    def clock() -> float:  # asked once the copy is made
        target.touch()
        return 1.0

    with pytest.raises(InvalidInput, match="--force"):
        back_up(tmp_path, target, clock=clock)
    assert target.read_bytes() == b""


async def test_a_place_where_no_file_can_be_made_is_named(tmp_path: Path) -> None:
    await filled(tmp_path)
    for target in (tmp_path, tmp_path / "none" / "b"):
        with pytest.raises(InvalidInput, match=f"FILE: '{target}'"):
            back_up(tmp_path, target, force=True)


@pytest.mark.parametrize("share", [0.5, 1], ids=["data", "manifest"])
async def test_a_backup_that_cannot_be_written_leaves_nothing(tmp_path: Path, share: float) -> None:
    await filled(tmp_path)
    size = back_up(tmp_path, tmp_path / "whole").bytes
    with writes_fail_beyond(int(size * share)), pytest.raises(LedgerError, match="cannot write the backup"):
        back_up(tmp_path, tmp_path / "b")
    assert names_in(tmp_path) == {"whole", "ledger", "ledger.floor"}


def test_without_a_ledger_there_is_no_backup(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger in"):
        back_up(tmp_path / "none", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_ledger_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    data_file = tmp_path / "ledger" / "data.mdb"
    data_file.write_bytes(b"not a database" * 1000)
    with pytest.raises(LedgerError, match="damaged"):
        back_up(tmp_path, tmp_path / "b")
    data_file.write_bytes(b"")
    with pytest.raises(LedgerError, match="damaged at its beginning: it has 0 bytes"):
        back_up(tmp_path, tmp_path / "b")


async def test_a_ledger_that_was_cut_short_is_no_crash(tmp_path: Path) -> None:
    await filled(tmp_path)
    data_file = tmp_path / "ledger" / "data.mdb"
    os.truncate(data_file, 20_000)
    with pytest.raises(LedgerError):
        back_up(tmp_path, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda content: b"", "it is too short"),
        (lambda content: b"{}" * 5000, "it is none, or its end is missing"),
        (lambda content: content[:-1], "its end is missing"),
        (lambda content: content[: len(content) // 2], "its end is missing"),
        (lambda content: content + b"x", "its end is missing"),
        (lambda content: b"x" + content, "bytes of data, its manifest says"),
        (
            lambda content: content.replace(b'{"formatVersion":1,', b'{"formatVersion":2,'),
            "format 2, this program reads 1",
        ),
        (lambda content: content.replace(b'"revision":', b'"reversion":'), "its manifest cannot be read"),
    ],
)
async def test_what_is_no_whole_backup_is_refused(tmp_path: Path, change: Callable[[bytes], bytes], cause: str) -> None:
    await filled(tmp_path)
    back_up(tmp_path, tmp_path / "b")
    (tmp_path / "b").write_bytes(change((tmp_path / "b").read_bytes()))
    with pytest.raises(BackupInvalid, match=cause):
        read_manifest(tmp_path / "b")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidInput, match=f"FILE: '{path}'"):
            read_manifest(path)
