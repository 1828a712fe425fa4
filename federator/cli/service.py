"""How a command that runs until it is stopped runs: its loop, its signals, its logs."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import durationpy
import typer

from federator.errors import InvalidInput
from federator.observability.logs import FORMATS, LEVELS

LogLevel = Annotated[
    str, typer.Option("--log-level", envvar="FEDERATOR_LOG_LEVEL", help=f"One of {', '.join(LEVELS)}.")
]
LogFormat = Annotated[
    str, typer.Option("--log-format", envvar="FEDERATOR_LOG_FORMAT", help=f"One of {', '.join(FORMATS)}.")
]
HttpListen = Annotated[
    str,
    typer.Option(
        "--http-listen",
        envvar="FEDERATOR_HTTP_LISTEN",
        metavar="ADDRESS",
        help="Where /metrics, /livez and /readyz are served, in plain HTTP: host:port; empty for nowhere.",
    ),
]
AdminListen = Annotated[
    str | None,
    typer.Option(
        "--admin-listen",
        envvar="FEDERATOR_ADMIN_LISTEN",
        metavar="ADDRESS",
        help="Where clusters are removed and fields indexed: unix:/path, for this user only; empty for nowhere "
        "[default: admin.sock in the state directory].",
    ),
]


GC_THRESHOLDS = (10_000, 20, 20)
"""When unreachable objects are looked for. Python's own 700 objects are one or two changes, in which nothing is left in
cycles: looking so often takes a tenth of an aggregator's event loop, and more of the thread that commits."""


def run_service(main: Coroutine[Any, Any, None], *, prefers_uvloop: bool = False) -> None:
    """Runs until it ends by itself, or SIGINT or SIGTERM cancels it; then it has stopped in order.

    A second signal ends the process at once: stopping in order may wait for others.

    Args:
        main: what runs.
        prefers_uvloop: run it on uvloop, where that is installed. Not for what dials apiservers: after connections
            that failed uvloop may close a descriptor that another connection has by then (MagicStack/uvloop#653).

    Raises:
        FederatorError: whatever `main` raises.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=_uvloop() if prefers_uvloop else None) as runner:
        runner.run(_until_signal(main))


async def _until_signal(main: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    task = loop.create_task(main, name="main")
    stopped = False

    def stop(number: signal.Signals) -> None:
        nonlocal stopped
        if stopped:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stopped = True
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped:
            raise
    finally:
        # uvloop leaves its handlers behind, which would swallow what is sent to the process from here on.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop where it is installed (the extra `uvloop`)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


_DURATION = re.compile(r"(?:(?P<days>\d+(?:\.\d+)?)d)?(?P<rest>[0-9.a-zµμ]*)")
_LONGEST = 100 * 365 * 24 * 3600.0


def duration(text: str, *, field: str) -> float:
    """Seconds of a duration such as `90s`, `1h30m` or `7d`.

    Raises:
        InvalidInput: it is not a positive duration.
    """
    written = _DURATION.fullmatch(text)
    days, rest = (written["days"], written["rest"]) if written else ("", "?")
    try:
        seconds = float(days or 0) * 24 * 3600 + (durationpy.from_str(rest).total_seconds() if rest else 0.0)
    except (ValueError, durationpy.DurationError) as error:
        raise InvalidInput(field, text, "a duration such as 90s, 1h30m or 7d") from error
    if not 0 < seconds <= _LONGEST:
        raise InvalidInput(field, text, "a duration above zero and of at most 100 years, such as 90s, 1h30m or 7d")
    return seconds


def default_state_directory() -> Path:
    """`$XDG_STATE_HOME/federator`, or `~/.local/state/federator`."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "federator"
