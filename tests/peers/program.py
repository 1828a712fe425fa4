"""Builds the programs beside this file, each once for each version of its sources."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from federator.testing.binaries import cache_root
from federator.testing.go_toolchain import GoToolchain, ToolsModule

_PEERS = Path(__file__).parent


async def provide(name: str, say: Callable[[str], None]) -> Path:
    """A program, built if need be: in seconds to minutes, depending on what Go has in its own cache.

    Args:
        name: of its folder.
        say: is told what is done.

    Raises:
        TestbedError: no (or too old a) Go, or a failed build.
    """
    source = _PEERS / name
    files = sorted(path for path in source.iterdir() if path.suffix in {".go", ".mod", ".sum"})
    content = hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
    program = cache_root().parent / "peers" / f"{name}-{content[:12]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        # Of two that build at once, both replace it by the same.
        partial = program.with_name(f".{program.name}.{os.getpid()}")
        go = GoToolchain(ToolsModule(source), log=partial.with_suffix(".log"), progress=say)
        await go.check()
        say(f"building {name}")
        await go.build(".", linker_flags="-s -w", output=partial, label=name)
        partial.replace(program)
        go.log.unlink()
    return program
