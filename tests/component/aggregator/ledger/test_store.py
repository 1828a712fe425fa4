"""What a start does with the ledger of the process before it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from federator.aggregator.ledger.codec import encode_revision
from federator.aggregator.ledger.floor import FILE as FLOOR_FILE
from federator.aggregator.ledger.lmdb import FOLDER, LmdbLedger
from federator.aggregator.ledger.planning import first_revision
from federator.aggregator.ledger.room import BALLAST_FILE
from federator.aggregator.ledger.store import ASIDE, CONDEMNED_FILE, MAX_BAD_ENDS, Store, condemn
from federator.errors import CursorForeign, LedgerCorrupt, LedgerError, LedgerLocked
from tests.component.aggregator.ledger.data_file import DataFile
from tests.contract.ledger.member import Member, put

NOW = 1_800_000_000.0


def opened(directory: Path, *, now: float = NOW) -> tuple[Store, LmdbLedger]:
    store = Store(directory, clock=lambda: now)
    return store, store.open(
        lambda: LmdbLedger.open(directory, ballast_bytes=4096, thorough=store.ended_badly, clock=lambda: now)
    )


async def fill(directory: Path) -> tuple[bytes, int]:
    """An ordered life of a ledger; a cursor at its end, and its revision."""
    store, ledger = opened(directory)
    store.serves()
    await (await Member.join(ledger)).push(*(put(f"web-{number}", body=bytes(1000)) for number in range(300)))
    cursor, revision = ledger.cursors.encode(ledger.revision), ledger.revision
    await ledger.close()
    store.close()
    return cursor, revision


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def aside(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob(f"{ASIDE}*"))


Ended = Callable[[Path, str], int]
"""Tells how a process ended that opened the ledger there; see `short_lived`."""


@pytest.fixture(scope="module")
def ended() -> Iterator[Ended]:
    program = [sys.executable, "-m", "tests.component.aggregator.ledger.short_lived"]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as forking:
        stdin, stdout = forking.stdin, forking.stdout
        assert stdin is not None
        assert stdout is not None

        def ended(directory: Path, how: str) -> int:
            stdin.write(f"{how} {directory}\n")
            stdin.flush()
            return int(stdout.readline())

        yield ended


async def test_a_ledger_that_was_closed_is_as_it_was(tmp_path: Path) -> None:
    cursor, revision = await fill(tmp_path)
    store, ledger = opened(tmp_path)
    assert not store.ended_badly
    assert ledger.cursors.decode(cursor) == ledger.revision == revision
    await ledger.close()
    store.close()
    assert files(tmp_path) == ["ledger", "ledger.floor", "ledger.lock"]


@pytest.mark.parametrize("damage", ["cut short", "no LMDB file", "meta pages"])
async def test_a_file_past_use_is_set_aside_and_a_new_ledger_begins_above_it(tmp_path: Path, damage: str) -> None:
    cursor, revision = await fill(tmp_path)
    data_file = tmp_path / FOLDER / "data.mdb"
    if damage == "cut short":
        os.truncate(data_file, 3 * 4096)
    elif damage == "no LMDB file":
        data_file.write_bytes(b"not a database" * 1000)
    else:
        data_file.write_bytes(bytes(8192) + data_file.read_bytes()[8192:])
    store, ledger = opened(tmp_path, now=NOW - 3600)  # the clock was set back, too
    assert ledger.oldest_revision > revision
    assert list(ledger.present()) == []
    with pytest.raises(CursorForeign):
        ledger.cursors.decode(cursor)
    assert aside(tmp_path) == [f"{ASIDE}20270115T070000Z"]
    kept = tmp_path / aside(tmp_path)[0]
    assert (kept / "data.mdb").exists()
    assert not (kept / BALLAST_FILE).exists(), "what is kept should not take more than it has to"
    await ledger.close()
    store.close()


async def test_a_new_ledger_starts_where_the_clock_is_when_that_is_higher(tmp_path: Path) -> None:
    await fill(tmp_path)
    (tmp_path / FOLDER / "data.mdb").write_bytes(b"nonsense" * 1000)
    store, ledger = opened(tmp_path, now=NOW + 3600)
    assert ledger.oldest_revision == first_revision(int((NOW + 3600) * 1000))
    await ledger.close()
    store.close()


async def test_starts_that_are_killed_in_a_row_condemn_the_ledger(tmp_path: Path, ended: Ended) -> None:
    cursor, _ = await fill(tmp_path)
    for _ in range(MAX_BAD_ENDS):
        assert ended(tmp_path, "opening") == -signal.SIGKILL
        assert not aside(tmp_path)
    store, ledger = opened(tmp_path)
    assert len(aside(tmp_path)) == 1
    with pytest.raises(CursorForeign):
        ledger.cursors.decode(cursor)
    await ledger.close()
    store.close()


async def test_a_start_that_is_killed_now_and_then_condemns_nothing(tmp_path: Path, ended: Ended) -> None:
    cursor, revision = await fill(tmp_path)
    for _ in range(MAX_BAD_ENDS):
        assert ended(tmp_path, "opening") == -signal.SIGKILL
        assert ended(tmp_path, "serving") == -signal.SIGKILL
    store, ledger = opened(tmp_path)
    assert store.ended_badly
    assert ledger.cursors.decode(cursor) == revision
    await ledger.close()
    store.close()


async def test_a_page_that_kills_its_reader_leads_to_a_new_ledger(tmp_path: Path, ended: Ended) -> None:
    """The file shrinks under a process that serves: SIGBUS. Then what is missing reads as zeros, and is damage."""
    await fill(tmp_path)
    assert ended(tmp_path, "cut") == -signal.SIGBUS
    store, ledger = opened(tmp_path)
    assert len(aside(tmp_path)) == 1
    await ledger.close()
    store.close()


async def test_a_page_that_kills_whoever_passes_over_it_is_met_before_anybody_is_served(
    tmp_path: Path, ended: Ended
) -> None:
    _, revision = await fill(tmp_path)
    data_file = tmp_path / FOLDER / "data.mdb"
    pages = bytearray(data_file.read_bytes())
    for at in range(0, len(pages), 4096):
        page = pages[at : at + 4096]
        is_leaf_of_log = page[10:12] == b"\x02\x00" and bytes(900) in page  # bodies are in no other table
        if is_leaf_of_log and encode_revision(revision - 150) in page:
            pages[at : at + 4096] = bytes(4096)
    data_file.write_bytes(pages)
    ends = [ended(tmp_path, "reading")]
    assert ends == [-signal.SIGABRT], "it served, and a reader met the page"
    while not aside(tmp_path):
        ends.append(ended(tmp_path, "serving"))
        assert len(ends) <= MAX_BAD_ENDS + 2
    assert ends[1:] == [-signal.SIGABRT] * (MAX_BAD_ENDS - 1) + [-signal.SIGKILL]


async def test_a_page_that_kills_whoever_writes_it_does_so_no_oftener_than_any_other(
    tmp_path: Path, ended: Ended
) -> None:
    """No start meets it: the list of free pages names one that is in use, and is read when a commit needs pages."""
    await fill(tmp_path)
    file = DataFile(tmp_path)
    for word_at in file.free_pages():
        file.put(word_at, file.root)
    assert [ended(tmp_path, "writing") for _ in range(MAX_BAD_ENDS)] == [-signal.SIGABRT] * MAX_BAD_ENDS
    assert not aside(tmp_path)
    with capture_logs() as logs:
        store, ledger = opened(tmp_path)
    (told,) = (log for log in logs if log["event"] == "the process before this one was killed by a fault")
    assert re.fullmatch(r"Aborted in .*/federator/aggregator/ledger/\w+\.py:\d+ \w+", told["cause"])
    assert len(aside(tmp_path)) == 1
    await ledger.close()
    store.close()


async def test_a_fault_of_something_else_condemns_nothing(tmp_path: Path, ended: Ended) -> None:
    cursor, revision = await fill(tmp_path)
    for _ in range(MAX_BAD_ENDS + 1):
        assert ended(tmp_path, "aborting") == -signal.SIGABRT
    store, ledger = opened(tmp_path)
    assert ledger.cursors.decode(cursor) == revision
    assert not aside(tmp_path)
    await ledger.close()
    store.close()
    assert files(tmp_path) == ["ledger", "ledger.floor", "ledger.lock"]


async def test_what_a_running_process_condemned_is_set_aside(tmp_path: Path) -> None:
    await fill(tmp_path)
    condemn(tmp_path, "a page is damaged")
    store, ledger = opened(tmp_path)
    assert len(aside(tmp_path)) == 1
    assert not (tmp_path / CONDEMNED_FILE).exists()
    await ledger.close()
    store.close()
    store, ledger = opened(tmp_path)
    assert len(aside(tmp_path)) == 1
    await ledger.close()
    store.close()


async def test_what_was_said_of_a_file_is_not_said_of_the_one_that_replaced_it(tmp_path: Path) -> None:
    cursor, revision = await fill(tmp_path)
    condemn(tmp_path, "a page is damaged")
    data_file = tmp_path / FOLDER / "data.mdb"
    (tmp_path / "restored").write_bytes(data_file.read_bytes())
    (tmp_path / "restored").replace(data_file)
    store, ledger = opened(tmp_path)
    assert ledger.cursors.decode(cursor) == revision
    assert not aside(tmp_path)
    await ledger.close()
    store.close()


async def test_two_damaged_ledgers_are_kept(tmp_path: Path) -> None:
    for hour in range(4):
        condemn(tmp_path, "a page is damaged")
        store, ledger = opened(tmp_path, now=NOW + 3600 * hour)
        await ledger.close()
        store.close()
    assert len(aside(tmp_path)) == 2
    condemn(tmp_path, "a page is damaged")
    store, ledger = opened(tmp_path, now=NOW + 3600 * 3)
    assert aside(tmp_path)[-1].endswith("-2"), "two in one second have two names"
    await ledger.close()
    store.close()


async def test_commits_that_were_acknowledged_and_are_gone_are_noticed(tmp_path: Path) -> None:
    """As where the newer of LMDB's two roots is damaged: it falls back to the older one without a word."""
    store, ledger = opened(tmp_path)
    berlin = await Member.join(ledger)
    await berlin.push(put("web"))
    data_file = tmp_path / FOLDER / "data.mdb"
    before = data_file.read_bytes()
    await berlin.push(put("db"))
    await ledger.close()
    store.close()
    data_file.write_bytes(before)
    with pytest.raises(LedgerCorrupt, match="is missing"):
        LmdbLedger.open(tmp_path)


async def test_a_floor_that_is_damaged_or_behind_says_nothing(tmp_path: Path) -> None:
    _, revision = await fill(tmp_path)
    floor = tmp_path / FLOOR_FILE
    whole = floor.read_bytes()
    for content in (b"", whole[:-1], whole[:-1] + bytes((whole[-1] ^ 1,))):
        floor.write_bytes(content)
        store, ledger = opened(tmp_path)
        assert ledger.revision == revision
        assert floor.read_bytes() != content, "it is written again"
        await ledger.close()
        store.close()


async def test_one_process_at_a_time(tmp_path: Path) -> None:
    store, ledger = opened(tmp_path)
    store.serves()
    for _ in range(MAX_BAD_ENDS + 1):
        with pytest.raises(LedgerLocked):
            opened(tmp_path)
    assert not aside(tmp_path)
    await ledger.close()
    store.close()
    opened(tmp_path)[0].close()


async def test_a_start_that_is_refused_says_nothing_about_the_files(tmp_path: Path) -> None:
    await fill(tmp_path)

    def refuse() -> LmdbLedger:
        raise LedgerError("no address space")

    for _ in range(MAX_BAD_ENDS + 1):
        with pytest.raises(LedgerError, match="no address space"):
            Store(tmp_path).open(refuse)
    store, ledger = opened(tmp_path)
    assert not store.ended_badly
    assert not aside(tmp_path)
    await ledger.close()
    store.close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a directory")
    with pytest.raises(LedgerError, match=f"cannot open the ledger in {tmp_path}/state"):
        opened(tmp_path / "state")
