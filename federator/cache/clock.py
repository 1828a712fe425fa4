"""The one clock of the informers."""

from __future__ import annotations

import asyncio


def loop_time() -> float:
    """Seconds on the running loop's monotonic clock, the clock that its timers and time-outs follow."""
    return asyncio.get_running_loop().time()
