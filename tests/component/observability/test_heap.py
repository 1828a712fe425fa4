"""Free memory leaves the process."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

from federator.observability.heap import give_back_pages

SCRIPT = """
import resource
from federator.observability.heap import give_back

def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

before = resident()
# Every second one goes, so that none of the room that becomes free is at the end of the heap.
blocks = [bytes(40_960) for _ in range(2_000)]
kept = blocks[::2]
del blocks
grown = resident()
gave = give_back()
print(gave, before, grown, resident())
"""


def test_what_is_free_between_what_is_used_is_given_back() -> None:
    told = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stdout.split()
    before, grown, after = map(int, told[1:])
    assert told[0] == "True"
    assert grown - before > 60_000_000
    assert after < grown - 20_000_000


APART = """
import resource
from federator.observability.heap import keep_large_blocks_apart

def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

print(keep_large_blocks_apart(1 << 20))
before = resident()
for _ in range(3):  # each that is freed would have the next one taken from the heap
    blocks = [bytearray(8 << 20) for _ in range(4)]
    kept = bytearray(100_000)
    del blocks
print(resident() - before)
"""


def test_large_blocks_leave_nothing_behind() -> None:
    told = subprocess.run([sys.executable, "-c", APART], check=True, capture_output=True, text=True).stdout.split()
    assert told[0] == "True"
    assert int(told[1]) < 8 << 20


def test_pages_of_a_mapped_file_are_given_back_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"x" * (8 << 20))
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        before = _file_pages()
        assert mapped[::4096] == b"x" * 2048
        assert _file_pages() > before + (7 << 10)
        assert give_back_pages(file)
        assert _file_pages() < before + (1 << 10)
        assert mapped[::4096] == b"x" * 2048
    assert not give_back_pages(file)
    assert not give_back_pages(tmp_path / "nothing")


def _file_pages() -> int:
    """KiB of mapped files that the process has in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssFile:", "RssShmem:")))  # or of a tmpfs
