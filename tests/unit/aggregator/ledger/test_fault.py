"""What a killed process left is read whatever it looks like."""

from __future__ import annotations

import faulthandler
from contextlib import ExitStack
from pathlib import Path

import pytest

from federator.aggregator.ledger.fault import FILE, Fault, note_faults, take_fault

WRITTEN = """Fatal Python error: Bus error

Stack (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/federator/aggregator/ledger/reader.py", line 77 in read
  File "/opt/venv/lib/python3.11/site-packages/federator/aggregator/serve/replay.py", line 5 in _segment

Extension modules: lmdb.cpython (total: 1)
"""


def test_the_thread_is_told_innermost_first_and_once(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(WRITTEN)
    taken = take_fault(tmp_path)
    assert taken is not None
    assert taken.error == "Bus error"
    assert [frame.rpartition("/")[2] for frame in taken.frames] == ["reader.py:77 read", "replay.py:5 _segment"]
    assert taken.is_of_ledger
    assert str(taken) == f"Bus error in {taken.frames[0]}"
    assert take_fault(tmp_path) is None


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", None),
        ("\0" * 512, None),
        (WRITTEN[:20], None),
        ("Fatal Python error: Aborted\n\n<no Python frame>\n", Fault("Aborted", ())),
        ("Fatal Python error: Aborted\n", Fault("Aborted", ())),
    ],
    ids=["nothing", "zeros", "cut short", "no Python", "cut behind its first line"],
)
def test_what_says_nothing_of_the_ledger_is_not_taken_for_it(
    tmp_path: Path, written: str, expected: Fault | None
) -> None:
    (tmp_path / FILE).write_text(written)
    assert take_fault(tmp_path) == expected
    assert expected is None or not expected.is_of_ledger


def test_only_the_innermost_frame_counts(tmp_path: Path) -> None:
    lines = WRITTEN.splitlines(keepends=True)
    lines[3], lines[4] = lines[4], lines[3]
    (tmp_path / FILE).write_text("".join(lines))
    taken = take_fault(tmp_path)
    assert taken is not None
    assert not taken.is_of_ledger


def test_whoever_has_faults_told_elsewhere_keeps_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: True)
    with ExitStack() as stack:
        note_faults(tmp_path, stack)
        assert list(tmp_path.iterdir()) == []


def test_an_end_in_order_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enabled: list[object] = []
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: False)
    monkeypatch.setattr(faulthandler, "enable", lambda descriptor, **_: enabled.append(descriptor))
    monkeypatch.setattr(faulthandler, "disable", enabled.clear)
    with ExitStack() as stack:
        note_faults(tmp_path, stack)
        assert enabled
        assert [path.name for path in tmp_path.iterdir()] == [FILE]
    assert not enabled
    assert list(tmp_path.iterdir()) == []
