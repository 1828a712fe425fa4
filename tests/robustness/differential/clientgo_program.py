"""client-go's informers, as a program: `tests/peers/clientgo`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.peers.program import provide as provide_peer


async def provide() -> Path:
    """The program, built if need be; as `tests.peers.program.provide`."""
    return await provide_peer("clientgo", _say)


def _say(line: str) -> None:
    sys.stderr.write(f"differential: {line}\n")
    sys.stderr.flush()
