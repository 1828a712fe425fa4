"""How a command that talks to the aggregator runs."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine


def run_command(command: Coroutine[None, None, None]) -> None:
    """Runs a command to its end, or until nobody reads its output any more.

    A reader such as `head` that has seen enough closes the pipe: then the command is done, and says nothing.

    Raises:
        FederatorError: whatever the command raises.
        KeyboardInterrupt: the user interrupted it; what it had open is closed.
    """
    try:
        asyncio.run(command)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
