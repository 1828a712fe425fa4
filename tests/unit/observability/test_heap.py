"""Free memory leaves the process."""

from __future__ import annotations

import subprocess
import sys

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
